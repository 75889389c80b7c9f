"""Predict examples with a saved model, and write the predictions to a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, logit
from torch import Tensor

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.trained.about import About
from coterie.app.trained.coefficients import Z
from coterie.app.trained.decision import decide
from coterie.app.trained.inputs import Inputs
from coterie.app.trained.personal import PersonalModel
from coterie.clients.diagnostics import risks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BATCH = 256


def predicted(model: PersonalModel, raw: npt.NDArray[Any]) -> Floats:
    """Predict raw examples: probabilities (N, outputs, ...), or regression values (N, outputs)."""
    return np.concatenate(_batched(model.probabilities, raw))


def _batched(function: Callable[[Tensor], Tensor], raw: npt.NDArray[Any]) -> list[Floats]:
    """Return a function's results for raw examples, in parts."""
    starts = range(0, max(len(raw), 1), _BATCH)
    with torch.inference_mode():
        parts = (function(torch.tensor(raw[first : first + _BATCH])) for first in starts)
        return [part.double().numpy() for part in parts]


def intervals(
    model: PersonalModel,
    raw: npt.NDArray[Any],
    predictions: Floats,
    temperature: float = 1.0,
) -> list[list[float]]:
    """Return the ends of 95 % intervals: low and high of each output in turn.

    Those of a class contain its probability, those of a regression a new value. They know the
    uncertainty of the coefficients (see `PersonalModel.deviations`), not that of the model's form.
    """
    reach = Z * np.concatenate(_batched(model.deviations, raw))
    if model.about.task == "classification":
        centre = logit(predictions)
        ends = [expit(centre + side * reach / temperature) for side in (-1, 1)]
    else:
        ends = [predictions - reach, predictions + reach]
    return [end[:, k].tolist() for k in range(predictions.shape[1]) for end in ends]


def limited(model: PersonalModel, raw: npt.NDArray[Any]) -> list[tuple[str, int]]:
    """Return names of peers, and the number of examples on which their scores were limited."""
    counts: dict[str, int] = {}
    with torch.inference_mode():
        for first in range(0, len(raw) if model.authors else 0, _BATCH):
            for name, number in model.limited(torch.tensor(raw[first : first + _BATCH])):
                counts[name] = counts.get(name, 0) + number
    return [(name, number) for name, number in counts.items() if number]


def write(
    path: Path,
    model: PersonalModel,
    inputs: Inputs,
    threshold: float | Literal["validation"] | None = None,
    *,
    recalibrate: bool = False,
) -> Floats:
    """Predict examples, write the predictions as a table or arrays (.npz), and return them."""
    about = model.about
    if about.task != "classification" and (threshold is not None or recalibrate):
        raise ConfigError(f"{about.task} has no threshold and no temperature")
    if path.suffix == ".npz":
        predictions, _ = _decided(model, inputs, threshold, recalibrate=recalibrate)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(path) as draft, draft.open("wb") as file:
            arrays = {"predictions": predictions, "names": np.array(inputs.names)}
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return predictions
    if about.task not in ("classification", "regression", "survival"):
        raise ConfigError(f"{about.task} does not fit a table: --out predictions.npz")
    predictions, decided = _decided(model, inputs, threshold, recalibrate=recalibrate)
    columns = _columns(about, predictions, decided)
    if model.covariance is not None and about.task != "survival":
        temperature = model.point.temperature if recalibrate else None
        ends = intervals(model, inputs.raw, predictions, temperature or 1.0)
        of = [*columns][-(len(ends) // 2) :]  # the last ones, of the outputs
        names = (f"{name}_{end}" for name in of for end in ("low", "high"))
        columns |= zip(names, ends, strict=True)
    if taken := [name for name in columns if name in inputs.columns]:
        raise ConfigError(
            f"the input has a column {taken[0]}, like the predictions: rename it, or leave it out"
        )
    rows = zip(*inputs.columns.values(), *columns.values(), strict=True)
    lines = [[*map(atomic.safe, row)] for row in ([*inputs.columns, *columns], *rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, atomic.as_csv(lines))
    return predictions


def _decided(
    model: PersonalModel,
    inputs: Inputs,
    threshold: float | Literal["validation"] | None,
    *,
    recalibrate: bool,
) -> tuple[Floats, Ints]:
    predictions = predicted(model, inputs.raw)
    if model.about.task != "classification":
        return predictions, np.zeros(0, dtype=np.int64)
    return decide(model.about, model.point, predictions, threshold, recalibrate=recalibrate)


def _columns(about: About, predictions: Floats, decided: Ints) -> dict[str, Sequence[Any]]:
    """Return the columns of a table of predictions by name."""
    outputs = predictions.T.tolist()
    if about.task == "regression":
        names = ["prediction", *(f"prediction_{k}" for k in range(1, about.outputs))]
        return dict(zip(names, outputs, strict=True))
    classes = about.class_names()
    if about.task == "survival":
        first, kind = {"risk": risks(predictions).tolist()}, "survival"
    else:
        first, kind = {"prediction": [classes[k] for k in decided.tolist()]}, "probability"
    return first | {f"{kind}_{each}": of for each, of in zip(classes, outputs, strict=True)}
