"""Data that institutions hold themselves: a folder each, which no other node reads.

In a simulation data-dir has a folder per peer, named like the peer and sorted ("2" before "10"). On
a deployed node it is the folder of its own peer. As an error may leave the node, it states what the
run expects and the number of entries that differ; only the node's log has the entries.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.account import Account
from coterie.datasets.files.fingerprint import record, recorded, remembered
from coterie.datasets.files.folders import is_hidden
from coterie.datasets.partition.options import Partition, held_out
from coterie.datasets.preprocessing import (
    IS_MISSING,
    NO_CODE,
    Column,
    Preprocessing,
    RawTable,
    by_column,
)
from coterie.datasets.problem import DataError, Floats, Ints, Problem, Split, Task
from coterie.ranges import option

Fill = Literal["mean", "median", "indicator"]
PARTS = ("train", "validation", "test")
_HOLD_OUT = 0x0D
_NAMED = 20
_SHOWN = 4

_log = logging.getLogger("coterie.data")


@dataclass(frozen=True, eq=False)
class Holding:
    """Data of one institution."""

    # (N, *shape), standardised by the institution's own statistics unless the run has common ones.
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]  # see `coterie.datasets.problem.Split`
    rows: Mapping[str, Ints]  # disjoint rows of each of `PARTS`
    preprocessing: Preprocessing  # from raw examples to `inputs`
    cells: Floats | None = None  # (N, columns) of a table before preprocessing
    own_test: bool = False  # no seed draws the test rows: the institution, or time, divides them
    groups: Ints | None = None  # group of each row, such as a patient, (N,), numbered from 0
    account: Account | None = None  # files and properties of images
    left_out: str = ""  # rows that are not used, in words


@dataclass(frozen=True, kw_only=True)
class HeldOptions:
    """Options of all data sets of institutions."""

    test: float = option(
        0.2, "Share of the examples held out for testing if there is no test part.", low=0, below=1
    )
    validation: float | Literal["auto"] = held_out("the examples", " if there is no such part")
    fold: int = option(
        0,
        "Which of the disjoint parts of that share is the validation part, for cross-validation.",
        low=0,
    )

    @property
    def validation_share(self) -> float:
        """`validation` as a number; 0 for "auto"."""
        return 0.0 if self.validation == "auto" else self.validation

    def __post_init__(self) -> None:
        if self.test + self.validation_share >= 1:
            raise ValueError("test and validation must together be below 1")

    def check_node(self) -> None:
        """Check that the options suffice for a node that sees only its own peer's data."""
        # DataError: an option is missing.


@dataclass(frozen=True)
class Expected:
    """Requirements of a run on every institution's data."""

    name: str  # of the data set
    task: Task  # see `Problem`
    outputs: int  # see `Problem`
    mean: Floats | None = None  # per channel, in raw units; None for each institution's own
    std: Floats | None = None  # likewise
    # Names of the classes, or ends of the intervals of time; empty for regression.
    classes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()  # of a table, in the model's order
    # Value of a missing number: mean, median, or mean with a feature that marks it ("indicator").
    fill: Fill = "mean"
    schema: str = ""  # digest of the schema that describes the columns; empty if there is none


Read = Callable[[Path, Any, int, int], tuple[Expected, Holding]]
"""Function from (folder, options, seed, peer) to the run's requirements and a peer's data."""


def simulated(read: Read) -> Callable[[Partition, int, int, Path, object], Problem]:
    """Make the loader of a simulation, with every peer's folder in data-dir."""

    @remembered(2)
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        if not data_dir.is_dir():
            raise DataError(
                f"data-dir {data_dir} does not exist: expected a folder per peer (`coterie data "
                "fetch NAME` writes the data of a preset institutions/NAME)"
            )
        record(data_dir)
        paths = [path for path in data_dir.glob("*") if path.is_dir()]
        folders = sorted(paths, key=lambda path: natural(path.name))
        if len(folders) != peers:
            raise DataError(
                f"data-dir {data_dir} has {len(folders)} folders, but peers = {peers}: each peer "
                "needs one"
            )
        read_p, files_p, seen = [], [], set[Path]()
        for peer, folder in enumerate(folders):
            with showing_entries(folder.name), recorded() as reads:
                if folder.is_symlink():
                    record(folder)  # which the walk of data_dir left out
                read_p.append(read(folder, options, seed, peer))
            files_p.append(reads.files(data_dir))
            seen.update(reads)
        expected, first = read_p[0]
        for folder, (requirements, _) in zip(folders, read_p, strict=True):
            known, others = ({c.name for c in each.columns} for each in (expected, requirements))
            if differing := sorted(known ^ others):
                raise DataError(
                    f"{expected.name}: {folders[0].name} and {folder.name} have different columns "
                    f"({listed(differing)}): rename them if they mean the same, or name the "
                    f"columns to use in {expected.name}.columns"
                )
        holdings = {peer: holding for peer, (_, holding) in enumerate(read_p)}
        problem = join_holdings(expected, holdings, peers)
        names = tuple(folder.name for folder in folders)
        rows = [f"{names[p]}: {h.left_out}" for p, h in holdings.items() if h.left_out]
        linked = [folder.absolute() for folder in folders if folder.is_symlink()]
        left_out = *rows, *(() if first.account else unread(data_dir, seen, linked))
        return replace(problem, names=names, files=tuple(files_p), left_out=left_out)

    return load


def deployed(read: Read) -> Callable[[int, int, int, Path, object], Problem]:
    """Make the loader of a deployed node, whose data-dir is the folder of `peer`."""

    @remembered(2)
    def load(peer: int, peers: int, seed: int, data_dir: Path, options: object) -> Problem:
        assert isinstance(options, HeldOptions)
        options.check_node()
        record(data_dir)
        with logging_entries(), recorded() as reads:
            expected, holding = read(data_dir, options, seed, peer)
        problem = join_holdings(expected, {peer: holding}, peers)
        rest = () if holding.account else unread(data_dir, reads)
        left_out = *filter(None, [holding.left_out]), *rest
        return replace(problem, files=(reads.files(data_dir),) * peers, left_out=left_out)

    return load


@contextmanager
def showing_entries(name: str) -> Iterator[None]:
    """Name the peer in errors, and show the entries of a RefusedError, as a simulation may."""
    try:
        yield
    except DataError as error:
        entries = f": {listed(error.entries)}" if isinstance(error, RefusedError) else ""
        raise DataError(f"{name}: {error}{entries}") from None


@contextmanager
def logging_entries() -> Iterator[None]:
    """Write the entries of a RefusedError only to the log, as a deployed node must."""
    try:
        yield
    except RefusedError as error:
        for entry in error.entries[:_NAMED]:
            _log.error("%s: %s", error, entry)
        raise DataError(f"{error}; the log of this node lists the entries") from None


def join_holdings(expected: Expected, holdings: Mapping[int, Holding], peers: int) -> Problem:
    """Make the problem of `peers` peers from the data of some of them, by peer."""
    held = [*holdings.values()]
    targets, nothing = np.concatenate([each.targets for each in held]), np.empty(0, dtype=np.int64)
    starts = np.cumsum([0, *(len(each.inputs) for each in held)])
    holding_p = [holdings.get(peer) for peer in range(peers)]

    def part(name: str) -> Split:
        own = (each.rows[name] + start for each, start in zip(held, starts, strict=False))
        rows_of = dict(zip(holdings, own, strict=True))
        rows_p = [rows_of.get(peer, nothing) for peer in range(peers)]
        return Split(tuple(rows_p), tuple(targets[rows] for rows in rows_p))

    train, validation, test = map(part, PARTS)
    cells = [each.cells for each in held if each.cells is not None]
    return Problem(
        name=expected.name,
        task=expected.task,
        inputs=np.concatenate([each.inputs for each in held]),
        train=train,
        validation=validation,
        test=test,
        outputs=expected.outputs,
        mean=np.zeros(()) if expected.mean is None else expected.mean,
        std=np.ones(()) if expected.std is None else expected.std,
        samples=train.sizes,
        validation_key=f"{expected.name}.validation",
        classes=expected.classes,
        preprocessing=tuple(None if h is None else h.preprocessing for h in holding_p),
        table=RawTable(expected.columns, np.concatenate(cells)) if cells else None,
        own_test=tuple(h is not None and h.own_test for h in holding_p),
        groups=_all_groups(held),
        accounts=tuple(None if h is None else h.account for h in holding_p),
    )


def _all_groups(holdings: Sequence[Holding]) -> Ints | None:
    """Number the groups of all holdings, (N,); rows without one are groups of their own."""
    if all(holding.groups is None for holding in holdings):
        return None
    own_p = [np.arange(len(h.inputs)) if h.groups is None else h.groups for h in holdings]
    starts = np.cumsum([0, *(own.max(initial=-1) + 1 for own in own_p)])
    return np.concatenate([own + start for own, start in zip(own_p, starts, strict=False)])


def make_holding(
    expected: Expected,
    parts: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    options: HeldOptions,
    seed: int,
    peer: int,
    *,
    by_class: bool = False,
    groups: Mapping[str, npt.NDArray[Any]] | None = None,
    times: Floats | None = None,
    left_out: Sequence[str] = (),
) -> Holding:
    """Join an institution's parts, draw missing test and validation parts, and preprocess.

    Missing parts are drawn from "train" by the shares in `options`, of each class alike if
    `by_class`. Whole `groups` (N,) are drawn. With the `times` (N,) of the training rows nothing is
    drawn: the latest rows are for testing, those before them for validation, and equal times stay
    together. With both, a group belongs where its first row does, and its late rows are left out.

    DataError: there are no training or no test examples, or a group is in two parts.
    """
    ends = np.cumsum([0, *(len(parts[name][1]) for name in PARTS if name in parts)])
    present = [name for name in PARTS if name in parts]
    rows = {name: np.arange(ends[k], ends[k + 1]) for k, name in enumerate(present)}
    group_n = None if groups is None else _numbered(groups, present, expected.name)
    own_test = "test" in parts or times is not None
    drawn = rows["train"]
    unit_n = drawn if group_n is None else group_n[drawn]
    units = int(unit_n.max(initial=-1)) + 1
    first_u = np.full(units, np.inf)
    if times is None:
        left_u = np.random.default_rng([seed, peer, _HOLD_OUT]).permutation(units)
        if by_class and expected.task == "classification":
            left_u = left_u[_interleaved(_rarest(unit_n, parts["train"][1])[left_u])]
    else:
        np.minimum.at(first_u, unit_n, times)
        left_u = np.argsort(-first_u, kind="stable")
    is_before = np.ones(len(drawn), dtype=np.bool_)
    for name, share in (("test", options.test), ("validation", options.validation_share)):
        if name not in rows:
            count = round(share * units)
            if times is not None:
                count = _border(first_u[left_u], count, f"{expected.name}: {name}")
            elif name == "validation":
                left_u = np.roll(left_u, -options.fold * count)
            chosen_u, left_u = left_u[:count], left_u[count:]
            rows[name] = drawn[np.isin(unit_n, chosen_u) & is_before]
            if times is not None and count:
                is_before = times < first_u[chosen_u].min()
    rows["train"] = drawn[np.isin(unit_n, left_u) & is_before]
    for name in ("train", "test"):
        if not len(rows[name]):
            of_groups = "" if group_n is None else f": all rows are of {group_n.max() + 1} groups"
            raise DataError(f"{expected.name}: this peer has no {name} examples{of_groups}")
    if late := int(ends[-1]) - sum(map(len, rows.values())):
        why = "they are as late as the validation or test part, and their groups have earlier rows"
        less = f"{expected.name}.test = 0.05 would leave out fewer"
        left_out = *left_out, f"{late} of {ends[-1]} rows left out: {why}; {less}"
    inputs, targets = (np.concatenate([parts[name][k] for name in present]) for k in (0, 1))
    preprocessing = _fitted(inputs, rows["train"], expected)
    cells = inputs if expected.columns else None
    values = preprocessing.apply(inputs)
    kept = values, targets, rows, preprocessing, cells, own_test, group_n
    return Holding(*kept, left_out="; ".join(left_out))


def _numbered(groups: Mapping[str, npt.NDArray[Any]], present: Sequence[str], name: str) -> Ints:
    """Number the groups of the rows of all parts, (N,), in the order of their first rows."""
    # Names of groups are in the entries of the RefusedError only: they identify persons.
    for one, other in itertools.combinations(present, 2):
        if len(both := np.intersect1d(groups[one], groups[other])):
            raise RefusedError(
                f"{name}: {len(both)} groups (such as patients) have rows in both {one} and "
                f"{other}: keep all rows of a group in one part",
                map(str, both),
            )
    _, first_g, of_n = np.unique(
        np.concatenate([groups[each] for each in present]), return_index=True, return_inverse=True
    )
    return np.asarray(first_g.argsort().argsort()[of_n])


def _rarest(unit_n: Ints, class_n: Ints) -> Ints:
    """Return the rarest class among the rows of each unit, (units,)."""
    class_u = np.zeros(unit_n.max(initial=-1) + 1, dtype=class_n.dtype)
    common_first = np.argsort(-np.bincount(class_n)[class_n], kind="stable")
    class_u[unit_n[common_first]] = class_n[common_first]  # the last one stays
    return class_u


def _border(latest_first_u: Floats, count: int, part: str) -> int:
    """Return the number nearest to `count` at which times differ; DataError if there is none."""
    borders = np.flatnonzero(np.diff(latest_first_u)) + 1
    if count and not len(borders):
        raise DataError(f"{part} rows cannot be later than others: all have the same time")
    return int(borders[np.abs(borders - count).argmin()]) if count else 0


def _interleaved(classes_n: Ints) -> Ints:
    """Return an order in which the first examples have each class in proportion."""
    place_n, size_n = np.empty((2, len(classes_n)))
    for each in np.unique(classes_n):
        at = np.flatnonzero(classes_n == each)
        place_n[at], size_n[at] = (np.arange(len(at)) + 0.5) / len(at), len(at)
    return np.lexsort((size_n, place_n))  # of equal places, the rarer class first


def _fitted(raw: npt.NDArray[Any], train: Ints, expected: Expected) -> Preprocessing:
    """Fit the preprocessing on the training rows, except statistics that the run defines."""
    # A missing number is filled as `Expected.fill` says; a missing category is no category.
    columns = expected.columns
    source = code = fill = None
    if columns:
        number = [NO_CODE, IS_MISSING] if expected.fill == "indicator" else [NO_CODE]
        codes = [range(len(c.categories)) if c.categories else number for c in columns]
        source = np.repeat(np.arange(len(columns)), [*map(len, codes)])
        code = np.array([each for of_column in codes for each in of_column], dtype=np.int64)
        middle_c = by_column(np.nanmedian if expected.fill == "median" else np.nanmean, raw[train])
        fill = np.where(code == NO_CODE, np.nan_to_num(middle_c)[source], NO_CODE)
    filled = Preprocessing(columns, source, code, fill, schema=expected.schema)
    if expected.mean is not None and expected.std is not None:
        return filled
    # Standardise every channel or column over the training examples.
    inputs = filled.apply(raw)
    axes = (0, *range(2, inputs.ndim))
    values = inputs[train].astype(np.float64)
    mean, std = values.mean(axis=axes, keepdims=True), values.std(axis=axes, keepdims=True)
    return replace(filled, mean=mean[0], std=np.where(std > 0, std, 1.0)[0])


class RefusedError(DataError):
    """Data that does not fit the run; a deployed node writes the `entries` only to its log."""

    def __init__(self, message: str, entries: Iterable[str]) -> None:
        super().__init__(message)
        self.entries = list(entries)


def unread(folder: Path, read: Collection[Path], linked: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return a line that names files below a folder that were not read, if there are any."""
    # A link to another folder counts as a file, unless it is among the `linked` ones.
    base, known = folder.absolute(), {*read, *linked}
    below = (path for each in (base, *linked) for path in each.rglob("*") if path not in known)
    files = (path for path in below if path.is_file() or path.is_symlink())
    names = [path.relative_to(base) for path in files if path.suffix not in (".md", ".toml")]
    rest = sorted(name.as_posix() for name in names if not any(map(is_hidden, name.parts)))
    line = f"unread in data-dir: {len(rest)} ({listed(rest)}); rename or merge those that are data"
    return (line,) if rest else ()


def listed(entries: Sequence[str]) -> str:
    """Write "a, b and c", or "a, b, c, d and 5 others"."""
    cut = len(entries) > _SHOWN + 1
    shown = [*entries[:_SHOWN], f"{len(entries) - _SHOWN} others"] if cut else [*entries]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def words(text: str) -> list[str]:
    """Split "a, b, c" into its entries."""
    return [word.strip() for word in text.split(",") if word.strip()]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which digits compare as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
