"""Invalid items in responses that the relay removes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coterie.strategies.errors import RelayError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Wanted, WantedAnswers, WantedHelp
from coterie.strategies.protocol import PeerMessage, Report, Request, Response
from coterie.strategies.relay.vetting import vetted
from tests.strategies.relay.runs import failing, make, run, toys
from tests.strategies.toy_node import ToyNode


@dataclass
class Liar:
    """Transport that forges a node's response in one round, or in all."""

    node: ToyNode
    lie: Callable[[Response, Request], Response]
    at: int | None = 1

    def handle(self, request: Request) -> Response:
        response = self.node.handle(request)
        return self.lie(response, request) if self.at in (None, request.round) else response


def with_letter(letter: PeerMessage) -> Callable[[Response, Request], Response]:
    return lambda response, request: replace(response, letters=(*response.letters, letter))


def with_report(**changes: Any) -> Callable[[Response, Request], Response]:
    report: dict[str, Any] = {"peer": 0, "metrics": {}, "weights": 5 * (1.0,)} | changes
    return lambda response, request: replace(
        response, reports=(Report(request.round, **report), *response.reports)
    )


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (
            lambda response, request: replace(response, wants=np.array([[0, 9]])),
            r"the requested edge \[0, 9\]",
        ),
        (
            lambda response, request: replace(response, wants=np.array([[2, 3]])),
            r"the requested edge \[2, 3\]",
        ),
        (
            lambda response, request: replace(response, wants=np.array([[1, 1]])),
            r"the requested edge \[1, 1\]",
        ),
        (with_letter(PeerMessage("offer", 3, None, 2, 8, b"x")), "PeerMessage.*sender=3"),
        (
            with_letter(PeerMessage("offer", 0, None, 2, 8, b"x")),
            "PeerMessage.*sender=0",
        ),  # a second
        (with_letter(PeerMessage("offer", 0, None, 7, 8, b"x")), "PeerMessage.*round=7"),
        (with_letter(PeerMessage("answer", 0, 3, 1, 8, b"x")), "PeerMessage.*'answer'"),
        (with_report(peer=4), "a report of peer 4"),
        (with_report(weights=4 * (1.0,)), "a report of peer 0"),
        (lambda response, request: replace(response, refused=("bad letter",)), "^bad letter$"),
        (lambda response, request: replace(response, refused=("a\nb" + 999 * "c",)), "^a bc{397}$"),
        (with_report(metrics={"test_loss": float("nan")}), "a report of peer 0"),
        (with_report(metrics={"test_loss": float("inf")}), "a report of peer 0"),
        (with_report(weights=(*(4 * (1.0,)), float("nan"))), "a report of peer 0"),
        (with_report(metrics={"peer": 3.0}), "a report of peer 0"),
        (with_report(metrics={"round": 3.0}), "a report of peer 0"),
        (with_report(metrics={"test_loss": 1e301}), "a report of peer 0"),
        (with_report(metrics={"anything": 1.0}), "a report of peer 0"),
        (with_letter(PeerMessage("offer", 0, None, 2, 8, b"x", {5: b""})), "PeerMessage"),
    ],
)
def test_what_does_not_belong_is_dropped_and_noted(
    lie: Callable[[Response, Request], Response], line: str
) -> None:
    strategy = make(Everyone, rounds=2, evaluate_every=1)  # a sound report would be due
    honest = run(strategy, toys(strategy, [0, 1], [2, 3, 4]))
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    notes = run(strategy, [Liar(one, lie), other])
    assert [bool(re.search(line, each)) for each in notes.refused] == [True]
    assert notes.losses() == honest.losses()


@pytest.mark.parametrize(
    ("kind", "pushed", "valid"),
    [
        (Wanted, [0, 3], [3, 0]),  # the recipient requests
        (Pairs, [0, 3], [3, 0]),
        (WantedAnswers, [0, 3], [3, 0]),
        (WantedHelp, [3, 0], [0, 3]),  # the sender requests
    ],
)
def test_nobody_wants_for_others(
    kind: type[ExchangePlan], pushed: list[int], valid: list[int]
) -> None:
    strategy = make(kind, rounds=2)
    request, wants = Request("update", 1, 1), np.array([pushed, valid])
    kept, refused = vetted(Response((0, 1), wants=wants), request, strategy)
    assert kept.wants.tolist() == [valid]
    assert refused == [
        f"round 1, update: peers 0, 1: the relay refused the requested edge {pushed}"
    ]


def test_a_peer_reports_once_and_only_when_peers_measure_themselves() -> None:
    strategy = make(rounds=8)  # every fourth round
    response = Response((0,), reports=2 * (Report(4, 0, {}, 5 * (1.0,)),))
    for t, reports in ((4, 1), (3, 0), (5, 0)):
        assert len(vetted(response, Request("update", t, t), strategy)[0].reports) == reports


@pytest.mark.parametrize("samples", [(0, 1), (-1, 1), (2**62, 1), (1, 10**9 + 1), (5,)])
def test_nobody_has_more_samples_than_a_hospital_can(samples: tuple[int, ...]) -> None:
    strategy = make()
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    claim = Liar(one, lambda response, request: replace(response, samples=samples), at=0)
    with pytest.raises(RelayError, match=r"round 0, start: node 0: has .* samples"):
        run(strategy, [claim, other])


def test_samples_are_announced_once() -> None:
    """A node that returns with another number of samples is rejected."""
    strategy = make(rounds=6)
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    one.before = failing(("update", 2))

    def claims(response: Response, request: Request) -> Response:
        grown = 5 if request.round == 0 else 500
        return replace(response, samples=(grown, 5)) if request.stage == "start" else response

    notes = run(strategy, [Liar(one, claims, at=None), other])
    line = "changed the numbers of samples of peers [0, 1], previously [5, 5]"
    assert any(line in fault for fault in notes.faults)
    assert {tuple(request.samples[:2]) for request in other.requests[2:]} == {(5, 5)}
    assert {r.peer for r in notes.reports if r.round == 6} == {2, 3, 4}


def test_a_node_cannot_become_another_when_it_is_started_again() -> None:
    """The response to its second "start", when all n_i are known, contains offers too."""
    strategy = make(rounds=2)
    one, other = toys(strategy, [0, 1], [2, 3, 4])

    def claims(response: Response, request: Request) -> Response:
        peers = (3, 4) if len(request.samples) and request.round == 0 else response.peers
        return replace(response, peers=peers, samples=(5, 5)[: 2 * (request.stage == "start")])

    notes = run(strategy, [Liar(one, claims, at=None), other])
    assert any("hosts peers 3, 4 now, not 0, 1" in line for line in notes.faults)


def test_answers_nobody_asked_for_are_dropped() -> None:
    strategy = make(WantedAnswers, rounds=1)
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    meddling = with_letter(PeerMessage("answer", 0, 3, 1, 8, b"x"))
    notes = run(
        strategy,
        [Liar(one, lambda r, o: meddling(r, o) if o.stage == "answer" else r), other],
    )
    assert len(notes.refused) == 1
    assert [x.sender for x in other.requests[-1].letters] == [1]


def test_a_node_that_changes_its_cohort_is_left_out() -> None:
    strategy = make(Everyone, rounds=4)
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    liar = Liar(one, lambda response, request: replace(response, peers=(0, 2)))
    run(strategy, [liar, other])
    assert [o.stage for o in one.requests] == ["start", "update", "start", "update", "update"]
    (round_2,) = (request for request in other.requests if request.round == 2)
    assert not np.isin(round_2.edges, [0, 1]).any()
