"""What the relay records after every round: where the run stands, and what nodes reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.strategies.protocol import Report


@dataclass(frozen=True)
class Ledger:
    """Where a run stands: all that the relay needs to go on after a restart.

    Attributes
    ----------
    round : last committed round.
    messages : requests sent and responses received.
    nbytes : payload bytes delivered to nodes; a letter for two peers of one node counts once.
    sealing : bytes of the sealed letters' keys delivered with them.
    ended : (n,) the last round that each peer ended, -1 of one that has not come; empty at first.
    breaks : a line for each time that peers went on from less than that: their state was lost.
    awake : (n,) rounds in which each peer was awake and took part; empty at first.
    virtual_seconds : what the virtual clock says.
    """

    round: int = 0
    messages: int = 0
    nbytes: int = 0
    sealing: int = 0
    ended: tuple[int, ...] = ()
    breaks: tuple[str, ...] = ()
    awake: tuple[int, ...] = ()
    virtual_seconds: float = 0.0


@dataclass(frozen=True)
class Commit:
    """The end of a round, or of several that one node ran alone.

    Attributes
    ----------
    ledger : where the run stands now.
    reports : of the evaluated rounds since the last commit, by (round, peer).
    refused : a line for each letter refused since then.
    present : peers whose node ended the round.
    faults : a line for each node that failed since then.
    names : peer -> what people call it, of those that have a name.
    backends : names of the nodes' engine backends.
    """

    ledger: Ledger
    reports: tuple[Report, ...] = field(default=(), repr=False)
    refused: tuple[str, ...] = ()
    present: frozenset[int] = frozenset()
    faults: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    backends: frozenset[str] = frozenset()


class Recorder(Protocol):
    """Stores what the relay commits."""

    def round(self, commit: Commit) -> None:
        """Keep what was committed."""
        ...


def means(reports: Iterable[Report]) -> dict[str, float]:
    """Mean of each metric over the honest peers' reports that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            if value is not None and not report.metrics.get("attacker"):
                values.setdefault(name, []).append(value)
    return {name: sum(column) / len(column) for name, column in values.items()}
