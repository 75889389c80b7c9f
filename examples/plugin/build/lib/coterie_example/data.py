"""Arrays of a few clinics, one of which differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Options:
    """The table [dataset-options].

    Attributes
    ----------
    patients : of each clinic.
    """

    patients: int = 80


def clinics(peers: int, seed: int, options: Options) -> list[dict[str, Any]]:
    """A mapping of arrays for each peer; the last clinic has another kind of patients.

    A function for data from files would have a parameter `data_dir`.
    """
    g = np.random.default_rng(seed)
    direction = g.normal(size=6)
    found = []
    for peer in range(peers):
        x = g.normal(size=(options.patients, 6))
        risk = x @ (-direction if peer == peers - 1 else direction)
        y = np.where(risk + 0.5 * g.normal(size=len(x)) > 0, "ill", "well")
        found.append({"x": x, "y": y, "name": f"clinic {peer + 1}"})
    return found
