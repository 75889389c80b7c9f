"""What a saved model says of itself: enough to build it and to use it without the run.

It is the metadata of models/peer-XXXX.safetensors: text by name, JSON where it is no plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Self

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.datasets.preprocessing import Preprocessing
from coterie.datasets.problem import Problem, Task

FORMAT = "coterie model 1"


@dataclass(frozen=True)
class About:
    """One peer's model.

    Attributes
    ----------
    peer, peer_name : whose it is.
    method, method_options : how it was trained, and predicts.
    model, model_options, adaptation : the network (`coterie.clients.models.build.build`).
    task, outputs : see `coterie.datasets.problem.Problem`.
    shape : of the network's input, one example.
    dataset, dataset_options : what it learnt from.
    classes : names of the outputs; empty where nothing names them, or they are numbers.
    columns : of raw rows, in order; empty where examples are no rows of a table.
    normalisation : "mean" and "std", then "preprocessing" where the peer's own comes before them.
    dtype : of the parameters.
    config_digest : of the run's configuration, hexadecimal.
    refused : why the file cannot predict; empty where it can.
    """

    peer: int
    peer_name: str
    method: str
    method_options: Mapping[str, Any]
    model: str
    model_options: Mapping[str, Any]
    adaptation: Mapping[str, Any]
    task: Task
    outputs: int
    shape: tuple[int, ...]
    dataset: str
    dataset_options: Mapping[str, Any]
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    normalisation: Mapping[str, Any]
    dtype: str
    config_digest: str
    refused: str = ""

    @classmethod
    def of(cls, config: Config, problem: Problem, peer: int, refused: str = "") -> Self:
        """Of a peer's model in a run; its name is that in the data."""
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
            dtype="float64" if problem.task == "quadratic" else config.dtype,
            config_digest=config_digest_of(config).hex(),
            refused=refused,
        )

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The peer's own steps before the run's normalisation."""
        found = self.normalisation.get("preprocessing")
        return None if found is None else Preprocessing.of_json(found)

    def class_names(self) -> list[str]:
        """The classes by name, or by number."""
        return list(self.classes) or [str(number) for number in range(self.outputs)]

    def strings(self) -> dict[str, str]:
        """The metadata."""
        found = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in vars(self).items()
        }
        return {"format": FORMAT, **found}

    @classmethod
    def read(cls, strings: Mapping[str, str] | None) -> Self:
        """The inverse of `strings`.

        Raises
        ------
        ValueError
            The file says nothing of itself, or something else.
        """
        if not strings or strings.get("format") != FORMAT:
            raise ValueError("it does not say what it is (written by an earlier version?)")
        values: dict[str, Any] = {}
        for each in fields(cls):
            text = strings[each.name]
            values[each.name] = (
                text if each.type == "str" or each.type == "Task" else json.loads(text)
            )
            if isinstance(values[each.name], list):
                values[each.name] = tuple(values[each.name])
        return cls(**values)


def _values(options: object) -> dict[str, Any]:
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
