"""Score translations of a test set with BLEU and chrF, in whole and in parts, and look for faults.

The translations come from a checkpoint, an exported bundle, a running server, or a file. What is not
translated counts as an empty translation, never as absent.

    dragoman evaluate --data test.tsv --checkpoint runs/en-de
    dragoman evaluate --data test.en test.de --server 127.0.0.1:50051 --out test.de
    dragoman evaluate --data test.tsv --translations test.de --examples

Faults: "empty" is white space only. "untranslated" is the source itself, case and white space aside,
where it has 3 words or more and the reference is another text. "looping" has 1 to 4 words or marks
at least 4 times in a row, which the reference has not, or up to 20 characters inside a word ("undundundund"),
or was cut at the limit on new tokens.
"refused" is a source beyond the model's limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.client.channel import DEFAULT_TARGET
from dragoman.client.commands import arguments
from dragoman.client.commands.output import on_one_line, open_output
from dragoman.client.errors import DragomanError
from dragoman.client.retry import DEFAULT_TIMEOUT_S
from dragoman.evaluation.errors import EvaluationError
from dragoman.evaluation.lines import lines_system
from dragoman.evaluation.report import refusals, text_report
from dragoman.evaluation.system import System
from dragoman.export.errors import ExportError
from dragoman.model.commands.arguments import MAX_THREADS, whole_number
from dragoman.model.errors import ModelError
from dragoman.model.evaluate import evaluate
from dragoman.model.readers import PairFiles, supported_formats
from dragoman.model.samples import Output, Sample
from dragoman.model.scores import DEFAULT_TOKENIZER, TOKENIZERS
from dragoman.model.translate import DEFAULT_ROWS

HELP = "score a checkpoint, a bundle, a server or a file of translations"
ERRORS: tuple[type[Exception], ...] = (ModelError, ExportError, DragomanError, EvaluationError)

_EXAMPLES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help=f"test set with sources and references: {supported_formats()}",
    )
    system = parser.add_mutually_exclusive_group(required=True)
    system.add_argument("--checkpoint", type=Path, metavar="DIR", help="translate with PyTorch")
    system.add_argument(
        "--bundle", type=Path, metavar="DIR", help="translate with ONNX Runtime; needs the extra export"
    )
    system.add_argument(
        "--server",
        type=arguments.server,
        metavar="HOST:PORT",
        help=f"translate through a running server, for example {DEFAULT_TARGET}",
    )
    system.add_argument("--translations", type=Path, metavar="FILE", help="score this file, line i for pair i")
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-language",
            default="",
            metavar="TAG",
            help=f"{side} language of the data, where the model or the file has several; default: the model's",
        )
    parser.add_argument(
        "--limit",
        type=arguments.count_or_zero,
        default=0,
        metavar="N",
        help="use the first N pairs only (default: 0, all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the translations, one per line; the file appears once complete"
    )
    parser.add_argument(
        "--examples",
        type=arguments.count_or_zero,
        nargs="?",
        const=_EXAMPLES,
        default=0,
        metavar="N",
        help=f"show the N worst looping and untranslated ones (without N: {_EXAMPLES}; default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        default=DEFAULT_TOKENIZER,
        help="how BLEU cuts text; zh for Chinese (default: %(default)s)",
    )
    parser.add_argument(
        "--batch",
        type=arguments.count,
        default=DEFAULT_ROWS,
        metavar="N",
        help="texts that are translated together (default: %(default)s)",
    )
    parser.add_argument("--device", help="of a checkpoint: auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--threads",
        type=whole_number(0, MAX_THREADS),
        metavar="N",
        help="CPU threads of a checkpoint or a bundle; 0 takes all (default: 0)",
    )
    parser.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds for one call of a server, its retries included (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Translate, score and report."""
    data = PairFiles.of("--data", args.data)
    system = _system(args)
    pairs = list(itertools.islice(data.read(system.languages), args.limit or None))
    outputs = _translate(system, [pair.source for pair in pairs], args.out)
    evaluation = evaluate(
        [
            Sample(number, pair.source, pair.target, pair.origin, output)
            for number, (pair, output) in enumerate(zip(pairs, outputs, strict=True), 1)
        ],
        tokenizer=args.tokenize,
    )
    if refused := refusals(evaluation):
        print(f"dragoman evaluate: {refused}", file=sys.stderr)
    if args.json:
        print(json.dumps({"system": system.name, "data": str(data), **evaluation.to_dict(examples=args.examples)}))
    else:
        print(text_report(evaluation, system=system.name, data=str(data), examples=args.examples))
    return 0


def _system(args: argparse.Namespace) -> System:
    """Open what the arguments name; the other kinds' imports, which may not be installed, are left alone."""
    chosen = {"source_language": args.source_language, "target_language": args.target_language}
    if args.device is not None and not args.checkpoint:
        raise EvaluationError("--device is for --checkpoint: a bundle runs on the CPU, a server where it was started")
    if args.threads is not None and not (args.checkpoint or args.bundle):
        raise EvaluationError("--threads is for --checkpoint and --bundle: nothing else computes here")
    if args.translations:
        if any(chosen.values()) and not all(chosen.values()):
            raise EvaluationError("--source-language and --target-language belong together; give both or none")
        languages = (args.source_language, args.target_language) if args.source_language else None
        return lines_system(args.translations, limit=args.limit, languages=languages)
    if args.server:
        from dragoman.evaluation.server import server_system

        return server_system(args.server, data=args.data[0], num_texts=args.batch, timeout_s=args.timeout, **chosen)
    if args.checkpoint:
        from dragoman.evaluation.checkpoint import checkpoint_system

        return checkpoint_system(
            args.checkpoint, rows=args.batch, device=args.device or "auto", threads=args.threads or 0, **chosen
        )
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when ONNX Runtime is imported
    try:
        from dragoman.evaluation.bundle import bundle_system
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise EvaluationError(
            f"--bundle needs {error.name}, which is not installed. "
            "Install the extra 'export', in a checkout of Dragoman: pip install '.[export]'"
        ) from error
    return bundle_system(args.bundle, rows=args.batch, threads=args.threads or 0, **chosen)


def _translate(system: System, sources: Sequence[str], out: Path | None) -> list[Output]:
    if out is None:
        return system.translate(sources)
    # Opened first: that it cannot be written must not be found out after an hour of translating.
    with open_output(str(out)) as write:
        outputs = system.translate(sources)
        write("".join(f"{on_one_line(output.text)}\n" for output in outputs))
    return outputs
