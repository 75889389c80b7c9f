"""Run directory: create and lock it at the start of a run, and read it at any time.

Shapes: R evaluated rounds, n peers, C recorded collaboration matrices.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from coterie.app.config import limits
from coterie.app.runs import atomic, files, provenance, quality, units
from coterie.app.runs import progress as progress_file
from coterie.app.runs.files import ResultsError
from coterie.app.runs.settings import RunSettings
from coterie.datasets.quality import survey
from coterie.strategies.protocol import MATRIX

if TYPE_CHECKING:
    from coterie.app.config.config import Config
    from coterie.app.runs.diagnostics import Diagnostics
    from coterie.datasets.problem import Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_WRONG = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
MAX_METRICS_BYTES = 1 << 30
"""Maximum bytes of metrics.jsonl."""
_MAX_ROUND = 1 << 53
"""Maximum number of a round."""


class Metrics:
    """Reader of the metrics.jsonl of a run with n peers; empty if the file does not exist."""

    # A missing number is NaN. One that is not finite is infinity: its peer has diverged.

    def __init__(self, path: Path, peers: int) -> None:
        self._path = path
        self._peers = peers
        self._begin(inode=0)

    def read(self) -> tuple[Ints, dict[str, Floats], Bools]:
        """Return the evaluated rounds (R,), each field (R, n), and the reporting peers (R, n)."""
        try:
            opened = files.opened(self._path.parent, self._path.name, MAX_METRICS_BYTES)
        except FileNotFoundError:
            self._begin(inode=0)
            return self._arrays()
        with opened as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._begin(status.st_ino)  # a resumed run has truncated it
            file.seek(self._offset)
            block = file.read()
        *lines, rest = block.split(b"\n")
        for line in lines:
            self._number += 1
            try:
                self._add(line)
            except _WRONG as error:
                number = self._number
                self._begin(inode=0)
                why = f"no {error}" if isinstance(error, KeyError) else error
                raise ResultsError(f"{self._path}:{number}: not a measurement: {why}") from error
        self._offset += len(block) - len(rest)
        with suppress(*_WRONG):
            self._add(rest)
        return self._arrays()

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._number = inode, 0, 0
        self._fields: dict[str, dict[int, Floats]] = {}  # field -> round -> (n,)
        self._reported: dict[int, Bools] = {}  # round -> (n,)
        self.named: dict[int, object] = {}  # peer -> name in its last line

    def _add(self, line: bytes) -> None:
        """Add a line; an invalid line changes nothing."""
        if not line.strip():
            return
        record = json.loads(line)
        t, peer, name = record.pop("round"), record.pop("peer"), record.pop("peer_name", None)
        lies = float(record.pop("attacker", False))
        values = {name: _number(value) for name, value in record.items()}
        if lies:
            values["attacker"] = lies
        if not (type(t) is type(peer) is int and 0 <= peer < self._peers and 0 <= t <= _MAX_ROUND):
            raise ValueError(f"no round and peer below {self._peers}")
        self._make_room(t, values)
        reported_n = self._reported.setdefault(t, np.zeros(self._peers, dtype=np.bool_))
        if reported_n[peer]:  # a resumed run may repeat a round; the last line counts
            for of_round in self._fields.values():
                if t in of_round:
                    of_round[t][peer] = np.nan
        reported_n[peer] = True
        self.named[peer] = name
        for name, value in values.items():
            of_round = self._fields.setdefault(name, {})
            if t not in of_round:
                of_round[t] = np.full(self._peers, np.nan)
            of_round[t][peer] = value

    def _make_room(self, t: int, names: Collection[str]) -> None:
        """Refuse a line that makes the arrays too large; a field has a value per round and peer."""
        fields = len(self._fields) + sum(name not in self._fields for name in names)
        rounds = len(self._reported) + (t not in self._reported)
        if 8 * fields * rounds * self._peers > files.memory():
            raise ValueError(
                f"{fields} fields of {self._peers} peers in {rounds} rounds take more than "
                f"{units.size(files.memory())}"
            )

    def _arrays(self) -> tuple[Ints, dict[str, Floats], Bools]:
        rounds = sorted(self._reported)
        missing_n = np.full(self._peers, np.nan)
        metrics = {
            name: np.stack([of_round.get(t, missing_n) for t in rounds])
            for name, of_round in self._fields.items()
        }
        reported = np.zeros((len(rounds), self._peers), dtype=np.bool_)
        for row, t in enumerate(rounds):
            reported[row] = self._reported[t]
        return np.array(rounds, dtype=np.int64), metrics, reported


def _number(value: object) -> float:
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if math.isfinite(value) else np.inf


SURVEY = "preflight.json"
"""File with the nodes' answers to a preflight."""


def create(config: Config, problem: Problem) -> None:
    """Create the run directory; DataError if it resumes a run that began with other data."""
    run_dir, data = Path(config.run_dir), provenance.content_of(config, problem)
    if config.resume:
        provenance.check(run_dir, data)
    run_dir.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        provenance.write(run_dir, data)
        atomic.write(run_dir / "config.toml", config.toml())
        atomic.write(run_dir / "split.json", json.dumps(problem.describe()))
        atomic.write(run_dir / "classes.json", json.dumps(problem.classes))
        quality.write(run_dir, survey(problem), problem.names)
    with suppress(FileNotFoundError):
        (run_dir / "progress.json").unlink()  # written before the run was resumed


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Lock the run directory; ResultsError if another process has the lock. None on Windows."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ResultsError(f"{run_dir}: this run is in progress") from None
    finally:
        os.close(handle)


def held_inodes() -> dict[int, int]:
    """Return the inodes of run directories that this machine's processes lock, with their IDs.

    The kernel lists the locks (on Linux): trying a lock could block a run that starts. The device
    is ignored, as it can differ from that of `stat` on layered file systems.
    """
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return {}
    return {
        int(match[2]): int(match[1])
        for match in re.finditer(r" FLOCK .* (\d+) \w+:\w+:(\d+) 0 EOF", locks)
    }


Count = Annotated[int, Interval(ge=0, lt=limits.MAX_WHOLE)]


@dataclass(frozen=True)
class PartSplit:
    """Counts of a peer's examples in a part of the split."""

    size: Count | None = None
    labels: list[Count] | None = None  # by class
    groups: Count | None = None
    group_labels: list[Count] | None = None  # groups with an example of the class
    fixed: bool = False  # True if no seed divides the rows


@dataclass(frozen=True)
class PeerSplit:
    """A peer in split.json, see `coterie.datasets.problem.Problem.describe`."""

    name: str | None = None
    cluster: Count | None = None
    samples: Annotated[float, Interval(ge=0, lt=np.inf)] | None = None
    train: PartSplit = PartSplit()
    validation: PartSplit = PartSplit()
    test: PartSplit = PartSplit()
    account: Any = None  # of a peer with images


@dataclass(frozen=True)
class Run:
    """Measurements of a finished or unfinished run."""

    directory: Path
    config: Mapping[str, Any]  # content of config.toml, with nested tables
    rounds: Ints  # evaluated rounds (R,), ascending
    metrics: Mapping[str, Floats]  # each field of metrics.jsonl, (R, n)
    names: tuple[str, ...]  # (n,); "peer 3" for a peer without a name
    reported: Bools  # (R, n); True if the peer reported in the round
    weight_rounds: Ints  # rounds of `weights`, (C,)
    weights: Floats  # collaboration matrices (C, n, n); C = 0 if the run recorded none
    split: tuple[PeerSplit, ...] | None  # content of split.json; None without it
    classes: tuple[str, ...]  # names of the classes; empty without names
    progress: Mapping[str, Any]  # content of progress.json; empty without it

    @classmethod
    def read(cls, run_dir: str | Path) -> Run:
        """Read a run directory; ResultsError if it is none, or a file in it is damaged."""
        return RunReader(Path(run_dir)).read()

    @cached_property
    def diagnostics(self) -> Mapping[int, Diagnostics]:
        """Diagnostic accuracy of the first honest peers, see `diagnostics.read`."""
        from coterie.app.runs import diagnostics

        return diagnostics.read(self)

    @cached_property
    def settings(self) -> RunSettings:
        """Keys of the run; those that an older run lacks have today's defaults."""
        return RunSettings.of(self.config)

    @property
    def peers(self) -> int:
        return int(self.config["peers"])

    @property
    def samples(self) -> Floats | None:
        """Example counts n_i that weight the peers, (n,); None if the split is unknown."""
        if self.split and all(each.samples is not None for each in self.split):
            return np.array([each.samples for each in self.split], dtype=np.float64)
        return self.sizes("train")

    @property
    def is_grouped(self) -> bool:
        """True if the examples belong to groups, such as patients."""
        return any(each.train.groups is not None for each in self.split or ())

    def sizes(self, part: str, *, in_groups: bool = False) -> Floats | None:
        """Return the examples, or groups, of each peer in a part of the data, (n,), or None."""
        key = "groups" if in_groups and self.is_grouped else "size"
        counts = [getattr(getattr(each, part), key) for each in self.split or ()]
        if not counts or any(count is None for count in counts):
            return None
        return np.array(counts, dtype=np.float64)

    def labels(self, part: str, *, in_groups: bool = False) -> Ints | None:
        """Return the examples, or groups, per class, (n, classes); None if there are no classes."""
        key = "group_labels" if in_groups and self.is_grouped else "labels"
        counts = [getattr(getattr(each, part), key) for each in self.split or ()]
        if not counts or any(not count for count in counts):
            return None
        return np.array(counts, dtype=np.int64)

    @property
    def clusters(self) -> Ints | None:
        """True cluster of each peer, (n,); None if the split has no clusters."""
        labels = [each.cluster for each in self.split or ()]
        if not labels or any(label is None for label in labels):
            return None
        return np.array(labels, dtype=np.int64)

    @property
    def label(self) -> str:
        return self.settings.label

    def metric(self, name: str) -> Floats:
        """Return the values of a field, (R, n); all NaN if the run does not have it."""
        return self.metrics.get(name, np.full(self.reported.shape, np.nan))

    def at(self, name: str, row_n: Ints) -> Floats:
        """Return a field at one row of `rounds` per peer, (n,); NaN for row -1 (no report).

        Losses and accuracies of attackers are NaN: statements about a run concern honest peers.
        """
        if not len(self.rounds):
            return np.full(self.peers, np.nan)
        picked_n = self.metric(name)[row_n, np.arange(self.peers)]
        judged = name.endswith(("_loss", "_accuracy"))
        return np.where((row_n < 0) | (judged & self.attackers), np.nan, picked_n)

    def last(self, name: str = "test_accuracy") -> Floats:
        """Return a field at each peer's last report, (n,)."""
        return self.at(name, self.last_row())

    def course(self, name: str = "test_accuracy") -> Floats:
        """Return the mean over peers of each peer's latest report, (R,); NaN without the field."""
        values_rn = self.metric(name).copy()
        for r in range(1, len(values_rn)):
            values_rn[r] = np.where(self.reported[r], values_rn[r], values_rn[r - 1])
        has_n = ~np.isnan(values_rn[:1]).all(axis=0)
        if not has_n.any():
            return np.full(len(values_rn), np.nan)
        return np.asarray(values_rn[:, has_n].mean(axis=1), dtype=np.float64)

    @property
    def has_accuracy(self) -> bool:
        return not bool(np.isnan(self.metric("test_accuracy")).all())

    def weights_between(self) -> Floats:
        """Return the weights between peers, (C, n - 1, n); 0 replaces non-finite values."""
        count, n = self.weights.shape[:2]
        flat = np.ascontiguousarray(self.weights).reshape(count, n * n)
        between = flat[:, 1:].reshape(count, n - 1, n + 1)[:, :, :-1]  # all but every (n + 1)th
        if np.isfinite(between).all():
            return between
        return np.nan_to_num(between, posinf=0.0, neginf=0.0)

    @property
    def attackers(self) -> Bools:
        """Mask of the attackers, (n,), whose models are not evaluated."""
        return np.asarray((self.metric("attacker") > 0).any(axis=0), dtype=np.bool_)

    def last_row(self) -> Ints:
        """Row of each peer's last report, (n,); -1 for a peer that never reported."""
        numbered = np.where(self.reported, np.arange(len(self.rounds))[:, None], -1)
        return np.asarray(numbered.max(axis=0, initial=-1), dtype=np.int64)

    @property
    def diverged(self) -> Bools:
        """Mask of the peers with a non-finite last test loss or any non-finite result, (n,)."""
        finite_rn = np.isfinite(self.metric("test_loss"))
        ends_n = np.isfinite(self.at("test_loss", self.last_row()))
        unsound_n = self.at("unsound_results", self.last_row()) > 0
        lost_n = finite_rn.any(axis=0) & ~ends_n | unsound_n
        return np.asarray(lost_n & ~self.attackers, dtype=np.bool_)

    def best_row(self, *, by_accuracy: bool = True) -> Ints | None:
        """Row of each peer's best round on its validation data, (n,), the earliest of equals.

        Equal accuracies are decided by the loss. A peer without validation data keeps its last
        report; None if no peer has any.
        """
        accuracy, loss = self.metric("validation_accuracy"), self.metric("validation_loss")
        measured_n = ~(np.isnan(accuracy) & np.isnan(loss)).all(axis=0)
        if not measured_n.any():
            return None
        accuracy = np.where(np.isnan(accuracy) | (not by_accuracy), -np.inf, accuracy)
        loss = np.where(np.isnan(loss), np.finfo(np.float64).max, loss)
        loss = np.where(accuracy == accuracy.max(axis=0), loss, np.inf)
        return np.where(measured_n, loss.argmin(axis=0), self.last_row())


class RunReader:
    """Reader of a run directory in progress; each read parses only new lines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._metrics: Metrics | None = None
        self._peers = 0

    def read(self) -> Run:
        directory = self._directory
        if not directory.is_dir():
            raise ResultsError(f"{directory}: no such run directory")
        settings = RunSettings.read(directory)
        peers = settings.peers
        if self._metrics is None or peers != self._peers:
            self._metrics, self._peers = Metrics(directory / "metrics.jsonl", peers), peers
        progress = progress_file.read(directory)
        rounds, metrics, reported = self._metrics.read()
        weight_rounds, weights = _read_weights(directory, peers, progress.get("status"))
        classes = files.json_of(directory, "classes.json", tuple[str, ...]) or ()
        split = _read_split(directory, peers, len(classes))
        named: dict[int, object] = {peer: row.name for peer, row in enumerate(split or ())}
        named |= self._metrics.named
        return Run(
            directory=directory,
            config=settings.content,
            rounds=rounds,
            metrics=metrics,
            names=tuple(str(named.get(peer) or f"peer {peer}") for peer in range(peers)),
            reported=reported,
            weight_rounds=weight_rounds,
            weights=weights,
            split=split,
            classes=classes,
            progress=progress,
        )


def _read_split(directory: Path, peers: int, classes: int) -> tuple[PeerSplit, ...] | None:
    """Read the split's statistics (`Problem.describe`), one per peer; None without split.json."""
    split: tuple[PeerSplit, ...] | None
    split = files.json_of(directory, "split.json", tuple[PeerSplit, ...])
    if split is None:
        return None
    if len(split) != peers:
        raise ResultsError(f"{directory / 'split.json'}: expected {peers} peers' statistics")
    for part, key in itertools.product(quality.PARTS, ("labels", "group_labels")):
        widths = {len(getattr(getattr(row, part), key) or ()) for row in split} - {0}
        if len(widths | ({classes} if classes and widths else set())) > 1:
            raise ResultsError(
                f"{directory / 'split.json'}: peers have different classes, or others than "
                "classes.json"
            )
    return split


def _read_weights(directory: Path, peers: int, status: object) -> tuple[Ints, Floats]:
    """Read the collaboration matrices; empty if too many peers left only rows of awake ones."""
    if status == "running" and peers <= MATRIX:
        with suppress(FileNotFoundError):
            return _read_rows(directory, peers)
    nothing = np.empty(0, dtype=np.int64), np.empty((0, peers, peers))
    if peers > MATRIX:
        return nothing
    arrays = files.arrays_of(directory, "collaboration.npz", {"rounds": "iu", "weights": "f"})
    if arrays is None:
        return nothing
    path, weights = directory / "collaboration.npz", arrays["weights"]
    rounds = arrays["rounds"].astype(np.int64)
    if rounds.ndim != 1 or weights.shape != (len(rounds), peers, peers):
        raise ResultsError(
            f"{path}: weights have shape {weights.shape}, "
            f"expected ({rounds.size}, {peers}, {peers})"
        )
    if (rounds < 0).any():
        raise ResultsError(f"{path}: rounds are counted from 0")
    return rounds, weights.astype(np.float64, copy=False)


def _read_rows(directory: Path, peers: int) -> tuple[Ints, Floats]:
    """Return a row per recorded round, memory-mapped, as the file can be large and grows."""
    width = 1 + peers**2
    with files.opened(directory, "relay/weights.f64", files.memory()) as file:
        recorded = os.fstat(file.fileno()).st_size // (8 * width)
        if not recorded:
            return np.empty(0, dtype=np.int64), np.empty((0, peers, peers))
        rows = np.memmap(file, np.float64, mode="r", shape=(recorded, width))
    return rows[:, 0].astype(np.int64), rows[:, 1:].reshape(recorded, peers, peers)
