"""`dragoman serve`: serve a bundle over gRPC until SIGTERM, SIGINT or SIGHUP, then finish what was accepted.

Every flag can be set by the environment variable named beside it; one that is set but empty counts as not set. A
line "ready grpc=... http=..." on stdout says when the server accepts calls and where; logs go to stderr. SIGTERM or
SIGINT once more ends open calls at once.
"""

from __future__ import annotations

import argparse
import asyncio

from dragoman.server import app, config, logs
from dragoman.server.errors import StartupError

HELP = "serve a bundle over gRPC"
ERRORS: tuple[type[Exception], ...] = (StartupError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one flag per setting."""
    config.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve; returns 0 after a drained shutdown."""
    settings = config.from_arguments(args)
    logs.configure("json" if settings.log_format == "json" else "text", settings.log_level)
    asyncio.run(app.serve(settings))
    return 0
