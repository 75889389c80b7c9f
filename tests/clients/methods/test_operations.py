"""Count operations of whole rounds on a pretended GPU: at most linear in the number of peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.registry import METHODS
from coterie.clients.engine import sums
from coterie.clients.letters import Rows
from tests.pretended_gpu import DEVICE, PretendedGpu
from tests.problems import classification
from tests.stepping import Stepping
from tests.test_table import DIGITS, NEEDS

PER_PEER = {
    "mixture", "selection", "stacking", "boosting", "partial-pooling", "dpfl",
    "federated-clustering",
}  # fmt: skip
"""Methods that fit something of each peer alone: weights, trees, a greedy choice, a centre."""
LARGE = 1 << 21
"""Number of parameters, of eight blocks of paired models."""


def operations(method: str, peers: int) -> int:
    """Return the operations of round 2."""
    flat: dict[str, Any] = {
        **DIGITS, "method": method, **NEEDS.get(method, {}), "peers": peers, "num-server-rounds": 3,
        "batch-size": 5, "local-steps": 2, "dtype": "float32", "device": "auto",
    }  # fmt: skip
    problem = classification([16] * peers, shape=(3,), validations=[8] * peers)
    problem = replace(problem, clusters=np.arange(peers) % 2)
    with PretendedGpu() as gpu:
        stepping = Stepping(flat, problem=problem)
        stepping.to(1)
        gpu.counts.clear()
        stepping.to(2)
    return gpu.counts["operations"]


@pytest.mark.some(8)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_round_grows_at_most_linearly(method: str) -> None:
    """Pairs and peers are batches; only what `PER_PEER` computes for each peer may repeat."""
    four, eight = operations(method, 4), operations(method, 8)
    assert four > 50
    assert eight <= (2 if method in PER_PEER else 1) * four


@pytest.mark.slow
def test_pairs_of_large_models_take_a_call_per_block() -> None:
    counts = []
    for n in (4, 8):
        i_e, k_e = np.nonzero(~np.eye(n, dtype=np.bool_))
        with PretendedGpu() as gpu:
            x_sd = torch.ones(n, LARGE, device=DEVICE)
            gpu.counts.clear()
            sums.squared_distances(Rows(x_sd, i_e), Rows(x_sd, k_e))
            pairs = gpu.counts["operations"]
            sums.products(x_sd, x_sd)
            counts.append((pairs, gpu.counts["operations"] - pairs))
    assert counts[0] == counts[1]
    assert max(counts[0]) < 150
