"""Run directory: create and lock it at the start of a run, and read it at any time.

Shapes: R evaluated rounds, n peers, C recorded collaboration matrices.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.app.config import limits, schema
from coterie.app.config.keys import flatten
from coterie.app.config.settings import ambiguous, keys, tables
from coterie.app.runs import atomic, files, provenance, quality
from coterie.app.runs import progress as progress_file
from coterie.app.runs.files import ResultsError
from coterie.app.runs.metrics import Bools, Floats, Ints, Metrics
from coterie.datasets.quality import survey
from coterie.strategies.protocol import MATRIX

if TYPE_CHECKING:
    from coterie.app.config.config import Config
    from coterie.app.runs.diagnostics import Diagnostics
    from coterie.datasets.problem import Problem

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "ResultsError",
    "Run",
    "RunReader",
    "create",
    "held",
    "held_inodes",
    "read_config",
]

PARTS = ("train", "validation", "test")
"""Parts of a peer's examples in split.json."""
SURVEY = "preflight.json"
"""File with the nodes' answers to a preflight."""


def create(config: Config, problem: Problem) -> None:
    """Create the run directory: the configuration, and descriptions of the split and the data.

    DataError: a run is resumed that began with other data.
    """
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
    """Lock the run directory against other processes. No lock on Windows.

    ResultsError: another process has the lock.
    """
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


def held_inodes() -> frozenset[int]:
    """Return the inodes of run directories that processes of this machine lock; Linux only.

    The kernel lists the locks: trying a lock could block a run that starts. The listed
    device can differ from that of `stat` on layered file systems, so it is ignored.
    """
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return frozenset()
    return frozenset(
        int(match[1]) for match in re.finditer(r" FLOCK .* \w+:\w+:(\d+) 0 EOF", locks)
    )


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
    # Content of split.json, one mapping per peer (counts, labels, cluster); None without it.
    split: tuple[Mapping[str, Any], ...] | None
    classes: tuple[str, ...]  # names of the classes; empty without names
    progress: Mapping[str, Any]  # content of progress.json; empty without it

    @classmethod
    def read(cls, run_dir: str | Path) -> Run:
        """Read a run directory; files that an unfinished run has not written can be missing.

        ResultsError: it is not a run directory, or a file in it is damaged.
        """
        return RunReader(Path(run_dir)).read()

    @cached_property
    def diagnostics(self) -> Mapping[int, Diagnostics]:
        """Diagnostic accuracy of the first honest peers, see `diagnostics.read`."""
        from coterie.app.runs import diagnostics

        return diagnostics.read(self)

    @property
    def peers(self) -> int:
        """Number of peers n."""
        return int(self.config["peers"])

    @property
    def samples(self) -> Floats | None:
        """Example counts n_i that weight the peers, (n,); None if the split is unknown."""
        if self.split and all(isinstance(each.get("samples"), int | float) for each in self.split):
            return np.array([each["samples"] for each in self.split], dtype=np.float64)
        return self.sizes("train")

    @property
    def is_grouped(self) -> bool:
        """True if the examples belong to groups, such as patients."""
        return any("groups" in (each.get("train") or {}) for each in self.split or ())

    def sizes(self, part: str, *, in_groups: bool = False) -> Floats | None:
        """Return the examples of each peer in "train", "validation" or "test", (n,), or None.

        `in_groups`: the groups of these examples, if they have groups.
        """
        key = "groups" if in_groups and self.is_grouped else "size"
        counts = [(each.get(part) or {}).get(key) for each in self.split or ()]
        if not counts or any(count is None for count in counts):
            return None
        return np.array(counts, dtype=np.float64)

    def labels(self, part: str, *, in_groups: bool = False) -> Ints | None:
        """Return the examples per class, (n, classes); None if unknown or not a classification.

        `in_groups`: the groups with such an example, if the examples have groups.
        """
        key = "group_labels" if in_groups and self.is_grouped else "labels"
        counts = [(each.get(part) or {}).get(key) for each in self.split or ()]
        if not counts or any(not count for count in counts):
            return None
        return np.array(counts, dtype=np.int64)

    @property
    def clusters(self) -> Ints | None:
        """True cluster of each peer, (n,); None if the split has no clusters."""
        labels = [each.get("cluster") for each in self.split or ()]
        if not labels or any(label is None for label in labels):
            return None
        return np.array(labels, dtype=np.int64)

    @property
    def label(self) -> str:
        """Name of the run's recipe or else of its method."""
        return label_of(self.config)

    @property
    def clusters_to_recover(self) -> Ints | None:
        """`clusters` if the method has to recover them; None if its helpers are its cluster."""
        options = self.config.get(str(self.config["method"]))
        has_helpers = isinstance(options, dict) and options.get("helpers") == "cluster"
        return None if has_helpers else self.clusters

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
        """True if the run has a test accuracy."""
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
        """Row of each peer's best round on its validation data, (n,).

        Highest validation accuracy if the run measures it, of equals the lowest validation loss;
        without accuracies, or not `by_accuracy`, the lowest loss. Of rounds that are equal in both,
        the earliest. A peer without validation data keeps its last report; None if no peer has any.
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
        """Return the current measurements; see `Run.read`."""
        directory = self._directory
        if not directory.is_dir():
            raise ResultsError(f"{directory}: no such run directory")
        config = read_config(directory)
        peers = config["peers"]
        if self._metrics is None or peers != self._peers:
            self._metrics, self._peers = Metrics(directory / "metrics.jsonl", peers), peers
        progress = progress_file.read(directory)
        rounds, metrics, reported = self._metrics.read()
        weight_rounds, weights = _read_weights(directory, peers, progress.get("status"))
        classes = tuple(map(str, files.json_of(directory, "classes.json", list) or ()))
        split = _read_split(directory, peers, len(classes))
        named = {peer: row.get("name") for peer, row in enumerate(split or ())}
        named |= self._metrics.named
        return Run(
            directory=directory,
            config=config,
            rounds=rounds,
            metrics=metrics,
            names=tuple(str(named.get(peer) or f"peer {peer}") for peer in range(peers)),
            reported=reported,
            weight_rounds=weight_rounds,
            weights=weights,
            split=None if split is None else tuple(split),
            classes=classes,
            progress=progress,
        )


def label_of(config: Mapping[str, Any]) -> str:
    """Return the name of the recipe of a configuration or else of its method."""
    return str(config.get("recipe") or config["method"])


def read_config(directory: Path) -> dict[str, Any]:
    """Read the configuration of a run without loading the parts that it names.

    ResultsError: config.toml is missing, damaged, or not of a run.
    """
    path, config = directory / "config.toml", files.toml_of(directory, "config.toml")
    if config is None:
        raise ResultsError(f"{path}: missing, so this is not a run directory")
    peers = config.get("peers")
    if not isinstance(config.get("method"), str) or type(peers) is not int or peers < 1:
        raise ResultsError(f"{path}: no method or number of peers, so not a run directory")
    for table in tables().keys() - {"", *ambiguous()}:
        if not isinstance(config.get(table, {}), dict):
            raise ResultsError(f"{path}: {table} is not a table")
    for key, value in flatten(config).items():
        try:
            _check_value(key, value)
        except ValueError as error:
            raise ResultsError(f"{path}: {key} = {schema.brief(value)}: {error}") from None
    return config


def _check_value(key: str, value: Any) -> None:
    """Refuse an invalid value of a known key; keys of earlier versions are not checked.

    The message of the ValueError names what is expected.
    """
    if not isinstance(value, bool | int | float | str):
        raise ValueError("must be a number or a string")
    if key in keys():
        keys()[key][1].check_type(value)
    limits.check(key, value)


def _read_split(directory: Path, peers: int, classes: int) -> list[Mapping[str, Any]] | None:
    """Read the statistics of the split, one mapping per peer; None without split.json.

    ResultsError: the content differs from `coterie.datasets.problem.Problem.describe`.
    """
    split: list[Mapping[str, Any]] | None = files.json_of(directory, "split.json", list)
    if split is None:
        return None
    if len(split) != peers or not all(map(_describes_a_peer, split)):
        raise ResultsError(f"{directory / 'split.json'}: expected {peers} peers' statistics")
    for part, key in itertools.product(PARTS, ("labels", "group_labels")):
        widths = {len((row.get(part) or {}).get(key) or ()) for row in split} - {0}
        if len(widths | ({classes} if classes and widths else set())) > 1:
            raise ResultsError(
                f"{directory / 'split.json'}: peers have different classes, or others than "
                "classes.json"
            )
    return split


def _describes_a_peer(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str | None):
        return False
    samples = row.get("samples")
    if not _is_count(row.get("cluster")):
        return False
    if not _is_count(samples) and not (isinstance(samples, float) and 0 <= samples < np.inf):
        return False
    parts = [row.get(part) or {} for part in PARTS]
    return all(
        isinstance(part, dict)
        and _is_count(part.get("size"))
        and _is_count(part.get("groups"))
        and isinstance(part.get(key), list | None)
        and all(count is not None and _is_count(count) for count in part.get(key) or ())
        for part in parts
        for key in ("labels", "group_labels")
    )


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < limits.MAX_WHOLE)


def _read_weights(directory: Path, peers: int, status: object) -> tuple[Ints, Floats]:
    """Read the collaboration matrices; for an unfinished run, those in the relay's folder.

    Empty if the run has too many peers and recorded only the rows of awake peers.
    """
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
    """Return a row per recorded round, memory-mapped, as the file can be large and grows.

    FileNotFoundError: the relay has no such file.
    """
    width = 1 + peers**2
    with files.opened(directory, "relay/weights.f64", files.memory()) as file:
        recorded = os.fstat(file.fileno()).st_size // (8 * width)
        if not recorded:
            return np.empty(0, dtype=np.int64), np.empty((0, peers, peers))
        rows = np.memmap(file, np.float64, mode="r", shape=(recorded, width))
    return rows[:, 0].astype(np.int64), rows[:, 1:].reshape(recorded, peers, peers)
