"""Data sets given as a list with a mapping of arrays per peer ("arrays": an .npz file per peer).

A mapping has `x` (N, ...) and `y` (N,) or (N, k), and may have `x_test`, `y_test`, `x_validation`,
`y_validation`, `name`, and `classes`, the names of the classes in the order of the outputs. Labels
that are integers, booleans or strings are classes, named unless they are 0, 1, 2 and so on; floats
are regression targets, or classes where `classes` names them. `group` (N,), with `group_test` and
`group_validation`, has the group, such as the patient, of each example, `time` (N,) its time.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from coterie.datasets import grammar
from coterie.datasets.files.fingerprint import content, record, recorded, remembered
from coterie.datasets.own.institutions import (
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    join_holdings,
    logging_entries,
    make_holding,
    natural,
    showing_entries,
    unread,
    words,
)
from coterie.datasets.partition.options import Partition, held_out
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.source import Source, divided, spread
from coterie.ranges import option

Arrays = Mapping[str, Any]
"""Data of one peer."""

PARTS = {"train": ("x", "y"), "test": ("x_test", "y_test"),
         "validation": ("x_validation", "y_validation")}  # fmt: skip
_TEST_SHARE = 0.2  # of arrays that are partitioned, without a test part
_GROUPS = {part: x.replace("x", "group") for part, (x, _) in PARTS.items()}
_KEYS = {key for pair in PARTS.values() for key in pair}
_KEYS |= {"name", "classes", "time", *_GROUPS.values()}


def problem_of_arrays(
    name: str, data: Sequence[Arrays], partition: Partition, peers: int, seed: int
) -> Problem:
    """Make the problem of peers with these arrays; a DataError names the peer and the key."""
    if len(data) != peers:
        raise DataError(f"peers = {peers}, but {name} has {len(data)}: set peers = {len(data)}")
    names = tuple(_name(arrays, peer) for peer, arrays in enumerate(data))
    if duplicates := [each for each, count in Counter(names).items() if count > 1]:
        raise DataError(f'{name}: two peers have the name "{duplicates[0]}": make names unique')
    parts_p = [_parts(name, *item) for item in zip(names, data, strict=True)]
    expected = _expected(name, data, parts_p)
    holdings = {}
    for peer, (arrays, parts) in enumerate(zip(data, parts_p, strict=True)):
        with showing_entries(names[peer]):
            holdings[peer] = _holding(arrays, parts, expected, partition, seed, peer)
    problem = join_holdings(expected, holdings, peers)
    is_named = any("name" in arrays for arrays in data)
    return replace(problem, names=names if is_named else (), validation_key="partition.validation")


def problem_of_node(name: str, data: Sequence[Arrays], peer: int, peers: int, seed: int) -> Problem:
    """Make the problem of a deployed node from its own arrays; DataError: invalid, or of others."""
    if len(data) != 1:
        raise DataError(
            f"{name}: {len(data)} peers, but a deployed node must return its own peer's data only"
        )
    parts = _parts(name, f"peer {peer}", data[0])
    expected = _expected(name, data, [parts])
    if expected.task == "classification" and "classes" not in data[0]:
        raise DataError(f'{name}: on a deployed node "classes" must name all classes')
    with logging_entries():
        holding = _holding(data[0], parts, expected, Partition(), seed, peer)
    return join_holdings(expected, {peer: holding}, peers)


def source_of_arrays(name: str, arrays: Arrays) -> Source:
    """Make a source of arrays that are to be partitioned among the peers."""
    if unused := sorted(arrays.keys() - {"x", "y", "x_test", "y_test", "classes"}):
        raise DataError(f'{name}: "{unused[0]}" needs a list with the data of each peer')
    parts = _parts(name, "the data set", arrays)
    expected = _expected(name, [arrays], [parts])
    with showing_entries(name):
        encoded = _encoded(parts, expected)
    inputs, targets = encoded["train"]
    if "test" in encoded:
        more, labels = encoded["test"]
        test = np.arange(len(inputs), len(inputs) + len(more))
        inputs, targets = np.concatenate([inputs, more]), np.concatenate([targets, labels])
    else:
        by_class = np.argsort(targets.reshape(len(targets), -1)[:, 0], kind="stable")
        test = spread(by_class, round(_TEST_SHARE * len(inputs)))
    return divided(
        name, inputs, targets, test, expected.outputs,
        task=expected.task, classes=expected.classes,
    )  # fmt: skip


Parts = dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def _name(arrays: Arrays, peer: int) -> str:
    default = f"peer {peer}"
    return str(arrays.get("name", default)) if isinstance(arrays, Mapping) else default


def _holding(
    arrays: Arrays, parts: Parts, expected: Expected, partition: Partition, seed: int, peer: int
) -> Holding:
    options = HeldOptions(validation=partition.validation)
    encoded, marks = _encoded(parts, expected), _marks(arrays, parts)
    return make_holding(expected, encoded, options, seed, peer, **marks)


def _parts(name: str, peer: str, arrays: Arrays) -> Parts:
    if not isinstance(arrays, Mapping):
        raise DataError(
            f"{name}: {peer} has a {type(arrays).__name__} instead of a dict with x and y, or a "
            "data set of (inputs, label)"
        )
    if unknown := sorted(arrays.keys() - _KEYS):
        raise DataError(
            f'{name}: {peer}: unknown key "{unknown[0]}"; known: {", ".join(sorted(_KEYS))}'
        )
    parts: Parts = {}
    for part, (x, y) in PARTS.items():
        if x in arrays and y in arrays:
            if np.ma.is_masked(arrays[x]):
                raise DataError(f"{name}: {peer} has masked values in {x}: fill them")
            try:
                inputs = np.asarray(arrays[x])
                labels = _labels(f"{name}: {peer}", y, arrays[y], arrays.get("classes", ()))
            except DataError:
                raise
            except (ValueError, TypeError) as error:  # rows of different lengths
                raise DataError(f"{name}: {peer}: {x} and {y} must be arrays: {error}") from None
            if inputs.ndim < 2 or labels.ndim < 1 or len(inputs) != len(labels):
                raise DataError(
                    f"{name}: {peer} has {x} of shape {inputs.shape} and {y} of shape "
                    f"{labels.shape}: both need one row per example, and {x} at least one feature"
                )
            if inputs.dtype.kind not in "iubf":
                raise DataError(f"{name}: {peer} has {x} of {inputs.dtype}, not of numbers")
            for key, values in ((x, inputs), (y, labels)):
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise DataError(
                        f"{name}: {peer} has NaN or infinity in {key}: fill these values, or leave "
                        "their examples out"
                    )
            parts[part] = inputs, labels
        elif x in arrays or y in arrays:
            missing = y if x in arrays else x
            raise DataError(f'{name}: {peer} has no "{missing}"')
    if "train" not in parts:
        raise DataError(f'{name}: {peer} has no "x" and "y"')
    return parts


def _marks(arrays: Arrays, parts: Parts) -> dict[str, Any]:
    """Return the arguments `groups` and `times` of `make_holding`."""
    keys = {part: _GROUPS[part] for part in parts if {*_GROUPS.values()} & arrays.keys()}
    times = _mark(arrays, "time", parts["train"][0]) if "time" in arrays else None
    if times is not None and times.dtype.kind not in "iufM":
        raise DataError("time must be numbers or datetime64")
    return {
        "groups": {part: _mark(arrays, key, parts[part][0]) for part, key in keys.items()} or None,
        "times": None if times is None else times.astype(np.float64),
    }


def _mark(arrays: Arrays, key: str, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import pandas as pd  # slow to import

    values = np.asarray(arrays.get(key, ()))
    if (
        values.shape != inputs.shape[:1]
        or pd.isna(values).any()
        or (values.astype(str) == "").any()
        or np.ma.is_masked(arrays[key])
    ):
        raise DataError(
            f"{key} must have a value for each of the {len(inputs)} examples of its part"
        )
    return values.astype(str) if values.dtype.kind == "O" else values


def _labels(peer: str, key: str, values: Any, classes: Sequence[Any]) -> npt.NDArray[Any]:
    """Return labels as numbers, truth values or texts; DataError if one is missing."""
    import pandas as pd  # slow to import

    y = np.asarray(values)
    missing = pd.isna(y) | np.ma.getmaskarray(values).reshape(y.shape)
    if y.dtype.kind == "O":
        known = np.array(np.where(missing, "", y).tolist() if missing.any() else y.tolist())
        y = known.astype(str) if known.dtype.kind == "O" else known
    elif y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    if y.dtype.kind == "U":
        marks = {*grammar.UNNAMED} - {*map(str, classes)}
        texts, index_n = np.unique(y, return_inverse=True)
        y = np.array([grammar.plain(text) for text in texts])[index_n].reshape(y.shape)
        missing = missing | np.isin(y, [*marks])
    if missing.any():
        first = np.argwhere(missing)[0][0]
        raise DataError(
            f"{peer} has no label in {missing.sum()} of {len(y)} examples of {key}, the first is "
            f"number {first + 1}: leave them out; if a text such as NA or None is a class, name "
            'all classes in "classes"'
        )
    if y.dtype.kind not in "iubfU":
        raise DataError(f"{peer} has {key} of {y.dtype}, neither numbers nor texts")
    return y


def _expected(name: str, data: Sequence[Arrays], parts_p: Sequence[Parts]) -> Expected:
    """Determine the task, the outputs and the classes of all peers."""
    shapes = {inputs.shape[1:] for parts in parts_p for inputs, _ in parts.values()}
    if len(shapes) > 1:
        raise DataError(f"{name}: examples have different shapes, {' and '.join(map(str, shapes))}")
    labels = [y for parts in parts_p for _, y in parts.values()]
    named = (tuple(map(str, arrays["classes"])) for arrays in data if "classes" in arrays)
    classes = next(named, ())
    kinds = {y.dtype.kind != "f" for y in labels} if not classes else {True}
    if len(kinds) > 1:
        raise DataError(f"{name}: some labels are classes, others are numbers: make y one type")
    if kinds == {False}:
        widths = {y.shape[1:] for y in labels}
        width = (*widths.pop(), 1)
        if widths or len(width) > 2:
            raise DataError(f"{name}: y must be (N,) or (N, k), the same for all peers")
        return Expected(name, "regression", width[0])
    if any(y.ndim != 1 for y in labels):
        raise DataError(f"{name}: y must be (N,), a class per example")
    if not classes:
        found = sorted(
            {each for y in labels for each in np.unique(y).tolist()},
            key=lambda label: (isinstance(label, str), label),
        )
        if found == [*range(len(found))] and all(y.dtype.kind in "iu" for y in labels):
            return Expected(name, "classification", len(found))
        classes = tuple(dict.fromkeys(map(str, found)))  # 1 at a peer, "1" at another
    return Expected(name, "classification", len(classes), classes=classes)


def _encoded(parts: Parts, expected: Expected) -> Parts:
    """Encode labels as class numbers, or as columns of numbers."""
    classes, code = expected.classes, grammar.codes(expected.classes)
    numbered = not all(map(grammar.is_number, classes))

    def number(label: Any) -> int:
        if not numbered or isinstance(label, str | bool):
            return code(str(label))
        if label not in range(len(classes)):
            raise ValueError
        return int(label)

    def encoded(y: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if expected.task == "regression":
            return y.reshape(len(y), -1).astype(np.float64)
        if not classes:
            return y.astype(np.int64)
        values, index_n = np.unique(y, return_inverse=True)
        numbers = []
        for value in values.tolist():
            try:
                numbers.append(number(value))
            except ValueError:
                known = f"{', '.join(classes)}{', or their numbers from 0' * numbered}"
                raise RefusedError(
                    f"{expected.name}: y has an unknown class; known: {known}", [str(value)]
                ) from None
        return np.array(numbers, dtype=np.int64)[index_n]

    return {name: (x, encoded(y)) for name, (x, y) in parts.items()}


_NAME = "arrays"


@dataclass(frozen=True)
class ArraysOptions:
    """Options of the data set "arrays"."""

    classes: str = option(
        "",
        'Names of the classes in the order of the model\'s outputs, "healthy, ill"; empty to use '
        "those in the arrays of all peers (simulations only).",
    )
    validation: float | Literal["auto"] = held_out("examples", " if there is no such part")


@remembered(2)
def load_arrays(
    partition: Partition, peers: int, seed: int, data_dir: Path, options: Any
) -> Problem:
    """Load a simulation: every *.npz in data-dir is a peer, named like the file."""
    record(data_dir)
    files = sorted(data_dir.glob("*.npz"), key=lambda path: natural(path.name))
    if len(files) != peers:
        raise DataError(
            f"data-dir {data_dir} has {len(files)} files *.npz, but peers = {peers}: each peer "
            "needs one"
        )
    data, files_p = [], []
    for path in files:
        with recorded() as reads:
            data.append(_read(path, options) | {"name": path.stem})
        files_p.append(reads.files(data_dir))
    problem = problem_of_arrays(_NAME, data, Partition(validation=options.validation), peers, seed)
    key, left_out = f"{_NAME}.validation", unread(data_dir, [*map(Path.absolute, files)])
    return replace(problem, validation_key=key, files=tuple(files_p), left_out=left_out)


@remembered(2)
def load_own_arrays(peer: int, peers: int, seed: int, data_dir: Path, options: Any) -> Problem:
    """Load a deployed node, whose data-dir has one *.npz."""
    record(data_dir)
    files = sorted(data_dir.glob("*.npz"))
    if len(files) != 1:
        raise DataError(f"{_NAME}: this peer's data-dir must have one *.npz, not {len(files)}")
    with recorded() as reads:
        data = [_read(files[0], options)]
    problem = problem_of_node(_NAME, data, peer, peers, seed)
    files_p = (reads.files(data_dir),) * peers
    return replace(problem, files=files_p, left_out=unread(data_dir, reads))


def _read(path: Path, options: ArraysOptions) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(content(path)), allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, BadZipFile):
        raise DataError(
            f"{_NAME}: {path.name} is damaged, or has arrays that need pickle: write it with "
            "numpy.savez from arrays of numbers or text"
        ) from None
    return arrays | ({"classes": words(options.classes)} if options.classes else {})
