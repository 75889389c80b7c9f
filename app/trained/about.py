"""Metadata of a saved model: enough to build and use it without the run.

It is part of models/peer-XXXX.safetensors: strings by name, JSON for values that are not strings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Self, get_args

from coterie.app.config import limits, schema
from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.datasets.preprocessing import Preprocessing, check_scale, numbers
from coterie.datasets.problem import Problem, Task

FORMAT = "coterie model 1"
_CHARACTERS = 10_000
"""Maximum number of characters of a name or a sentence in a file."""
_SIDES = 8
_NUMBERS = 1 << 26
"""Maximum number of values of an example, and of outputs."""


@dataclass(frozen=True)
class About:
    """Description of one peer's model."""

    peer: int  # number
    peer_name: str
    method: str  # of training and prediction
    method_options: Mapping[str, Any]
    model: str  # name of the network (`coterie.clients.models.build.build`)
    model_options: Mapping[str, Any]
    adaptation: Mapping[str, Any]  # options of the network's adaptation
    task: Task  # see `coterie.datasets.problem.Problem`
    outputs: int  # number of classes or of regression outputs
    shape: tuple[int, ...]  # of one example at the network's input
    dataset: str  # name of the training data
    dataset_options: Mapping[str, Any]
    classes: tuple[str, ...]  # names of the outputs; empty if they have no names or are numbers
    columns: tuple[str, ...]  # of raw rows, in order; empty if examples are not rows of a table
    normalisation: Mapping[str, Any]
    """Keys "mean" and "std", and "preprocessing" if the peer has steps before them."""
    dtype: str  # type of the parameters
    config_digest: str  # of the run's configuration, hexadecimal
    refused: str = ""  # reason why the file cannot predict; empty if it can

    @classmethod
    def of(cls, config: Config, problem: Problem, peer: int, refused: str = "") -> Self:
        """Describe a peer's model in a run; the peer has its name in the data."""
        fitted = problem.preprocessing[peer] if problem.preprocessing else None
        normalisation: dict[str, Any] = {
            "mean": problem.mean.tolist(),
            "std": problem.std.tolist(),
        }
        if fitted is not None:
            normalisation["preprocessing"] = fitted.as_json()
        return cls(
            peer=peer,
            peer_name=problem.names[peer] if problem.names else f"peer {peer}",
            method=config.method,
            method_options=_values(config.options),
            model=config.network,
            model_options=_values(config.model_options),
            adaptation=_values(config.adaptation),
            task=problem.task,
            outputs=problem.outputs,
            shape=tuple(problem.inputs.shape[1:]),
            dataset=config.dataset,
            dataset_options=_values(config.dataset_options),
            classes=problem.classes,
            columns=() if fitted is None else tuple(column.name for column in fitted.columns),
            normalisation=normalisation,
            dtype="float64" if problem.task == "quadratic" else config.compute.dtype,
            config_digest=config_digest_of(config).hex(),
            refused=refused,
        )

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The peer's own preprocessing, applied before the run's normalisation."""
        steps = self.normalisation.get("preprocessing")
        return None if steps is None else Preprocessing.of_json(steps)

    def class_names(self) -> list[str]:
        """Return the names of the classes, or their numbers."""
        return list(self.classes) or [str(number) for number in range(self.outputs)]

    def strings(self) -> dict[str, str]:
        """Return the metadata as strings by name."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in vars(self).items()
        }
        return {"format": FORMAT, **texts}

    @classmethod
    def read(cls, strings: Mapping[str, str] | None) -> Self:
        """Read the metadata of an untrusted file; the inverse of `strings`.

        Checks types, sizes and shapes, and their consistency, else ValueError. Builds nothing.
        """
        if not strings or strings.get("format") != FORMAT:
            raise ValueError("it has no metadata (written by an earlier version?)")
        values: dict[str, Any] = {}
        for each in fields(cls):
            try:
                values[each.name] = _READ[each.name](strings[each.name])
            except KeyError:
                raise ValueError(f"its metadata lack {each.name}") from None
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise ValueError(f"its {each.name} is invalid: {error}") from None
        about = cls(**values)
        about._check()
        return about

    def _check(self) -> None:
        """Refuse inconsistent metadata."""
        if len(self.classes) not in (0, self.outputs):
            raise ValueError(f"it names {len(self.classes)} classes of {self.outputs}")
        fitted = self.preprocessing
        named = () if fitted is None else tuple(column.name for column in fitted.columns)
        if named != self.columns:
            raise ValueError("its columns are not those of its preprocessing")
        if len(set(named)) < len(named):
            raise ValueError("two of its columns have the same name")
        mean, std = (numbers(self.normalisation.get(name), name) for name in ("mean", "std"))
        check_scale(mean, std, self.shape)
        if fitted is not None:
            fitted.check(self.shape)


def _text(value: str) -> str:
    if len(value) > _CHARACTERS:
        raise ValueError(f"{len(value)} characters")
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in names:
            raise ValueError(f"{schema.brief(value)} is not one of {', '.join(names)}")
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        parsed = json.loads(value)
        if type(parsed) is not int or not low <= parsed <= high:
            raise ValueError(f"{schema.brief(value)} is not a whole number from {low} to {high}")
        return parsed

    return read


def _shape(value: str) -> tuple[int, ...]:
    """Parse the shape of an example: positive sides, a limited number of values."""
    parsed = json.loads(value)
    sides = parsed if isinstance(parsed, list) and len(parsed) <= _SIDES else [0]
    if not all(type(side) is int and 0 < side <= _NUMBERS for side in sides):
        raise ValueError(f"{schema.brief(value)} is not a shape")
    if math.prod(sides) > _NUMBERS:
        raise ValueError(f"{math.prod(sides)} numbers, more than {_NUMBERS}")
    return tuple(sides)


def _names(value: str) -> tuple[str, ...]:
    parsed = json.loads(value)
    if not isinstance(parsed, list) or not all(isinstance(name, str) for name in parsed):
        raise ValueError("not a list of names")
    return tuple(map(_text, parsed))


def _options(value: str) -> dict[str, Any]:
    """Parse the options of a part: scalars by name; a plugin may have other values."""
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise ValueError("not a table of options")
    return parsed


def _digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{schema.brief(value)} is not a SHA-256")
    return value


_READ: Mapping[str, Callable[[str], Any]] = {
    "peer": _whole(0, limits.MAX_PEERS),
    "peer_name": _text,
    "method": _text,
    "method_options": _options,
    "model": _text,
    "model_options": _options,
    "adaptation": _options,
    "task": _one_of(*get_args(Task)),
    "outputs": _whole(1, _NUMBERS),
    "shape": _shape,
    "dataset": _text,
    "dataset_options": _options,
    "classes": _names,
    "columns": _names,
    "normalisation": _options,
    "dtype": _one_of("float32", "float64"),
    "config_digest": _digest,
    "refused": _text,
}
"""Field -> function that parses its text."""


def _values(options: object) -> dict[str, Any]:
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
