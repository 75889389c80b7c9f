"""Which node hosts which peers, and what the peers have sent for the next round."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from coterie.strategies.protocol import Edges, PeerMessage, Response, no_edges

Proof = Callable[[int, bytes, str], bool]
"""Whether a claim, made for an attempt at the run, comes from the node of a peer: (peer, claim,
attempt)."""


class Roster:
    """The nodes that take part in a run of `peers` peers.

    Parameters
    ----------
    proves : how a node shows that a peer is its own; without, who comes first is believed.

    Attributes
    ----------
    hosts : node -> its peers, in order of the peers.
    without_peers : nodes that said that they host none.
    samples : (n,) each peer's n_i, 0 where it has not been announced.
    offers : (peer, round) -> its offers that may be heard in this round or later.
    names : peer -> what people call it, of those whose node has announced it.
    backends : names of the nodes' engine backends.

    A peer belongs to the node that brought it first, and its n_i is what that one announced first.
    """

    def __init__(self, peers: int, proves: Proof | None = None) -> None:
        self._proves = proves
        self.peers = peers
        self.hosts: dict[int, tuple[int, ...]] = {}
        self.without_peers: set[int] = set()
        self.samples = np.zeros(peers, dtype=np.int64)
        self.offers: dict[tuple[int, int], PeerMessage] = {}
        self.names: dict[int, str] = {}
        self.backends: set[str] = set()
        self._wants: dict[int, Edges] = {}
        self._owners: dict[int, int] = {}

    @property
    def hosted(self) -> frozenset[int]:
        """The peers whose node takes part."""
        return frozenset(peer for peers in self.hosts.values() for peer in peers)

    @property
    def missing(self) -> frozenset[int]:
        """The peers whose node does not take part."""
        return frozenset(range(self.peers)) - self.hosted

    @property
    def wants(self) -> Edges:
        """(W, 2) the edges that peers want in the next round."""
        return np.concatenate([no_edges(), *self._wants.values()])

    def objection(self, node: int, response: Response, attempt: str) -> str | None:
        """Say why a node may not take part with what it answered to a "start", if so."""
        peers, samples = list(response.peers), response.samples
        if self._proves is not None:
            claims = response.claims or (b"",) * len(peers)
            for peer, claim in zip(peers, claims, strict=True):
                if not self._proves(peer, claim, attempt):
                    return f"says that it is peer {peer}, without the key that the relay trusts"
        taken = [peer for peer in peers if self._owners.get(peer, node) != node]
        if taken:
            return f"brings peers {taken} of another node: resume the run if theirs has moved"
        known = self.samples[peers]
        if samples and ((known > 0) & (known != samples)).any():
            return f"announced {known.tolist()} samples of peers {peers} before, and others now"
        return None

    def add(self, node: int, response: Response) -> None:
        """Let a node take part that has answered a "start"."""
        if not response.peers:
            self.without_peers.add(node)
            return
        if response.samples:
            self.samples[list(response.peers)] = response.samples
        self._owners |= dict.fromkeys(response.peers, node)
        self.hosts[node] = response.peers
        self.hosts = dict(sorted(self.hosts.items(), key=lambda item: item[1]))
        self.keep(node, response)

    def keep(self, node: int, response: Response) -> None:
        """Keep what a node's peers offer and want for the next round, and what they are called."""
        self.offers |= {(letter.sender, letter.round): letter for letter in response.letters}
        self._wants[node] = response.wants
        if response.names:
            self._rename(response)
        if response.backend:
            self.backends.add(response.backend)

    def _rename(self, response: Response) -> None:
        """Call peers as their node does, unless another peer is called so already."""
        others = set(range(self.peers)).difference(response.peers)
        taken = {self._called(peer) for peer in others}
        for peer, name in zip(response.peers, response.names, strict=True):
            if name and name not in taken:
                self.names[peer] = name
            taken.add(self._called(peer))

    def _called(self, peer: int) -> str:
        return self.names.get(peer, f"peer {peer}")

    def listed(self, peers: Iterable[int]) -> str:
        """The peers in order, for people, with their names: "0 (hospital-a), 3"."""
        names = (f" ({self.names[peer]})" if peer in self.names else "" for peer in sorted(peers))
        return ", ".join(map("{}{}".format, sorted(peers), names)) or "none"

    def drop(self, node: int) -> tuple[int, ...]:
        """Go on without a node; the peers it hosted, which stay its own."""
        self._wants.pop(node, None)
        return self.hosts.pop(node, ())

    def forget(self, node: int) -> None:
        """Go on as if a node had never come."""
        for peer in self.drop(node):
            del self._owners[peer]

    def offers_of(self, t: int, max_age: int) -> dict[int, PeerMessage]:
        """Each peer's newest offer for round `t`; what is too old by then is forgotten."""
        self.offers = {end: letter for end, letter in self.offers.items() if end[1] >= t - max_age}
        return {peer: self.offers[peer, s] for peer, s in sorted(self.offers) if s <= t}
