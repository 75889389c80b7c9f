"""Records of the relay after every round: progress of the run and the nodes' reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.strategies.protocol import Report


@dataclass
class Ledger:
    """Progress of a run: the state that the relay needs to resume it, and counts in."""

    round: int = 0  # last committed round
    messages: int = 0  # number of requests sent and responses received
    nbytes: int = 0
    """Payload bytes delivered to nodes; a letter for two peers of one node counts once."""
    sealing: int = 0  # bytes of the sealed letters' keys delivered with them
    ended: tuple[int, ...] = ()
    """Last round that each peer ended, (n,), -1 for a peer that has not joined; empty at first."""
    breaks: tuple[str, ...] = ()  # a line for each time that peers restarted from an older state
    awake: tuple[int, ...] = ()
    """Number of rounds (n,) in which each peer was awake and took part; empty at first."""
    virtual_seconds: float = 0.0  # time of the virtual clock
    best_loss: float | None = None  # smallest mean validation loss of an evaluated round
    stale: int = 0  # number of evaluated rounds since then


@dataclass(frozen=True)
class Commit:
    """End of a round, or of several that one node ran alone."""

    ledger: Ledger  # progress of the run
    reports: tuple[Report, ...] = field(default=(), repr=False)
    """Reports of the rounds evaluated since the last commit, sorted by (round, peer)."""
    refused: tuple[str, ...] = ()  # a line per letter refused since then
    present: frozenset[int] = frozenset()  # peers whose node ended the round
    faults: tuple[str, ...] = ()  # a line per node that failed since then
    names: Mapping[int, str] = field(default_factory=dict)
    """Display names of the peers that have one."""
    backends: frozenset[str] = frozenset()  # names of the nodes' engine backends
    nodes: Mapping[int, int] = field(default_factory=dict, compare=False)  # differ by transport
    """Flower's ID of the node of each peer."""


class Recorder(Protocol):
    """Storage of the relay's commits."""

    def round(self, commit: Commit) -> None:
        """Store a commit."""


def means(reports: Iterable[Report]) -> dict[str, float]:
    """Average each metric over the reports of honest peers that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            if value is not None and not report.metrics.get("attacker"):
                values.setdefault(name, []).append(value)
    return {name: sum(column) / len(column) for name, column in values.items()}
