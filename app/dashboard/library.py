"""Library of the runs and comparisons in a directory; a key is looked up, and never a path."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from coterie.app.report import words
from coterie.app.runs import plan, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import FRESH_SECONDS, RunState
from coterie.app.runs.rundir import held_inodes
from coterie.app.runs.settings import RunSettings

READ = (
    *("config.toml", "progress.json", "split.json", "classes.json"),
    *("metrics.jsonl", "collaboration.npz", "relay/weights.f64", "worth.csv"),
)
"""Files of a run that the dashboard reads."""
_TRIALS = "tuning"
_DEPTH = 4  # runs/compare/PRESET/tuning/RUN
_SHARED_SECONDS = 0.5
"""Maximum age of a scan that pages share."""


@dataclass(frozen=True)
class Entry:
    """Run in the list."""

    key: str  # path below the watched directory
    directory: Path
    state: RunState
    method: str = ""
    what: str = ""  # experiment in words

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def row(self) -> str:
        """Version of the run in the list."""
        return f"{self.key} {self.state.status} {self.state.error} {self.state.written}"

    @property
    def version(self) -> str:
        return f"{self.row} {[_stamp(self.directory / name) for name in READ]}"


@dataclass(frozen=True)
class Group:
    """Comparison: the runs of a sweep and its tuning trials."""

    key: str  # path below the watched directory
    directory: Path
    runs: tuple[Entry, ...]  # started runs, in the order of the sweep if it is known
    trials: tuple[Entry, ...]  # started tuning trials, in the same order
    pending: int  # number of runs and trials that have not started

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def methods(self) -> list[str]:
        """Methods of the started runs and trials."""
        entries = (*self.runs, *self.trials)
        return list(dict.fromkeys(entry.method for entry in entries if entry.method))

    @property
    def version(self) -> str:
        return f"{self.state} {self.total} {[e.version for e in (*self.runs, *self.trials)]}"

    @property
    def written(self) -> float:
        """Time of the last update of a run or trial."""
        return max((entry.state.written for entry in (*self.trials, *self.runs)), default=0.0)

    @property
    def state(self) -> str:
        """State of all runs together, in a word of `RunState.status`."""
        states = [entry.state.status for entry in (*self.trials, *self.runs)]
        waiting = self.pending and time.time() - self.written < FRESH_SECONDS
        if waiting or "running" in states or "starting" in states:
            return "running"
        for state in ("damaged", "failed", "stopped"):
            if state in states:
                return "failed" if state == "damaged" else state
        return "stopped" if self.pending else "finished"

    @property
    def finished(self) -> int:
        return sum(entry.state.is_over for entry in (*self.trials, *self.runs))

    @property
    def total(self) -> int:
        return len(self.trials) + len(self.runs) + self.pending


@dataclass(frozen=True)
class Scan:
    """Result of a scan, by key: comparisons, and runs outside of comparisons."""

    groups: Mapping[str, Group]
    runs: Mapping[str, Entry]

    def entry(self, key: str) -> Entry | None:
        """Return the run with a key, inside or outside of a comparison."""
        for group in self.groups.values():
            for entry in (*group.runs, *group.trials):
                if entry.key == key:
                    return entry
        return self.runs.get(key)


class Library:
    """Watched directory, which may not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._scanned_at = -_SHARED_SECONDS
        self._scanned = Scan({}, {})
        self._known: dict[PurePosixPath, tuple[list[tuple[int, int]], Entry]] = {}

    def scan(self) -> Scan:
        """Scan the directory, or return a recent scan."""
        with self._lock:
            if time.monotonic() - self._scanned_at > _SHARED_SECONDS:
                self._scanned = self._scan()
                self._scanned_at = time.monotonic()
            return self._scanned

    def _scan(self) -> Scan:
        held = held_inodes()
        entries: dict[PurePosixPath, dict[str, Entry]] = {}  # directory -> name -> run
        sweeps: dict[PurePosixPath, tuple[str, ...]] = {}  # directory -> names of its runs
        known = {}
        for directory, names in _directories(self.root, _DEPTH):
            place = PurePosixPath(directory.relative_to(self.root))
            if {"config.toml", "split.json"} <= names or "progress.json" in names:
                stamp = [_stamp(directory / name) for name in READ[:2]]
                before, entry = self._known.get(place, (stamp, None))
                if entry is None or before != stamp:
                    entry = _read(str(place), directory)
                known[place] = stamp, entry
                entries.setdefault(place.parent, {})[place.name] = _judged(entry, held)
            elif {plan.NAME, "comparison.csv"} & names:
                sweeps[place] = plan.read(directory).runs
        self._known = known
        groups = {}
        for place in {each.parent if each.name == _TRIALS else each for each in sweeps}:
            trying = place / _TRIALS
            runs, pending = _pop_runs(entries.get(place, {}), sweeps.get(place, ()))
            trials, untried = _pop_runs(entries.get(trying, {}), sweeps.get(trying, ()))
            group = Group(str(place), self.root / place, runs, trials, pending + untried)
            groups[group.key] = group
        alone = [entry for of in entries.values() for entry in of.values()]
        latest = sorted(groups.values(), key=lambda group: -group.written)
        return Scan(
            {group.key: group for group in latest},
            {entry.key: entry for entry in sorted(alone, key=lambda entry: -entry.state.written)},
        )


def _directories(root: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
    """Yield the directories below `root` and their contents; run directories are not entered."""
    try:
        inside = list(os.scandir(root))
    except OSError:
        return
    names = {each.name for each in inside}
    yield root, names
    if depth and "progress.json" not in names and "split.json" not in names:
        for each in inside:
            if each.is_dir(follow_symlinks=False) and not each.name.startswith("."):
                yield from _directories(Path(each.path), depth - 1)


def _read(key: str, directory: Path) -> Entry:
    """Read the run in a directory, with the state in its progress.json."""
    path = directory / "config.toml"
    try:
        refuse_links(directory)
        settings = RunSettings.read(directory)
        peers, state = units.plural(settings.peers, "peer"), RunState.read(directory, settings)
        return Entry(key, directory, state, settings.label, f"{words.title(settings)}, {peers}")
    except Exception as error:  # a damaged run must not affect the others
        why = str(error) if isinstance(error, ResultsError) else f"{path}: {error}"
        return _damaged(key, directory, why)


def _damaged(key: str, directory: Path, why: str) -> Entry:
    return Entry(key, directory, RunState({"status": "damaged", "error": why.splitlines()[0]}))


def refuse_links(run_dir: Path) -> None:
    """Raise ResultsError if a file of a run, or its folder, is a symbolic link."""
    for name in READ:
        path = run_dir / name
        if path.is_symlink() or path.parent.is_symlink():
            raise ResultsError(f"{path} is a symbolic link; links are not followed")


def _judged(entry: Entry, held: Collection[int]) -> Entry:
    """Return the run as `RunState.judged`, or as damaged if its directory was removed."""
    try:
        return replace(entry, state=entry.state.judged(entry.directory, held))
    except OSError:
        return _damaged(entry.key, entry.directory, f"{entry.directory} was removed")


def _pop_runs(entries: dict[str, Entry], names: tuple[str, ...]) -> tuple[tuple[Entry, ...], int]:
    """Remove a sweep's runs from `entries` (all, without names); count the pending ones."""
    names = tuple(dict.fromkeys(names or sorted(entries)))
    taken = tuple(entries.pop(name) for name in names if name in entries)
    return taken, len(names) - len(taken)


def _stamp(path: Path) -> tuple[int, int]:
    """Return modification time and size of a file; zeros if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
