"""Data that institutions hold themselves: one folder each, which no other node reads.

In a simulation data-dir has a folder for each peer, in the order of their names ("2" comes before
"10"), which become the peers' names. On a deployed node data-dir is the folder of its own peer,
whose name nobody learns, and the problem it builds knows of the others only that they are there.

A folder that does not fit the run is refused before anything is learnt. The refusal goes to the
relay, so it says what the run expects and how many entries differ; which ones stays in the log of
the node.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.partition.options import Partition
from coterie.datasets.preprocessing import NO_CODE, Column, Preprocessing
from coterie.datasets.problem import DataError, Floats, Ints, Problem, Split, Task

PARTS = ("train", "validation", "test")
_HOLD_OUT = 0x0D
_NAMED = 20
_SHOWN = 3

_log = logging.getLogger("coterie.data")


@dataclass(frozen=True, eq=False)
class Holding:
    """What one institution holds.

    Attributes
    ----------
    inputs : (N, *shape), normalised by the institution's own statistics unless the run gives some.
    targets : int64 (N,) classes, or float (N, k).
    rows : rows of each of `PARTS`, which share nothing.
    preprocessing : what made `inputs` of the raw examples.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    rows: Mapping[str, Ints]
    preprocessing: Preprocessing


@dataclass(frozen=True, kw_only=True)
class HeldOptions:
    """Options that every data set of institutions has.

    Attributes
    ----------
    test : share of the examples that is held out for testing where there is no such part.
    validation : share held out for validation where there is no such part; "auto": none here, and
        what the method needs where a run is configured.
    """

    test: float = 0.2
    validation: float | Literal["auto"] = "auto"

    @property
    def validation_share(self) -> float:
        """`validation` as a number."""
        return 0.0 if self.validation == "auto" else self.validation

    def check_held(self) -> None:
        """The parts leave something to train on."""
        share = self.validation_share
        if not (0 <= self.test < 1 and 0 <= share < 1 and self.test + share < 1):
            raise ValueError("test and validation must be at least 0 and together below 1")

    def check_node(self) -> None:
        """See that they say all that a node must know which sees no other peer's data.

        Raises
        ------
        DataError : they do not.
        """


@dataclass(frozen=True, kw_only=True)
class NormalisedOptions(HeldOptions):
    """Options of data that are numbers.

    Attributes
    ----------
    mean : mean per channel or column, in raw units; empty: each peer's own.
    std : standard deviation per channel or column, in raw units; empty: each peer's own.
    """

    mean: str = ""
    std: str = ""

    def check_normalised(self, channels: int | None) -> None:
        """Both mean and std or neither, and parts that leave something to train on."""
        self.check_held()
        mean, std = numbers("mean", self.mean, channels), numbers("std", self.std, channels)
        if (mean is None) != (std is None):
            raise ValueError("give both mean and std, or neither: then each peer takes its own")
        if std is not None and std.min() <= 0:
            raise ValueError("std must be above 0")


@dataclass(frozen=True)
class Expected:
    """What a run expects of every institution.

    Attributes
    ----------
    name : of the data set.
    task, outputs : as in `Problem`.
    mean, std : per channel or column, in raw units; None: each institution's own.
    classes : their names; empty where the target is a number.
    columns : of a table, in the model's order.
    """

    name: str
    task: Task
    outputs: int
    mean: Floats | None
    std: Floats | None
    classes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()


Read = Callable[[Path, Any, int, int], tuple[Expected, Holding]]
"""(folder, options, seed, peer) -> what the run expects, and what is there."""


def simulated(read: Read) -> Callable[[Partition, int, int, Path, object], Problem]:
    """The loader of a simulation: every peer's folder in data-dir."""

    @lru_cache(maxsize=2)
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        if not data_dir.is_dir():
            raise DataError(f"there is no data-dir {data_dir}")
        found = [path for path in data_dir.glob("*") if path.is_dir()]
        folders = sorted(found, key=lambda path: natural(path.name))
        if len(folders) != peers:
            raise DataError(
                f"data-dir {data_dir} has {len(folders)} folders: {peers} peers need one each"
            )
        read_p = []
        for peer, folder in enumerate(folders):
            try:
                read_p.append(read(folder, options, seed, peer))
            except DataError as error:  # everybody's data is here: there is nobody to hide from
                which = f": {_listed(error.entries)}" if isinstance(error, RefusedError) else ""
                raise DataError(f"{folder.name}: {error}{which}") from None
        expected = read_p[0][0]
        for folder, (own, _) in zip(folders, read_p, strict=True):
            if differing := sorted(_names(own) ^ _names(expected)):
                raise DataError(
                    f"{expected.name}: {folders[0].name} and {folder.name} do not have the same "
                    f"columns ({_listed(differing)}): name those to learn from"
                )
        holdings = {peer: holding for peer, (_, holding) in enumerate(read_p)}
        problem = joined(expected, holdings, peers)
        return replace(problem, names=tuple(folder.name for folder in folders))

    return load


def _names(expected: Expected) -> set[str]:
    return {column.name for column in expected.columns}


def deployed(read: Read) -> Callable[[int, int, int, Path, object], Problem]:
    """The loader of a deployed node: data-dir is the folder of `peer`."""

    @lru_cache(maxsize=2)
    def load(peer: int, peers: int, seed: int, data_dir: Path, options: object) -> Problem:
        assert isinstance(options, HeldOptions)
        options.check_node()
        try:
            expected, holding = read(data_dir, options, seed, peer)
        except RefusedError as error:
            for entry in error.entries[:_NAMED]:
                _log.error("%s: %s", error, entry)
            raise DataError(f"{error}; the log of this node says which") from None
        return joined(expected, {peer: holding}, peers)

    return load


def joined(expected: Expected, holdings: Mapping[int, Holding], peers: int) -> Problem:
    """The problem of `peers` peers, of which some are seen."""
    first = next(iter(holdings.values()))
    starts = np.cumsum([0, *(len(each.inputs) for each in holdings.values())])
    start = dict(zip(holdings, starts.tolist(), strict=False))

    def part(name: str) -> Split:
        rows, targets = [], []
        for peer in range(peers):
            if peer in holdings:
                own = holdings[peer].rows[name]
                rows.append(own + start[peer])
                targets.append(holdings[peer].targets[own])
            else:
                rows.append(np.empty(0, dtype=np.int64))
                targets.append(first.targets[:0])
        return Split(tuple(rows), tuple(targets))

    train, validation, test = map(part, PARTS)
    return Problem(
        name=expected.name,
        task=expected.task,
        inputs=np.concatenate([each.inputs for each in holdings.values()]),
        train=train,
        validation=validation,
        test=test,
        outputs=expected.outputs,
        mean=np.zeros(()) if expected.mean is None else expected.mean,
        std=np.ones(()) if expected.std is None else expected.std,
        samples=train.sizes,
        validation_key=f"{expected.name}.validation",
        classes=expected.classes,
        preprocessing=tuple(
            holdings[peer].preprocessing if peer in holdings else None for peer in range(peers)
        ),
    )


def held(
    expected: Expected,
    parts: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    options: HeldOptions,
    seed: int,
    peer: int,
) -> Holding:
    """Put an institution's parts together; a test or validation part that is not there is drawn.

    Parameters
    ----------
    parts : name -> inputs and targets, the training part always among them.
    options : say how much of the training part to draw for a part that is missing.

    Raises
    ------
    DataError
        There is nothing to train on, or nothing to test with.
    """
    ends = np.cumsum([0, *(len(parts[name][1]) for name in PARTS if name in parts)])
    present = [name for name in PARTS if name in parts]
    rows = {name: np.arange(ends[k], ends[k + 1]) for k, name in enumerate(present)}
    rng = np.random.default_rng([seed, peer, _HOLD_OUT])
    shuffled = rng.permutation(rows["train"])
    for name, share in (("test", options.test), ("validation", options.validation_share)):
        if name not in rows:
            count = round(share * len(rows["train"]))
            rows[name], shuffled = np.sort(shuffled[:count]), shuffled[count:]
    rows["train"] = np.sort(shuffled)
    for name in ("train", "test"):
        if not len(rows[name]):
            raise DataError(f"{expected.name}: this peer has no example to {name} with")
    inputs, targets = (np.concatenate([parts[name][k] for name in present]) for k in (0, 1))
    fitted = _fitted(inputs, rows["train"], expected)
    return Holding(fitted.apply(inputs), targets, rows, fitted)


def _fitted(raw: npt.NDArray[Any], train: Ints, expected: Expected) -> Preprocessing:
    """The preprocessing that these training examples, and the run where it says so, ask for.

    A missing number becomes its column's mean, the run's or that of the training rows; a missing
    category is none of them.
    """
    columns = expected.columns
    source = code = fill = None
    if columns:
        width = [len(column.categories) or 1 for column in columns]
        source = np.repeat(np.arange(len(columns)), width)
        codes = [range(len(c.categories)) if c.categories else [NO_CODE] for c in columns]
        code = np.array([each for own in codes for each in own], dtype=np.int64)
        means = _means(raw, train) if expected.mean is None else expected.mean
        fill = np.where(code == NO_CODE, means[source], NO_CODE)
    filled = Preprocessing(columns, source, code, fill)
    if expected.mean is not None and expected.std is not None:
        return filled
    # Every channel or column gets mean 0 and deviation 1 over the training examples.
    inputs = filled.apply(raw)
    axes = (0, *range(2, inputs.ndim))
    own = inputs[train].astype(np.float64)
    mean, std = own.mean(axis=axes, keepdims=True), own.std(axis=axes, keepdims=True)
    return replace(filled, mean=mean[0], std=np.where(std > 0, std, 1.0)[0])


def _means(raw: npt.NDArray[Any], train: Ints) -> Floats:
    """(columns,) mean of the numbers that are not missing; 0 of none."""
    known = ~np.isnan(raw[train])
    total = np.where(known, raw[train], 0.0).sum(axis=0)
    means: Floats = total / np.maximum(known.sum(axis=0), 1)
    return means


class RefusedError(DataError):
    """Data that does not fit the run.

    Attributes
    ----------
    entries : that it is about; a deployed node tells them to its log only.
    """

    def __init__(self, what: str, entries: Iterable[str]) -> None:
        super().__init__(what)
        self.entries = list(entries)


def _listed(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - _SHOWN} others" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more


def words(text: str) -> list[str]:
    """The entries of "a, b, c"."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(name: str, text: str, count: int | None = None) -> Floats | None:
    """The numbers in "0.5, 0.25"; None where there are none.

    Raises
    ------
    ValueError
        Something else is there, or it is not `count` numbers.
    """
    try:
        found = np.array([float(word) for word in words(text)])
    except ValueError:
        raise ValueError(f'{name} wants numbers like "0.5, 0.25", not "{text}"') from None
    if not len(found):
        return None
    if count is not None and len(found) != count:
        raise ValueError(f"{name} has {len(found)} numbers, the examples have {count} channels")
    return found


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key: runs of digits count as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
