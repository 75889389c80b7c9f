"""Data set `clinics`: synthetic arrays of a few clinics, one of which differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Options:
    """Options of the data set: the table [dataset-options].

    Attributes
    ----------
    patients : int
        Number of patients per clinic.
    """

    patients: int = 80


def clinics(peers: int, seed: int, options: Options) -> list[dict[str, Any]]:
    """Return a dict of arrays per peer; the last clinic has the opposite relation of x and y.

    A function that reads files has a parameter `data_dir` as well.
    """
    g = np.random.default_rng(seed)
    direction = g.normal(size=6)
    data = []
    for peer in range(peers):
        x = g.normal(size=(options.patients, 6))
        risk = x @ (-direction if peer == peers - 1 else direction)
        y = np.where(risk + 0.5 * g.normal(size=len(x)) > 0, "ill", "well")
        data.append({"x": x, "y": y, "name": f"clinic {peer + 1}"})
    return data
