"""Predict examples with a saved model, and write the predictions to a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic, cells
from coterie.app.trained.decision import decide
from coterie.app.trained.inputs import Inputs
from coterie.app.trained.personal import PersonalModel

_BATCH = 256


def predicted(model: PersonalModel, raw: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Predict raw examples: probabilities (N, classes, ...), or regression values (N, outputs)."""
    with torch.inference_mode():
        parts = [
            model.probabilities(torch.tensor(raw[first : first + _BATCH])).double().numpy()
            for first in range(0, max(len(raw), 1), _BATCH)
        ]
    predictions: npt.NDArray[np.float64] = np.concatenate(parts)
    return predictions


def write(
    path: Path,
    model: PersonalModel,
    inputs: Inputs,
    threshold: float | Literal["validation"] | None = None,
    *,
    recalibrate: bool = False,
) -> npt.NDArray[np.float64]:
    """Predict examples, write the predictions as a table (.csv) or arrays (.npz), and return them.

    Parameters
    ----------
    threshold, recalibrate : optional
        See `coterie.app.trained.decision.decide`; for classes only.

    Raises
    ------
    ConfigError
        The predictions do not fit a table, or the model cannot decide in this way.
    """
    predictions = predicted(model, inputs.raw)
    decided = np.zeros(0, dtype=np.int64)
    if model.about.task == "classification":
        predictions, decided = decide(
            model.about, model.point, predictions, threshold, recalibrate=recalibrate
        )
    elif threshold is not None or recalibrate:
        raise ConfigError(f"{model.about.task} has no threshold and no temperature")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        arrays = {"predictions": predictions, "names": np.array(inputs.names)}
        with atomic.replacing(path) as draft, draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return predictions
    if model.about.task not in ("classification", "regression"):
        raise ConfigError(f"{model.about.task} does not fit a table: --out predictions.npz")
    text = io.StringIO()
    rows = ([*map(cells.safe, row)] for row in _rows(model, inputs, predictions, decided))
    csv.writer(text, lineterminator="\n").writerows(rows)
    atomic.write(path, text.getvalue())
    return predictions


def _rows(
    model: PersonalModel,
    inputs: Inputs,
    predictions: npt.NDArray[np.float64],
    decided: npt.NDArray[np.int64],
) -> Iterator[list[Any]]:
    """Yield the header, and a line per example."""
    about = model.about
    if about.task == "regression":
        more = [f"prediction_{k}" for k in range(1, about.outputs)]
        yield [inputs.kind, "prediction", *more]
        for name, values in zip(inputs.names, predictions.tolist(), strict=True):
            yield [name, *values]
        return
    classes = about.class_names()
    yield [inputs.kind, "prediction", *(f"probability_{each}" for each in classes)]
    rows = zip(inputs.names, decided.tolist(), predictions.tolist(), strict=True)
    for name, index, values in rows:
        yield [name, classes[index], *values]
