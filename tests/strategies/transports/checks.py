"""Conformance checks of transports: `CHECKS`, and `NETWORK_CHECKS` where messages may be late.

A check uses the transport of a `Network` as a relay does, and restores the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import PeerMessage, Request, Response, Transport
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit
from tests.strategies.transports.node import COHORTS, STRATEGY, digest, toy

_BIG = 24 * 2**20
"""Bytes of a letter that Flower sends in several chunks."""
_STRANGER = 12345
PATIENCE = 120.0
"""Seconds to wait for an event, also on a busy machine."""


class Network(Protocol):
    """Two nodes (`node.Node`) behind a transport.

    Attributes
    ----------
    directory : Path
        Folder for the nodes' files.
    """

    directory: Path

    @property
    def deadline(self) -> float:
        """Seconds within which a healthy node answers."""
        ...

    def transport(self, seconds: float = PATIENCE) -> Transport:
        """Make a transport, with a timeout per round if it has one."""
        ...

    def leave(self) -> None:
        """Make a node leave."""
        ...

    def come_back(self) -> None:
        """Make it return."""
        ...


@dataclass
class Commits:
    """Recorder in memory."""

    commits: list[Commit] = field(default_factory=list)

    def round(self, commit: Commit) -> None:
        self.commits.append(commit)


def a_whole_run(network: Network) -> None:
    """The reports, messages and bytes of a run equal those of the in-process transport."""
    expected, result = Commits(), Commits()
    Broker(STRATEGY, InProcessTransport([toy(k) for k in range(len(COHORTS))]), expected).run()
    Broker(STRATEGY, network.transport(), result, join_timeout=PATIENCE).run()
    assert [commit.ledger.round for commit in result.commits] == [0, 1]
    assert result.commits == expected.commits


def letters_travel_unchanged(network: Network) -> None:
    """Order and bytes are preserved, for small and large letters, sealed and plain."""
    transport = network.transport()
    one, other = sorted(transport.nodes())
    keys = {0: b"for 0", 7: bytes(range(256))}
    letters = (
        PeerMessage("offer", 2, None, 3, 8, b"small, sealed", keys),
        PeerMessage("offer", 0, None, 3, _BIG, np.random.default_rng(0).bytes(_BIG)),
        PeerMessage("answer", 1, 2, 3, 0, b""),
    )
    edges = np.array([[0, 1], [2, 1]], dtype=np.int64)
    request = Request(
        "update", 3, 3, edges, np.array([True, False]), letters, 2, "echo", np.array([5, 0, 2**40])
    )
    first = response_of(transport, one, request)
    second = response_of(transport, other, replace(request, letters=first.letters))
    for response in (first, second):
        assert [_cover(letter) for letter in response.letters] == [_cover(x) for x in letters]
        assert response.wants.tolist() == edges.tolist()
        assert response.refused[:-1] == (
            "update 3 3 2 echo",
            "[True, False] [5, 0, 1099511627776]",
            *(digest(letter.payload) for letter in letters),
        )
        (report,) = response.reports
        assert (report.round, report.peer, report.weights) == (3, 0, (0.5, 1.0))
        assert report.metrics == {"test_loss": 0.1, "test_accuracy": None}
        assert (response.peers, response.samples) == ((0,), (7,))


def responses_belong_to_their_requests(network: Network) -> None:
    """Also if the last node answers first, and for repeated requests."""
    transport = network.transport()
    one, other = sorted(transport.nodes())
    first = transport.exchange({one: ask("sleep 0.3"), other: ask("sleep 0")})
    assert {node: _attempt(response) for node, response in first.items()} == {
        one: "sleep 0.3",
        other: "sleep 0",
    }
    again = transport.exchange({other: ask("sleep 0")})
    assert again.keys() == {other}
    assert _attempt(again[other]) == "sleep 0"
    assert _number(again[other]) != _number(first[other])
    assert transport.exchange({}) == {}


def a_fault_is_told_and_costs_only_its_node(network: Network) -> None:
    """Errors of a faulty, a crashing and an unknown node concern these nodes only."""
    transport = network.transport()
    one, other = sorted(transport.nodes())
    outcome = transport.exchange({_STRANGER: ask(), one: ask("fail disk full"), other: ask()})
    assert outcome[_STRANGER] == "cannot be reached"
    assert outcome[one] == "OSError: disk full"
    assert _attempt(outcome[other]) == "echo"
    crash = transport.exchange({other: ask("crash out of memory")})[other]
    assert isinstance(crash, str)
    assert "out of memory" in crash
    assert sorted(transport.nodes()) == [one, other]


def a_node_that_left_is_not_listed(network: Network) -> None:
    """It gives no response, and is listed again after it returns."""
    transport = network.transport(1.0)
    nodes = set(transport.nodes())
    network.leave()
    try:
        wait(lambda: len(transport.nodes()) == 1)
        (gone,) = nodes - set(transport.nodes())
        assert isinstance(transport.exchange({gone: ask("echo while away")})[gone], str)
    finally:
        network.come_back()
    wait(lambda: set(transport.nodes()) == nodes)
    assert _attempt(response_of(network.transport(), gone, ask())) == "echo"


def a_late_node_is_not_waited_for(network: Network) -> None:
    """It gets no second message before it answers, and its late answer is dropped."""
    deadline = network.deadline
    transport = network.transport(deadline)
    one, other = sorted(transport.nodes())
    released = network.directory / "released"
    try:
        outcome = transport.exchange({one: ask(f"wait {released}"), other: ask()})
        assert outcome[one] == f"no response within {deadline:g} s"
        assert _attempt(outcome[other]) == "echo"
        assert list(transport.nodes()) == [other]
    finally:
        released.touch()
    wait(lambda: sorted(transport.nodes()) == [one, other])
    assert _attempt(response_of(network.transport(), one, ask())) == "echo"


def a_foreign_record_is_no_response(network: Network) -> None:
    """The reason is one line."""
    transport = network.transport()
    one, other = sorted(transport.nodes())
    outcome = transport.exchange({one: ask("foreign app"), other: ask("foreign round")})
    assert outcome == {
        one: "not a response: no response",
        other: "not a response: a response to ('update', 2), not to ('update', 1)",
    }
    assert sorted(transport.nodes()) == [one, other]


Check = Callable[[Network], None]
CHECKS: tuple[Check, ...] = (
    a_whole_run,
    letters_travel_unchanged,
    responses_belong_to_their_requests,
    a_fault_is_told_and_costs_only_its_node,
    a_node_that_left_is_not_listed,
)
NETWORK_CHECKS: tuple[Check, ...] = (
    *CHECKS,
    a_late_node_is_not_waited_for,
    a_foreign_record_is_no_response,
)


def ask(what: str = "echo") -> Request:
    """Make a request with an order for a node."""
    return Request("update", 1, 1, attempt=what)


def response_of(transport: Transport, node: int, request: Request) -> Response:
    """Return the response of a node, which must not be missing."""
    response = transport.exchange({node: request})[node]
    assert isinstance(response, Response), response
    return response


def wait(until: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _cover(letter: PeerMessage) -> PeerMessage:
    return replace(letter, payload=None)


def _attempt(response: Response | str) -> str:
    assert isinstance(response, Response), response
    return response.refused[0].split(" ", 4)[4]


def _number(response: Response | str) -> str:
    assert isinstance(response, Response), response
    return response.refused[-1]
