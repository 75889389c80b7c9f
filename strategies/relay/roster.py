"""Roster of the nodes that take part, their peers, and the letters for the next round."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from coterie.strategies.protocol import Edges, PeerMessage, Response, no_edges

Proof = Callable[[int, bytes, str], bool]
"""Verifier of a node's claim to a peer: (peer, claim, attempt) -> bool."""


class Roster:
    """Nodes that take part in a run.

    A peer is bound to the first node that claims it, and to the first n_i announced for it.
    `proves` verifies a node's claim to a peer; without, every first claim is accepted.
    """

    def __init__(self, peers: int, proves: Proof | None = None) -> None:
        self._proves = proves
        self.peers = peers
        self.hosts: dict[int, tuple[int, ...]] = {}  # peers of each node, ordered by peer
        self.without_peers: set[int] = set()  # nodes that host no peer
        self.samples = np.zeros(peers, dtype=np.int64)  # n_i of each peer; 0: not announced
        self.offers: dict[tuple[int, int], PeerMessage] = {}  # by (peer, round), valid now or later
        self.statistics: dict[int, PeerMessage] = {}  # of each peer that sent a letter of them
        self.names: dict[int, str] = {}  # display names announced by the nodes
        self.backends: set[str] = set()  # names of the nodes' engine backends
        self.reads: dict[int, int] = {}  # node -> stated maximum size of a letter that it reads
        self._wants: dict[int, Edges] = {}
        self.owners: dict[int, int] = {}  # peer -> node to which it is bound

    @property
    def hosted(self) -> frozenset[int]:
        """Peers whose node takes part."""
        return frozenset(peer for peers in self.hosts.values() for peer in peers)

    @property
    def missing(self) -> frozenset[int]:
        """Peers whose node does not take part."""
        return frozenset(range(self.peers)) - self.hosted

    @property
    def wants(self) -> Edges:
        """Edges (W, 2) that the peers request for the next round."""
        return np.concatenate([no_edges(), *self._wants.values()])

    def objection(self, node: int, response: Response, attempt: str) -> str | None:
        """Return the reason to reject a node after its response to "start", or None."""
        peers, samples = list(response.peers), response.samples
        if self._proves is not None:
            claims = response.claims or (b"",) * len(peers)
            for peer, claim in zip(peers, claims, strict=True):
                if not self._proves(peer, claim, attempt):
                    return f"claims peer {peer} without the key that the relay trusts for it"
        taken = [peer for peer in peers if self.owners.get(peer, node) != node]
        if taken:
            return f"claims peers {taken} of another node: if they have moved, resume the run"
        known = self.samples[peers]
        if samples and ((known > 0) & (known != samples)).any():
            return f"changed the numbers of samples of peers {peers}, previously {known.tolist()}"
        return None

    def add(self, node: int, response: Response) -> None:
        if not response.peers:
            self.without_peers.add(node)
            return
        if response.samples:
            self.samples[list(response.peers)] = response.samples
        self.owners |= dict.fromkeys(response.peers, node)
        self.hosts[node] = response.peers
        self.hosts = dict(sorted(self.hosts.items(), key=lambda item: item[1]))
        self.keep(node, response)

    def keep(self, node: int, response: Response) -> None:
        """Store the offers, requested edges and names of a node's peers."""
        for letter in response.letters:
            if letter.kind == "statistics":  # the first: all peers must read the same
                self.statistics.setdefault(letter.sender, letter)
            else:
                self.offers[letter.sender, letter.round] = letter
        self._wants[node] = response.wants
        if response.names:
            self._rename(response)
        if response.backend:
            self.backends.add(response.backend)
        if response.reads:
            self.reads[node] = response.reads

    def _rename(self, response: Response) -> None:
        """Set the names announced by a node, except those of other peers."""
        others = set(range(self.peers)).difference(response.peers)
        taken = {self.names.get(peer, f"peer {peer}") for peer in others}
        for peer, name in zip(response.peers, response.names, strict=True):
            if name and name not in taken:
                self.names[peer] = name
            taken.add(self.names.get(peer, f"peer {peer}"))

    def listed(self, peers: Iterable[int]) -> str:
        """Format peers for messages, in order and with their names: "0 (hospital-a), 3"."""
        names = (f" ({self.names[peer]})" if peer in self.names else "" for peer in sorted(peers))
        return ", ".join(map("{}{}".format, sorted(peers), names)) or "none"

    def statistics_for(self, node: int) -> list[PeerMessage]:
        """Return the statistics that a node needs: those of all peers of other nodes, or none."""
        peers = [peer for peer, owner in self.owners.items() if owner == node]
        if len(self.statistics) < self.peers or not peers:
            return []
        others = sorted(self.statistics.keys() - set(peers))
        return [self.statistics[peer].only_for(peers) for peer in others]

    def drop(self, node: int) -> tuple[int, ...]:
        """Remove a node and return its peers, which stay bound to it."""
        self._wants.pop(node, None)
        self.reads.pop(node, None)
        return self.hosts.pop(node, ())

    def forget(self, node: int) -> None:
        """Remove a node and release its peers."""
        for peer in self.drop(node):
            del self.owners[peer]

    def offers_of(self, t: int, max_age: int) -> dict[int, PeerMessage]:
        """Return each peer's newest offer for round `t`, and delete expired offers."""
        self.offers = {end: letter for end, letter in self.offers.items() if end[1] >= t - max_age}
        return {peer: self.offers[peer, s] for peer, s in sorted(self.offers) if s <= t}
