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
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.commands.calls import Calls, most_lines, run_batches
from dragoman.client.commands.common import (
    SKIP,
    add_files,
    add_server,
    input_lines,
    progress_bar,
    say,
    saying_what_is_lost,
)
from dragoman.client.commands.decoding import add_priority
from dragoman.client.commands.lines import Line, Skipped
from dragoman.client.commands.outage import Outage
from dragoman.client.commands.output import Write, is_terminal, open_output
from dragoman.client.commands.report import failure
from dragoman.client.commands.tally import Tally
from dragoman.client.errors import CallError, CommandError, DragomanError
from dragoman.client.options import Priority
from dragoman.client.results import PairScore

HELP = "say how probable given translations are, through a running server"
ERRORS: tuple[type[Exception], ...] = (DragomanError,)


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
    """Score and return the exit status, which is 3 if lines were skipped.

    Raises:
        DragomanError: Some lines were not scored; names them and says why.
    """
    lines, total = input_lines("score", [], args.files, skips=args.on_error == SKIP)
    form = _json_line if args.json else _mean_line if args.mean else _plain_line
    tally = Tally(_say)
    with saying_what_is_lost(args.output):
        with (
            open_output(args.output) as write,
            progress_bar(total, to_terminal=is_terminal(args.output)) as progress,
        ):
            asyncio.run(_score(lines, write, form, progress, tally, args))
        return tally.exit_code()


async def _score(
    lines: Iterator[Line | None],
    write: Write,
    form: Callable[[Line, PairScore | Skipped], str],
    progress: tqdm[NoReturn],
    tally: Tally,
    args: argparse.Namespace,
) -> None:
    def explain(error: CallError, failed: Sequence[Line]) -> CommandError:
        return failure(error, failed, server=args.server, timeout_s=args.timeout, done="scored", goes_on=True)

    async with AsyncTranslationClient(args.server, timeout_s=args.timeout) as client:

        async def send(sent: Sequence[Line]) -> Sequence[PairScore]:
            result = await client.score_many(
                [_pair(line) for line in sent],
                model=args.model,
                source_language=args.source,
                target_language=args.target,
                priority=Priority(args.priority),
            )
            return result.scores

        calls = Calls(
            send,
            ask_limit=lambda: most_lines(client, args.model),
            explain=explain,
            outage=Outage(args.server, args.wait, _say),
            say=_say,
            skips=args.on_error == SKIP,
            problem_of=_problem,
        )

        await run_batches(calls, lines, max_lines=args.batch, write=write, form=form, tally=tally, progress=progress)


def _problem(line: Line) -> str:
    tabs = line.text.count("\t")
    if line.problem or tabs == 1:
        return line.problem
    return f"has {tabs} tabs, a line is a source, one tab and its translation"


def _pair(line: Line) -> tuple[str, str]:
    source, _, target = line.text.partition("\t")
    return source, target


def _say(text: str) -> None:
    say("score", text)


def _plain_line(line: Line, score: PairScore | Skipped) -> str:
    return line.ending if isinstance(score, Skipped) else f"{score.log_prob:.6f}{line.ending}"


def _mean_line(line: Line, score: PairScore | Skipped) -> str:
    return line.ending if isinstance(score, Skipped) else f"{score.mean_log_prob:.6f}{line.ending}"


def _json_line(line: Line, score: PairScore | Skipped) -> str:
    if isinstance(score, Skipped):
        return json.dumps({"text": line.text, "log_prob": None, "error": score.reason}, ensure_ascii=False) + "\n"
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
