"""State of a run: one reading of progress.json for `coterie status`, dashboard and terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from coterie.app.runs import progress, units

FRESH_SECONDS = 15.0
"""A run that wrote within this many seconds counts as running."""
_PLAIN_SECONDS = 10.0
_LISTED = 10


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
    def read(cls, run_dir: Path, config: Mapping[str, Any]) -> RunState:
        """Read the state of a run with this content of config.toml; it may not have begun."""
        now = progress.read(run_dir)
        path = run_dir / ("progress.json" if now else "config.toml")
        is_deployed = not (run_dir / "split.json").exists()
        silence = FRESH_SECONDS + 2 * config.get("round-seconds", 0) * is_deployed
        return cls(now, path.stat().st_mtime, silence)

    def judged(self, run_dir: Path, held: frozenset[int]) -> RunState:
        """Return the state "stopped" if the process of the run is gone.

        A run that was started on this machine locks its directory, see `rundir.held_inodes`. The
        relay of a deployment does not; it writes at the end of every round.
        """
        if not self.is_active or time.time() - self.written < self.silence:
            return self
        is_held = run_dir.stat().st_ino in held
        return self if is_held else replace(self, now={**self.now, "status": "stopped"})

    @property
    def status(self) -> str:
        """State in a word: one of `progress.STATES`, "starting" or "damaged"."""
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
        """Total number of rounds."""
        return int(self.now.get("rounds", 0))

    @property
    def is_active(self) -> bool:
        """True if the run is starting or running."""
        return self.status in ("starting", "running")

    @property
    def is_over(self) -> bool:
        """True if the run reached its last round."""
        return self.status in progress.OVER

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
        return _pace(self.round / self.now["seconds"], self.rounds - self.round)

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
        return "  ".join([*parts, units.size(self.now.get("bytes") or 0)])

    def waiting(self) -> str:
        """Return who has not approved the run, and the minutes left; empty if nobody."""
        if "waiting" not in self.now or self.status != "running":
            return ""
        left = minutes_left(self.now["waiting"]["until"])
        return f"waiting for approval: {', '.join(self.now['waiting']['for'])}; {left}"

    def peers(self, names: Sequence[str] = ()) -> list[PeerState]:
        """Return the peers with these names, and those that were seen, in order."""
        seen, given = self.now.get("last_seen", {}), self.now.get("names", {})
        result = []
        for peer in sorted({*range(len(names)), *map(int, seen)}):
            key = str(peer)
            name = names[peer] if peer < len(names) else given.get(key, f"peer {peer}")
            if key in seen:
                t, at = int(seen[key][0]), float(seen[key][1])
                behind = min(max(self.now["round"] - t, 0), 2)
                result.append(PeerState(peer, name, ("awake", "late", "missing")[behind], t, at))
            else:
                result.append(PeerState(peer, name, "expected"))
        return result


class Pace:
    """Pace of a run: rounds per second since the first observed round, and the remaining time.

    In a new run, the clock starts after the evaluation of round 0, so that loading does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, bool] | None = None
        self._since = 0.0

    def at(self, state: RunState) -> str:
        """Return the pace in words; empty until a round has passed."""
        now, done = self._clock(), state.round or 0
        seen = done, state.is_measured
        if self._first is None or (done == self._first[0] and seen > self._first):
            self._first, self._since = seen, now
        if done <= self._first[0]:
            return ""
        return _pace((done - self._first[0]) / max(now - self._since, 1e-9), state.rounds - done)

    def line(self, state: RunState) -> str:
        """Return a state in words, with the pace."""
        return "  ".join(filter(None, (state.describe(), self.at(state))))


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

    def show(self, now: Mapping[str, Any]) -> None:
        """Update the display with the content of progress.json."""
        if not now:
            return
        state = RunState(now)
        begun = self._pace.line(state) if state.is_measured else "starting"
        text = state.waiting() or begun
        self._bar.update(self._task, completed=now["round"], state=text)
        if not self._console.is_terminal and time.monotonic() - self._spoken > _PLAIN_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"round {now['round']}/{now['rounds']}  {text}")


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


def _pace(rate: float, rounds: int) -> str:
    """Return rounds per second, and the time that the remaining rounds take."""
    speed = f"{rate:.3g} rounds/s" if rate >= 1 else f"{units.duration(1 / rate)} per round"
    return f"{speed}, {units.duration(rounds / rate)} left"
