"""One round's deliveries: which node gets which letters, in which requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from coterie.strategies.brokering import Round
from coterie.strategies.protocol import PeerMessage, Request, Stage

Hosts = Mapping[int, tuple[int, ...]]
"""Node -> the peers it hosts."""
Offers = Mapping[int, PeerMessage]
"""Peer -> its letter for this round."""


def deliverable(this: Round, hosts: Hosts, offers: Offers) -> Round:
    """Keep the edges whose ends both take part, and whose letter is there if it must travel.

    A sealed letter is there only for those whom its sender trusts. One of an earlier round is there
    for all who ask nothing back, though its sender is gone.
    """
    home = {peer: node for node, peers in hosts.items() for peer in peers}

    def is_alive(s: int, r: int, asked: bool) -> bool:
        if r not in home:
            return False
        if s in home and home[s] == home[r]:
            return True
        if s not in offers or not offers[s].opens_for(r):
            return False
        return s in home if offers[s].round == this.t else not asked

    ends = this.edges.tolist()
    alive = [is_alive(s, r, ask) for (s, r), ask in zip(ends, this.asked.tolist(), strict=True)]
    mask = np.array(alive, dtype=np.bool_)
    return replace(this, edges=this.edges[mask], asked=this.asked[mask])


def answer_requests(this: Round, hosts: Hosts, offers: Offers) -> dict[int, Request]:
    """Requests for the nodes of peers that are asked, with all the offers they need."""
    asked = this.edges[this.asked, 1]
    return {
        node: _request("answer", this, peers, [offers[s] for s in _from_elsewhere(this, peers)])
        for node, peers in hosts.items()
        if np.isin(asked, peers).any()
    }


def update_requests(
    this: Round,
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
        senders = [] if node in served else _from_elsewhere(this, peers)
        letters = [offers[sender] for sender in senders]
        letters += [answer for peer in peers for answer in by_owner.get(peer, ())]
        requests[node] = _request("update", this, peers, letters)
    return requests


def _from_elsewhere(this: Round, peers: tuple[int, ...]) -> list[int]:
    """Senders that are not among `peers` but whose offers are delivered there."""
    here = np.isin(this.edges, peers)
    senders: list[int] = np.unique(this.edges[here[:, 1] & ~here[:, 0], 0]).tolist()
    return senders


def _request(
    stage: Stage, this: Round, peers: tuple[int, ...], letters: Iterable[PeerMessage]
) -> Request:
    touches = np.isin(this.edges, peers).any(axis=1)
    in_order = tuple(letter.only_for(peers) for letter in sorted(letters, key=_ends))
    return Request(stage, this.t, this.t, this.edges[touches], this.asked[touches], in_order)


def _ends(letter: PeerMessage) -> tuple[int, bool, int]:
    return letter.sender, letter.kind == "answer", letter.recipient or 0
