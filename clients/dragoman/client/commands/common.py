"""What `dragoman translate` and `dragoman score` have in common: input, output, and the server to call."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm

from dragoman.client.channel import DEFAULT_TARGET
from dragoman.client.commands import arguments
from dragoman.client.commands.lines import STDIN, Line, argument_lines, count_lines, file_lines
from dragoman.client.commands.outage import DEFAULT_WAIT_S
from dragoman.client.commands.output import STDOUT, is_replaced_when_complete
from dragoman.client.errors import CommandError, InputError, OutputError
from dragoman.client.retry import DEFAULT_TIMEOUT_S

BATCHES_IN_FLIGHT = 4
FAIL = "fail"
SKIP = "skip"
_DEFAULT_BATCH = 32
_PROGRESS_DELAY_S = 1.0


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add input and output files."""
    parser.add_argument(
        "--file",
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="read lines from these files; - is stdin, which is also read when nothing else is given",
    )
    parser.add_argument(
        "--output",
        default=STDOUT,
        metavar="FILE",
        help="write to this file, which appears only once it is complete; what is open already, such as /dev/stdout or "
        "a pipe, is written as it is (default: stdout)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the server, what it is asked for, and how."""
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
        help=f"lines per call; {BATCHES_IN_FLIGHT} calls run at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds for one call, its retries included; at most a year (default: %(default)g)",
    )
    parser.add_argument(
        "--wait",
        type=arguments.seconds_or_zero,
        metavar="S",
        help="seconds to keep trying while the server does not answer, also not within --timeout, or is full (default: "
        f"{DEFAULT_WAIT_S:g} once it has answered, so that a restart does not cost what was done; before that, "
        "about one). A server that answers other calls and this one not within --timeout is not waited for",
    )
    parser.add_argument(
        "--on-error",
        choices=(FAIL, SKIP),
        default=FAIL,
        help="what to do with a line that the server refuses or that is no UTF-8: stop and name it, or leave its "
        "line of output empty, say so, and end with exit code 3 (default: %(default)s)",
    )


def say(command: str, text: str) -> None:
    """Tell the user one sentence, above the progress bar."""
    tqdm.write(f"dragoman {command}: {text}", file=sys.stderr)


def wrong_usage(command: str, problem: str) -> int:
    """Say what is wrong with flags that argparse cannot compare, as it does; return the exit code."""
    print(f"dragoman {command}: {problem}\n`dragoman {command} --help` shows the usage", file=sys.stderr)
    return 2


def input_lines(
    command: str, texts: list[str], files: list[str], *, skips: bool
) -> tuple[Iterator[Line | None], int | None]:
    """Return the lines of arguments, files or stdin, and how many there are, if that can be known.

    Args:
        command: Name of the subcommand.
        texts: Arguments that are texts.
        files: Paths; "-" is stdin.
        skips: As in `file_lines`.

    Raises:
        InputError: An input cannot be read; files are read once before anything is sent.
    """
    if texts:
        return iter(list(argument_lines(texts))), len(texts)
    if not files and sys.stdin.isatty():
        print(f"dragoman {command}: reading from the terminal, one text per line; Ctrl-D ends", file=sys.stderr)
    paths = files or [STDIN]
    try:
        total = count_lines(paths, skips=skips)
    except InputError as error:
        cause = error.__cause__
        if len(paths) > 1 and isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            raise InputError(f"{error}. Every argument behind --file is taken for the name of a file") from error
        raise
    return file_lines(paths, skips=skips), total


@contextmanager
def saying_what_is_lost(output: str) -> Iterator[None]:
    """Add to the error that ends the block that there is no output."""
    try:
        yield
    except OutputError:
        raise  # says so itself
    except CommandError as error:
        if not is_replaced_when_complete(output):
            raise
        raise CommandError(f"{error}. {output} was not written") from error


def progress_bar(total: int | None, *, to_terminal: bool) -> tqdm[NoReturn]:
    """Return a bar that counts lines; it is hidden where lines of output would be drawn among it."""
    is_hidden = to_terminal or not sys.stderr.isatty()
    bar: tqdm[NoReturn] = tqdm(total=total, unit=" lines", delay=_PROGRESS_DELAY_S, disable=is_hidden, file=sys.stderr)
    return bar
