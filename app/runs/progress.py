"""File progress.json of a run, which the relay rewrites every round, and what follows from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,  # before Python 3.12, pydantic reads no other
)

from annotated_types import Interval
from typing_extensions import TypedDict

from coterie.app.runs import atomic, files, units
from coterie.app.runs.settings import RunSettings
from coterie.errors import AwayError, DivergedError

ERROR_LOG = "error.log"
"""File of a run directory with the traceback of the error that ended the run."""
OVER = ("finished", "diverged")
"""Statuses of a run that reached its last round; with "diverged", no peer has a finite result."""

_LARGEST = 1e300
FRESH_SECONDS = 15.0
"""A run that wrote within this many seconds counts as running."""
_LISTED = 10
Show = Callable[[Mapping[str, Any]], None]
"""Function that shows the content of progress.json."""
Count = Annotated[int, Interval(ge=0, le=1 << 53)]
Time = Annotated[float, Interval(ge=-(1 << 53), le=1 << 53)]
Waiting = TypedDict("Waiting", {"for": list[str], "missing": NotRequired[list[str]], "until": Time})


class Seen(TypedDict, total=False):
    """Fields that progress.json and the relay's checkpoint share."""

    names: dict[int, str]  # of peers
    last_seen: dict[int, tuple[Count, Time]]  # peer -> its last ended round, and when
    faults: list[str]  # last errors of nodes
    refusals: list[str]  # last refused letters
    refused: Count
    seconds: float | None


class Progress(Seen, total=False):
    """Content of progress.json."""

    round: Count
    rounds: Count
    status: Required[Literal["starting", "running", "finished", "diverged", "stopped", "failed"]]
    error: str | None
    backend: str
    messages: Count
    bytes: float | None
    relayed_bytes: Count
    sealing_bytes: Count
    evaluated: Count  # last round with reports
    evaluated_peers: Count  # peers that reported in it; absent if all did
    mean_test_accuracy: float | None
    std_test_accuracy: float | None
    mean_test_loss: float | None
    breaks: list[str]
    diverged: Count
    machine: str | None
    waiting: Waiting
    took_part: list[Count]
    nodes: dict[int, str]
    away: dict[int, tuple[Count, Count]]
    """Peer that missed the end -> its last round, and the round of its last report."""


def read(run_dir: Path) -> dict[str, Any]:
    """Read progress.json, with None for numbers that are not finite; empty if it does not exist."""
    progress = files.json_of(run_dir, "progress.json", Progress)
    missing = {"round": 0, "rounds": 0, "messages": 0, "refused": 0}
    return missing | finite(progress) if progress else {}


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with None for each number that is not finite or immense."""
    return {
        key: None if isinstance(value, float) and not abs(value) <= _LARGEST else value
        for key, value in values.items()
    }


def write(run_dir: Path, progress: Mapping[str, Any]) -> None:
    """Write progress.json; an end by an error is also written if the disk is full."""
    path = run_dir / "progress.json"
    try:
        atomic.write(path, json.dumps(progress) + "\n")
    except OSError:
        if progress["status"] not in ("stopped", "failed"):
            raise
        brief = {key: progress[key] for key in ("round", "rounds", "status", "error")}
        for content in (progress, brief):
            with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # in its own space
                file.write(json.dumps(content) + "\n")
                file.truncate()
                return


def mark(run_dir: Path, status: str, error: str | None = None) -> None:
    """Record a status that ended a run, or with "starting" resumes it, whatever it was before."""
    if now := read(run_dir):
        write(run_dir, {**now, "status": status, "error": error})


def require_end(run_dir: Path) -> None:
    """Raise DivergedError if no peer has a finite result, AwayError if one missed the end."""
    now = read(run_dir)
    if now.get("status") == "diverged":
        raise DivergedError(f"{now['error']} ({run_dir})")
    if lines := away(now):
        raise AwayError(f"finished, but {'; '.join(lines)} ({run_dir})")


def away(now: Mapping[str, Any]) -> list[str]:
    """Return a line per peer that missed the end of a run, with the model that it has."""
    names = now.get("names", {})
    return [
        f"{names.get(peer, f'peer {peer}')} was away at the end, after round {max(last, 0)} of "
        f"{now['round']}, and has {f'its model of round {model}' if model else 'no model'}"
        for peer, (last, model) in now.get("away", {}).items()
    ]


class PeerState(NamedTuple):
    """Participation of a peer: "awake", "late", "missing" or "expected"; last round and time."""

    number: int
    name: str
    state: str
    round: int | None = None
    seen: float = 0.0


@dataclass(frozen=True)
class RunState:
    """Content of progress.json, and what follows from it."""

    now: Mapping[str, Any]  # the content; empty before the start
    written: float = 0.0  # time of the last update, in seconds since 1970
    silence: float = FRESH_SECONDS  # seconds without an update after which it may be stopped

    @classmethod
    def read(cls, run_dir: Path, settings: RunSettings) -> RunState:
        """Read the state of a run with these settings; it may not have begun."""
        now = read(run_dir)
        path = run_dir / ("progress.json" if now else "config.toml")
        is_deployed = not (run_dir / "split.json").exists()
        silence = FRESH_SECONDS + 2 * settings.round_seconds * is_deployed
        return cls(now, path.stat().st_mtime, silence)

    def judged(self, run_dir: Path, held: Collection[int]) -> RunState:
        """Return the state "stopped" if no process locks the run's or relay's directory any more.

        A run of another machine is known by what it writes at the end of every round.
        """
        if not self.is_active or time.time() - self.written < self.silence:
            return self
        folders = (folder for folder in (run_dir, run_dir / "relay") if folder.exists())
        is_held = any(folder.stat().st_ino in held for folder in folders)
        return self if is_held else replace(self, now={**self.now, "status": "stopped"})

    @property
    def status(self) -> str:
        """State in a word: one of `Progress`, "starting" or "damaged"."""
        return str(self.now.get("status", "starting"))

    @property
    def error(self) -> str:
        """Error in one line; empty without an error."""
        return str(self.now.get("error") or "")

    @property
    def round(self) -> int | None:
        """Current round; None before the start."""
        return self.now.get("round")

    @property
    def rounds(self) -> int:
        return int(self.now.get("rounds", 0))

    @property
    def is_active(self) -> bool:
        return self.status in ("starting", "running")

    @property
    def is_over(self) -> bool:
        """True if the run reached its last round."""
        return self.status in OVER

    @property
    def is_measured(self) -> bool:
        """True if any peer has reported."""
        return self.now.get("mean_test_loss") is not None or bool(self.now.get("diverged"))

    @property
    def quality(self) -> str:
        """Mean accuracy, or else loss, as in a table."""
        accuracy, loss = self.now.get("mean_test_accuracy"), self.now.get("mean_test_loss")
        return units.number(loss) if accuracy is None else units.percent(accuracy)

    @property
    def pace(self) -> str:
        """Mean pace of a running run and the time left at that pace."""
        if self.status != "running" or not self.round or not self.now.get("seconds"):
            return ""
        rate = self.round / self.now["seconds"]
        speed = f"{rate:.3g} rounds/s" if rate >= 1 else f"{units.duration(1 / rate)} per round"
        return f"{speed}, {units.duration((self.rounds - self.round) / rate)} left"

    @property
    def line(self) -> str:
        """`describe`, and the pace."""
        return "  ".join(filter(None, (self.describe(), self.pace)))

    def describe(self) -> str:
        """Describe mean accuracy (or loss) with its spread, diverged peers, and bytes so far."""
        accuracy, spread, loss, diverged = (
            self.now.get(key)
            for key in ("mean_test_accuracy", "std_test_accuracy", "mean_test_loss", "diverged")
        )
        parts = []
        if accuracy is not None and self.status != "diverged":
            spread = "" if spread is None else f" ± {spread:.3f}"
            parts.append(f"accuracy {accuracy:.3f}{spread}")
        elif loss is not None:
            parts.append(f"loss {loss:.4g}")
        if diverged:
            parts.append(f"{units.plural(diverged, 'peer')} diverged")
        at = self.now.get("evaluated")
        late = [f"as of round {at}"] if at is not None and at < (self.round or 0) else []
        if some := self.now.get("evaluated_peers"):
            late += [f"{units.plural(some, 'peer')} of this round, the others' last"]
        return "  ".join([*parts, units.size(self.now.get("bytes") or 0), *late])

    def waiting(self) -> str:
        """Return for whose approval and nodes the relay waits, and the minutes left; or ""."""
        if "waiting" not in self.now or self.status != "running":
            return ""
        awaited = self.now["waiting"]
        whats = {"waiting for approval": "for", "waiting for the nodes of": "missing"}
        lines = [f"{what}: {', '.join(awaited[k])}" for what, k in whats.items() if awaited.get(k)]
        return "; ".join([*lines, minutes_left(awaited["until"])])

    def peers(self, names: Sequence[str] = ()) -> list[PeerState]:
        """Return the peers with these names, and those that were seen, in order."""
        seen, given = self.now.get("last_seen", {}), self.now.get("names", {})
        result = []
        for peer in sorted({*range(len(names)), *seen}):
            name = names[peer] if peer < len(names) else given.get(peer, f"peer {peer}")
            if peer in seen:
                t, at = seen[peer]
                behind = min(max(self.now["round"] - t, 0), 2)
                result.append(PeerState(peer, name, ("awake", "late", "missing")[behind], t, at))
            else:
                result.append(PeerState(peer, name, "expected"))
        return result


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


def minutes_left(until: float) -> str:
    """Return the time until a moment in seconds since 1970, in whole minutes."""
    seconds = until - time.time()
    return f"{math.ceil(seconds / 60)} min left" if seconds > 0 else "no time left"
