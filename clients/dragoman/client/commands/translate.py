"""Translate texts through a running Dragoman server.

Texts come from the arguments, from files, or from stdin. Each line is one text, and line N of the
output is the translation of line N of the input; blank lines stay blank. Lines are sent in batches,
several of them at a time, and results are written as soon as they and all before them are there.

    dragoman translate "Click the button to save the file."
    dragoman translate --file corpus.en --output corpus.de
    producer | dragoman translate --json | consumer
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.client import TranslationClient
from dragoman.client.commands.calls import Calls, most_lines, run_batches
from dragoman.client.commands.common import (
    SKIP,
    add_files,
    add_server,
    input_lines,
    progress_bar,
    say,
    saying_what_is_lost,
    wrong_usage,
)
from dragoman.client.commands.decoding import add_decoding_arguments, add_priority, decoding_options
from dragoman.client.commands.lines import Line, Skipped
from dragoman.client.commands.outage import Outage
from dragoman.client.commands.output import FieldsLine, Write, is_terminal, json_line, open_output, plain_line
from dragoman.client.commands.report import failure
from dragoman.client.commands.streaming import stream_lines
from dragoman.client.commands.tally import Tally
from dragoman.client.errors import CallError, CommandError, DragomanError
from dragoman.client.options import DecodingOptions
from dragoman.client.results import Translation

HELP = "translate texts through a running server"
ERRORS: tuple[type[Exception], ...] = (DragomanError,)


_PREFIX_ADVICE = ", as far as --target-prefix leaves room: a shorter one leaves more"


@dataclass(frozen=True, slots=True)
class _Settings:
    server: str
    model: str
    source_language: str
    target_language: str
    options: DecodingOptions
    target_prefix: str
    timeout_s: float
    max_lines: int
    skips: bool

    def explain(self, error: CallError, lines: Sequence[Line]) -> CommandError:
        """Return what the user is told when a call fails."""
        return failure(error, lines, server=self.server, timeout_s=self.timeout_s, goes_on=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text to translate")
    add_files(parser)
    add_server(parser)
    add_priority(parser)
    add_decoding_arguments(parser)
    _add_output(parser.add_argument_group("output"))


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--scores", action="store_true", help="write each translation's score behind it: text ||| score")
    group.add_argument(
        "--alignment",
        action="store_true",
        help="write which source token each token of the translation comes from: text ||| 0-0 2-1",
    )
    group.add_argument("--token-scores", action="store_true", help="with --json: the log-probability of each token")
    group.add_argument(
        "--n-best",
        action="store_true",
        help="write every hypothesis on a line of its own, as Moses does: number of the input line ||| text ||| score",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument(
        "--stream", action="store_true", help="write each translation piece by piece, one text after the other"
    )
    shape.add_argument(
        "--json",
        action="store_true",
        help="write one JSON object per line: text, translation, finish_reason, source_tokens, target_tokens, and "
        "hypotheses if there is more to say",
    )


def run(args: argparse.Namespace) -> int:
    """Translate and return the exit status, which is 3 if lines were skipped.

    Raises:
        DragomanError: Some lines were not translated; names them and says why.
    """
    problem = _usage_problem(args)
    if problem:
        return wrong_usage("translate", problem)
    settings = _Settings(
        server=args.server,
        model=args.model,
        source_language=args.source,
        target_language=args.target,
        options=decoding_options(args),
        target_prefix=args.target_prefix,
        timeout_s=args.timeout,
        max_lines=args.batch,
        skips=args.on_error == SKIP,
    )
    lines, total = input_lines("translate", args.texts, args.files, skips=settings.skips)
    with saying_what_is_lost(args.output):
        return _run(args, lines, total, settings)


def _run(args: argparse.Namespace, lines: Iterator[Line | None], total: int | None, settings: _Settings) -> int:
    tally = Tally(_say, limit_advice=_PREFIX_ADVICE if settings.target_prefix else "")
    outage = Outage(settings.server, args.wait, _say)
    with open_output(args.output) as write:
        if args.stream:
            _stream(lines, write, tally, outage, settings)
        else:
            form = _form(args)
            with progress_bar(total, to_terminal=is_terminal(args.output)) as progress:
                asyncio.run(_translate(lines, write, form, progress, tally, outage, settings))
    return tally.exit_code()


def _usage_problem(args: argparse.Namespace) -> str:
    """Return what is wrong with flags that argparse cannot compare, or nothing."""
    if args.texts and args.files:
        return "give texts or --file, not both"
    several = "--num-hypotheses" if args.num_hypotheses > 1 else "--alternatives" if args.alternatives > 1 else ""
    if several and not (args.n_best or args.json):
        return f"{several} needs --n-best or --json, which write more than one translation of a line"
    if args.token_scores and not args.json:
        return "--token-scores needs --json"
    extra = "--n-best" if args.n_best else "--scores" if args.scores else "--alignment" if args.alignment else ""
    if extra and args.stream:
        return f"--stream writes nothing but text, so it does not go together with {extra}"
    if args.n_best and args.json:
        return "give --n-best or --json, not both; --json has all hypotheses"
    return ""


def _form(args: argparse.Namespace) -> Callable[[Line, Translation | Skipped], str]:
    if args.json:
        return json_line
    if args.n_best or args.scores or args.alignment:
        return FieldsLine(n_best=args.n_best, alignment=args.alignment, scores=args.scores or args.n_best)
    return plain_line


async def _translate(
    lines: Iterator[Line | None],
    write: Write,
    form: Callable[[Line, Translation | Skipped], str],
    progress: tqdm[NoReturn],
    tally: Tally,
    outage: Outage,
    settings: _Settings,
) -> None:
    async with AsyncTranslationClient(settings.server, timeout_s=settings.timeout_s) as client:

        async def send(sent: Sequence[Line]) -> Sequence[Translation]:
            result = await client.translate(
                [line.text for line in sent],
                target_prefixes=[settings.target_prefix] * len(sent) if settings.target_prefix else (),
                model=settings.model,
                source_language=settings.source_language,
                target_language=settings.target_language,
                options=settings.options,
            )
            return result.translations

        calls = Calls(
            send,
            ask_limit=lambda: most_lines(client, settings.model),
            explain=settings.explain,
            outage=outage,
            say=_say,
            skips=settings.skips,
        )
        await run_batches(
            calls,
            lines,
            max_lines=settings.max_lines,
            write=write,
            form=form,
            tally=tally,
            progress=progress,
            reason_of=lambda translation: translation.finish_reason,
        )


def _stream(lines: Iterator[Line | None], write: Write, tally: Tally, outage: Outage, settings: _Settings) -> None:
    with TranslationClient(settings.server, timeout_s=settings.timeout_s) as client:
        start = partial(
            client.stream,
            target_prefix=settings.target_prefix,
            model=settings.model,
            source_language=settings.source_language,
            target_language=settings.target_language,
            options=settings.options,
        )
        stream_lines(
            lines,
            start,
            write,
            tally,
            explain=lambda error, line: settings.explain(error, [line]),
            outage=outage,
            skips=settings.skips,
        )


def _say(text: str) -> None:
    say("translate", text)
