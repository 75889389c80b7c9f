"""Oracle: FedAvg inside the true clusters, an upper bound; only synthetic partitions know them."""

from __future__ import annotations

from dataclasses import replace

from coterie.clients.hints import Bools, Floats
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Clustered, State, true_clusters
from coterie.strategies.wanted import Wanted


class Oracle(LocalTraining[State], strategy=Wanted, group="references", true_clusters=True):
    """FedAvg inside the true cluster."""

    def check_data(self, problem: Clustered) -> None:
        true_clusters(problem)

    def wants(self, s: State, t: int) -> Bools:
        return self.same_cluster()

    def update(self, s: State, inbox: Inbox) -> State:
        return replace(s, x=inbox.average("x", self.shares()))

    def shares(self) -> Floats:
        return super().shares() * self.same_cluster()
