"""The relay as a Flower strategy: brokers letters between peers and never averages anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies.brokering import Brokering
from strategies.protocol import Transport
from strategies.relay.broker import Broker
from strategies.relay.commit import Ledger, Recorder

_log = logging.getLogger("coterie.relay")


class RelayStrategy(Brokering, Strategy):
    """Who talks to whom, round by round; one subclass for each brokering rule."""

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
        transport: Callable[[Grid, float], Transport] | None = None,
        recorder: Recorder | None = None,
        ledger: Ledger | None = None,
        join_timeout: float = 600,
        quorum: int = 0,
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
        initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn : Flower's; there
            is no global model to start from or to evaluate, and rounds and configuration belong
            to the run: leave them out.

        Returns
        -------
        Mean metrics of each evaluated round in `evaluate_metrics_clientapp`; no arrays.

        Raises
        ------
        RelayError
            A peer is hosted by no node or by two, there is no quorum, or no node is left.
        """
        if initial_arrays or evaluate_fn or train_config or evaluate_config:
            raise ValueError("a relay has no global model: it takes no arrays, config or evaluator")
        if num_rounds not in (None, self.rounds):
            raise ValueError(f"this strategy was made for {self.rounds} rounds, not {num_rounds}")
        if transport is None:
            raise ValueError(
                "a relay needs a transport to carry its letters: "
                "strategies.flower.transport.FlowerTransport"
            )
        self.summary()
        means = self.broker(transport(grid, timeout), recorder, ledger, join_timeout, quorum)
        result = Result()
        for t, metrics in means.items():
            result.evaluate_metrics_clientapp[t] = MetricRecord(dict(metrics))
        return result

    def broker(
        self,
        transport: Transport,
        recorder: Recorder | None = None,
        ledger: Ledger | None = None,
        join_timeout: float = 600,
        quorum: int = 0,
    ) -> dict[int, dict[str, float]]:
        """Run the rounds through any transport; the mean metrics of each evaluated round."""
        return Broker(self, transport, recorder, ledger or Ledger(), join_timeout, quorum).run()

    def summary(self) -> None:
        """Log what this relay does."""
        _log.info(
            "%s: %d peers, %d rounds, %d allowed pairs",
            type(self).__name__,
            self.peers,
            self.rounds,
            self.topology.sum() // 2,
        )
        for line in self.cautions():
            _log.warning("%s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not a relay's: see `start`."""
        _brokered("configure_train")

    def aggregate_train(
        self, server_round: int, responses: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not a relay's: see `start`."""
        _brokered("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not a relay's: see `start`."""
        _brokered("configure_evaluate")

    def aggregate_evaluate(
        self, server_round: int, responses: Iterable[Message]
    ) -> MetricRecord | None:
        """Not a relay's: see `start`."""
        _brokered("aggregate_evaluate")


def _brokered(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: a relay holds no model to configure or aggregate; start() brokers its rounds"
    )
