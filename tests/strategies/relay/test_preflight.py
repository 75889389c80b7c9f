"""Readiness checks: the request to the nodes and their responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.preflight import survey


@dataclass
class Answers:
    """Transport with prepared responses."""

    responses: Mapping[int, Response | str]
    asked: dict[int, Request] = field(default_factory=dict)

    def nodes(self) -> list[int]:
        return list(self.responses)

    def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
        self.asked |= requests
        return {node: self.responses[node] for node in requests}


def test_what_nodes_answer_is_told_by_peer_and_who_is_missing() -> None:
    ready, no = (("policy", "ok"), ("data", "train at least 20")), (("policy", "policy"),)
    transport = Answers({7: Response((2,), checks=no), 8: Response((0,), checks=ready)})
    result = survey(transport, 3)
    assert list(result.peers.items()) == [(0, dict(ready)), (2, dict(no))]
    assert (result.faults, result.missing) == ((), (1,))
    assert {request.stage for request in transport.asked.values()} == {"preflight"}
    assert all(request.clock > 1e9 for request in transport.asked.values())


def test_who_does_not_answer_well_is_named_harmlessly() -> None:
    loud = tuple((f"{k}\x1b[2J" * 100, "x" * 10_000) for k in range(100))
    result = survey(
        Answers(
            {
                5: "no response within 3 s\x1b[2J",
                6: Response((0,), checks=loud),
                7: Response((0,)),
                8: Response((9, -1)),
            }
        ),
        2,
    )
    assert result.faults == (
        "node 5: no response within 3 s?[2J; is its executor (coterie-executor) up?",
        "node 7: claims peers [0] of another node: if they have moved, resume the run",
        "node 8: hosts peers -1, 9: must be ascending and from 0 to 1",
    )
    assert result.missing == (1,)
    words = [word for check in result.peers[0].items() for word in check]
    assert len(words) == 40
    assert all(word.isprintable() and len(word) <= 64 for word in words)
