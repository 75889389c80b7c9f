"""Oracle: FedAvg inside the true clusters, an upper bound; only synthetic partitions know them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clients.letters import Ints, Letters
from clients.methods.fedavg import LocalTraining
from clients.rule import Clustered, Floats, State, true_clusters


@dataclass(frozen=True)
class Options:
    """Options of the oracle: none."""

    def fits(self, problem: Clustered) -> None:
        """Reject a problem without known clusters."""
        true_clusters(problem)


class Oracle(LocalTraining[State]):
    """FedAvg among the peers of the same true cluster."""

    def wants(self, state: State, round_: int) -> Ints:
        return self.pairs(self.same_cluster())

    def update(
        self, state: State, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> State:
        return replace(state, x=self.average(offers, "x", self.shares()))

    def shares(self) -> Floats:
        return super().shares() * self.same_cluster()
