"""Runs with sealed letters: the same numbers, and only those collaborate who trust each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.institution.node import simulated_node
from coterie.app.institution.security.seal import KEY
from coterie.app.institution.security.sealing import simulated
from coterie.app.institution.security.trust import read_trust
from coterie.app.node.node import Node
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import PeerMessage, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.inline import Run, run

DIGITS: dict[str, Any] = {
    "dataset": "digits", "peers": 4, "num-server-rounds": 3, "evaluate-every": 1,
    "partition.clusters": 2, "partition.samples-per-peer": 20, "batch-size": 8, "local-steps": 2,
    "model": "linear", "dtype": "float64",
}  # fmt: skip
COBO = {**DIGITS, "method": "cobo", "cobo.gamma": 0.05}
D = 64 * 10 + 10


@pytest.mark.parametrize(
    ("method", "nodes"),
    [("cobo", 2), ("cobo", 4), ("fedavg", 4), ("wga", 2), ("dpfl", 4), ("local", 2)],
)
def test_sealing_changes_no_number(tmp_path: Path, method: str, nodes: int) -> None:
    flat = DIGITS | {"method": method}
    if method == "dpfl":
        flat |= {"partition.validation": 0.3}
    plain = run(flat, tmp_path / "plain", nodes)
    sealed = run(flat | {"sealing": True}, tmp_path / "sealed", nodes)
    assert not sealed.refused
    assert sealed.rounds == plain.rounds == [0, 1, 2, 3]
    assert {key: r.metrics for key, r in sealed.reports.items()} == {
        key: r.metrics for key, r in plain.reports.items()
    }
    for t in plain.rounds:
        assert np.array_equal(sealed.weights(t), plain.weights(t))
    for one, other in zip(sealed.models(), plain.models(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert sealed.ledger.nbytes == plain.ledger.nbytes
    assert plain.ledger.sealing == 0


def test_the_price_of_sealing_is_counted_beside_the_payload(tmp_path: Path) -> None:
    """A letter has one key per recipient on another node: two with all-pairs CoBo."""
    result = run(COBO | {"sealing": True}, tmp_path, 2)
    offers, answers = 4 * 2, 4 * 2
    assert result.ledger.sealing == 3 * (offers + answers) * KEY
    assert result.ledger.nbytes == 3 * (4 + answers) * D * 8


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rtol"), [(2, 0.0), (4, 1e-12)])
def test_stop_and_resume_of_a_sealed_run(tmp_path: Path, nodes: int, rtol: float) -> None:
    """Exactly the same, and to rounding where other nodes go on: kernels depend on the cohort."""
    flat = COBO | {"sealing": True}
    whole = run(flat, tmp_path / "whole", 2)
    part = run(flat, tmp_path / "part", 2, until=2)
    resumed = run(flat, tmp_path / "part", nodes, after=part)
    assert not resumed.refused
    for one, other in zip(resumed.models(), whole.models(), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=rtol, atol=rtol)


class Relayed:
    """A node behind a relay that changes the letters of its requests."""

    def __init__(self, node: Node, change: Callable[[Request], Request]) -> None:
        self.node, self.change = node, change

    def handle(self, request: Request) -> Response:
        return self.node.handle(self.change(request))


def relayed(
    flat: dict[str, Any],
    directory: Path,
    change: Callable[[Request], Request],
    shares: Sequence[Sequence[int]] = ((0, 1), (2,), (3,)),
) -> Run:
    """A run whose first node gets changed requests."""
    config = Config.from_flat(flat)
    record = Run(config, directory)
    nodes: list[Any] = [simulated_node(config, peers, directory) for peers in shares]
    nodes[0] = Relayed(nodes[0], change)
    Broker(
        config.strategy(), InProcessTransport(nodes), record, record.ledger, join_timeout=1.0
    ).run()
    return record


def without(flat: dict[str, Any], directory: Path, sender: int) -> Run:
    """A run in which the letters of one peer never reach the first node."""

    def drop(request: Request) -> Request:
        return replace(request, letters=tuple(p for p in request.letters if p.sender != sender))

    return relayed(flat, directory, drop)


def same_models(one: Run, other: Run) -> bool:
    pairs = zip(one.models(), other.models(), strict=True)
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def change_letters(
    request: Request, sender: int, how: Callable[[PeerMessage], PeerMessage]
) -> Request:
    letters = tuple(how(p) if p.sender == sender else p for p in request.letters)
    return replace(request, letters=letters)


@pytest.mark.slow
def test_a_relay_that_alters_letters_is_one_that_drops_them(tmp_path: Path) -> None:
    flat = COBO | {"sealing": True}

    def alter(letter: PeerMessage) -> PeerMessage:
        assert isinstance(letter.payload, bytes)
        return replace(letter, payload=letter.payload[:-1] + bytes([letter.payload[-1] ^ 1]))

    altered = relayed(flat, tmp_path / "a", lambda request: change_letters(request, 3, alter))
    dropped = without(flat, tmp_path / "b", 3)
    assert len(altered.refused) == 3 * (1 + 2)  # each round its offer, and its answers to 0 and 1
    assert all("of peer 3: it was not sealed by peer 3 for" in line for line in altered.refused)
    assert same_models(altered, dropped)
    lines = (tmp_path / "a" / "audit-0000.jsonl").read_text().splitlines()
    verdicts = [json.loads(x)["verdict"] for x in lines if '"from": "3 peer-0003"' in x]
    assert len(verdicts) == 9
    assert all(verdict.startswith("refused: it was not sealed by") for verdict in verdicts)


def test_letters_of_the_round_before_are_no_letters_of_this_one(tmp_path: Path) -> None:
    """A relay that replays: it keeps a letter and delivers it again under the new round."""
    kept: dict[int | None, PeerMessage] = {}

    def replay(letter: PeerMessage) -> PeerMessage:
        old = kept.setdefault(letter.recipient, letter)
        return replace(old, round=letter.round)

    flat = COBO | {"sealing": True}
    replayed = relayed(flat, tmp_path / "a", lambda request: change_letters(request, 3, replay))
    assert len(replayed.refused) == 2 * (1 + 2)  # rounds 2 and 3


@pytest.mark.slow
def test_a_letter_that_comes_twice_is_opened_once(tmp_path: Path) -> None:
    def double(request: Request) -> Request:
        return replace(request, letters=tuple(p for p in request.letters for _ in range(2)))

    flat = COBO | {"sealing": True}
    doubled = relayed(flat, tmp_path / "a", double)
    assert {line.partition(": it ")[2] for line in doubled.refused} == {"was received before"}
    assert len(doubled.refused) == 3 * (2 + 4)
    assert same_models(doubled, run(flat, tmp_path / "b", ((0, 1), (2,), (3,))))


def test_letters_of_two_runs_or_configurations_do_not_mix(tmp_path: Path) -> None:
    """Same peers and keys, but another name or another config_digest."""
    flat = COBO | {"sealing": True}
    letters: dict[str, list[PeerMessage]] = {}
    (tmp_path / "a").mkdir()
    for name, changes in (("a", {}), ("b", {}), ("elsewhere/a", {"learning-rate": 0.2})):
        config = Config.from_flat(flat | changes)
        if name != "a":
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "keys").symlink_to(tmp_path / "a" / "keys")
        response = simulated_node(config, [1], tmp_path / name).handle(Request("start", 0, 0))
        letters[name] = list(response.letters)
    for name, accepted in (("a", True), ("b", False), ("elsewhere/a", False)):
        reader = simulated_node(Config.from_flat(flat), [0], tmp_path / "a")
        reader.handle(Request("start", 0, 0))
        request = Request(
            "answer", 1, 1, np.array([[1, 0]]), np.array([True]), tuple(letters[name])
        )
        response = reader.handle(request)
        assert len(response.letters) == accepted
        assert len(response.refused) == (not accepted)


def test_who_is_not_in_the_trust_file_is_neither_written_to_nor_listened_to(
    tmp_path: Path,
) -> None:
    """Peers 0, 1 and 2 do not trust 3, 3 trusts all: the result is that of 3 without edges."""
    flat = DIGITS | {"method": "fedavg", "sealing": True}
    config = Config.from_flat(flat)
    nodes = [simulated_node(config, [peer], tmp_path / "a") for peer in range(4)]
    trust = tmp_path / "a" / "keys" / "trust.toml"
    known = read_trust(trust)
    less = trust.with_name("less.toml")
    less.write_text("".join(known[peer].toml() for peer in range(3)))
    for peer in range(3):
        sealing = replace(simulated(config, [peer], tmp_path / "a"), trust=str(less))
        nodes[peer] = simulated_node(config, [peer], tmp_path / "a", sealing=sealing)
    record = Run(config, tmp_path / "a")
    Broker(config.strategy(), InProcessTransport(nodes), record, join_timeout=1.0).run()
    assert len(record.refused) == 3 * 3  # what 3 wrote to them
    assert all("peer 3: it is from a peer that is not in" in line for line in record.refused)

    topology = tmp_path / "graph.json"
    topology.write_text("[[0, 1], [0, 2], [1, 2]]")
    three = {"topology": "file", "topology-file": str(topology)}
    expected = run(flat | three | {"sealing": False}, tmp_path / "b", 4)
    assert same_models(record, expected)
    sent = [json.loads(x) for x in (tmp_path / "a" / "audit-0000.jsonl").read_text().splitlines()]
    assert all(x["to"] == ["1 peer-0001", "2 peer-0002"] for x in sent if x["direction"] == "sent")


def test_plain_letters_are_refused_by_a_node_that_seals_and_the_reverse(tmp_path: Path) -> None:
    flat = DIGITS | {"method": "fedavg"}
    edge = np.array([[1, 0]])
    for reads, writes, why in ((True, False, "is not sealed"), (False, True, "has no keys")):
        where = tmp_path / str(reads)
        reader, writer = (
            simulated_node(Config.from_flat(flat | {"sealing": how}), [peer], where)
            for peer, how in ((0, reads), (1, writes))
        )
        reader.handle(Request("start", 0, 0))
        letters = writer.handle(Request("start", 0, 0)).letters
        request = Request("update", 1, 1, edge, np.array([False]), letters)
        (refused,) = reader.handle(request).refused
        assert why in refused
