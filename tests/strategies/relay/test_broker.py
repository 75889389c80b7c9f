from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from strategies.brokering import Brokering
from strategies.errors import RelayError, RosterError
from strategies.everyone import Everyone
from strategies.inprocess import InProcessTransport
from strategies.pairs import Pairs
from strategies.protocol import PeerMessage, Report, Request, Response, Stage
from strategies.relay.broker import Broker
from strategies.relay.commit import Commit, Ledger
from strategies.relay.vetting import vetted
from strategies.silent import Silent
from strategies.topology import topology
from strategies.wanted import Wanted, WantedAnswers, WantedHelp
from tests.strategies.toy_node import NBYTES, ToyNode

RULES = [Silent, Everyone, Wanted, WantedAnswers, WantedHelp, Pairs]


@dataclass
class Notes:
    """A recorder in memory."""

    commits: list[Commit] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def round(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.ledgers.append(commit.ledger)
        self.reports += commit.reports
        self.refused += commit.refused

    @property
    def faults(self) -> list[str]:
        return [line for commit in self.commits for line in commit.faults]

    def losses(self) -> dict[tuple[int, int], float | None]:
        return {(r.round, r.peer): r.metrics["test_loss"] for r in self.reports}


def make(
    kind: type[Brokering] = Everyone, n: int = 5, graph: str = "full", **changes: Any
) -> Brokering:
    known = {"peers": n, "rounds": 9, "seed": 1, "topology": topology(graph, n, 0)}
    sampled = {"sampling": "constant", "probability": 0.3} if kind is Pairs else {}
    return kind(**{**known, "evaluate_every": 4, **sampled, **changes})


def toys(strategy: Brokering, *cohorts: Sequence[int]) -> list[ToyNode]:
    return [ToyNode(strategy, cohort) for cohort in cohorts]


def run(strategy: Brokering, nodes: Sequence[Any], ledger: Ledger | None = None) -> Notes:
    notes = Notes()
    Broker(strategy, InProcessTransport(nodes), notes, ledger, join_timeout=0.3).run()
    return notes


def split(n: int, parts: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(np.arange(n), parts)]


# --- one node = many nodes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("graph", ["full", "ring"])
def test_results_do_not_depend_on_who_hosts_whom(kind: type[Brokering], graph: str) -> None:
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
    nodes = toys(strategy, [0, 1], [2, 3, 4])  # in round 1 each peer i wants i + 1
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
def test_stop_and_resume_is_the_uninterrupted_run(kind: type[Brokering], parts: int) -> None:
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
        node.heard = {}
    Broker(strategy, InProcessTransport(nodes), second, first.ledgers[-1]).run()
    assert first.ledgers[-1].round == 4
    assert first.losses() | second.losses() == whole.losses()
    assert len(first.reports) + len(second.reports) == len(whole.reports)
    assert second.ledgers[-1].nbytes == whole.ledgers[-1].nbytes


# --- failing ---------------------------------------------------------------------------------


def failing(*moments: tuple[Stage, int]) -> Callable[[Request], None]:
    def before(request: Request) -> None:
        if (request.stage, request.round) in moments:
            raise OSError("disk full")

    return before


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("stage", ["answer", "update"])
def test_a_node_that_fails_is_left_out_and_welcomed_back(
    kind: type[Brokering], stage: Stage
) -> None:
    every_pair: dict[str, Any] = {"sampling": "full"} if kind is Pairs else {}
    strategy = make(kind, rounds=8, **every_pair)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[1].before = failing((stage, 3))
    notes = run(strategy, nodes)
    assert notes.ledgers[-1].round == 8
    requests = [(o.stage, o.round) for o in nodes[1].requests if o.stage != "answer"]
    if (stage, 3) not in [(o.stage, o.round) for o in nodes[1].requests]:
        return  # this rule asks nobody
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
    """Every node fails in round 5 once: the results are those of a run without the trouble."""
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
    """After round 3, in which another was late, a node has left and somebody comes in its name."""

    @dataclass
    class Leaving(Moody):
        def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
            self.t = max(request.round for request in requests.values())
            late = {1} if self.t == 3 and requests[min(requests)].stage == "update" else set()
            return self.transport.exchange({k: r for k, r in requests.items() if k not in late})

    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4], [0, 1])
    transport = Leaving(InProcessTransport(nodes), {0: range(3, 9), 3: range(3)})
    with pytest.raises(RosterError, match=r"brings peers \[0, 1\] of another node"):
        Broker(strategy, transport, Notes(), join_timeout=0.0, quorum=4).run()
    assert {request.stage for request in nodes[3].requests} == {"start"}


def test_fewer_than_a_quorum_wait_and_then_end_the_run() -> None:
    strategy = make(Everyone, rounds=8)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    notes = Notes()
    transport = Moody(InProcessTransport(nodes), {1: range(3, 9)})
    with pytest.raises(RosterError, match=r"^round 3, start: no node hosts peers 2, 3; "):
        Broker(strategy, transport, notes, join_timeout=0.0, quorum=4).run()
    assert notes.ledgers[-1].round == 3


def test_a_quorum_does_without_a_node_whose_set_up_is_wrong() -> None:
    strategy = make(Everyone, rounds=4)
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[2].before = failing(*[("start", t) for t in range(9)])
    notes = Notes()
    Broker(strategy, InProcessTransport(nodes), notes, join_timeout=0.3, quorum=4).run()
    assert {peer for _, peer in notes.losses()} == {0, 1, 2, 3}
    with pytest.raises(RelayError, match="disk full"):
        run(strategy, toys_failing(strategy))


def toys_failing(strategy: Brokering) -> list[ToyNode]:
    nodes = toys(strategy, [0, 1], [2, 3], [4])
    nodes[2].before = failing(*[("start", t) for t in range(9)])
    return nodes


def test_a_setup_that_fails_twice_ends_the_run_at_once() -> None:
    strategy = make()
    nodes = toys(strategy, [0, 1], [2, 3, 4])
    nodes[1].before = failing(("start", 0))
    with pytest.raises(RelayError, match="round 0, start: node 1: OSError: disk full"):
        run(strategy, nodes)
    assert len(nodes[1].requests) == 2


def test_a_peer_without_a_node() -> None:
    strategy = make()
    with pytest.raises(RosterError, match="no node hosts peers 2, 4"):
        run(strategy, toys(strategy, [0, 1], [3]))


def test_a_peer_with_two_nodes() -> None:
    strategy = make()
    with pytest.raises(RelayError, match=r"node 1: brings peers \[1\] of another node"):
        run(strategy, toys(strategy, [0, 1], [1, 2, 3, 4]))


def test_a_cohort_that_is_none() -> None:
    strategy = make()
    with pytest.raises(RelayError, match="hosts peers 7: not some of 0 to 4"):
        run(strategy, toys(strategy, range(4), [7]))


@dataclass
class Moody:
    """A transport whose node k cannot be reached in the rounds of `away[k]`, as with Flower."""

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
        ("start", 7),  # the transport saw it again after round 6
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


# --- what the relay refuses ------------------------------------------------------------------


@dataclass
class Liar:
    """Changes what a node says in round 1, or another, or always."""

    node: ToyNode
    lie: Callable[[Response, Request], Response]
    at: int | None = 1

    def handle(self, request: Request) -> Response:
        response = self.node.handle(request)
        return self.lie(response, request) if self.at in (None, request.round) else response


def with_letter(letter: PeerMessage) -> Callable[[Response, Request], Response]:
    return lambda response, request: replace(response, letters=(*response.letters, letter))


def with_report(**changes: Any) -> Callable[[Response, Request], Response]:
    report = {"metrics": {}, "weights": 5 * (1.0,)} | changes
    return lambda response, request: replace(
        response, reports=(Report(request.round, 0, **report),)
    )


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (
            lambda response, request: replace(response, wants=np.array([[0, 9]])),
            r"the want \[0, 9\]",
        ),
        (
            lambda response, request: replace(response, wants=np.array([[2, 3]])),
            r"the want \[2, 3\]",
        ),
        (
            lambda response, request: replace(response, wants=np.array([[1, 1]])),
            r"the want \[1, 1\]",
        ),
        (with_letter(PeerMessage("offer", 3, None, 2, 8, b"x")), "PeerMessage.*sender=3"),
        (
            with_letter(PeerMessage("offer", 0, None, 2, 8, b"x")),
            "PeerMessage.*sender=0",
        ),  # a second
        (with_letter(PeerMessage("offer", 0, None, 7, 8, b"x")), "PeerMessage.*round=7"),
        (with_letter(PeerMessage("answer", 0, 3, 1, 8, b"x")), "PeerMessage.*'answer'"),
        (
            lambda response, request: replace(
                response, reports=(Report(request.round, 4, {}, 5 * (1.0,)),)
            ),
            "a report of peer 4",
        ),
        (
            lambda response, request: replace(
                response, reports=(Report(request.round, 0, {}, 4 * (1.0,)),)
            ),
            "a report of peer 0",
        ),
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
    strategy = make(Everyone, rounds=2)
    honest = run(strategy, toys(strategy, [0, 1], [2, 3, 4]))
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    notes = run(strategy, [Liar(one, lie), other])
    assert [bool(re.search(line, each)) for each in notes.refused] == [True]
    assert notes.losses() == honest.losses()


@pytest.mark.parametrize(
    ("kind", "pushed", "own"),
    [
        (Wanted, [0, 3], [3, 0]),  # that 3 hears 0 is for 3 to want
        (Pairs, [0, 3], [3, 0]),
        (WantedAnswers, [0, 3], [3, 0]),
        (WantedHelp, [3, 0], [0, 3]),  # that 0 answers 3, too
    ],
)
def test_nobody_wants_for_others(kind: type[Brokering], pushed: list[int], own: list[int]) -> None:
    strategy = make(kind, rounds=2)
    request, wants = Request("update", 1, 1), np.array([pushed, own])
    kept, refused = vetted(Response((0, 1), wants=wants), request, strategy)
    assert kept.wants.tolist() == [own]
    assert refused == [f"round 1, update: peers 0, 1: the relay refused the want {pushed}"]


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
    """Who comes back with more does not get more weight: it stays away."""
    strategy = make(rounds=6)
    one, other = toys(strategy, [0, 1], [2, 3, 4])
    one.before = failing(("update", 2))

    def claims(response: Response, request: Request) -> Response:
        grown = 5 if request.round == 0 else 500
        return replace(response, samples=(grown, 5)) if request.stage == "start" else response

    notes = run(strategy, [Liar(one, claims, at=None), other])
    assert any("announced [5, 5] samples of peers [0, 1] before" in line for line in notes.faults)
    assert {tuple(request.samples[:2]) for request in other.requests[2:]} == {(5, 5)}
    assert {r.peer for r in notes.reports if r.round == 6} == {2, 3, 4}


def test_a_node_cannot_become_another_when_it_is_started_again() -> None:
    """With its second "start", once all numbers of samples are known, come offers, too."""
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
