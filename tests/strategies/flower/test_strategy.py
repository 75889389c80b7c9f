"""The relay as a Flower strategy; test_conformance.py runs it on a real grid."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from coterie.strategies.flower.strategy import RelayStrategy
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.plans import Everyone
from tests.strategies.toy_node import ToyNode
from tests.topologies import topology

GRID = cast(Grid, None)
BROKERING = Everyone(peers=5, rounds=9, seed=1, topology=topology("full", 5, 0), evaluate_every=4)


def test_start_gives_flowers_result() -> None:
    nodes = [ToyNode(BROKERING, [0, 1, 2]), ToyNode(BROKERING, [3, 4])]
    result = RelayStrategy(BROKERING).start(
        GRID, transport=lambda grid, timeout: InProcessTransport(nodes)
    )
    assert set(result.evaluate_metrics_clientapp) == {0, 4, 8, 9}
    assert result.evaluate_metrics_clientapp[0]["test_loss"] == 3.0  # peers start at 1 to 5
    assert not result.arrays


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"num_rounds": 3}, "num_rounds = 3, but the strategy has 9 rounds"),
        ({"evaluate_fn": lambda t, arrays: None}, "no global model"),
        ({"initial_arrays": ArrayRecord([np.zeros(1)])}, "no global model"),
        ({"train_config": ConfigRecord({"lr": 0.1})}, "no global model"),
    ],
)
def test_start_refuses_what_a_relay_cannot_do(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RelayStrategy(BROKERING).start(GRID, **asked)


def test_a_global_model_is_neither_configured_nor_aggregated() -> None:
    relay, arrays, config = RelayStrategy(BROKERING), ArrayRecord(), ConfigRecord()
    assert not [*relay.configure_train(1, arrays, config, GRID)]
    assert not [*relay.configure_evaluate(1, arrays, config, GRID)]
    assert relay.aggregate_train(1, []) == (None, None)
