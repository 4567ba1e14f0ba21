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
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.client import TranslationClient
from dragoman.client.commands.common import BATCHES_IN_FLIGHT, add_files, add_server, input_lines, progress_bar
from dragoman.client.commands.decoding import add_decoding_arguments, add_priority, decoding_options
from dragoman.client.commands.lines import Line, batches
from dragoman.client.commands.output import STDOUT, FieldsLine, Write, json_line, on_one_line, open_output, plain_line
from dragoman.client.commands.pipeline import run_in_order
from dragoman.client.commands.report import failure
from dragoman.client.errors import CallError, CommandError, DragomanError
from dragoman.client.options import DecodingOptions
from dragoman.client.results import FinishReason, Translation

HELP = "translate texts through a running server"
ERRORS: tuple[type[Exception], ...] = (DragomanError,)

_Batch = tuple[Line, ...]
_Translated = tuple[_Batch, tuple[Translation, ...]]


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


@dataclass(slots=True)
class _Counts:
    lines: int = 0
    cut: int = 0  # translations that ended with LENGTH

    def add(self, reason: FinishReason) -> None:
        self.lines += 1
        self.cut += reason is FinishReason.LENGTH


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
    """Translate and return the exit status.

    Raises:
        DragomanError: Some lines were not translated; names them and says why.
    """
    problem = _usage_problem(args)
    if problem:
        print(f"dragoman translate: {problem}", file=sys.stderr)
        return 2
    settings = _Settings(
        server=args.server,
        model=args.model,
        source_language=args.source,
        target_language=args.target,
        options=decoding_options(args),
        target_prefix=args.target_prefix,
        timeout_s=args.timeout,
        max_lines=args.batch,
    )
    lines, total = input_lines("translate", args.texts, args.files)
    try:
        return _run(args, lines, total, settings)
    except CommandError as error:
        if args.output == STDOUT:
            raise
        raise CommandError(f"{error}. {args.output} was not written") from error


def _run(args: argparse.Namespace, lines: Iterator[Line | None], total: int | None, settings: _Settings) -> int:
    with open_output(args.output) as write:
        if args.stream:
            counts = _stream(lines, write, settings)
        else:
            form = _form(args)
            with progress_bar(total, to_terminal=args.output == STDOUT and sys.stdout.isatty()) as progress:
                counts = asyncio.run(_translate(lines, write, form, progress, settings))
    if counts.cut:
        print(
            f"dragoman translate: {counts.cut} of {counts.lines} translations reached the limit on new tokens "
            "and may be incomplete; --max-new-tokens sets it",
            file=sys.stderr,
        )
    return 0


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


def _form(args: argparse.Namespace) -> Callable[[Line, Translation], str]:
    if args.json:
        return json_line
    if args.n_best or args.scores or args.alignment:
        return FieldsLine(n_best=args.n_best, alignment=args.alignment, scores=args.scores or args.n_best)
    return plain_line


async def _translate(
    lines: Iterator[Line | None],
    write: Write,
    form: Callable[[Line, Translation], str],
    progress: tqdm[NoReturn],
    settings: _Settings,
) -> _Counts:
    counts = _Counts()

    def emit(translated: _Translated) -> None:
        batch, translations = translated
        write("".join(map(form, batch, translations)))
        for translation in translations:
            counts.add(translation.finish_reason)
        progress.update(len(batch))

    async with AsyncTranslationClient(settings.server, timeout_s=settings.timeout_s) as client:

        async def work(batch: _Batch) -> _Translated:
            try:
                result = await client.translate(
                    [line.text for line in batch],
                    target_prefixes=[settings.target_prefix] * len(batch) if settings.target_prefix else (),
                    model=settings.model,
                    source_language=settings.source_language,
                    target_language=settings.target_language,
                    options=settings.options,
                )
            except CallError as error:
                raise failure(error, batch, server=settings.server, timeout_s=settings.timeout_s) from error
            return batch, result.translations

        await run_in_order(batches(lines, max_lines=settings.max_lines), work, emit, max_in_flight=BATCHES_IN_FLIGHT)
    return counts


def _stream(lines: Iterator[Line | None], write: Write, settings: _Settings) -> _Counts:
    counts = _Counts()
    with TranslationClient(settings.server, timeout_s=settings.timeout_s) as client:
        for line in lines:
            if line is not None:
                _stream_line(client, line, write, counts, settings)
    return counts


def _stream_line(client: TranslationClient, line: Line, write: Write, counts: _Counts, settings: _Settings) -> None:
    has_begun = False
    try:
        with client.stream(
            line.text,
            target_prefix=settings.target_prefix,
            model=settings.model,
            source_language=settings.source_language,
            target_language=settings.target_language,
            options=settings.options,
        ) as stream:
            for piece in stream:
                write(on_one_line(piece.text))
                has_begun = True
                if piece.end is not None:
                    counts.add(piece.end.finish_reason)
    except CallError as error:
        if has_begun:
            write("\n")  # so that the message does not continue the cut translation
        raise failure(error, [line], server=settings.server, timeout_s=settings.timeout_s) from error
    write(line.ending)
