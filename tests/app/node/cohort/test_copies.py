"""Test increments against public copies: laws that hold for every operator and every hosting."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.app.node.cohort.wire import Increments
from coterie.app.node.node import Node
from coterie.app.wire.increments import Copy, IncrementFormat
from coterie.app.wire.operators import OPERATORS
from coterie.app.wire.payload import PayloadError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import PeerMessage, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.encoded import Encoded
from tests.inline import Loud, Run, run
from tests.problems import write_quadratic
from tests.stepping import Stepping

Floats = npt.NDArray[np.float64]

DIGITS: dict[str, Any] = {
    "dataset": "digits", "peers": 4, "num-server-rounds": 6, "evaluate-every": 2, "device": "cpu",
    "partition.clusters": 2, "partition.samples-per-peer": 20, "batch-size": 8, "local-steps": 2,
    "model": "linear", "ifca.clusters": 2, "cobo.sampling": "full",
}  # fmt: skip
D = 64 * 10 + 10
INCREMENTS: dict[str, Any] = {"letters.scheme": "increments"}
TOP_K = INCREMENTS | {"letters.operator": "top-k", "letters.ratio": 0.1}
IDENTITY = INCREMENTS | {"letters.operator": "top-k", "letters.ratio": 1.0}
SLEEP = {"schedule.kind": "churn", "schedule.mean-up": 2, "schedule.mean-down": 2}


def lines(result: Run) -> list[Any]:
    """Every number of every report."""
    return [
        (key, sorted(report.metrics.items()), report.weights)
        for key, report in sorted(result.reports.items())
    ]


def copies_of(cohort: HostedPeers) -> Increments:
    assert isinstance(cohort.wire, Increments)
    return cohort.wire


def ring(n: int) -> Floats:
    """Metropolis weights of a ring: a third each."""
    eye = np.eye(n)
    weights: Floats = (eye + np.roll(eye, 1, axis=1) + np.roll(eye, -1, axis=1)) / 3
    return weights


def still(tmp_path: Path, x: Floats) -> dict[str, Any]:
    """A problem without gradients: peers start at `x` and only average, on a ring."""
    flat = write_quadratic(tmp_path / "still.json", np.zeros_like(x), np.zeros_like(x), x)
    return {
        **flat, "method": "fedavg", "topology": "ring", "mixing": "metropolis", "device": "cpu",
        "num-server-rounds": 1000,
    }  # fmt: skip


# --- the identity ----------------------------------------------------------------------------


@pytest.mark.some(4)
@pytest.mark.parametrize("method", ["fedavg", "cobo", "dpfl", "wga", "ifca", "ditto", "fedamp"])
@pytest.mark.parametrize("world", [{}, SLEEP, SLEEP | {"schedule.max-age": 2}])
def test_the_identity_changes_no_number(method: str, world: dict[str, Any], tmp_path: Path) -> None:
    """With ratio 1 an increment is no shorter than the model, so every letter is whole."""
    flat = DIGITS | {"method": method}
    full = run(flat | world, tmp_path / "full")
    same = run(flat | world | IDENTITY, tmp_path / "same")
    assert lines(same) == lines(full)


# --- CHOCO -----------------------------------------------------------------------------------


def choco(
    x: Floats, weights: Floats, ratio: float, damping: float, rounds: int
) -> tuple[Floats, Floats]:
    """Algorithm 2 of Koloskova et al. (2019) with top-k, and copies that start at the models."""
    k, copies = max(1, round(ratio * x.shape[1])), x.copy()
    x = x + damping * (weights @ copies - copies)
    for _ in range(rounds - 1):
        for i, difference in enumerate(x - copies):
            at = np.argsort(-abs(difference), kind="stable")[:k]
            copies[i, at] += difference[at]
        x = x + damping * (weights @ copies - copies)
    return x, copies


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_averaging_is_choco_gossip(damping: float, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 40))
    flat = still(tmp_path, x) | TOP_K | {"letters.damping": damping}
    result = Stepping(flat).to(12).x.numpy()
    np.testing.assert_allclose(result, choco(x, ring(6), 0.1, damping, 12)[0], atol=1e-9)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_mean_is_conserved(operator: str, tmp_path: Path) -> None:
    """Keep what was not sent at its owner: sum_i x_i never changes, after any round."""
    x = np.random.default_rng(1).standard_normal((5, 60))
    flat = still(tmp_path, x) | INCREMENTS | {"letters.operator": operator, "letters.damping": 0.4}
    stepping = Stepping(flat)
    for t in range(1, 20):
        result = stepping.to(t).x.numpy()
        np.testing.assert_allclose(result.mean(axis=0), x.mean(axis=0), atol=1e-12)
    assert abs(result - x).max() > 0.1


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(("operator", "delta"), [("top-k", 0.1), ("int4", 1 - 8 / 12.25)])
def test_consensus_on_a_ring_is_at_least_as_fast_as_known(
    operator: str, delta: float, tmp_path: Path
) -> None:
    """Theorem 2 of Koloskova et al. (2019): e_t <= (1 - rho^2 delta / 82)^t e_0 with gamma*.

    e = sum_i |x_i - mean|^2 + |x_i - xhat_i|^2, rho = 1 - |lambda_2(W)|, beta = |I - W|,
    gamma* = rho^2 delta / (16 rho + rho^2 + 4 beta^2 + 2 rho beta^2 - 8 rho delta).
    """
    x, n = np.random.default_rng(2).standard_normal((6, 50)), 6
    eigenvalues = np.sort(np.linalg.eigvalsh(ring(n)))
    rho, beta = 1 - abs(eigenvalues[:-1]).max(), 1 - eigenvalues[0]
    bottom = 16 * rho + rho**2 + 4 * beta**2 + 2 * rho * beta**2 - 8 * rho * delta
    gamma, rounds = rho**2 * delta / bottom, 300
    flat = still(tmp_path, x) | INCREMENTS
    flat |= {"letters.operator": operator, "letters.ratio": 0.1, "letters.damping": float(gamma)}
    stepping = Stepping(flat)
    first = ((x - x.mean(axis=0)) ** 2).sum()
    for t in range(50, rounds + 1, 50):
        result = stepping.to(t).x.numpy()
        copies = copies_of(stepping.cohort).state.x.numpy()  # already those of round t + 1
        error = ((result - x.mean(axis=0)) ** 2).sum() + ((result - copies) ** 2).sum()
        assert error <= (1 - rho**2 * delta / 82) ** t * first
    assert error < first


@pytest.mark.parametrize("method", ["cobo", "wga"])
def test_damping_is_for_averages(method: str, tmp_path: Path) -> None:
    """A method whose rounds end in training trains its peer's own model, at its own rate."""
    flat = DIGITS | TOP_K | {"method": method}
    damped = run(flat | {"letters.damping": 0.3}, tmp_path / "damped")
    assert lines(damped) == lines(run(flat, tmp_path / "plain"))


# --- bytes -----------------------------------------------------------------------------------


def increment_bytes(operator: str, number: int = 4) -> int:
    """Bytes of an increment of the linear model on digits: a matrix 10 x 64 and a vector of 10."""
    match operator:
        case "top-k":  # k = 65, l = floor(log2(10)) = 3 low bits, 65 + (650 >> 3) + 1 high bits
            return 65 * number + math.ceil(65 * 3 / 8) + math.ceil((65 + 81 + 1) / 8)
        case "sign":
            return math.ceil(650 / 8) + 2 * number
        case "int4":
            return 325 + math.ceil(650 / 32)
        case _:  # low rank: r = max(1, floor(.1 * 640 / 74)) = 1
            return number * (64 + 10 + 10)


@pytest.mark.parametrize("operator", OPERATORS)
def test_bytes_are_a_key_and_then_increments(operator: str, tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | {"method": "fedavg", "letters.operator": operator}
    result = run(flat, tmp_path)
    expected = 3 * (4 * D + 5 * increment_bytes(operator))  # three neighbours, six rounds
    assert (result.metric("bytes_sent") == expected).all()
    assert (result.metric("bytes_received") == expected).all()


def test_values_have_the_precision_of_letters(tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | {"method": "fedavg", "payload": "float16"}
    result = run(flat, tmp_path)
    # the matrix of 640 is one flat tensor with the vector: all 650 numbers are halved
    assert (result.metric("bytes_sent") == 3 * (2 * D + 5 * increment_bytes("top-k", 2))).all()


def test_answers_are_never_compressed_by_the_operator(tmp_path: Path) -> None:
    """CoBo's answers are gradients of whole models: float32, or int8 with payload = "int8"."""
    for payload, answer, number in (("full", 4 * D, 4), ("int8", D + math.ceil(D / 32), 1)):
        flat = DIGITS | TOP_K | {"method": "cobo", "payload": payload}
        index = increment_bytes("top-k", 0)
        increment = 65 * number + index + (math.ceil(65 / 32) if payload == "int8" else 0)
        sent = run(flat, tmp_path / payload).metric("bytes_sent")
        assert (sent == 3 * (answer + 5 * increment + 6 * answer)).all()


@pytest.mark.parametrize("max_age", [0, 2])
def test_after_a_gap_the_cheaper_of_missed_increments_and_a_key_is_sent(
    max_age: int, tmp_path: Path
) -> None:
    """Recount every edge: the copy that its recipient has, and the increments since."""
    flat = DIGITS | TOP_K | SLEEP | {"method": "fedavg", "num-server-rounds": 14}
    config = Config.from_flat(flat | {"schedule.max-age": max_age})
    strategy, written = config.strategy(), np.zeros(4, dtype=int)
    has, received = np.zeros((4, 4), dtype=int), np.zeros(4, dtype=int)
    for this in strategy.each_round(1, 14, lambda t: np.empty((0, 2), dtype=np.int64)):
        written += strategy.schedule.awake(this.t)
        for sender, recipient in this.edges.tolist():
            missed = written[sender] - has[recipient, sender]
            assert missed >= 0
            first = has[recipient, sender] == 0
            increments = missed * increment_bytes("top-k")
            received[recipient] += 4 * D if first else min(4 * D, increments)
            has[recipient, sender] = written[sender]
    result = run(flat | {"schedule.max-age": max_age}, tmp_path)
    np.testing.assert_array_equal(result.metric("bytes_received"), received)
    assert received.min() > 4 * D


# --- hosting, loss, resumption ---------------------------------------------------------------


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "cobo", "pfedgraph", "ditto", "fedamp", "trust"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_one_node_and_many_give_the_same_bits(method: str, operator: str, tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | {"method": method, "letters.operator": operator}
    alone = run(flat, tmp_path / "one")
    for nodes in (2, 4):
        result = run(flat, tmp_path / str(nodes), nodes)
        assert lines(result) == lines(alone)
        assert not result.refused


@pytest.mark.some(4)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("method", ["fedavg", "dpfl"])
def test_a_resumed_run_has_the_same_numbers(
    method: str, operator: str, nodes: int, tmp_path: Path
) -> None:
    if method == "dpfl" and nodes == 2:
        return
    flat = DIGITS | TOP_K | {"method": method, "letters.operator": operator}
    whole = run(flat, tmp_path / "whole", nodes)
    first = run(flat, tmp_path / "halves", nodes, until=3)
    second = run(flat, tmp_path / "halves", nodes, after=first)
    assert lines(second) == lines(whole)
    assert not second.refused


def test_sleepers_resume_with_the_same_numbers(tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | SLEEP | {"method": "fedavg", "num-server-rounds": 8}
    whole = run(flat, tmp_path / "whole")
    first = run(flat, tmp_path / "halves", until=4)
    assert lines(run(flat, tmp_path / "halves", after=first)) == lines(whole)


@dataclass
class Bad:
    """A node that is away in some rounds, and whose letters can be changed on their way in."""

    node: Node
    away: frozenset[int] = frozenset()
    tampers: Callable[[int, PeerMessage], PeerMessage] | None = None
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def handle(self, request: Request) -> Response:
        if request.round in self.away and request.stage != "start":
            raise OSError("away")
        for letter in request.letters:
            self.sizes[request.round, letter.sender] = len(letter.payload)  # type: ignore[arg-type]
        if self.tampers is not None:
            letters = tuple(self.tampers(request.round, letter) for letter in request.letters)
            request = replace(request, letters=letters)
        return self.node.handle(request)


def with_losses(
    flat: Mapping[str, Any], directory: Path, bad: Sequence[Callable[[Node], Bad]]
) -> tuple[list[Node], Run, list[Bad]]:
    """Run a node per peer; `bad` wraps the nodes of the first peers."""
    config = Config.from_flat(flat)
    nodes = [Node(config, [peer], directory) for peer in range(config.peers)]
    hosts = [*map(lambda wrap, node: wrap(node), bad, nodes), *map(Bad, nodes[len(bad) :])]
    record = Run(config, directory)
    Broker(
        config.strategy(), InProcessTransport([Encoded(host) for host in hosts]), record,
        record.ledger, join_timeout=1.0,
    ).run()  # fmt: skip
    return nodes, record, hosts


def assert_copies_equal(nodes: Sequence[Node]) -> None:
    """Every reader has the copy that its author has of itself, bit for bit."""
    for reader in nodes:
        for author in nodes:
            if reader is not author:
                version, x_d = copies_of(reader._cohort).foreign[author.peers[0]]
                own = copies_of(author._cohort).state
                assert version == own.version[0]
                assert torch.equal(x_d, own.x[0])


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("away", [{3}, {2, 3, 4}, {2, 5}])
def test_copies_agree_after_nodes_were_away(operator: str, away: set[int], tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | {"method": "fedavg", "num-server-rounds": 12}
    flat |= {"letters.operator": operator}
    nodes, record, _ = with_losses(flat, tmp_path, [lambda node: Bad(node, frozenset(away))])
    assert_copies_equal(nodes)
    assert all("public copy" in line for line in record.refused)


def tampered(at: int, sender: int, position: int) -> Callable[[int, PeerMessage], PeerMessage]:
    def tamper(t: int, letter: PeerMessage) -> PeerMessage:
        if (t, letter.sender) != (at, sender):
            return letter
        assert isinstance(letter.payload, bytes)
        payload = bytearray(letter.payload)
        payload[position] ^= 1
        return replace(letter, payload=bytes(payload))

    return tamper


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "is neither a keyframe nor an increment"),
        (1, "adds to version .* of the public copy of peer 2, and this node has version"),
        (20, "does not give the public copy that its author signed"),
        (-1, "does not give the public copy that its author signed|indices"),
    ],
)
def test_a_lost_increment_is_refused_and_a_key_follows(
    position: int, reason: str, tmp_path: Path
) -> None:
    """A letter is damaged in round 4: refused in 4 and 5, asked for, and whole again in 6."""
    flat = DIGITS | TOP_K | {"method": "fedavg", "num-server-rounds": 8}
    nodes, record, hosts = with_losses(
        flat, tmp_path, [lambda node: Bad(node, tampers=tampered(4, 2, position))]
    )
    assert_copies_equal(nodes)
    first, second = record.refused
    assert "round 4" in first
    assert "round 5" in second
    assert "of peer 2" in first
    assert re.search(reason, first)
    assert "adds to version 4 of the public copy of peer 2, and this node has version 3" in second
    sizes = hosts[1].sizes
    assert sizes[6, 2] == sizes[1, 2] > 4 * D  # the key
    assert sizes[5, 2] == sizes[7, 2] < 4 * D


@pytest.mark.parametrize("exponent", [-128, 127])
def test_an_increment_to_no_number_is_refused(exponent: int) -> None:
    """An author may sign whatever its forged increment gives, as here infinity and NaN."""
    operator = OPERATORS["int4"]([(640,)], 0.1)
    form = IncrementFormat({"x": ((640,), torch.float32)}, operator, "full")
    parts, _ = operator.encode(torch.linspace(-1, 1, 640), torch.zeros(0))
    parts["exponents"] = torch.full_like(parts["exponents"], exponent)
    before = Copy(1, torch.full((640,), 3e38))
    after = before.x + operator.decode(parts, torch.float32)
    assert not after.isfinite().all()
    payload = form.encode({"x": after[None]}, 0, 2, parts)
    with pytest.raises(PayloadError, match="not finite"):
        form.decode(payload, before, 0)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_lengths_do_not_depend_on_data(operator: str, tmp_path: Path) -> None:
    """Letters have two lengths, chosen by the round alone: a key first, then increments."""
    seen: set[tuple[tuple[int, int], int]] = set()
    for seed in (0, 1):
        flat = DIGITS | TOP_K | {"method": "fedavg", "seed": seed, "letters.operator": operator}
        _, _, hosts = with_losses(flat, tmp_path / str(seed), [])
        sizes = {(t, size) for (t, _), size in hosts[0].sizes.items()}
        seen |= {((min(t, 2), 0), size) for t, size in sizes}
    assert len(seen) == 2


def test_a_node_that_another_process_continues_keeps_its_copies(tmp_path: Path) -> None:
    """Every request is handled by a node that was just made, from what is on its disk."""
    flat = DIGITS | TOP_K | {"method": "fedavg"}
    config = Config.from_flat(flat)

    class Fresh:
        def __init__(self, peers: Sequence[int]) -> None:
            self.peers = peers

        def handle(self, request: Request) -> Response:
            return Loud(Node(config, self.peers, tmp_path / "fresh")).handle(request)

    record = Run(config, tmp_path / "fresh")
    hosts = InProcessTransport([Encoded(Fresh([0, 1])), Encoded(Fresh([2, 3]))])
    Broker(config.strategy(), hosts, record, record.ledger, join_timeout=1.0).run()
    assert lines(record) == lines(run(flat, tmp_path / "one"))
    assert not record.refused


# --- attacks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sign-flip", "gaussian"])
def test_attacks_and_defences_see_the_rebuilt_copy(kind: str, tmp_path: Path) -> None:
    flat = DIGITS | TOP_K | {
        "method": "fedavg", "attack.kind": kind, "attack.peers": "1", "defence.rule": "median",
    }  # fmt: skip
    alone = run(flat, tmp_path / "one")
    assert lines(run(flat, tmp_path / "two", 2)) == lines(alone)
    same = run(flat | IDENTITY, tmp_path / "same")
    full = {k: v for k, v in flat.items() if not k.startswith("letters.")}
    assert lines(same) == lines(run(full, tmp_path / "full"))


# --- configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fedrep", "fedem", "l2c", "dispfl", "fedpac", "fedproto", "local"]
)
def test_methods_that_do_not_offer_their_model_are_refused(method: str) -> None:
    with pytest.raises(ConfigError, match=f'letters.scheme.*{method}.*"full"'):
        Config.from_flat(DIGITS | INCREMENTS | {"method": method, "model": "mlp"})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"letters.operator": "sign"}, 'letters.operator needs letters.scheme = "increments"'),
        ({"letters.ratio": 0.2}, 'letters.ratio needs letters.scheme = "increments"'),
        (INCREMENTS | {"letters.ratio": 0.0}, "letters.ratio"),
        (INCREMENTS | {"letters.damping": 1.5}, "letters.damping"),
        (INCREMENTS | {"letters.operator": "top"}, '"top-k"'),
        (INCREMENTS | {"topology": "push", "method": "fedavg", "topology-degree": 1}, "topology"),
        (INCREMENTS | {"schedule.kind": "clock", "clock.profile": "phones"}, "schedule"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Config.from_flat(DIGITS | keys).strategy()


@pytest.mark.parametrize(
    "world",
    [
        {"method": "dpfl"},
        {"method": "fedavg", **SLEEP},
    ],
)
def test_gaps_between_nodes_are_refused_with_a_remedy(
    world: dict[str, Any], tmp_path: Path
) -> None:
    config = Config.from_flat(DIGITS | TOP_K | world)
    Node(config, range(4), tmp_path)
    with pytest.raises(ConfigError, match=r"every neighbour in every round.*one process.*full"):
        Node(config, [0, 1], tmp_path)
