"""The relay as a Flower strategy: it forwards letters between peers and never averages models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.flower import private
from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.protocol import Transport
from coterie.strategies.relay.broker import Broker

_log = logging.getLogger("coterie.relay")


class RelayStrategy(Strategy):
    """Flower strategy that brokers models between peers instead of aggregating them.

    `start` runs the rounds of `plan`; the methods for a global model do nothing.
    """

    def __init__(self, plan: ExchangePlan) -> None:
        self.plan = plan

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        transport: Callable[[Grid, float], Transport] = FlowerTransport,
        **relay: Any,
    ) -> Result:
        """Run the rounds on Flower's grid.

        Leave out Flower's parameters for a global model. A node has `timeout` seconds for a round
        before it is dropped; `relay` has arguments of `coterie.strategies.relay.broker.Broker`. The
        result has the mean metrics of each evaluated round in `evaluate_metrics_clientapp`.
        RelayError: a peer is hosted by no node, there is no quorum, or no node is left.
        """
        if initial_arrays or evaluate_fn or train_config or evaluate_config:
            raise ValueError(
                "the relay has no global model: leave out initial_arrays, train_config, "
                "evaluate_config and evaluate_fn"
            )
        rounds = self.plan.rounds
        if num_rounds not in (None, rounds):
            raise ValueError(f"num_rounds = {num_rounds}, but the strategy has {rounds} rounds")
        self.summary()
        deployed = not private.is_simulation(grid)
        broker = Broker(self.plan, transport(grid, timeout), deployed=deployed, **relay)
        result = Result()
        for t, metrics in broker.run().items():
            result.evaluate_metrics_clientapp[t] = MetricRecord(dict(metrics))
        return result

    def summary(self) -> None:
        """Log the strategy, its size and its warnings."""
        _log.info(
            "%s: %d peers, %d rounds, %d allowed pairs",
            type(self.plan).__name__,
            self.plan.peers,
            self.plan.rounds,
            self.plan.topology.sum() // 2,
        )
        for line in self.plan.cautions():
            _log.warning("%s", line)

    def configure_train(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Return no messages: there is no global model to train or evaluate."""
        return ()

    configure_evaluate = configure_train

    def aggregate_train(self, *_: Any, **__: Any) -> tuple[None, None]:
        """Return no arrays and no metrics."""
        return None, None

    def aggregate_evaluate(self, *_: Any, **__: Any) -> None:
        """Return no metrics."""
