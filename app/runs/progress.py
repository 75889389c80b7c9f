"""File progress.json of a run, which the relay rewrites every round; `RunState` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.errors import DivergedError

ERROR_LOG = "error.log"
"""File of a run directory with the traceback of the error that ended the run."""
OVER = ("finished", "diverged")
"""Statuses of a run that reached its last round; with "diverged", no peer has a finite result."""

STATES = ("running", "finished", "diverged", "stopped", "failed")
"""Possible values of `status`."""
_COUNTS = ("round", "rounds", "messages", "relayed_bytes", "sealing_bytes", "refused", "diverged")
_NUMBERS = (
    "mean_test_accuracy", "std_test_accuracy", "mean_test_loss", "bytes", "seconds", "joules",
)  # fmt: skip
_LINES = ("breaks", "faults", "refusals")
_LARGEST, _LARGEST_NUMBER = 1 << 53, 1e300
Show = Callable[[Mapping[str, Any]], None]
"""Function that shows the content of progress.json."""


def read(run_dir: Path) -> dict[str, Any]:
    """Read progress.json; empty if it does not exist, a ResultsError if it is damaged."""
    path = run_dir / "progress.json"
    progress: dict[str, Any] | None = files.json_of(run_dir, path.name, dict)
    if progress is None:
        return {}
    if progress.get("status") not in STATES:
        raise ResultsError(f"{path}: no status and round")
    for key, value in progress.items():
        try:
            progress[key] = checked(key, value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise ResultsError(f"{path}: {key} has an invalid value") from None
    return {"round": 0, "rounds": 0, "messages": 0, "refused": 0, **progress}


def write(run_dir: Path, progress: Mapping[str, Any]) -> None:
    """Write progress.json; an end by an error is also written if the disk is full."""
    path = run_dir / "progress.json"
    try:
        atomic.write(path, json.dumps(progress) + "\n")
    except OSError:
        if progress["status"] not in ("stopped", "failed"):
            raise
        brief = {key: progress[key] for key in ("round", "rounds", "status", "error")}
        with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # in the space it has
            file.write(json.dumps(brief) + "\n")
            file.truncate()


def fail(run_dir: Path, error: str) -> None:
    """Record the error, in one line, that ended a run whatever its status was."""
    if now := read(run_dir):
        write(run_dir, {**now, "status": "failed", "error": error})


def checked(key: str, value: Any) -> Any:
    """Return a value of progress.json or of the relay's checkpoint; None for a non-finite number.

    A value of the wrong type raises a ValueError, TypeError or AttributeError.
    """
    wrong = False
    if key in ("error", "machine"):
        wrong = not isinstance(value, str | None)
    elif key in _COUNTS:
        wrong = type(value) is not int or not 0 <= value <= _LARGEST
    elif key in _NUMBERS:
        wrong = isinstance(value, bool) or not isinstance(value, int | float | None)
        value = value if value is not None and abs(value) <= _LARGEST_NUMBER else None
    elif key in _LINES:
        wrong = not all(isinstance(line, str) for line in value) or not isinstance(value, list)
    elif key == "waiting":
        value = {"for": list(value["for"]), "until": float(value["until"])}
        wrong = not all(isinstance(name, str) for name in value["for"])
        wrong |= not abs(value["until"]) <= _LARGEST
    elif key == "took_part":
        wrong = not all(type(n) is int and 0 <= n <= _LARGEST for n in value)
    elif key in ("names", "nodes"):
        value = {str(int(peer)): name for peer, name in value.items()}
        wrong = not all(isinstance(name, str) for name in value.values())
    elif key == "last_seen":
        value = {str(int(peer)): (int(t), float(at)) for peer, (t, at) in value.items()}
        wrong = not all(abs(t) + abs(at) <= _LARGEST for t, at in value.values())
    if wrong:
        raise ValueError(key)
    return value


def require_convergence(run_dir: Path) -> None:
    """Raise a DivergedError if a run reached its last round, but no peer has a finite result."""
    now = read(run_dir)
    if now.get("status") == "diverged":
        raise DivergedError(f"{now['error']} ({run_dir})")
