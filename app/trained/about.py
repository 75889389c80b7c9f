"""Metadata of a saved model, strings by name: enough to build and use it without the run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Self, get_origin, get_type_hints

from annotated_types import Interval, MaxLen

from coterie.app.config import limits, schema
from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.runs.provenance import digest
from coterie.datasets.preprocessing import Column, Preprocessing, check_scale, numbers
from coterie.datasets.problem import Problem, Task

FORMAT = "coterie model 1"
_NUMBERS = 1 << 26
"""Maximum number of values of an example, and of outputs."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
Text = Annotated[str, MaxLen(10_000)]
"""A name or a sentence."""
Count = Annotated[int, Interval(ge=1, le=_NUMBERS)]


@dataclass(frozen=True)
class About:
    """Description of one peer's model; `read` checks the annotations of a file's values."""

    peer: Annotated[int, Interval(ge=0, le=limits.MAX_PEERS)]  # number
    peer_name: Text
    method: Text  # of training and prediction
    method_options: Mapping[str, Any]
    model: Text  # name of the network (`coterie.clients.models.build.build`)
    model_options: Mapping[str, Any]
    adaptation: Mapping[str, Any]  # options of the network's adaptation
    task: Task  # see `coterie.datasets.problem.Problem`
    outputs: Count  # number of classes or of regression outputs
    shape: Annotated[tuple[Count, ...], MaxLen(8)]  # of one example at the network's input
    dataset: Text  # name of the training data
    dataset_options: Mapping[str, Any]
    classes: tuple[Text, ...]  # names of the outputs; empty if they have no names or are numbers
    columns: tuple[Text, ...]  # of raw rows, in order; empty if examples are not rows of a table
    normalisation: Mapping[str, Any]
    """Keys "mean" and "std", and "preprocessing" if the peer has steps before them."""
    dtype: Literal["float32", "float64"]  # type of the parameters
    config_digest: str  # of the run's configuration, hexadecimal
    data: Text = ""  # fingerprint of the peer's data, see `coterie.app.runs.provenance`
    refused: Text = ""  # reason why the file cannot predict; empty if it can

    @classmethod
    def of(cls, config: Config, problem: Problem, peer: int, refused: str = "") -> Self:
        """Describe a peer's model in a run; the peer has its name in the data."""
        fitted = problem.preprocessing[peer] if problem.preprocessing else None
        normalisation: dict[str, Any] = {"mean": problem.mean.tolist(), "std": problem.std.tolist()}
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
            data=digest(problem.files[peer]) if problem.files else "",
            refused=refused,
        )

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The peer's own preprocessing, applied before the run's normalisation."""
        steps = self.normalisation.get("preprocessing")
        return None if steps is None else Preprocessing.of_json(steps)

    @property
    def table(self) -> tuple[Column, ...]:
        """Columns of a table's rows, in order; empty for other examples."""
        fitted = self.preprocessing
        return () if fitted is None else fitted.columns

    def class_names(self) -> list[str]:
        return list(self.classes) or [str(number) for number in range(self.outputs)]

    def strings(self) -> dict[str, str]:
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in vars(self).items()
        }
        return {"format": FORMAT, **texts}

    @classmethod
    def read(cls, strings: Mapping[str, str] | None) -> Self:
        """Read the metadata of an untrusted file; ValueError unless all values are consistent."""
        from pydantic import TypeAdapter, ValidationError

        if not strings or strings.get("format") != FORMAT:
            raise ValueError("it has no metadata (written by an earlier version?)")
        values: dict[str, Any] = {}
        for each in fields(cls):
            if each.name == "data" and each.name not in strings:
                continue  # of an earlier version
            try:
                text = strings[each.name]
                values[each.name] = text if each.name in _TEXTS else json.loads(text)
            except KeyError:
                raise ValueError(f"its metadata lack {each.name}") from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"its {each.name} is invalid: {error}") from None
        try:
            about: Self = TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            name = first["loc"][0] if first["loc"] else "metadata"
            value = schema.brief(str(first["input"]))
            raise ValueError(f"its {name} is invalid: {first['msg']}: {value}") from None
        about._check()
        return about

    def _check(self) -> None:
        if not _DIGEST.fullmatch(self.config_digest):
            raise ValueError(f"its config_digest {schema.brief(self.config_digest)} is no SHA-256")
        if math.prod(self.shape) > _NUMBERS:
            raise ValueError(f"{math.prod(self.shape)} numbers of an example, not {_NUMBERS}")
        if len(self.classes) not in (0, self.outputs):
            raise ValueError(f"it names {len(self.classes)} classes of {self.outputs}")
        fitted, named = self.preprocessing, tuple(column.name for column in self.table)
        if named != self.columns:
            raise ValueError("its columns are not those of its preprocessing")
        if len(set(named)) < len(named):
            raise ValueError("two of its columns have the same name")
        mean, std = (numbers(self.normalisation.get(name), name) for name in ("mean", "std"))
        check_scale(mean, std, self.shape)
        if fitted is not None:
            fitted.check(self.shape)


def _values(options: object) -> dict[str, Any]:
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}


_TEXTS = {
    name
    for name, hint in get_type_hints(About).items()
    if hint is str or get_origin(hint) is Literal
}
"""Fields that are strings of the file as they are; the others are JSON."""
