"""What runs and comparisons lie in a directory, and how each gets on.

A key, as an address has it, is looked up among the directories that were found; it never becomes a
path. No link is followed: what is shown lies inside the directory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from coterie.app.runs import plan, progress, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import held_inodes, read_config

READ = (
    *("config.toml", "progress.json", "split.json", "classes.json"),
    *("metrics.jsonl", "collaboration.npz", "relay/weights.f64"),
)
"""The files of a run that are read."""
_TRIALS = "tuning"
_DEPTH = 4  # runs/compare/PRESET/tuning/RUN
_FRESH_SECONDS = 15.0
"""A run that wrote something so lately goes on, whatever else speaks against it."""
_SHARED_SECONDS = 0.5
"""How old a look at the directory may be that another page has taken."""


@dataclass(frozen=True)
class Entry:
    """A run as the list shows it.

    Attributes
    ----------
    key : its path below the directory that is watched. directory : where it is.
    state : "starting", "running", "finished", "stopped", "failed" or "damaged".
    why : in one line what went wrong, where something did.
    method, what : its method, and in words what it is a run of.
    round, rounds : how far it is, and of how many; None before it began.
    quality, sent, pace : in words its mean accuracy or loss, the bytes sent between peers, and the
        mean pace so far with the time that remains at it.
    patience : seconds that it may be silent where nobody holds its directory.
    written : when it last wrote how far it is, in seconds since 1970.
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
        """Its directory's name."""
        return self.directory.name

    @property
    def goes_on(self) -> bool:
        """Whether more is to come."""
        return self.state in ("starting", "running")

    @property
    def standing(self) -> str:
        """Differs whenever the list has something else to say of the run."""
        return f"{self.key} {self.state} {self.why} {self.written}"

    @property
    def version(self) -> str:
        """Differs whenever the run's page has something else to say."""
        return f"{self.standing} {[_stamp(self.directory / name) for name in READ]}"


@dataclass(frozen=True)
class Group:
    """A comparison: the runs of a sweep, and the trials that chose their settings.

    Attributes
    ----------
    key : its path below the directory that is watched. directory : where it is.
    runs, trials : those that have begun, in the order of the sweep where that is known.
    pending : how many have not begun.
    """

    key: str
    directory: Path
    runs: tuple[Entry, ...]
    trials: tuple[Entry, ...]
    pending: int

    @property
    def name(self) -> str:
        """Its directory's name."""
        return self.directory.name

    @property
    def methods(self) -> list[str]:
        """What is compared, as far as it has begun."""
        entries = (*self.runs, *self.trials)
        return list(dict.fromkeys(entry.method for entry in entries if entry.method))

    @property
    def version(self) -> str:
        """Differs whenever the comparison has something else to say."""
        return f"{self.state} {self.total} {[e.version for e in (*self.runs, *self.trials)]}"

    @property
    def written(self) -> float:
        """When one of its runs last wrote how far it is."""
        return max((entry.written for entry in (*self.trials, *self.runs)), default=0.0)

    @property
    def state(self) -> str:
        """Of all together, in the words for a run."""
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
        """How many runs and trials are done."""
        return sum(entry.state == "finished" for entry in (*self.trials, *self.runs))

    @property
    def total(self) -> int:
        """How many runs and trials there are to do."""
        return len(self.trials) + len(self.runs) + self.pending


@dataclass(frozen=True)
class Shelf:
    """All that was found, by key: comparisons, and the runs of none."""

    groups: Mapping[str, Group]
    runs: Mapping[str, Entry]

    def entry(self, key: str) -> Entry | None:
        """The run with a key, whether in a comparison or not."""
        for group in self.groups.values():
            for entry in (*group.runs, *group.trials):
                if entry.key == key:
                    return entry
        return self.runs.get(key)


class Library:
    """The directory that is watched; it may not be there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._looked = -_SHARED_SECONDS
        self._shelf = Shelf({}, {})
        self._known: dict[PurePosixPath, tuple[list[tuple[int, int]], Entry]] = {}

    def look(self) -> Shelf:
        """What is there now."""
        with self._lock:
            if time.monotonic() - self._looked > _SHARED_SECONDS:
                self._shelf = self._look()
                self._looked = time.monotonic()
            return self._shelf

    def _look(self) -> Shelf:
        held = held_inodes()
        found: dict[PurePosixPath, dict[str, Entry]] = {}  # directory -> name -> run
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
                found.setdefault(place.parent, {})[place.name] = _judged(entry, held)
            elif {plan.NAME, "comparison.csv"} & names:
                sweeps[place] = plan.read(directory) or ()
        self._known = known
        groups = {}
        for place in {_subject(place) for place in sweeps}:
            trying = place / _TRIALS
            runs, pending = _take(found.get(place, {}), sweeps.get(place, ()))
            trials, untried = _take(found.get(trying, {}), sweeps.get(trying, ()))
            group = Group(str(place), self.root / place, runs, trials, pending + untried)
            groups[group.key] = group
        alone = [entry for of in found.values() for entry in of.values()]
        latest = sorted(groups.values(), key=lambda group: -group.written)
        return Shelf(
            {group.key: group for group in latest},
            {entry.key: entry for entry in sorted(alone, key=lambda entry: -entry.written)},
        )


def _directories(root: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
    """The directories from `root` down, and what is in each; not what is in a run."""
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
    """The run in a directory, its state as it says itself."""
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
            method=config["method"],
            what=f"{config['method']} on {config.get('dataset', 'unknown data')}, {peers}",
            round=now["round"],
            rounds=int(now.get("rounds", 0)),
            quality=units.number(loss) if accuracy is None else units.percent(accuracy),
            sent=units.size(now.get("bytes")),
            pace=_pace(now) if now["status"] == "running" else "",
            patience=_FRESH_SECONDS + (2 * config.get("round-seconds", 0) if is_deployed else 0),
            written=path.stat().st_mtime,
        )
    except Exception as error:  # whatever is damaged, the other runs are listed
        why = str(error) if isinstance(error, ResultsError) else f"{path}: {error}"
        return Entry(key, directory, "damaged", why.splitlines()[0])


def _pace(now: Mapping[str, Any]) -> str:
    """Mean pace so far, and at that pace the time that remains."""
    if not now["round"] or not now.get("seconds"):
        return ""
    rate = now["round"] / now["seconds"]
    speed = f"{rate:.3g} rounds/s" if rate >= 1 else f"{units.duration(1 / rate)} a round"
    return f"{speed}, {units.duration((now['rounds'] - now['round']) / rate)} left"


def _is_deployed(run_dir: Path) -> bool:
    """Whether a run directory is that of a deployment's relay, which never sees the split."""
    return not (run_dir / "split.json").exists()


def refuse_links(run_dir: Path) -> None:
    """Make sure that the files of a run lie in its directory.

    Raises
    ------
    ResultsError
        One is a link, or lies in a folder that is one.
    """
    for name in READ:
        path = run_dir / name
        if path.is_symlink() or path.parent.is_symlink():
            raise ResultsError(f"{path} is a link, and none is followed")


def _judged(entry: Entry, held: frozenset[int]) -> Entry:
    """The same run, "stopped" if it says that it goes on and does not.

    A run that was started on this machine holds its directory. The relay of a deployment does not;
    it speaks at the end of every round.
    """
    if entry.state == "failed" and entry.why.startswith("KeyboardInterrupt"):
        return replace(entry, state="stopped", why="", pace="")
    if not entry.goes_on or time.time() - entry.written < entry.patience:
        return entry
    try:
        is_held = entry.directory.stat().st_ino in held
    except OSError:
        return replace(entry, state="damaged", why=f"{entry.directory} is gone")
    return entry if is_held else replace(entry, state="stopped", pace="")


def _subject(sweep: PurePosixPath) -> PurePosixPath:
    """The directory of the comparison that a sweep's runs or trials are for."""
    return sweep.parent if sweep.name == _TRIALS else sweep


def _take(found: dict[str, Entry], names: tuple[str, ...]) -> tuple[tuple[Entry, ...], int]:
    """Take a sweep's runs out of `found`, of an unknown sweep all, and count those to come."""
    names = tuple(dict.fromkeys(names or sorted(found)))
    taken = tuple(found.pop(name) for name in names if name in found)
    return taken, len(names) - len(taken)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when a file does."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
