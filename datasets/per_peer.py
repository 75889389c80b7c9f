"""Data that come as arrays of each peer: a list with a mapping for each of them.

A mapping has `x` (N, ...) and `y` (N,) or (N, k), and may have `x_test`, `y_test`, `x_validation`,
`y_validation`, `name`, and `classes`, the names of the classes in the order of the outputs. Labels
are classes where they are whole numbers, booleans or strings; other numbers are to be predicted as
they are. As in all data that peers hold themselves, each peer's inputs are scaled by its own mean
and deviation, and a part that is missing is drawn from the training examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.own.institutions import Expected, HeldOptions, held, joined
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Problem

Arrays = Mapping[str, Any]
"""What one peer holds."""

_PARTS = {"train": ("x", "y"), "test": ("x_test", "y_test"),
          "validation": ("x_validation", "y_validation")}  # fmt: skip
_KEYS = {key for pair in _PARTS.values() for key in pair} | {"name", "classes"}


def problem_of_arrays(
    name: str, data: Sequence[Arrays], partition: Partition, peers: int, seed: int
) -> Problem:
    """The problem of peers that hold these arrays.

    Parameters
    ----------
    name : of the data set.
    partition : of it, `validation` says how much to set aside where a peer names no such part.

    Raises
    ------
    DataError
        The arrays do not make a problem; names the peer and what is wrong.
    """
    if len(data) != peers:
        raise DataError(f"peers = {peers}: {name} has data of {len(data)}: set peers = {len(data)}")
    names = tuple(_called(own, peer) for peer, own in enumerate(data))
    if twice := [called for called, count in Counter(names).items() if count > 1]:
        raise DataError(f'{name}: two peers are called "{twice[0]}": give each a name of its own')
    given = [_parts(name, *own) for own in zip(names, data, strict=True)]
    expected = _expected(name, data, given)
    holdings = {}
    for peer, parts in enumerate(given):
        encoded = _encoded(parts, expected)
        try:
            holdings[peer] = held(expected, encoded, _options(partition), seed, peer)
        except DataError as error:
            raise DataError(f"{names[peer]}: {error}") from None
    problem = joined(expected, holdings, peers)
    named = any("name" in own for own in data)
    return replace(problem, names=names if named else (), validation_key="partition.validation")


def problem_of_node(name: str, data: Sequence[Arrays], peer: int, peers: int, seed: int) -> Problem:
    """The same on a deployed node, which has the arrays of its own peer and no others.

    Raises
    ------
    DataError
        As `problem_of_arrays`; or it has those of other peers.
    """
    if len(data) != 1:
        raise DataError(f"{name} must give a deployed node the data of its own peer and no other")
    parts = _parts(name, f"peer {peer}", data[0])
    expected = _expected(name, data, [parts])
    if expected.task == "classification" and "classes" not in data[0]:
        raise DataError(f'{name}: on a deployed node "classes" must name all classes')
    holding = held(expected, _encoded(parts, expected), _options(Partition()), seed, peer)
    return joined(expected, {peer: holding}, peers)


Parts = dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def _called(own: Arrays, peer: int) -> str:
    return str(own.get("name", f"peer {peer}")) if isinstance(own, Mapping) else f"peer {peer}"


def _options(partition: Partition) -> HeldOptions:
    return HeldOptions(validation=partition.validation)


def _parts(name: str, peer: str, own: Arrays) -> Parts:
    """Inputs and labels of each part that a peer names."""
    if not isinstance(own, Mapping):
        raise DataError(f"{name}: {peer} has a {type(own).__name__} instead of a dict with x and y")
    if unknown := sorted(own.keys() - _KEYS):
        raise DataError(f'{name}: {peer} has "{unknown[0]}"; there are {", ".join(sorted(_KEYS))}')
    parts: Parts = {}
    for part, (x, y) in _PARTS.items():
        if x in own and y in own:
            inputs, labels = np.asarray(own[x]), np.asarray(own[y])
            if inputs.ndim < 2 or len(inputs) != len(labels):
                raise DataError(
                    f"{name}: {peer} has {x} of shape {inputs.shape} and {y} of shape "
                    f"{labels.shape}: one row each, and at least one feature, for an example"
                )
            for key, values in ((x, inputs), (y, labels)):
                if key == x and values.dtype.kind not in "iubf":
                    raise DataError(f"{name}: {peer} has {key} of {values.dtype}, not of numbers")
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise DataError(
                        f"{name}: {peer} has NaN or infinity in {key}: fill these values, or leave "
                        "their examples out"
                    )
            parts[part] = inputs, labels
        elif x in own or y in own:
            missing = y if x in own else x
            raise DataError(f'{name}: {peer} has no "{missing}"')
    if "train" not in parts:
        raise DataError(f'{name}: {peer} has no "x" and "y"')
    return parts


def _expected(name: str, data: Sequence[Arrays], given: Sequence[Parts]) -> Expected:
    """What all peers have in common: shape of an example, and what is predicted."""
    shapes = {inputs.shape[1:] for parts in given for inputs, _ in parts.values()}
    if len(shapes) > 1:
        raise DataError(f"{name}: examples have different shapes, {' and '.join(map(str, shapes))}")
    labels = [y for parts in given for _, y in parts.values()]
    kinds = {y.dtype.kind in "iubUSO" for y in labels}
    if len(kinds) > 1:
        raise DataError(f"{name}: some labels are classes, others are numbers: make y one type")
    if kinds == {False}:
        widths = {y.shape[1:] for y in labels}
        width = (*widths.pop(), 1)
        if widths or len(width) > 2:
            raise DataError(f"{name}: y must be (N,) or (N, k), the same for all")
        return Expected(name, "regression", width[0], None, None)
    if any(y.ndim != 1 for y in labels):
        raise DataError(f"{name}: y must be (N,), a class for each example")
    classes = next((tuple(map(str, own["classes"])) for own in data if "classes" in own), ())
    numbered = all(y.dtype.kind in "iu" for y in labels)
    if not classes and not numbered:
        classes = tuple(sorted({str(each) for y in labels for each in y}))
    outputs = len(classes) or int(max(y.max(initial=0) for y in labels)) + 1
    if numbered and any(y.min(initial=0) < 0 or y.max(initial=0) >= outputs for y in labels):
        raise DataError(f"{name}: classes must be numbered from 0 to {outputs - 1}")
    return Expected(name, "classification", outputs, None, None, classes)


def _encoded(parts: Parts, expected: Expected) -> Parts:
    """Labels as the engine has them: numbers of classes, or columns of numbers."""
    number = {label: index for index, label in enumerate(expected.classes)}

    def encoded(y: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if expected.task == "regression":
            return y.reshape(len(y), -1).astype(np.float64)
        if y.dtype.kind in "iu":
            return y.astype(np.int64)
        if strange := {str(label) for label in y} - number.keys():
            raise DataError(f'{expected.name}: "{min(strange)}" is none of its classes')
        return np.array([number[str(label)] for label in y], dtype=np.int64)

    return {name: (x, encoded(y)) for name, (x, y) in parts.items()}
