"""Deliveries of a round: the requests and letters for each node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import PeerMessage, Request, Stage

Hosts = Mapping[int, tuple[int, ...]]
"""Peers of each node."""
Offers = Mapping[int, PeerMessage]
"""Letter of each peer for this round."""


def deliverable(this: Round, hosts: Hosts, offers: Offers) -> Round:
    """Keep the edges whose letter can be delivered."""
    # The recipient must be hosted, and the letter available unless both ends share a node. A sealed
    # letter is available only to the recipients that its sender trusts. A letter of an earlier
    # round is delivered even if its sender is gone, except along edges that are answered.
    home = {peer: node for node, peers in hosts.items() for peer in peers}

    def is_deliverable(s: int, r: int, asked: bool) -> bool:
        if r not in home:
            return False
        if s in home and home[s] == home[r]:
            return True
        if s not in offers or not offers[s].opens_for(r):
            return False
        return s in home if offers[s].round == this.t else not asked

    ends = zip(this.edges.tolist(), this.asked.tolist(), strict=True)
    mask = np.array([is_deliverable(s, r, asked) for (s, r), asked in ends], dtype=np.bool_)
    return replace(this, edges=this.edges[mask], asked=this.asked[mask])


def answer_requests(this: Round, hosts: Hosts, offers: Offers) -> dict[int, Request]:
    """Return the "answer" requests, by node, with the offers to answer."""
    asked = this.edges[this.asked, 1]
    return {
        node: _request("answer", this, peers, [offers[s] for s in _remote_senders(this, peers)])
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
    """Return the "update" requests by node; those in `served` have had their offers."""
    by_owner: dict[int | None, list[PeerMessage]] = {}
    for answer in answers:
        by_owner.setdefault(answer.recipient, []).append(answer)
    requests = {}
    for node, peers in hosts.items():
        senders = [] if node in served else _remote_senders(this, peers)
        letters = [offers[sender] for sender in senders]
        letters += [answer for peer in peers for answer in by_owner.get(peer, ())]
        requests[node] = _request("update", this, peers, letters)
    return requests


def _remote_senders(this: Round, peers: tuple[int, ...]) -> list[int]:
    hosted = np.isin(this.edges, peers)
    senders: list[int] = np.unique(this.edges[hosted[:, 1] & ~hosted[:, 0], 0]).tolist()
    return senders


def _request(
    stage: Stage, this: Round, peers: tuple[int, ...], letters: Iterable[PeerMessage]
) -> Request:
    touches = np.isin(this.edges, peers).any(axis=1)
    in_order = sorted(letters, key=lambda of: (of.sender, of.kind == "answer", of.recipient or 0))
    here = tuple(letter.only_for(peers) for letter in in_order)
    return Request(stage, this.t, this.t, this.edges[touches], this.asked[touches], here)
