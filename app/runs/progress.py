"""Show the progress of a run from progress.json, which the relay rewrites every round."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from coterie.app.runs import atomic, files, units
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
_PLAIN_SECONDS = 10.0
_LISTED = 10
Show = Callable[[Mapping[str, Any]], None]
"""Function that shows the content of progress.json."""


def read(run_dir: Path) -> dict[str, Any]:
    """Read progress.json; empty if it does not exist.

    Raises
    ------
    ResultsError
        If the file is damaged, or a value in it has the wrong type.
    """
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

    Raises
    ------
    ValueError, TypeError, AttributeError
        The value has the wrong type.
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
    elif key == "names":
        value = {str(int(peer)): name for peer, name in value.items()}
        wrong = not all(isinstance(name, str) for name in value.values())
    elif key == "last_seen":
        value = {str(int(peer)): (int(t), float(at)) for peer, (t, at) in value.items()}
        wrong = not all(abs(t) + abs(at) <= _LARGEST for t, at in value.values())
    if wrong:
        raise ValueError(key)
    return value


def require_convergence(run_dir: Path) -> None:
    """Raise an error if a run reached its last round, but no peer has a finite result.

    Raises
    ------
    DivergedError
        Every peer diverged.
    ResultsError
        progress.json is damaged.
    """
    now = read(run_dir)
    if now.get("status") == "diverged":
        raise DivergedError(f"{now['error']} ({run_dir})")


class Pace:
    """Pace of a run: rounds per second since the first observed round, and the remaining time.

    In a new run, the clock starts after the evaluation of round 0, so that loading does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, bool] | None = None
        self._since = 0.0

    def at(self, progress: Mapping[str, Any]) -> str:
        """Return the pace in words; empty until a round has passed."""
        now, done = self._clock(), progress["round"]
        seen = done, is_measured(progress)
        if self._first is None or (done == self._first[0] and seen > self._first):
            self._first, self._since = seen, now
        if done <= self._first[0]:
            return ""
        rate = (done - self._first[0]) / max(now - self._since, 1e-9)
        left = units.duration((progress["rounds"] - done) / rate)
        speed = f"{rate:.3g} rounds/s" if rate >= 1 else f"{units.duration(1 / rate)} per round"
        return f"{speed}, {left} left"


class Display:
    """Context manager with a live line on a terminal, or occasional plain lines elsewhere."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._pace = Pace()
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, state="starting")
        self._spoken = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, progress: Mapping[str, Any]) -> None:
        """Update the display."""
        if not progress:
            return
        begun = line(progress, self._pace) if is_measured(progress) else "starting"
        state = waiting(progress) or begun
        self._bar.update(self._task, completed=progress["round"], state=state)
        if not self._console.is_terminal and time.monotonic() - self._spoken > _PLAIN_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"round {progress['round']}/{progress['rounds']}  {state}")


def last_seen(progress: Mapping[str, Any]) -> dict[int, tuple[int, float]]:
    """Return peer -> the last round that it ended, and the time in seconds since 1970."""
    seen = progress.get("last_seen", {})
    return {int(peer): (int(t), float(at)) for peer, (t, at) in seen.items()}


def attendance(took_part: Mapping[str, int], rounds: int) -> list[str]:
    """Describe the number of rounds in which peers took part: a line per peer, or the range."""
    if len(took_part) <= _LISTED:
        return [
            f"{peer}: in {n} of {units.plural(rounds, 'round')}" for peer, n in took_part.items()
        ]
    low, *_, high = counts = sorted(took_part.values())
    middle = counts[len(counts) // 2]
    return [
        f"peers: in {low} to {high} of {units.plural(rounds, 'round')}, half in {middle} or more"
    ]


def waiting(progress: Mapping[str, Any]) -> str:
    """Return who has not approved the run, and the minutes left; empty if nobody."""
    if "waiting" not in progress or progress["status"] != "running":
        return ""
    left = minutes_left(progress["waiting"]["until"])
    return f"waiting for approval: {', '.join(progress['waiting']['for'])}; {left}"


def minutes_left(until: float) -> str:
    """Return the time until a moment in seconds since 1970, in whole minutes."""
    seconds = until - time.time()
    return f"{math.ceil(seconds / 60)} min left" if seconds > 0 else "no time left"


def is_measured(progress: Mapping[str, Any]) -> bool:
    """Return whether any peer has reported."""
    return progress.get("mean_test_loss") is not None or bool(progress.get("diverged"))


def line(progress: Mapping[str, Any], pace: Pace) -> str:
    """Return the text of `describe` and the pace."""
    return "  ".join(filter(None, (describe(progress), pace.at(progress))))


def describe(progress: Mapping[str, Any]) -> str:
    """Describe mean accuracy (or loss) with its spread, diverged peers, and bytes so far."""
    accuracy, spread = progress.get("mean_test_accuracy"), progress.get("std_test_accuracy")
    loss = progress.get("mean_test_loss")
    parts = []
    if accuracy is not None:
        parts.append(f"accuracy {accuracy:.3f}" + ("" if spread is None else f" ± {spread:.3f}"))
    elif loss is not None:
        parts.append(f"loss {loss:.4g}")
    if diverged := progress.get("diverged"):
        parts.append(f"{units.plural(diverged, 'peer')} diverged")
    parts.append(units.size(progress.get("bytes") or 0))
    return "  ".join(parts)
