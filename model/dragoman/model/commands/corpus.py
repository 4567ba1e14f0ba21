"""The `dragoman corpus` command: make the text a model is trained on.

`corpus build` fetches and aligns real text, `corpus generate` writes sentences
of an own grammar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from tqdm import tqdm

from dragoman.model.corpus.build import TRAIN_FILE, BuildResult, build_corpus
from dragoman.model.corpus.errors import CorpusError
from dragoman.model.corpus.languages import PAIRS
from dragoman.model.corpus.sources import SOURCES
from dragoman.model.generated import KINDS, write_corpus

HELP = "build a parallel corpus"
ERRORS: tuple[type[Exception], ...] = (CorpusError,)

_Item = TypeVar("_Item")


class _Subcommand(NamedTuple):
    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the nested subcommands."""
    nested = parser.add_subparsers(dest="corpus_command", required=True, metavar="SUBCOMMAND")
    for subcommand in _SUBCOMMANDS:
        child = nested.add_parser(subcommand.name, help=subcommand.help, description=subcommand.help)
        subcommand.add_arguments(child)


def run(args: argparse.Namespace) -> int:
    """Run the chosen nested subcommand and return its exit status.

    Raises:
        CorpusError: The request is wrong or the build failed.
    """
    if (args.out / "manifest.json").exists() and not (args.out / "train.tsv").exists():
        raise CorpusError(
            f"{args.out} has a manifest.json but no train.tsv, so it holds something else; choose another --out"
        )
    chosen = {subcommand.name: subcommand for subcommand in _SUBCOMMANDS}[args.corpus_command]
    return chosen.run(args)


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    # No `choices`: the builder's own message also reaches users of the package.
    parser.add_argument(
        "--pair", default="en-de", help=f"language pair, one of {', '.join(PAIRS)} (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the corpus")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="folder for downloads, kept for later runs (default: work inside --out)",
    )
    parser.add_argument(
        "--sources",
        type=lambda value: [name.strip() for name in value.split(",") if name.strip()],
        metavar="NAMES",
        help=f"comma-separated sources, from {', '.join(source.name for source in SOURCES)} "
        "(default: all the pair has)",
    )


def _run_build(args: argparse.Namespace) -> int:
    result = build_corpus(args.pair, args.out, work=args.work, source_names=args.sources, progress=_progress)
    print("\n".join(_report(args.out, result)))
    return 0


def _report(out: Path, result: BuildResult) -> list[str]:
    manifest = result.manifest
    heading = "built:" if result.is_new else "is already complete, nothing to do:"
    lines = [f"{manifest.pair} corpus {heading} {out}"]
    for name, entry in manifest.files.items():
        other = "a held-out file" if name == TRAIN_FILE else "training"
        leaked = f", {entry.leaked} removed because they occur in {other}" if entry.leaked else ""
        lines.append(
            f"  {name}: {entry.pairs} pairs, {entry.pairs_5_words} of 5 words or more, "
            f"{entry.source_words} English words{leaked}"
        )
    return lines


def _progress(items: Iterable[_Item], label: str, total: int | None = None) -> Iterable[_Item]:
    bar: tqdm[_Item] = tqdm(items, desc=label, total=total, file=sys.stderr, mininterval=0.5)
    return bar


def _add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the corpus")
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=int, required=True, metavar="N", help=f"examples in {name}.tsv")
    parser.add_argument("--seed", type=int, required=True, metavar="N", help="the same seed gives the same files")
    parser.add_argument(
        "--kinds",
        type=lambda value: [name.strip() for name in value.split(",") if name.strip()],
        default=list(KINDS),
        metavar="NAMES",
        help=f"comma-separated kinds of sentence, from {', '.join(KINDS)} (default: all)",
    )
    parser.add_argument(
        "--max-number", type=int, default=999_999, metavar="N", help="largest number (default: %(default)s)"
    )


def _run_generate(args: argparse.Namespace) -> int:
    counts = {"train": args.train, "valid": args.valid, "test": args.test}
    try:
        write_corpus(args.out, **counts, seed=args.seed, kinds=args.kinds, max_number=args.max_number)
    except ValueError as error:
        raise CorpusError(str(error)) from error
    print(f"generated corpus built {args.out}")
    for name, count in counts.items():
        print(f"  {name}: {count} pairs")
    return 0


_SUBCOMMANDS = (
    _Subcommand("build", "fetch real text in two languages and align it", _add_build_arguments, _run_build),
    _Subcommand("generate", "generate numbers, dates and amounts, en-de", _add_generate_arguments, _run_generate),
)
