"""One round's deliveries: which node gets which letters, in which requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from strategies.protocol import Edges, PeerMessage, Request, Stage

Hosts = Mapping[int, tuple[int, ...]]
"""Node -> the peers it hosts."""
Offers = Mapping[int, PeerMessage]
"""Peer -> its letter for this round."""


@dataclass(frozen=True)
class Round:
    """The edges of one round.

    Attributes
    ----------
    t : the round.
    edges, asked : (E, 2) and (E,), see `strategies.protocol.Request`.
    committed : last round that the relay has committed.
    """

    t: int
    edges: Edges
    asked: npt.NDArray[np.bool_]
    committed: int

    def among(self, hosts: Hosts, offers: Offers) -> Round:
        """The edges whose ends both take part, and whose letter is there if it must travel.

        A sealed letter is there only for those whom its sender trusts.
        """
        home = {peer: node for node, peers in hosts.items() for peer in peers}
        alive = [
            s in home
            and r in home
            and (home[s] == home[r] or (s in offers and offers[s].opens_for(r)))
            for s, r in self.edges.tolist()
        ]
        mask = np.array(alive, dtype=np.bool_)
        return replace(self, edges=self.edges[mask], asked=self.asked[mask])

    def answer_requests(self, hosts: Hosts, offers: Offers) -> dict[int, Request]:
        """Requests for the nodes of peers that are asked, with all the offers they need."""
        asked = self.edges[self.asked, 1]
        return {
            node: self._request("answer", peers, [offers[s] for s in self._from_elsewhere(peers)])
            for node, peers in hosts.items()
            if np.isin(asked, peers).any()
        }

    def update_requests(
        self,
        hosts: Hosts,
        offers: Offers,
        answers: Iterable[PeerMessage],
        served: Collection[int],
    ) -> dict[int, Request]:
        """Requests for all nodes, with the answers; nodes in `served` have their offers already."""
        by_owner: dict[int | None, list[PeerMessage]] = {}
        for answer in answers:
            by_owner.setdefault(answer.recipient, []).append(answer)
        requests = {}
        for node, peers in hosts.items():
            senders = [] if node in served else self._from_elsewhere(peers)
            letters = [offers[sender] for sender in senders]
            letters += [answer for peer in peers for answer in by_owner.get(peer, ())]
            requests[node] = self._request("update", peers, letters)
        return requests

    def _from_elsewhere(self, peers: tuple[int, ...]) -> list[int]:
        """Senders that are not among `peers` but whose offers are delivered there."""
        here = np.isin(self.edges, peers)
        senders: list[int] = np.unique(self.edges[here[:, 1] & ~here[:, 0], 0]).tolist()
        return senders

    def _request(
        self, stage: Stage, peers: tuple[int, ...], letters: Iterable[PeerMessage]
    ) -> Request:
        touches = np.isin(self.edges, peers).any(axis=1)
        in_order = tuple(letter.only_for(peers) for letter in sorted(letters, key=_ends))
        edges, asked = self.edges[touches], self.asked[touches]
        return Request(stage, self.t, self.t, edges, asked, in_order, committed=self.committed)


def _ends(letter: PeerMessage) -> tuple[int, int]:
    return letter.sender, -1 if letter.recipient is None else letter.recipient
