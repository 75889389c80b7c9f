"""The relay as a Flower strategy: brokers letters between peers and never averages anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.superlink.grid import InMemoryGrid

from coterie.strategies.brokering import Brokering
from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.protocol import Transport
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Ledger, Recorder
from coterie.strategies.relay.roster import Proof

_log = logging.getLogger("coterie.relay")


class RelayStrategy(Strategy):
    """A relay that brokers models between peers instead of aggregating them.

    Flower's rounds of configure, aggregate and one global model do not fit: `start` plays the
    rounds of `brokering`, and the methods that a global model would need have nothing to do.

    Parameters
    ----------
    brokering : which peers exchange models in which round.
    """

    def __init__(self, brokering: Brokering) -> None:
        self.brokering = brokering

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
        recorder: Recorder | None = None,
        ledger: Ledger | None = None,
        join_timeout: float = 600,
        quorum: int = 0,
        proves: Proof | None = None,
    ) -> Result:
        """Run the rounds on Flower's grid.

        Parameters
        ----------
        grid : Flower's connection to the nodes.
        timeout : seconds that a node has for one round before the others go on without it.
        transport : makes what carries requests over `grid`; takes the grid and `timeout`.
        recorder : is told after every round.
        ledger : where an interrupted run stopped; a new run starts without.
        join_timeout : seconds to wait for peers: for all of them to begin with, later for a quorum.
        quorum : peers that must take part for a round to begin; 0: all in the first one, then any.
        proves : how a node shows that a peer is its own; without, who comes first is believed.
        initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn : Flower's; there
            is no global model to start from or to evaluate, and rounds and configuration belong
            to the run: leave them out.

        Returns
        -------
        Mean metrics of each evaluated round in `evaluate_metrics_clientapp`; no arrays.

        Raises
        ------
        RelayError
            A peer is hosted by no node, there is no quorum, or no node is left.
        """
        if initial_arrays or evaluate_fn or train_config or evaluate_config:
            raise ValueError("a relay has no global model: it takes no arrays, config or evaluator")
        rounds = self.brokering.rounds
        if num_rounds not in (None, rounds):
            raise ValueError(f"this strategy was made for {rounds} rounds, not {num_rounds}")
        self.summary()
        relay = Broker(
            self.brokering, transport(grid, timeout), recorder, ledger, join_timeout, quorum,
            patient=not isinstance(grid, InMemoryGrid), proves=proves,
        )  # fmt: skip
        result = Result()
        for t, metrics in relay.run().items():
            result.evaluate_metrics_clientapp[t] = MetricRecord(dict(metrics))
        return result

    def summary(self) -> None:
        """Log what this relay does."""
        _log.info(
            "%s: %d peers, %d rounds, %d allowed pairs",
            type(self.brokering).__name__,
            self.brokering.peers,
            self.brokering.rounds,
            self.brokering.topology.sum() // 2,
        )
        for line in self.brokering.cautions():
            _log.warning("%s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: there is no global model to train."""
        return ()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """No arrays, no metrics."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: there is no global model to evaluate."""
        return ()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """No metrics."""
        return None
