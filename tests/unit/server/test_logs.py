import json
import logging
import sys

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from dragoman.server.logs import GoneCallers, JsonFormatter


def record(message: str, *arguments: object, failed: bool = False) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError("broken")
        except ValueError:
            error = sys.exc_info()
    made = logging.LogRecord("dragoman.server.app", logging.WARNING, "app.py", 1, message, arguments, error)
    made.created, made.msecs = 0.25, 250.0
    return made


def test_an_entry_is_one_line_of_json() -> None:
    """Time in UTC, level, logger and message, ready for a collector."""
    line = JsonFormatter().format(record("loaded\nmodel=%s", "ä"))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "dragoman.server.app",
        "message": "loaded\nmodel=ä",
    }


def test_a_traceback_is_a_field_of_its_entry() -> None:
    """It stays with the message it explains."""
    line = JsonFormatter().format(record("failed", failed=True))

    assert "\n" not in line
    assert "ValueError: broken" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("logger", "error", "stays"),
    [
        ("grpc._cython.cygrpc", cygrpc.ExecuteBatchError, False),
        ("grpc._cython.cygrpc", ValueError, True),
        ("dragoman.server.engine", cygrpc.ExecuteBatchError, True),
    ],
)
def test_callers_who_go_away_are_no_errors(logger: str, error: type[Exception], stays: bool) -> None:
    """GRPC logs a traceback where a stream is cancelled just before a piece of it is sent."""
    about = (error, error("execute_batch"), None)
    entry = logging.LogRecord(logger, logging.ERROR, "a.py", 1, "raised in core", (), about)

    assert GoneCallers().filter(entry) is stays
    assert GoneCallers().filter(logging.LogRecord(logger, logging.ERROR, "a.py", 1, "fork", (), None))
