"""Delivery of sealed letters: every recipient gets its own key only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import PeerMessage
from coterie.strategies.relay.delivery import answer_requests, deliverable, update_requests

HOSTS = {7: (0, 1), 8: (2,), 9: (3,)}
ALL = np.array([(s, r) for r in range(4) for s in range(4) if s != r], dtype=np.int64)


def offer(sender: int, *readers: int) -> PeerMessage:
    keys = {reader: f"{sender} to {reader}".encode() for reader in readers}
    return PeerMessage("offer", sender, None, 1, 8, object(), keys)


def round_of(offers: Mapping[int, PeerMessage]) -> Round:
    return deliverable(Round(1, ALL, np.ones(len(ALL), dtype=np.bool_), False), HOSTS, offers)


def test_edges_go_only_to_those_for_whom_a_letter_was_sealed() -> None:
    offers = {0: offer(0, 2), 1: offer(1, 2, 3), 2: offer(2, 0, 1, 3), 3: offer(3)}
    result = {(s, r) for s, r in round_of(offers).edges.tolist() if s != 3}
    assert result == {(0, 1), (1, 0), (0, 2), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3)}


def test_a_letter_without_keys_is_plain_and_goes_to_everybody() -> None:
    offers = {peer: offer(peer) for peer in range(4)}
    assert len(round_of(offers).edges) == len(ALL)


def test_a_node_gets_the_letter_itself_and_its_own_peers_keys() -> None:
    offers = {0: offer(0, 2, 3), 1: offer(1, 2, 3), 2: offer(2, 0, 1, 3), 3: offer(3, 0, 2)}
    this = round_of(offers)
    answers = [PeerMessage("answer", 3, 0, 1, 8, object(), {0: b"3 to 0"})]
    asked = answer_requests(this, HOSTS, offers)
    updating = update_requests(this, HOSTS, offers, answers, served=())
    for requests in (asked, updating):
        for node, order in requests.items():
            for letter in order.letters:
                sent = answers[0] if letter.kind == "answer" else offers[letter.sender]
                assert letter.payload is sent.payload
                assert letter.keys == {p: k for p, k in sent.keys.items() if p in HOSTS[node]}
                assert letter.keys
    assert {p.sender for p in updating[8].letters} == {0, 1, 3}
    assert [p.kind for p in updating[7].letters] == ["offer", "offer", "answer"]
