"""Names of peers: announced by their nodes, printable and unique."""

from __future__ import annotations

from strategies.protocol import Request, Response
from strategies.relay.roster import Roster
from strategies.relay.vetting import fault_of, vetted
from tests.strategies.relay.runs import make

START = Request("start", 0, 0)


def announce(roster: Roster, node: int, *names: str, peers: tuple[int, ...]) -> None:
    response, _ = vetted(Response(peers, names=names), START, make(n=roster.peers))
    roster.add(node, response)


def test_peers_are_called_as_their_node_says() -> None:
    roster = Roster(4)
    announce(roster, 7, "north", "", peers=(0, 2))
    assert roster.names == {0: "north"}
    assert roster.listed((2, 0)) == "0 (north), 2"
    assert roster.listed(()) == "none"
    roster.drop(7)
    assert roster.names == {0: "north"}, "a missing peer keeps its name"


def test_no_peer_takes_the_name_of_another() -> None:
    roster = Roster(4)
    announce(roster, 7, "north", "north", peers=(0, 1))
    announce(roster, 8, "north", "peer 1", peers=(2, 3))
    assert roster.names == {0: "north"}
    announce(roster, 8, "south", "peer 3", peers=(2, 3))
    assert roster.names == {0: "north", 2: "south", 3: "peer 3"}
    announce(roster, 7, "first", "north", peers=(0, 1))
    assert roster.names == {0: "first", 1: "north", 2: "south", 3: "peer 3"}


def test_a_name_is_one_short_harmless_line() -> None:
    roster = Roster(1)
    announce(roster, 7, "a\x1b[2J\nb" + 1000 * "!", peers=(0,))
    assert roster.names[0].startswith("a?[2J b!!!")
    assert len(roster.names[0]) == 64


def test_names_that_do_not_match_the_peers_are_a_fault() -> None:
    assert fault_of(Response((0, 1), names=("a",)), START, (), 2) == "has 1 names for 2 peers"


def test_names_beside_anything_but_a_start_are_left_out() -> None:
    request = Request("update", 1, 1)
    assert vetted(Response((0, 1), names=("a",)), request, make())[0].names == ()
