"""Rounds of the relay: requests, failures, returning nodes and progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from coterie.strategies.errors import RelayError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Silent, Wanted, WantedAnswers, WantedHelp
from coterie.strategies.protocol import Request, Response, Stage
from coterie.strategies.relay import broker
from coterie.strategies.relay.broker import Broker
from tests.strategies.relay.runs import Notes, failing, make, run, split, toys
from tests.strategies.toy_node import NBYTES, ToyNode

RULES = [Silent, Everyone, Wanted, WantedAnswers, WantedHelp, Pairs]

# --- one node = many nodes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("graph", ["full", "ring"])
def test_results_do_not_depend_on_who_hosts_whom(kind: type[ExchangePlan], graph: str) -> None:
    strategy = make(kind, graph=graph)
    alone = run(strategy, toys(strategy, range(5)))
    assert alone.losses().keys() == {(t, i) for t in (0, 4, 8, 9) for i in range(5)}
    for cohorts in (
        split(5, 2),
        split(5, 5),
        split(5, 7),
        [[3, 4], [0], [1, 2]],
        [[1, 4], [0, 2, 3]],
    ):
        nodes = toys(strategy, *cohorts)
        many = run(strategy, nodes)
        assert many.losses() == alone.losses()
        assert [(r.round, r.peer) for r in many.reports] == sorted(many.losses())
        assert not many.refused


def test_the_mean_of_each_evaluated_round_comes_back() -> None:
    strategy = make()
    nodes = toys(strategy, *split(5, 2))
    notes = Notes()
    means = Broker(strategy, InProcessTransport(nodes), notes).run()
    assert set(means) == {0, 4, 8, 9}
    at_4 = [loss for (t, _), loss in notes.losses().items() if t == 4 and loss is not None]
    assert means[4] == {"test_loss": pytest.approx(np.mean(at_4))}
    assert means[0] == {"test_loss": 3.0}  # peers start at 1 to 5


# --- what travels ----------------------------------------------------------------------------


def test_a_pull_round_is_one_message_each_way_for_each_node() -> None:
    strategy = make()
    nodes = toys(strategy, *split(5, 3))
    ledgers = run(strategy, nodes).ledgers
    assert [ledger.round for ledger in ledgers] == list(range(10))
    assert [ledger.messages for ledger in ledgers] == [6 * (t + 1) for t in range(10)]
    # cohorts of 2, 2 and 1: each node gets the other peers' models once: 3 + 3 + 4 letters
    assert [ledger.nbytes for ledger in ledgers] == [10 * NBYTES * t for t in range(10)]
    stages = [[request.stage for request in node.requests] for node in nodes]
    assert stages == 3 * [["start", *9 * ["update"]]]


def test_an_asked_round_is_two_messages_and_resends_no_model() -> None:
    strategy = make(WantedAnswers, rounds=1)
    nodes = toys(strategy, [0, 1], [2, 3, 4])  # in round 1 each peer i requests i + 1
    (start, end) = run(strategy, nodes).ledgers
    assert [[request.stage for request in node.requests] for node in nodes] == 2 * [
        ["start", "answer", "update"]
    ]
    letters = [
        [(x.kind, x.sender, x.recipient) for x in request.letters]
        for node in nodes
        for request in node.requests
    ]
    assert letters == [
        [],
        [("offer", 2, None)],
        [("answer", 4, 0)],
        [],
        [("offer", 0, None)],
        [("answer", 1, 2)],
    ]
    assert (start.messages, end.messages, end.nbytes) == (4, 12, 4 * NBYTES)


def test_a_node_that_hosts_everybody_gets_one_order_for_each_stretch() -> None:
    strategy = make()
    (node, idle) = toys(strategy, range(5), [])
    ledgers = run(strategy, [node, idle]).ledgers
    assert [(o.stage, o.round, o.last) for o in node.requests] == [
        ("start", 0, 0),
        ("local-rounds", 1, 4),
        ("local-rounds", 5, 8),
        ("local-rounds", 9, 9),
    ]
    assert [request.stage for request in idle.requests] == ["start"]
    assert [(ledger.round, ledger.nbytes) for ledger in ledgers] == [(0, 0), (4, 0), (8, 0), (9, 0)]


def test_orders_are_sorted_and_touch_the_node() -> None:
    strategy = make(Pairs, 7)
    nodes = toys(strategy, [2, 5], [0, 1, 6], [3, 4])
    run(strategy, nodes)
    for node in nodes:
        for request in node.requests:
            ends = [(r, s) for s, r in request.edges.tolist()]
            assert ends == sorted(set(ends))
            assert np.isin(request.edges, node.peers).any(axis=1).all()
            letters = [(x.sender, x.recipient or 0) for x in request.letters]
            assert letters == sorted(letters)
            assert request.committed == max(0, request.round - 1)


# --- resume ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_stop_and_resume_is_the_uninterrupted_run(kind: type[ExchangePlan], parts: int) -> None:
    strategy = make(kind)
    whole = run(strategy, toys(strategy, *split(5, parts)))

    def power_cut(request: Request) -> None:
        if request.stage in ("update", "local-rounds") and request.round >= 5:
            raise KeyboardInterrupt

    nodes = toys(strategy, *split(5, parts))
    nodes[-1].before = power_cut
    first, second = Notes(), Notes()
    with pytest.raises(KeyboardInterrupt):
        Broker(strategy, InProcessTransport(nodes), first).run()
    nodes[-1].before = lambda request: None
    for node in nodes:
        node.received = {}
    Broker(strategy, InProcessTransport(nodes), second, first.ledgers[-1]).run()
    assert first.ledgers[-1].round == 4
    assert first.losses() | second.losses() == whole.losses()
    assert len(first.reports) + len(second.reports) == len(whole.reports)
    assert second.ledgers[-1].nbytes == whole.ledgers[-1].nbytes


# --- failing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("stage", ["answer", "update"])
def test_a_node_that_fails_is_left_out_and_welcomed_back(
    kind: type[ExchangePlan], stage: Stage
) -> None:
    every_pair: dict[str, Any] = {"sampling": "full"} if kind is Pairs else {}
    strategy = make(kind, rounds=8, **every_pair)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[1].before = failing((stage, 3))
    notes = run(strategy, nodes)
    assert notes.ledgers[-1].round == 8
    requests = [(o.stage, o.round) for o in nodes[1].requests if o.stage != "answer"]
    if (stage, 3) not in [(o.stage, o.round) for o in nodes[1].requests]:
        return  # this rule has no answers
    back = 3 if stage == "answer" else 4
    tried = [] if stage == "answer" else [("update", 3)]
    assert requests == [
        ("start", 0),
        ("update", 1),
        ("update", 2),
        *tried,
        ("start", back),
        *(("update", t) for t in range(back + 1, 9)),
    ]
    for node in (nodes[0], nodes[2]):
        for request in node.requests:
            touches_the_lost = np.isin(request.edges, [2, 3]).any()
            if stage == "update" and request.round == 4:
                assert not touches_the_lost
            if stage == "answer" and request.round == 3 and request.stage == "update":
                assert not touches_the_lost
    assert {(8, peer) for peer in range(5)} <= notes.losses().keys()


def test_a_node_lost_for_good_costs_only_its_own_edges() -> None:
    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[1].before = failing(*[(stage, t) for t in range(5, 9) for stage in ("update", "start")])
    losses = run(strategy, nodes).losses()
    assert {peer for t, peer in losses if t == 8} == {0, 1, 4}
    assert {peer for t, peer in losses if t == 4} == set(range(5))


def test_the_last_node_lost_ends_the_run_and_says_why() -> None:
    strategy = make()
    nodes = toys(strategy, [0, 1, 2], [3, 4])
    for node in nodes:
        node.before = failing(("update", 5))
    with pytest.raises(
        RelayError, match=r"^round 5, update: peers 3, 4: OSError: disk full; no node is left$"
    ) as caught:
        run(strategy, nodes)
    assert (caught.value.round, caught.value.stage) == (5, "update")


def test_what_a_failing_node_says_is_one_short_harmless_line() -> None:
    strategy = make(Everyone, rounds=2)
    nodes = toys(strategy, [0, 1, 2], [3, 4])

    def shout(request: Request) -> None:
        if request.stage == "update":
            raise OSError("disk\nfull \x1b[2J" + 10**6 * "!")

    nodes[1].before = shout
    (fault,) = (fault for commit in run(strategy, nodes).commits for fault in commit.faults)
    assert fault.startswith("round 1, update: peers 3, 4: OSError: disk full ?[2J!!!")
    assert len(fault) < 500


def test_a_round_that_nobody_survives_is_played_again() -> None:
    """Every node fails in round 5 once: the results equal those of a run without failures."""
    strategy = make()
    nodes = toys(strategy, [0, 1, 2], [3, 4])
    for node in nodes:
        node.before = once("update", 5)
    notes = run(strategy, nodes)
    assert notes.losses() == run(strategy, toys(strategy, range(5))).losses()
    assert len(notes.reports) == len(notes.losses())
    assert [ledger.round for ledger in notes.ledgers] == list(range(10))


def once(stage: Stage, t: int) -> Callable[[Request], None]:
    failed: list[int] = []

    def before(request: Request) -> None:
        if (request.stage, request.round) == (stage, t) and not failed:
            failed.append(t)
            raise OSError("disk full")

    return before


def test_a_quorum_begins_without_the_others_and_welcomes_them_later() -> None:
    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    notes = Notes()
    transport = Moody(InProcessTransport(nodes), {2: range(4)})
    Broker(strategy, transport, notes, join_timeout=0.0, quorum=4).run()
    assert (nodes[2].requests[0].stage, nodes[2].requests[0].round) == ("start", 5)
    losses = notes.losses()
    assert {peer for t, peer in losses if t == 4} == {0, 1, 2, 3}
    assert {peer for t, peer in losses if t == 8} == set(range(5))


def test_nobody_takes_the_place_of_a_node_that_is_waited_for() -> None:
    """After round 3, in which another node was late, a node leaves and an impostor joins."""

    @dataclass
    class Leaving(Moody):
        def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
            self.t = max(request.round for request in requests.values())
            late = {1} if self.t == 3 and requests[min(requests)].stage == "update" else set()
            return self.transport.exchange({k: r for k, r in requests.items() if k not in late})

    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4], [0, 1])
    transport = Leaving(InProcessTransport(nodes), {0: range(3, 9), 3: range(3)})
    with pytest.raises(RelayError, match=r"claims peers \[0, 1\] of another node"):
        Broker(strategy, transport, Notes(), join_timeout=0.0, quorum=4).run()
    assert {request.stage for request in nodes[3].requests} == {"start"}


def test_fewer_than_a_quorum_wait_and_then_end_the_run() -> None:
    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    notes = Notes()
    transport = Moody(InProcessTransport(nodes), {1: range(3, 9)})
    with pytest.raises(RelayError, match=r"^round 3, start: no node hosts peers 2, 3; "):
        Broker(strategy, transport, notes, join_timeout=0.0, quorum=4).run()
    assert notes.ledgers[-1].round == 3


def test_a_quorum_does_without_a_node_whose_set_up_is_wrong() -> None:
    strategy = make(Everyone, rounds=4)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[2].before = failing(*[("start", t) for t in range(9)])
    notes = Notes()
    Broker(strategy, InProcessTransport(nodes), notes, join_timeout=0.3, quorum=4).run()
    assert {peer for _, peer in notes.losses()} == {0, 1, 2, 3}
    assert [len(commit.faults) for commit in notes.commits] == [2, 1, 1, 1, 1]
    with pytest.raises(RelayError, match="disk full"):
        run(strategy, toys_failing(strategy))


def toys_failing(strategy: ExchangePlan) -> list[ToyNode]:
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[2].before = failing(*[("start", t) for t in range(9)])
    return nodes


def test_who_has_not_approved_is_named_until_the_run_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the name that a node gives, else by its peer; other faults are no such wait."""
    monkeypatch.setattr(broker, "_JOIN_AGAIN", 0.0)
    strategy, told = make(rounds=1), list[tuple[list[str], list[str]]]()
    answers = {1: ["peer 2 (hospital-c): approval: wait"] * 2, 2: ["peer 4: approval: wait", "x"]}

    class Unapproved(InProcessTransport):
        def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
            left = {node: answers[node].pop() for node in requests if answers.get(node)}
            rest = {node: request for node, request in requests.items() if node not in left}
            return {**super().exchange(rest), **left}

    def tell(names: Sequence[str], missing: Sequence[str], seconds: float) -> None:
        assert 0 <= seconds <= 99
        told.append(([*names], [*missing]))

    notes = Notes()
    Broker(
        strategy, Unapproved(toys(strategy, [0, 1], [2, 3], [4])), notes, join_timeout=99,
        deployed=True, waits=tell,
    ).run()  # fmt: skip
    assert [line.partition(": ")[2] for line in notes.faults] == ["node 2: x"], "a wait is none"
    everybody = [f"peer {peer}" for peer in range(5)]
    assert told == [
        ([], everybody),
        (["hospital-c"], ["peer 3", "peer 4"]),
        (["hospital-c", "peer 4"], ["peer 3"]),
        ([], []),
    ]


def test_a_setup_that_fails_twice_ends_the_run_at_once() -> None:
    strategy = make()
    nodes = toys(strategy, [0, 1], [2, 3, 4])
    nodes[1].before = failing(("start", 0))
    with pytest.raises(RelayError, match="round 0, start: node 1: OSError: disk full"):
        run(strategy, nodes)
    assert len(nodes[1].requests) == 2


def test_a_peer_without_a_node() -> None:
    strategy = make()
    with pytest.raises(RelayError, match="no node hosts peers 2, 4"):
        run(strategy, toys(strategy, [0, 1], [3]))


def test_a_peer_with_two_nodes() -> None:
    strategy = make()
    with pytest.raises(RelayError, match=r"node 1: claims peers \[1\] of another node"):
        run(strategy, toys(strategy, [0, 1], [1, 2, 3, 4]))


def test_a_cohort_that_is_none() -> None:
    strategy = make()
    with pytest.raises(RelayError, match="hosts peers 7: must be ascending and from 0 to 4"):
        run(strategy, toys(strategy, range(4), [7]))


@dataclass
class Moody:
    """Transport whose node k is unreachable in the rounds of `away[k]`, as with Flower."""

    transport: InProcessTransport
    away: Mapping[int, range]
    t: int = 0

    def nodes(self) -> list[int]:
        return [node for node in self.transport.nodes() if self.t not in self.away.get(node, ())]

    def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
        self.t = max(request.round for request in requests.values())
        here = {node: request for node, request in requests.items() if node in self.nodes()}
        return self.transport.exchange(here)


def test_a_node_that_is_away_for_some_rounds_is_not_asked_meanwhile() -> None:
    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3, 4])
    notes = Notes()
    Broker(strategy, Moody(InProcessTransport(nodes), {1: range(3, 6)}), notes).run()
    assert [(o.stage, o.round) for o in nodes[1].requests] == [
        ("start", 0),
        ("update", 1),
        ("update", 2),
        ("start", 7),  # reachable again after round 6
        ("update", 8),
    ]
    assert {peer for t, peer in notes.losses() if t == 4} == {0, 1}


def test_a_node_that_joins_late_is_waited_for() -> None:
    @dataclass
    class Late:
        transport: InProcessTransport
        calls: Counter[str] = field(default_factory=Counter)

        def nodes(self) -> list[int]:
            self.calls["nodes"] += 1
            return self.transport.nodes()[: 1 + self.calls["nodes"] // 3]

        def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
            return self.transport.exchange(requests)

    strategy = make()
    nodes = toys(strategy, [0, 1], [2, 3, 4])
    notes = Notes()
    Broker(strategy, Late(InProcessTransport(nodes)), notes, join_timeout=10).run()
    assert notes.losses() == run(strategy, toys(strategy, range(5))).losses()
    assert [request.stage for request in nodes[0].requests].count("start") == 1


def test_a_node_that_restarts_before_the_others_have_come_counts_once() -> None:
    @dataclass
    class Restarting:
        transport: InProcessTransport
        calls: int = 0

        def nodes(self) -> list[int]:
            self.calls += 1
            return [0] if self.calls < 3 else [1, 2]

        def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
            return self.transport.exchange(requests)

    strategy = make()
    nodes = toys(strategy, [0, 1], [0, 1], [2, 3, 4])
    notes = Notes()
    Broker(strategy, Restarting(InProcessTransport(nodes)), notes).run()
    assert [request.stage for request in nodes[0].requests] == ["start"]
    assert len(notes.reports) == len(notes.losses())
    assert notes.losses() == run(strategy, toys(strategy, range(5))).losses()
