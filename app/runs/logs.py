"""Log of a deployed relay or node: one line of key=value pairs (`extra`) per event.

    time=2026-03-01T12:00:00.123Z level=WARNING logger=relay round=3 stage=update peers=2 msg="..."

Flower's own lines are in between.
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
"""Allowed fields, in the order of a line."""


class KeyValue(logging.Formatter):
    """Formatter of key=value lines; a value with a space or a quote becomes a JSON string."""

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
    """Handler that writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def begin(*more: logging.Handler) -> None:
    """Log `coterie.*` to standard error, and to `more` handlers; each kind of handler once."""
    ours = logging.getLogger("coterie")
    ours.setLevel(logging.INFO)
    for handler in (StandardError(), *more):
        if not any(type(each) is type(handler) for each in ours.handlers):
            handler.setFormatter(KeyValue())
            ours.addHandler(handler)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text and not any(c.isspace() or c in "\"'=" or not c.isprintable() for c in text)
    return text if plain else json.dumps(text)
