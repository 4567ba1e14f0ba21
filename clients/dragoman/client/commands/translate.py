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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.channel import DEFAULT_TARGET
from dragoman.client.client import TranslationClient
from dragoman.client.commands import arguments
from dragoman.client.commands.lines import STDIN, Line, argument_lines, batches, count_lines, file_lines
from dragoman.client.commands.output import STDOUT, Write, json_line, on_one_line, open_output, plain_line
from dragoman.client.commands.pipeline import run_in_order
from dragoman.client.commands.report import failure
from dragoman.client.errors import CallError, CommandError, DragomanError
from dragoman.client.options import DecodingOptions
from dragoman.client.results import FinishReason, Translation
from dragoman.client.retry import DEFAULT_TIMEOUT_S

HELP = "translate texts through a running server"
ERRORS: tuple[type[Exception], ...] = (DragomanError,)

_DEFAULT_BATCH = 32
_BATCHES_IN_FLIGHT = 4
_PROGRESS_DELAY_S = 1.0

_Batch = tuple[Line, ...]
_Translated = tuple[_Batch, tuple[Translation, ...]]


@dataclass(frozen=True, slots=True)
class _Settings:
    server: str
    model: str
    source_language: str
    target_language: str
    options: DecodingOptions
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
    parser.add_argument(
        "--file",
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="read lines from these files; - is stdin, which is also read when there is neither TEXT nor FILE",
    )
    parser.add_argument(
        "--output",
        default=STDOUT,
        metavar="FILE",
        help="write to this file, which appears only once it is complete (default: stdout)",
    )
    parser.add_argument(
        "--server",
        type=arguments.server,
        default=DEFAULT_TARGET,
        metavar="HOST:PORT",
        help="where the server listens (default: %(default)s)",
    )
    parser.add_argument("--source", default="", metavar="TAG", help="language of the texts, if the model has several")
    parser.add_argument(
        "--target", default="", metavar="TAG", help="language to translate to, if the model has several"
    )
    parser.add_argument("--model", default="", metavar="NAME", help="model to use (default: the server's)")
    parser.add_argument(
        "--batch",
        type=arguments.count,
        default=_DEFAULT_BATCH,
        metavar="N",
        help=f"lines per call; {_BATCHES_IN_FLIGHT} calls run at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=arguments.count_or_zero,
        default=0,
        metavar="N",
        help="most tokens of one translation (default: 0, the server's, which grows with the source)",
    )
    parser.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds for one call, its retries included (default: %(default)g)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--stream", action="store_true", help="write each translation piece by piece, one text after the other"
    )
    shape.add_argument(
        "--json",
        action="store_true",
        help="write one JSON object per line: text, translation, finish_reason, source_tokens, target_tokens",
    )


def run(args: argparse.Namespace) -> int:
    """Translate and return the exit status.

    Raises:
        DragomanError: Some lines were not translated; names them and says why.
    """
    if args.texts and args.files:
        print("dragoman translate: give texts or --file, not both", file=sys.stderr)
        return 2
    settings = _Settings(
        server=args.server,
        model=args.model,
        source_language=args.source,
        target_language=args.target,
        options=DecodingOptions(max_new_tokens=args.max_new_tokens),
        timeout_s=args.timeout,
        max_lines=args.batch,
    )
    lines, total = _input(args.texts, args.files)
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
            form = json_line if args.json else plain_line
            with _progress_bar(total, to_terminal=args.output == STDOUT and sys.stdout.isatty()) as progress:
                counts = asyncio.run(_translate(lines, write, form, progress, settings))
    if counts.cut:
        print(
            f"dragoman translate: {counts.cut} of {counts.lines} translations reached the limit on new tokens "
            "and may be incomplete; --max-new-tokens sets it",
            file=sys.stderr,
        )
    return 0


def _input(texts: Sequence[str], files: Sequence[str]) -> tuple[Iterator[Line | None], int | None]:
    if texts:
        return iter(list(argument_lines(texts))), len(texts)
    if not files and sys.stdin.isatty():
        print("dragoman translate: reading from the terminal, one text per line; Ctrl-D ends", file=sys.stderr)
    paths = files or [STDIN]
    total = count_lines(paths)
    return file_lines(paths), total


def _progress_bar(total: int | None, *, to_terminal: bool) -> tqdm[NoReturn]:
    # Translations that appear on the terminal are progress enough, and a bar would be drawn among them.
    is_hidden = to_terminal or not sys.stderr.isatty()
    bar: tqdm[NoReturn] = tqdm(total=total, unit=" lines", delay=_PROGRESS_DELAY_S, disable=is_hidden, file=sys.stderr)
    return bar


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
                    model=settings.model,
                    source_language=settings.source_language,
                    target_language=settings.target_language,
                    options=settings.options,
                )
            except CallError as error:
                raise failure(error, batch, server=settings.server, timeout_s=settings.timeout_s) from error
            return batch, result.translations

        await run_in_order(batches(lines, max_lines=settings.max_lines), work, emit, max_in_flight=_BATCHES_IN_FLIGHT)
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
