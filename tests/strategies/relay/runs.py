"""Runs of a relay with toy nodes, by function calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone
from coterie.strategies.protocol import Report, Request, Stage
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit, Ledger
from tests.strategies.toy_node import ToyNode
from tests.topologies import topology


@dataclass
class Notes:
    """Recorder in memory."""

    commits: list[Commit] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def round(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.ledgers.append(commit.ledger)
        self.reports += commit.reports
        self.refused += commit.refused

    @property
    def faults(self) -> list[str]:
        return [line for commit in self.commits for line in commit.faults]

    def losses(self) -> dict[tuple[int, int], float | None]:
        return {(r.round, r.peer): r.metrics["test_loss"] for r in self.reports}


def make(
    kind: type[ExchangePlan] = Everyone, n: int = 5, graph: str = "full", **changes: Any
) -> ExchangePlan:
    known = {"peers": n, "rounds": 9, "seed": 1, "topology": topology(graph, n, 0)}
    sampled = {"sampling": "constant", "probability": 0.3} if kind is Pairs else {}
    return kind(**{**known, "evaluate_every": 4, **sampled, **changes})


def toys(strategy: ExchangePlan, *cohorts: Sequence[int]) -> list[ToyNode]:
    return [ToyNode(strategy, cohort) for cohort in cohorts]


def run(strategy: ExchangePlan, nodes: Sequence[Any], ledger: Ledger | None = None) -> Notes:
    notes = Notes()
    Broker(strategy, InProcessTransport(nodes), notes, ledger, join_timeout=0.3).run()
    return notes


def split(n: int, parts: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(np.arange(n), parts)]


def failing(*moments: tuple[Stage, int]) -> Callable[[Request], None]:
    def before(request: Request) -> None:
        if (request.stage, request.round) in moments:
            raise OSError("disk full")

    return before
