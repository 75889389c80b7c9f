"""Threshold and temperature that validation examples chose, for `predict` if asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.app.config.keys import ConfigError
from coterie.app.runs.quality import MIN_ROWS
from coterie.app.trained.about import About
from coterie.clients.diagnostics import TEMPERATURES, recalibrated

Floats = npt.NDArray[np.float64]
_LIMITS = {"threshold": (0.0, 1.0), "temperature": TEMPERATURES, "chosen_by": (1, 2.0**53)}
_WITHOUT = (
    "the model has no {0} of validation examples: it needs two classes, and validation examples of "
    "both"
)


@dataclass(frozen=True)
class OperatingPoint:
    """Threshold and temperature, and how many validation examples or groups chose them; or None."""

    threshold: float | None = None
    temperature: float | None = None
    chosen_by: float | None = None

    @property
    def caution(self) -> str:
        """Warning for the user of a threshold that too few examples chose; "" without."""
        if self.chosen_by is None or self.chosen_by >= MIN_ROWS:
            return ""
        return (
            f"{self.chosen_by:.0f} validation examples chose the threshold and the temperature, "
            f"fewer than {MIN_ROWS}: set a threshold by hand, such as --threshold 0.4, or validate "
            "with more examples"
        )


NO_POINT = OperatingPoint()


def operating_point(curves: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a model's file, from the figure data of its evaluation."""
    diagnostics = curves.get("diagnostics", {})
    chosen = {name: diagnostics.get(name) for name in _LIMITS}
    return {name: json.dumps(value) for name, value in chosen.items() if value is not None}


def of_strings(strings: Mapping[str, str]) -> OperatingPoint:
    """Read the metadata of an untrusted file; ValueError unless all are numbers in their ranges."""
    values: dict[str, float] = {}
    for name, (low, high) in _LIMITS.items():
        if name in strings:
            value = json.loads(strings[name])
            if type(value) not in (int, float) or not low <= value <= high:
                raise ValueError(f"its {name} is not a number from {low:g} to {high:g}")
            values[name] = float(value)
    return OperatingPoint(**values)


def decide(
    about: About,
    point: OperatingPoint,
    predictions: Floats,
    threshold: float | Literal["validation"] | None = None,
    *,
    recalibrate: bool = False,
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return probabilities and decided class of each example of predictions (N, classes)."""
    # `threshold` is for the second of two classes ("validation": the one that validation examples
    # chose; None: the most probable class), like the temperature with which to `recalibrate`.
    if threshold is not None and about.outputs != 2:
        raise ConfigError(f"--threshold is for two classes, the model has {about.outputs}")
    own = {"threshold": threshold == "validation", "temperature": recalibrate}
    for name, is_used in own.items():
        if is_used and getattr(point, name) is None:
            raise ConfigError(_WITHOUT.format(name))
    shown = predictions
    if recalibrate and point.temperature is not None:
        shown = recalibrated(predictions, point.temperature)
    if threshold is None:
        return shown, shown.argmax(axis=1)
    if threshold == "validation":  # it is of probabilities before recalibration
        threshold, decisive = point.threshold or 0.0, predictions
    else:
        decisive = shown
    return shown, (decisive[:, 1] > threshold).astype(np.int64)
