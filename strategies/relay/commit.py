"""Records of the relay after every round: progress of the run and the nodes' reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.strategies.protocol import Report


@dataclass(frozen=True)
class Ledger:
    """Progress of a run: the state that the relay needs to resume it.

    Attributes
    ----------
    round : int
        Last committed round.
    messages : int
        Number of requests sent and responses received.
    nbytes : int
        Payload bytes delivered to nodes; a letter for two peers of one node counts once.
    sealing : int
        Bytes of the sealed letters' keys delivered with them.
    ended : tuple of int, (n,)
        Last round that each peer ended, -1 for a peer that has not joined; empty at first.
    breaks : tuple of str
        A line for each time that peers restarted from an older state.
    awake : tuple of int, (n,)
        Number of rounds in which each peer was awake and took part; empty at first.
    virtual_seconds : float
        Time of the virtual clock.
    best_loss : float or None
        Smallest mean validation loss of an evaluated round.
    stale : int
        Number of evaluated rounds since then.
    """

    round: int = 0
    messages: int = 0
    nbytes: int = 0
    sealing: int = 0
    ended: tuple[int, ...] = ()
    breaks: tuple[str, ...] = ()
    awake: tuple[int, ...] = ()
    virtual_seconds: float = 0.0
    best_loss: float | None = None
    stale: int = 0


@dataclass(frozen=True)
class Commit:
    """End of a round, or of several that one node ran alone.

    Attributes
    ----------
    ledger : Ledger
        Progress of the run.
    reports : tuple of Report
        Reports of the rounds evaluated since the last commit, sorted by (round, peer).
    refused : tuple of str
        A line per letter refused since then.
    present : frozenset of int
        Peers whose node ended the round.
    faults : tuple of str
        A line per node that failed since then.
    names : Mapping of int to str
        Display names of the peers that have one.
    backends : tuple of str
        Names of the nodes' engine backends.
    nodes : Mapping of int to int
        Flower's ID of the node of each peer.
    """

    ledger: Ledger
    reports: tuple[Report, ...] = field(default=(), repr=False)
    refused: tuple[str, ...] = ()
    present: frozenset[int] = frozenset()
    faults: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    backends: frozenset[str] = frozenset()
    nodes: Mapping[int, int] = field(default_factory=dict, compare=False)  # differ by transport


class Recorder(Protocol):
    """Storage of the relay's commits."""

    def round(self, commit: Commit) -> None:
        """Store a commit."""
        ...


def means(reports: Iterable[Report]) -> dict[str, float]:
    """Average each metric over the reports of honest peers that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            if value is not None and not report.metrics.get("attacker"):
                values.setdefault(name, []).append(value)
    return {name: sum(column) / len(column) for name, column in values.items()}
