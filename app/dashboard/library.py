"""Library of the runs and comparisons in a directory, with their states.

A key from an address is looked up among the scanned directories; it never becomes a path. Links are
not followed, so everything shown is inside the directory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from coterie.app.report import words
from coterie.app.runs import plan, progress, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import OVER
from coterie.app.runs.rundir import held_inodes, label_of, read_config

READ = (
    *("config.toml", "progress.json", "split.json", "classes.json"),
    *("metrics.jsonl", "collaboration.npz", "relay/weights.f64", "worth.json"),
)
"""Files of a run that the dashboard reads."""
_TRIALS = "tuning"
_DEPTH = 4  # runs/compare/PRESET/tuning/RUN
_FRESH_SECONDS = 15.0
"""A run that wrote within this many seconds counts as running."""
_SHARED_SECONDS = 0.5
"""Maximum age of a scan that pages share."""


@dataclass(frozen=True)
class Entry:
    """Run in the list.

    Attributes
    ----------
    key : str
        Path below the watched directory.
    directory : Path
        Run directory.
    state : str
        "starting", "running", "finished", "diverged", "stopped", "failed" or "damaged".
    why : str
        Error in one line; empty without an error.
    method : str
        Name of the method.
    what : str
        Experiment in words.
    round : int or None
        Current round; None before the start.
    rounds : int
        Total number of rounds.
    quality : str
        Mean accuracy or loss in words.
    sent : str
        Bytes sent between peers in words.
    pace : str
        Mean pace and the time left at that pace in words.
    patience : float
        Seconds without an update after which an unlocked run counts as stopped.
    written : float
        Time of the last update, in seconds since 1970.
    """

    key: str
    directory: Path
    state: str
    why: str = ""
    method: str = ""
    what: str = ""
    round: int | None = None
    rounds: int = 0
    quality: str = ""
    sent: str = ""
    pace: str = ""
    patience: float = _FRESH_SECONDS
    written: float = 0.0

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.directory.name

    @property
    def goes_on(self) -> bool:
        """True if the run is starting or running."""
        return self.state in ("starting", "running")

    @property
    def is_over(self) -> bool:
        """True if the run reached its last round."""
        return self.state in OVER

    @property
    def standing(self) -> str:
        """Version of the run in the list."""
        return f"{self.key} {self.state} {self.why} {self.written}"

    @property
    def version(self) -> str:
        """Version of the run's page."""
        return f"{self.standing} {[_stamp(self.directory / name) for name in READ]}"


@dataclass(frozen=True)
class Group:
    """Comparison: the runs of a sweep and its tuning trials.

    Attributes
    ----------
    key : str
        Path below the watched directory.
    directory : Path
        Directory of the comparison.
    runs : tuple of Entry
        Started runs, in the order of the sweep if it is known.
    trials : tuple of Entry
        Started tuning trials, in the same order.
    pending : int
        Number of runs and trials that have not started.
    """

    key: str
    directory: Path
    runs: tuple[Entry, ...]
    trials: tuple[Entry, ...]
    pending: int

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.name

    @property
    def methods(self) -> list[str]:
        """Methods of the started runs and trials."""
        entries = (*self.runs, *self.trials)
        return list(dict.fromkeys(entry.method for entry in entries if entry.method))

    @property
    def version(self) -> str:
        """Version of the comparison's page."""
        return f"{self.state} {self.total} {[e.version for e in (*self.runs, *self.trials)]}"

    @property
    def written(self) -> float:
        """Time of the last update of a run or trial."""
        return max((entry.written for entry in (*self.trials, *self.runs)), default=0.0)

    @property
    def state(self) -> str:
        """State of all runs together: a state of `Entry`."""
        states = [entry.state for entry in (*self.trials, *self.runs)]
        waiting = self.pending and time.time() - self.written < _FRESH_SECONDS
        if waiting or "running" in states or "starting" in states:
            return "running"
        for state in ("damaged", "failed", "stopped"):
            if state in states:
                return "failed" if state == "damaged" else state
        return "stopped" if self.pending else "finished"

    @property
    def finished(self) -> int:
        """Number of runs and trials that ended."""
        return sum(entry.state in OVER for entry in (*self.trials, *self.runs))

    @property
    def total(self) -> int:
        """Total number of runs and trials."""
        return len(self.trials) + len(self.runs) + self.pending


@dataclass(frozen=True)
class Shelf:
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
        self._looked = -_SHARED_SECONDS
        self._shelf = Shelf({}, {})
        self._known: dict[PurePosixPath, tuple[list[tuple[int, int]], Entry]] = {}

    def look(self) -> Shelf:
        """Scan the directory, or return a recent scan."""
        with self._lock:
            if time.monotonic() - self._looked > _SHARED_SECONDS:
                self._shelf = self._look()
                self._looked = time.monotonic()
            return self._shelf

    def _look(self) -> Shelf:
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
                entries.setdefault(place.parent, {})[place.name] = _with_state(entry, held)
            elif {plan.NAME, "comparison.csv"} & names:
                sweeps[place] = plan.read(directory) or ()
        self._known = known
        groups = {}
        for place in {_subject(place) for place in sweeps}:
            trying = place / _TRIALS
            runs, pending = _take(entries.get(place, {}), sweeps.get(place, ()))
            trials, untried = _take(entries.get(trying, {}), sweeps.get(trying, ()))
            group = Group(str(place), self.root / place, runs, trials, pending + untried)
            groups[group.key] = group
        alone = [entry for of in entries.values() for entry in of.values()]
        latest = sorted(groups.values(), key=lambda group: -group.written)
        return Shelf(
            {group.key: group for group in latest},
            {entry.key: entry for entry in sorted(alone, key=lambda entry: -entry.written)},
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
        config = read_config(directory)
        now = progress.read(directory)
        if now:
            path = directory / "progress.json"
        else:
            now = {"status": "starting", "round": None}
        accuracy, loss = now.get("mean_test_accuracy"), now.get("mean_test_loss")
        peers, is_deployed = units.plural(config["peers"], "peer"), _is_deployed(directory)
        return Entry(
            key,
            directory,
            state=now["status"],
            why=str(now.get("error") or ""),
            method=label_of(config),
            what=f"{words.title(config)}, {peers}",
            round=now["round"],
            rounds=int(now.get("rounds", 0)),
            quality=units.number(loss) if accuracy is None else units.percent(accuracy),
            sent=units.size(now.get("bytes")),
            pace=_pace(now) if now["status"] == "running" else "",
            patience=_FRESH_SECONDS + (2 * config.get("round-seconds", 0) if is_deployed else 0),
            written=path.stat().st_mtime,
        )
    except Exception as error:  # a damaged run must not affect the others
        why = str(error) if isinstance(error, ResultsError) else f"{path}: {error}"
        return Entry(key, directory, "damaged", why.splitlines()[0])


def _pace(now: Mapping[str, Any]) -> str:
    """Return the mean pace so far and the time left at that pace."""
    if not now["round"] or not now.get("seconds"):
        return ""
    rate = now["round"] / now["seconds"]
    speed = f"{rate:.3g} rounds/s" if rate >= 1 else f"{units.duration(1 / rate)} per round"
    return f"{speed}, {units.duration((now['rounds'] - now['round']) / rate)} left"


def _is_deployed(run_dir: Path) -> bool:
    """Return whether a run directory belongs to a deployment's relay, which has no split.json."""
    return not (run_dir / "split.json").exists()


def refuse_links(run_dir: Path) -> None:
    """Check that the files of a run are inside its directory.

    Raises
    ------
    ResultsError
        If a file or its folder is a symbolic link.
    """
    for name in READ:
        path = run_dir / name
        if path.is_symlink() or path.parent.is_symlink():
            raise ResultsError(f"{path} is a symbolic link; links are not followed")


def _with_state(entry: Entry, held: frozenset[int]) -> Entry:
    """Return the run with the state "stopped" if its process is gone.

    A run that was started on this machine locks its directory. The relay of a deployment does not;
    it writes at the end of every round.
    """
    if not entry.goes_on or time.time() - entry.written < entry.patience:
        return entry
    try:
        is_held = entry.directory.stat().st_ino in held
    except OSError:
        return replace(entry, state="damaged", why=f"{entry.directory} was removed")
    return entry if is_held else replace(entry, state="stopped", pace="")


def _subject(sweep: PurePosixPath) -> PurePosixPath:
    """Return the directory of the comparison to which a sweep belongs."""
    return sweep.parent if sweep.name == _TRIALS else sweep


def _take(entries: dict[str, Entry], names: tuple[str, ...]) -> tuple[tuple[Entry, ...], int]:
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
