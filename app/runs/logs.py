"""The log of a deployed relay or node: one line of key=value for each thing that happened.

    time=2026-03-01T12:00:00.123Z level=WARNING logger=relay round=3 stage=update peers=2 msg="..."

Flower's own lines are around them. A log call gives the fields as `extra`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FIELDS = (
    *("run", "round", "stage", "peers", "node", "present", "messages", "bytes", "refused"),
    *("letters", "seconds"),
)
"""The fields that may be given, in the order they are written."""


class KeyValue(logging.Formatter):
    """One line; a value with a space or a quote is written as a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        pairs = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name.rpartition(".")[2],
            **{key: record.__dict__[key] for key in FIELDS if key in record.__dict__},
            "msg": record.getMessage(),
        }
        if record.exc_info and record.levelno < logging.ERROR:
            pairs["error"] = repr(record.exc_info[1])
        line = " ".join(f"{key}={_value(value)}" for key, value in pairs.items())
        if record.exc_info and record.levelno >= logging.ERROR:
            line += "\n" + self.formatException(record.exc_info)
        return line


class StandardError(logging.Handler):
    """Writes lines to whatever standard error is now."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def begin() -> None:
    """Write what `coterie.*` logs to standard error, once however often this is called."""
    ours = logging.getLogger("coterie")
    ours.setLevel(logging.INFO)
    if not any(isinstance(handler, StandardError) for handler in ours.handlers):
        handler = StandardError()
        handler.setFormatter(KeyValue())
        ours.addHandler(handler)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text and not any(c.isspace() or c in "\"'=" or not c.isprintable() for c in text)
    return text if plain else json.dumps(text)
