"""Runs inside this process: the real relay, wire and nodes, only Flower is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file
from torch import Tensor

from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.institution.node import simulated_node
from coterie.app.node.node import Node
from coterie.strategies.errors import RelayError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Report, Request, Response
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit, Ledger
from tests.encoded import Encoded

Floats = npt.NDArray[np.float64]


class StoppedError(Exception):
    """The relay was stopped after the round that a test asked for."""


class Loud:
    """A node whose exceptions fail the test instead of costing the relay a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.error: Exception | None = None

    def handle(self, request: Request) -> Response:
        try:
            return self.node.handle(request)
        except Exception as error:
            self.error = error
            raise


@dataclass
class Run:
    """Results of a run.

    Attributes
    ----------
    reports : by (round, peer). ledger : where the relay stands. refused : letters refused.
    directory : the run directory.
    """

    config: Config
    directory: Path
    reports: dict[tuple[int, int], Report] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    refused: list[str] = field(default_factory=list)
    until: int | None = None

    def round(self, commit: Commit) -> None:
        """The relay's recorder."""
        self.ledger = commit.ledger
        self.reports |= {(report.round, report.peer): report for report in commit.reports}
        self.refused += commit.refused
        if self.until is not None and commit.ledger.round >= self.until:
            raise StoppedError

    @property
    def rounds(self) -> list[int]:
        """The evaluated rounds."""
        return sorted({t for t, _ in self.reports})

    def metric(self, name: str, t: int = -1) -> Floats:
        """(n,) one metric of all peers after round `t`, default the last; nan where none."""
        reports = [self.reports[self._round(t), peer] for peer in range(self.config.peers)]
        return np.array([report.metrics[name] for report in reports], dtype=np.float64)

    def weights(self, t: int = -1) -> Floats:
        """(n, n) the collaboration matrix after round `t`."""
        peers = range(self.config.peers)
        return np.array([self.reports[self._round(t), peer].weights for peer in peers])

    def models(self) -> list[dict[str, Tensor]]:
        """The final personal models, from their files."""
        where = self.directory / "models"
        return [load_file(where / f"peer-{p:04d}.safetensors") for p in range(self.config.peers)]

    def theta(self) -> Floats:
        """(n, d) final models of a quadratic problem."""
        return np.stack([model["theta"].numpy() for model in self.models()])

    def _round(self, t: int) -> int:
        return self.rounds[-1] if t < 0 else t


def hosting(peers: int, nodes: int) -> list[list[int]]:
    """The peers of each node when `nodes` share them."""
    return [part.tolist() for part in np.array_split(np.arange(peers), nodes)]


def run(
    flat: Mapping[str, Scalar],
    directory: Path,
    nodes: int | Sequence[Sequence[int]] = 1,
    *,
    until: int | None = None,
    after: Run | None = None,
) -> Run:
    """Run a configuration on nodes that live in `directory`.

    Parameters
    ----------
    flat : flat configuration keys.
    nodes : how many share the peers, or the peers of each.
    until : stop the relay once this round is committed.
    after : a run stopped in the same directory that this one continues, with nodes of its own.
    """
    config = Config.from_flat(flat)
    shares = hosting(config.peers, nodes) if isinstance(nodes, int) else nodes
    hosts = [Loud(simulated_node(config, peers, directory)) for peers in shares]
    record = Run(config, directory, until=until)
    if after is not None:
        record.reports, record.ledger = dict(after.reports), after.ledger
    transport = InProcessTransport([Encoded(host) for host in hosts])
    try:
        Broker(
            config.strategy(), transport, record, record.ledger, join_timeout=1.0,
            patience=config.patience,
        ).run()  # fmt: skip
    except StoppedError:
        pass
    except RelayError:
        for host in hosts:
            if host.error:
                raise host.error from None
        raise
    for host in hosts:
        if host.error:
            raise host.error
    return record
