"""Oracle: FedAvg inside the true cluster, which only synthetic splits know. An upper yardstick."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coterie.clients.letters import Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Clustered, Floats, State, true_clusters


@dataclass(frozen=True)
class Options:
    """The oracle has no options: it knows."""

    def fits(self, problem: Clustered) -> None:
        """Refuse data whose clusters nobody knows."""
        true_clusters(problem)


class Oracle(LocalTraining[State]):
    """FedAvg in which a peer receives and averages the models of its true cluster only."""

    def wants(self, state: State, round_: int) -> Ints:
        return self.pairs(self.same_cluster())

    def update(
        self, state: State, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> State:
        return replace(state, x=self.average(offers, "x", self.shares()))

    def shares(self) -> Floats:
        return super().shares() * self.same_cluster()
