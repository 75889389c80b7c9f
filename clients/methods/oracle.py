"""Oracle: FedAvg inside the true cluster, which only synthetic splits know. An upper yardstick."""

from __future__ import annotations

from dataclasses import dataclass

from clients.letters import Ints
from clients.methods.fedavg import FedAvg
from clients.rule import Clustered, Floats, State, true_clusters


@dataclass(frozen=True)
class Options:
    """The oracle has no options: it knows."""

    def fits(self, problem: Clustered) -> None:
        """Refuse data whose clusters nobody knows."""
        true_clusters(problem)


class Oracle(FedAvg[State]):
    """FedAvg in which a peer receives and averages the models of its true cluster only."""

    def wants(self, state: State, round_: int) -> Ints:
        return self.pairs(self.same_cluster())

    def shares(self) -> Floats:
        return super().shares() * self.same_cluster()
