"""Say how probable given translations are, through a running Dragoman server.

Each line of the input is a source, a tab and its translation; line N of the output is the natural logarithm of the
probability of line N: the sum over the translation's tokens, end of sentence included. -inf is what the model cannot
write.

    dragoman score --file corpus.tsv --output corpus.scores
    paste corpus.en corpus.de | dragoman score --mean
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.commands.common import BATCHES_IN_FLIGHT, add_files, add_server, input_lines, progress_bar
from dragoman.client.commands.decoding import add_priority
from dragoman.client.commands.lines import Line, batches
from dragoman.client.commands.output import STDOUT, Write, open_output
from dragoman.client.commands.pipeline import run_in_order
from dragoman.client.commands.report import failure, place
from dragoman.client.errors import CallError, CommandError, DragomanError, InputError
from dragoman.client.options import Priority
from dragoman.client.results import PairScore

HELP = "say how probable given translations are, through a running server"
ERRORS: tuple[type[Exception], ...] = (DragomanError,)

_Scored = tuple[tuple[Line, ...], tuple[PairScore, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_files(parser)
    add_server(parser)
    add_priority(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--mean", action="store_true", help="divide by the number of tokens, so that long and short pairs compare"
    )
    shape.add_argument(
        "--json",
        action="store_true",
        help="write one JSON object per line: source, target, log_prob (null for -inf), source_tokens, target_tokens, "
        "tokens",
    )


def run(args: argparse.Namespace) -> int:
    """Score and return the exit status.

    Raises:
        DragomanError: Some lines were not scored; names them and says why.
    """
    lines, total = input_lines("score", [], args.files)
    form = _json_line if args.json else _mean_line if args.mean else _plain_line
    try:
        with (
            open_output(args.output) as write,
            progress_bar(total, to_terminal=args.output == STDOUT and sys.stdout.isatty()) as progress,
        ):
            asyncio.run(_score(lines, write, form, progress, args))
    except CommandError as error:
        if args.output == STDOUT:
            raise
        raise CommandError(f"{error}. {args.output} was not written") from error
    return 0


async def _score(
    lines: Iterator[Line | None],
    write: Write,
    form: Callable[[Line, PairScore], str],
    progress: tqdm[NoReturn],
    args: argparse.Namespace,
) -> None:
    def emit(scored: _Scored) -> None:
        batch, scores = scored
        write("".join(map(form, batch, scores)))
        progress.update(len(batch))

    async with AsyncTranslationClient(args.server, timeout_s=args.timeout) as client:

        async def work(batch: tuple[Line, ...]) -> _Scored:
            pairs = [_pair(line) for line in batch]
            try:
                result = await client.score_many(
                    pairs,
                    model=args.model,
                    source_language=args.source,
                    target_language=args.target,
                    priority=Priority(args.priority),
                )
            except CallError as error:
                raise failure(error, batch, server=args.server, timeout_s=args.timeout, done="scored") from error
            return batch, result.scores

        await run_in_order(batches(lines, max_lines=args.batch), work, emit, max_in_flight=BATCHES_IN_FLIGHT)


def _pair(line: Line) -> tuple[str, str]:
    parts = line.text.split("\t")
    if len(parts) != 2:
        raise InputError(
            f"{place([line])} has {len(parts) - 1} tabs, a line is a source, one tab and its translation. "
            "Nothing from its batch on was scored"
        )
    return parts[0], parts[1]


def _plain_line(line: Line, score: PairScore) -> str:
    return f"{score.log_prob:.6f}{line.ending}"


def _mean_line(line: Line, score: PairScore) -> str:
    return f"{score.mean_log_prob:.6f}{line.ending}"


def _json_line(line: Line, score: PairScore) -> str:
    source, target = _pair(line)
    values = {
        "source": source,
        "target": target,
        "log_prob": score.log_prob if math.isfinite(score.log_prob) else None,
        "source_tokens": score.source_tokens,
        "target_tokens": score.target_tokens,
        "tokens": [{"text": token.text, "log_prob": token.log_prob} for token in score.tokens],
    }
    return json.dumps(values, ensure_ascii=False) + "\n"
