"""Entry point of `dragoman`. Subcommands are modules, imported only when they are called.

So `dragoman translate` starts without loading torch, and a subcommand whose extra is not installed
can say which one to install. A subcommand's module has `HELP`, `ERRORS` (exceptions whose message is
meant for the user), `add_arguments(parser)` and `run(arguments) -> exit code`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType, ModuleType
from typing import NoReturn

from dragoman.cli.parser import Parser


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        module: Imported when the subcommand is called.
        extra: The optional dependencies it needs; empty for the base install.
        summary: Its line in `dragoman --help`.
    """

    module: str
    extra: str
    summary: str


# Windows has no SIGHUP.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

COMMANDS = {
    "corpus": Command("dragoman.model.commands.corpus", "", "build or generate a parallel corpus"),
    "train": Command("dragoman.model.commands.train", "train", "train a model on a corpus"),
    "average": Command("dragoman.model.commands.average", "train", "average checkpoints of a training run"),
    "evaluate": Command("dragoman.evaluation.command", "train", "score a checkpoint, a bundle, a server or a file"),
    "export": Command("dragoman.export.commands.export", "export", "write a bundle from a checkpoint"),
    "import": Command(
        "dragoman.export.commands.import_", "export", "write a bundle from a checkpoint of another library"
    ),
    "verify": Command("dragoman.export.commands.verify", "export", "compare a bundle with its checkpoint"),
    "inspect": Command("dragoman.export.commands.inspect", "export", "show what is in a bundle"),
    "serve": Command("dragoman.server.commands.serve", "server", "serve a bundle over gRPC"),
    "translate": Command("dragoman.client.commands.translate", "", "translate texts through a running server"),
    "score": Command("dragoman.client.commands.score", "", "say how probable given translations are"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        arguments: Without the program name; None means the process's own.

    Returns:
        0 success, 1 failure with a message on stderr, 2 wrong usage, 3 some lines skipped as was asked for, 129 the
        terminal was closed, 130 interrupted, 143 terminated.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if not given or given[0] not in COMMANDS:
        parser.parse_args(given)  # --help, --version, or an error that lists the subcommands
        parser.print_help()
        return 2
    name = given[0]
    try:  # importing takes seconds, in which people change their minds
        module = _load(name)
    except KeyboardInterrupt:
        return _interrupted(name)
    if module is None:
        return 1
    own = Parser(prog=f"dragoman {name}", description=module.__doc__, formatter_class=_Formatter)
    module.add_arguments(own)
    return _run(name, module, own.parse_args(given[1:]))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the paragraphs of a module's docstring."""


def _parser() -> Parser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = Parser(
        prog="dragoman",
        description="Train, export and serve encoder-decoder Transformers.",
        epilog=f"subcommands:\n{listing}\n\n`dragoman SUBCOMMAND --help` explains one.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"dragoman {version('dragoman')}")
    parser.add_argument("subcommand", choices=COMMANDS, metavar="SUBCOMMAND", nargs="?")
    return parser


def _load(name: str) -> ModuleType | None:
    command = COMMANDS[name]
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "dragoman" or not command.extra:
            raise
        print(
            f"dragoman {name}: needs {missing}, which is not installed. "
            f"Install the extra {command.extra!r}, in a checkout of Dragoman: pip install '.[{command.extra}]'",
            file=sys.stderr,
        )
        return None


def _run(name: str, module: ModuleType, arguments: argparse.Namespace) -> int:
    # OSError: a full disk or a read-only folder is the user's to know.
    errors: tuple[type[Exception], ...] = (OSError, *module.ERRORS)
    try:
        with _unwinding():
            code: int = module.run(arguments)
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would complain once more while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except errors as error:
        print(f"dragoman {name}: {_sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted(name)
    return code


def _sentence(error: Exception) -> str:
    """Return what went wrong, without Python's number in front of what the system says."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    files = " to ".join(str(file) for file in (error.filename, error.filename2) if file is not None)
    return f"{files}: {error.strerror}" if files else error.strerror


def _interrupted(name: str) -> int:
    print(f"dragoman {name}: interrupted", file=sys.stderr)
    return 128 + signal.SIGINT


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let signals that end the process unwind, so that a command deletes its temporary files.

    A command may set handlers of its own. One that was started with nohup goes on without its terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    ending = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, _terminate) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  # the handler's signature
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
