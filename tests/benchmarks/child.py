"""A side of a comparison in a process of its own, with environment variables that are read when a process starts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks.baselines import Job, Outcome, Side

_WAIT_S = 600.0
Opener = Callable[..., Side]


class ChildSide:
    """Passes jobs and outcomes through a pipe: some 100 microseconds a call, which is a thousandth of a job."""

    def __init__(self, title: str, environment: Mapping[str, str], opener: Opener, *arguments: Any) -> None:
        """Start the process and open the side there.

        Args:
            title: Of the side.
            environment: Variables that the process gets besides those of this one.
            opener: Opens the side in the process; a function of a module.
            arguments: Its arguments, which travel to the process.
        """
        self.title = title
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, opener, arguments), daemon=True)
        with _variables(environment):
            self._process.start()
        theirs.close()
        self.precision: str = self._receive()

    def prepare(self, job: Job) -> None:
        """Bring the job into the form that the engine takes."""
        self._pipe.send(job)
        self._receive()

    def run(self) -> Outcome:
        """Do the job that was prepared."""
        self._pipe.send(True)
        outcome: Outcome = self._receive()
        return outcome

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join(_WAIT_S)
        self._pipe.close()

    def _receive(self) -> Any:
        """Return what the process says next.

        Raises:
            TimeoutError: It says nothing.
            EOFError: It has died; its message is on stderr.
        """
        if not self._pipe.poll(_WAIT_S):
            raise TimeoutError(f"{self.title} has not answered within {_WAIT_S:.0f} s")
        return self._pipe.recv()


def _serve(pipe: Connection, opener: Opener, arguments: tuple[Any, ...]) -> None:
    """Open a side and do what is asked of it until None comes."""
    side = opener(*arguments)
    pipe.send(side.precision)
    while (asked := pipe.recv()) is not None:
        pipe.send(side.prepare(asked) if isinstance(asked, Job) else side.run())  # type: ignore[func-returns-value]
    side.close()


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for a while: a spawned one inherits them."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
