"""A single peer, whom nobody can help, trains alone, whatever the method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inline import run
from tests.kit import one_peer

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("clustered-fl", {"clustered-fl.eps1": 0.5, "clustered-fl.eps2": 0.1}),
    ("dac", {}),
    ("facade", {}),
    ("fedem", {"fedem.components": 1}),
    ("ifca", {"ifca.clusters": 2}),
    ("l2c", {}),
    ("pens", {}),
    ("pfedgraph", {"pfedgraph.lambda": 0.0}),  # otherwise it turns towards its own last model
    ("trust", {}),
]
ROUNDED: list[tuple[str, dict[str, Any]]] = [
    ("federated-clustering", {}),
    ("fedfomo", {"fedfomo.baseline": "trained"}),
    ("fedfomo", {"fedfomo.baseline": "previous"}),  # its better trained model gets all weight
]


@pytest.mark.parametrize(
    ("method", "options", "tolerance"),
    [*((*case, 0.0) for case in EXACT), *((*case, 1e-15) for case in ROUNDED)],
)
def test_one_peer_alone_trains(
    tmp_path: Path, method: str, options: dict[str, Any], tolerance: float
) -> None:
    result = run(one_peer(tmp_path / "a", method, **options), tmp_path / "a")
    local = run(one_peer(tmp_path / "b", "local"), tmp_path / "b")
    assert np.abs(result.theta() - local.theta()).max() <= tolerance
    assert result.weights().item() == 1.0
