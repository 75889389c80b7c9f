"""Predict examples with a saved model, and write the predictions to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, logit

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.trained.about import About
from coterie.app.trained.coefficients import Z
from coterie.app.trained.decision import decide
from coterie.app.trained.inputs import Inputs
from coterie.app.trained.personal import PersonalModel
from coterie.clients.diagnostics import risks

_BATCH = 256


def predicted(model: PersonalModel, raw: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Predict raw examples: probabilities (N, outputs, ...), or regression values (N, outputs)."""
    with torch.inference_mode():
        parts = [
            model.probabilities(torch.tensor(raw[first : first + _BATCH])).double().numpy()
            for first in range(0, max(len(raw), 1), _BATCH)
        ]
    predictions: npt.NDArray[np.float64] = np.concatenate(parts)
    return predictions


def intervals(
    model: PersonalModel,
    raw: npt.NDArray[Any],
    predictions: npt.NDArray[np.float64],
    temperature: float = 1.0,
) -> list[list[float]]:
    """Return the ends of 95 % intervals: low and high of each output in turn.

    Those of a class contain its probability, those of a regression a new value. They know the
    uncertainty of the coefficients (see `PersonalModel.deviations`), not that of the model's form.
    """
    with torch.inference_mode():
        parts = [
            model.deviations(torch.tensor(raw[first : first + _BATCH])).double().numpy()
            for first in range(0, max(len(raw), 1), _BATCH)
        ]
    reach, centre = Z * np.concatenate(parts), predictions
    if model.about.task == "classification":
        reach, centre = reach / temperature, logit(predictions)
    ends = [centre - reach, centre + reach]
    if model.about.task == "classification":
        ends = [expit(each) for each in ends]
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
) -> npt.NDArray[np.float64]:
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
    header = [*_header(about), *(_interval_header(about) if _has_intervals(model) else [])]
    if taken := [name for name in header if name in inputs.columns]:
        raise ConfigError(
            f"the input has a column {taken[0]}, like the predictions: rename it, or leave it out"
        )
    predictions, decided = _decided(model, inputs, threshold, recalibrate=recalibrate)
    columns = [*_cells(about, predictions, decided)]
    if _has_intervals(model):
        temperature = model.point.temperature if recalibrate else None
        columns += intervals(model, inputs.raw, predictions, temperature or 1.0)
    rows = zip(*inputs.columns.values(), *columns, strict=True)
    lines = [[*map(atomic.safe, row)] for row in ([*inputs.columns, *header], *rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, atomic.as_csv(lines))
    return predictions


def _decided(
    model: PersonalModel,
    inputs: Inputs,
    threshold: float | Literal["validation"] | None,
    *,
    recalibrate: bool,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return predictions, and for classes the index of each example's class."""
    predictions = predicted(model, inputs.raw)
    if model.about.task != "classification":
        return predictions, np.zeros(0, dtype=np.int64)
    return decide(model.about, model.point, predictions, threshold, recalibrate=recalibrate)


def _header(about: About) -> list[str]:
    if about.task == "regression":
        return ["prediction", *(f"prediction_{k}" for k in range(1, about.outputs))]
    if about.task == "survival":
        return ["risk", *(f"survival_{each}" for each in about.class_names())]
    return ["prediction", *(f"probability_{each}" for each in about.class_names())]


def _has_intervals(model: PersonalModel) -> bool:
    return model.covariance is not None and model.about.task != "survival"


def _interval_header(about: About) -> list[str]:
    """Return the names of the columns of intervals, a pair for each output."""
    names = [name for name in _header(about) if about.task == "regression" or "_" in name]
    return [f"{name}_{end}" for name in names for end in ("low", "high")]


def _cells(
    about: About, predictions: npt.NDArray[np.float64], decided: npt.NDArray[np.int64]
) -> Sequence[Sequence[Any]]:
    columns: list[Sequence[Any]] = list(predictions.T.tolist())
    if about.task == "regression":
        return columns
    if about.task == "survival":
        return [risks(predictions).tolist(), *columns]
    classes = about.class_names()
    return [[classes[k] for k in decided.tolist()], *columns]
