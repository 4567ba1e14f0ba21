"""Log output: text for people, JSON for machines. Event first, then values; never a text to translate."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

_GRPC = "grpc._cython.cygrpc"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time (UTC), level, logger, message and, if any, the traceback."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class GoneCallers(logging.Filter):
    """Leaves out gRPC's entries, with a traceback, about callers who go away while an answer is on its way to them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether an entry stays: it is of something else."""
        kind = record.exc_info[0] if record.exc_info else None
        return not (record.name == _GRPC and kind is not None and kind.__name__ == "ExecuteBatchError")


def configure(style: Literal["text", "json"], level: str) -> None:
    """Send all logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else text)
    if level != "debug":
        handler.addFilter(GoneCallers())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
