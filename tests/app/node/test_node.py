"""A node: what survives it, what it refuses, what it charges."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.app.node.node import Node
from coterie.app.node.storage.tensor_file import metadata
from coterie.clients.engine.network import Network
from coterie.clients.models.build import build
from coterie.strategies.errors import StateError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Edges, PeerMessage, Request, Response, no_edges
from coterie.strategies.relay.broker import Broker
from tests.inline import Run, hosting, run

DIGITS: dict[str, Any] = {
    "dataset": "digits", "peers": 4, "num-server-rounds": 4, "evaluate-every": 2,
    "partition.clusters": 2, "partition.samples-per-peer": 20, "batch-size": 8, "local-steps": 2,
    "momentum": 0.5, "model": "linear", "dtype": "float64",
}  # fmt: skip
COBO = {**DIGITS, "method": "cobo", "cobo.gamma": 0.05}
D = 64 * 10 + 10


class Forgetful:
    """A node whose process dies after every request: only the disk remembers."""

    def __init__(self, config: Config, peers: Sequence[int], directory: Path) -> None:
        self.made_of = config, peers, directory

    def handle(self, request: Request) -> Response:
        return Node(*self.made_of).handle(request)


def all_pairs(n: int) -> Edges:
    return np.array([(k, i) for i in range(n) for k in range(n) if k != i], dtype=np.int64)


def nodes_of(flat: dict[str, Any], directory: Path, shares: Sequence[Sequence[int]]) -> list[Node]:
    return [Node(Config.from_flat(flat), peers, directory) for peers in shares]


def start(nodes: Sequence[Node]) -> list[PeerMessage]:
    """Start the nodes; all their offers for round 1."""
    responses = [node.handle(Request("start", 0, 0)) for node in nodes]
    return [letter for response in responses for letter in response.letters]


def update(
    node: Node, edges: Edges, letters: Sequence[PeerMessage], t: int = 1, asked: bool = False
) -> Response:
    return node.handle(Request("update", t, t, edges, np.full(len(edges), asked), tuple(letters)))


def theta(directory: Path, peer: int) -> torch.Tensor:
    """A peer's model in the newest file that has it."""
    files = sorted((directory / "nodes").glob("peer*/*-0.state"), key=lambda path: path.name)
    for file in reversed(files):
        content = file.read_bytes()[:-32]
        peers = [int(each) for each in metadata(io.BytesIO(content))["peers"].split()]
        if peer in peers:
            return load(content)["state.x"][peers.index(peer)]
    raise FileNotFoundError(directory)


@pytest.mark.parametrize("method", ["cobo", "fedavg"])
def test_a_node_that_dies_after_every_request_loses_nothing(tmp_path: Path, method: str) -> None:
    flat = COBO | {"method": method}
    steady = run(flat, tmp_path / "steady", 2)
    config, frail = Config.from_flat(flat), Run(Config.from_flat(flat), tmp_path / "frail")
    hosts = [Forgetful(config, peers, frail.directory) for peers in hosting(4, 2)]
    Broker(config.strategy(), InProcessTransport(hosts), frail, join_timeout=1.0).run()
    assert frail.rounds == steady.rounds == [0, 2, 4]
    for t in steady.rounds:
        for name in steady.reports[t, 0].metrics:
            assert np.array_equal(frail.metric(name, t), steady.metric(name, t), equal_nan=True)
        assert np.array_equal(frail.weights(t), steady.weights(t))
    for one, other in zip(frail.models(), steady.models(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in steady.models()[0])


def test_only_what_the_relay_may_ask_for_again_stays_on_the_disk(tmp_path: Path) -> None:
    run(COBO, tmp_path, 2)
    folders = sorted((tmp_path / "nodes").glob("peers-*"))
    assert [folder.name[:15] for folder in folders] == ["peers-0000-0001", "peers-0002-0003"]
    for folder in folders:
        files = sorted(file.name for file in folder.iterdir())
        assert files == ["00000003-0.state", "00000003-1.state", "00000004-0.state"]
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 4


@pytest.mark.parametrize("stage", ["answer", "update", "local-rounds"])
def test_a_missing_state_is_a_clear_error(tmp_path: Path, stage: Any) -> None:
    (node,) = nodes_of(COBO, tmp_path, [[1, 3]])
    with pytest.raises(StateError, match=r"peers \[1, 3\] have no state of round 4"):
        node.handle(Request(stage, 5, 5))


def test_a_node_that_lost_its_disk_begins_afresh(tmp_path: Path) -> None:
    """A node without its state restarts with a new model in the current round, and reports it."""
    (node,) = nodes_of(COBO, tmp_path, [[1, 3]])
    response = node.handle(Request("start", 2, 2))
    assert [(report.round, report.peer) for report in response.reports] == [(2, 1), (2, 3)]
    assert {letter.round for letter in response.letters} == {3}
    fresh = start(nodes_of(COBO, tmp_path / "other", [[1, 3]]))
    assert [p.payload for p in response.letters] == [p.payload for p in fresh]


def test_a_late_node_goes_on_from_its_own_last_state(tmp_path: Path) -> None:
    nodes = nodes_of(COBO, tmp_path, [[0, 1], [2, 3]])
    start(nodes)
    update(nodes[1], no_edges(), ())
    before = theta(tmp_path, 2)
    response = nodes_of(COBO, tmp_path, [[2, 3]])[0].handle(Request("start", 3, 3))
    assert not response.reports
    offered = {p.sender: load(bytes_of(p))["x"] for p in response.letters}
    assert torch.equal(offered[2], before)
    assert torch.equal(theta(tmp_path, 2), before)
    assert {letter.round for letter in response.letters} == {4}


def test_answers_of_a_first_attempt_are_forgotten_at_a_restart(tmp_path: Path) -> None:
    """The relay stops between answer and update; after its restart the other peers are missing."""
    edges = all_pairs(4)
    touching = edges[np.isin(edges, [0, 1]).any(axis=1)]
    for directory, interrupted in ((tmp_path / "a", True), (tmp_path / "b", False)):
        nodes = nodes_of(COBO, directory, [[0, 1], [2, 3]])
        offers = start(nodes)
        if interrupted:
            foreign = tuple(p for p in offers if p.sender in (2, 3))
            asked = np.ones(len(touching), dtype=np.bool_)
            response = nodes[0].handle(Request("answer", 1, 1, touching, asked, foreign))
            assert len(response.letters) == 4
        again = nodes_of(COBO, directory, [[0, 1]])[0]
        again.handle(Request("start", 0, 0))
        update(again, no_edges(), ())
    assert torch.equal(theta(tmp_path / "a", 0), theta(tmp_path / "b", 0))


def test_a_request_of_a_relay_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """A request may still be queued when the next relay has restarted the node."""
    edges = all_pairs(4)[np.isin(all_pairs(4), [0, 1]).any(axis=1)]
    asked = np.ones(len(edges), dtype=np.bool_)
    nodes = nodes_of(COBO, tmp_path, [[0, 1], [2, 3]])
    first = [node.handle(Request("start", 0, 0, attempt="first")) for node in nodes]
    foreign = first[1].letters
    nodes[0].handle(Request("start", 0, 0, attempt="second"))
    with pytest.raises(StateError, match=r"peers \[0, 1\].*an earlier attempt"):
        nodes[0].handle(Request("answer", 1, 1, edges, asked, foreign, attempt="first"))
    nodes[0].handle(Request("answer", 1, 1, edges, asked, foreign, attempt="second"))


@pytest.mark.parametrize("stage", ["answer", "update"])
def test_what_a_process_remembers_of_an_earlier_attempt_is_not_used(
    tmp_path: Path, stage: str
) -> None:
    """Two processes alternate for one node; the second one restarts, then the first continues."""
    edges = all_pairs(4)[np.isin(all_pairs(4), [0, 1]).any(axis=1)]
    asked = np.full(len(edges), stage == "answer")
    for directory, remembers in ((tmp_path / "a", True), (tmp_path / "b", False)):
        one, two, other = nodes_of(COBO, directory, [[0, 1], [0, 1], [2, 3]])
        offers = start([one, other])
        foreign = tuple(p for p in offers if p.sender in (2, 3))
        if remembers:  # the first attempt receives all offers
            one.handle(Request(stage, 1, 1, edges, asked, foreign))  # type: ignore[arg-type]
        two.handle(Request("start", 0, 0, attempt="second"))
        if stage == "update":  # the second attempt receives none
            two.handle(Request("update", 1, 1, attempt="second"))
        one.handle(Request("update", 1 + (stage == "update"), 1 + (stage == "update"),
                         attempt="second"))  # fmt: skip
    assert torch.equal(theta(tmp_path / "a", 0), theta(tmp_path / "b", 0))


def bytes_of(letter: PeerMessage) -> bytes:
    assert isinstance(letter.payload, bytes)
    return letter.payload


def forged(letter: PeerMessage, how: str) -> PeerMessage:
    tensors = load(bytes_of(letter))
    x = tensors["x"]
    wrong: dict[str, object] = {
        "cut": bytes_of(letter)[:-1],
        "longer": save({"x": torch.cat([x, x])}),
        "renamed": save({"y": x}),
        "float32": save({"x": x.float()}),
        "not finite": save({"x": x.index_fill(0, torch.tensor([7]), torch.nan)}),
        "text": "x" * 100,
    }
    return replace(letter, payload=wrong[how])


@pytest.mark.parametrize("how", ["cut", "longer", "renamed", "float32", "not finite", "text"])
def test_a_bad_offer_is_refused_and_the_round_goes_on(tmp_path: Path, how: str) -> None:
    """The result is that of a run without the letter."""
    flat, edges = DIGITS | {"method": "fedavg"}, all_pairs(4)
    results = []
    for directory, letters in ((tmp_path / "bad", 2), (tmp_path / "missing", 1)):
        nodes = nodes_of(flat, directory, [[0, 1], [2], [3]])
        offers = {p.sender: p for p in start(nodes)}
        received = [offers[2], forged(offers[3], how)][:letters]
        response = update(nodes[0], edges[np.isin(edges, [0, 1]).any(axis=1)], received)
        results.append((response.refused, theta(directory, 0), theta(directory, 1)))
    (refused, *bad), (none, *missing) = results
    assert not none
    assert len(refused) == 1
    assert "round 1: peers [0, 1] refused the offer of peer 3: it" in refused[0]
    assert "\n" not in refused[0]
    assert len(refused[0]) < 400
    assert all(torch.equal(one, other) for one, other in zip(bad, missing, strict=True))


@pytest.mark.parametrize(
    "claimed",
    [{"sender": 0}, {"sender": 2}, {"sender": 17}, {"sender": 3, "recipient": 0}],
    ids=str,
)
def test_a_letter_nobody_was_to_get_is_refused(tmp_path: Path, claimed: dict[str, Any]) -> None:
    """Refuse a letter that claims to come from a peer of the same node."""
    flat, edges = DIGITS | {"method": "fedavg"}, np.array([[3, 0]])
    nodes = nodes_of(flat, tmp_path / "one", [[0, 1], [2, 3]])
    offers = {p.sender: p for p in start(nodes)}
    kind: Any = "answer" if "recipient" in claimed else "offer"
    strange = replace(offers[2], kind=kind, **claimed)
    response = update(nodes[0], edges, [offers[3], strange])
    assert len(response.refused) == 1
    assert f"the {kind} of peer {claimed['sender']}: it was not expected" in response.refused[0]
    twin = nodes_of(flat, tmp_path / "two", [[0, 1], [2, 3]])
    start(twin)
    update(twin[0], edges, [offers[3]])
    for peer in (0, 1):
        assert torch.equal(theta(tmp_path / "one", peer), theta(tmp_path / "two", peer))


def test_a_bad_answer_is_refused_and_the_pair_does_not_move(tmp_path: Path) -> None:
    nodes = nodes_of(COBO | {"evaluate-every": 1}, tmp_path, [[0, 1], [2, 3]])
    offers, edges = start(nodes), all_pairs(4)
    answers: list[PeerMessage] = []
    for node in nodes:
        touching = edges[np.isin(edges, node.peers).any(axis=1)]
        foreign = tuple(p for p in offers if p.sender not in node.peers)
        asked = np.ones(len(touching), dtype=np.bool_)
        answers += node.handle(Request("answer", 1, 1, touching, asked, foreign)).letters
    mine = [p for p in answers if p.recipient in (0, 1)]
    broken = [
        replace(p, payload=b"nothing") if (p.sender, p.recipient) == (2, 0) else p for p in mine
    ]
    response = update(nodes[0], edges[np.isin(edges, [0, 1]).any(axis=1)], broken, asked=True)
    assert len(response.refused) == 1
    assert "refused the answer of peer 2" in response.refused[0]
    weights = response.reports[0].weights
    assert weights[2] == 1.0  # where it started
    assert weights[3] != 1.0 or weights[1] != 1.0
    charged = [report.metrics["bytes_received"] for report in response.reports]
    assert charged == [(3 + 2) * D * 8, (3 + 3) * D * 8]


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_and_gradients_are_charged_as_the_formulas_say(
    tmp_path: Path, nodes: int, dtype: str
) -> None:
    """CoBo with all pairs: n - 1 models and n - 1 gradients sent and received per round."""
    result = run(COBO | {"dtype": dtype}, tmp_path, nodes)
    model = D * (4 if dtype == "float32" else 8)
    for t in result.rounds:
        for name in ("bytes_sent", "bytes_received"):
            assert result.metric(name, t).tolist() == [t * 2 * 3 * model] * 4
        steps, answers = 2 * 8, 3 * 8  # local steps and one answer for each other peer, of a batch
        assert result.metric("gradient_evaluations", t).tolist() == [t * (steps + answers)] * 4


@pytest.mark.parametrize("nodes", [1, 2])
def test_pull_methods_pay_for_models_and_local_for_nothing(tmp_path: Path, nodes: int) -> None:
    fedavg = run(DIGITS | {"method": "fedavg", "topology": "ring"}, tmp_path / "fedavg", nodes)
    assert fedavg.metric("bytes_sent").tolist() == [4 * 2 * D * 8] * 4  # two neighbours
    assert fedavg.metric("gradient_evaluations").tolist() == [4 * 2 * 8] * 4
    local = run(DIGITS | {"method": "local"}, tmp_path / "local", nodes)
    assert local.metric("bytes_sent").tolist() == [0] * 4
    assert local.ledger.nbytes == 0


def test_what_crosses_between_nodes_is_what_the_relay_counts(tmp_path: Path) -> None:
    """An offer is sent once per node, an answer to its recipient; nothing is sent inside a node."""
    result = run(COBO, tmp_path, 2)
    offers, answers = 2 * 2, 2 * 2 * 2  # per node two offers; per peer two answers
    assert result.ledger.nbytes == 4 * (offers + answers) * D * 8
    assert run(COBO, tmp_path / "alone", 1).ledger.nbytes == 0


def test_an_untrained_model_is_evaluated_in_round_0(tmp_path: Path) -> None:
    result = run(DIGITS | {"method": "local", "num-server-rounds": 1}, tmp_path)
    assert result.rounds == [0, 1]
    assert result.metric("gradient_evaluations", 0).tolist() == [0] * 4
    assert np.isnan(result.metric("validation_loss", 0)).all()  # no such split here
    assert (abs(result.metric("test_loss", 0) - np.log(10)) < 1).all()


def test_saved_models_are_named_as_the_module_names_them(tmp_path: Path) -> None:
    result = run(DIGITS | {"method": "local", "num-server-rounds": 1}, tmp_path, 2)
    network = Network(build("linear", None, "classification", (1, 8, 8), 10))
    for model in result.models():
        assert {name: tuple(v.shape) for name, v in model.items()} == dict(
            zip(network.names, network.shapes, strict=True)
        )


VALIDATED = {
    **DIGITS, "method": "fedavg", "partition.validation": 0.4, "num-server-rounds": 6,
    "evaluate-every": 1, "learning-rate": 0.6, "local-steps": 1,
}  # fmt: skip


@pytest.mark.parametrize("nodes", [[[0, 1, 2, 3]], [[0], [1, 2, 3]]])
def test_the_models_of_each_peer_s_best_round_are_kept(
    nodes: list[list[int]], tmp_path: Path
) -> None:
    """They are those that a run with as many rounds leaves; everything else is as without."""
    best = run({**VALIDATED, "keep-models": "best"}, tmp_path / "best", nodes)
    last = run(VALIDATED, tmp_path / "last", nodes)
    losses_tp = np.array([last.metric("validation_loss", t) for t in range(7)])
    assert np.array_equal(losses_tp, [best.metric("validation_loss", t) for t in range(7)])
    rounds_p = losses_tp.argmin(axis=0).tolist()
    assert rounds_p == [6, 5, 0, 3]
    for t in (3, 5, 6):
        until = run({**VALIDATED, "num-server-rounds": t}, tmp_path / f"{t}", nodes)
        for p in np.flatnonzero(np.array(rounds_p) == t).tolist():
            for name, value in until.models()[p].items():
                assert torch.equal(best.models()[p][name], value)
            about = json.loads((tmp_path / f"best/models/peer-{p:04d}.json").read_text())
            assert about["round"] == t
            assert about["curves"]["confusion"]


def test_a_resumed_run_keeps_the_best_models_of_before(tmp_path: Path) -> None:
    keys = {**VALIDATED, "keep-models": "best"}
    whole = run(keys, tmp_path / "whole")
    stopped = run(keys, tmp_path / "parts", until=4)
    run(keys, tmp_path / "parts", after=stopped)
    for one, other in zip(
        whole.models(), Run(whole.config, tmp_path / "parts").models(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_ends_early_by_its_patience(nodes: int, tmp_path: Path) -> None:
    """A run ends after two evaluations without a smaller mean loss, also after a resume."""
    keys = {**VALIDATED, "keep-models": "best", "learning-rate": 2.0}
    whole = run(keys, tmp_path / "whole", nodes)
    means = [whole.metric("validation_loss", t).mean() for t in range(7)]
    assert np.argmin(means[:3]) == 0, "the next two are worse"
    early = run({**keys, "patience": 2}, tmp_path / "early", nodes)
    assert early.rounds == [0, 1, 2]
    stopped = run({**keys, "patience": 2}, tmp_path / "parts", nodes, until=1)
    resumed = run({**keys, "patience": 2}, tmp_path / "parts", nodes, after=stopped)
    assert resumed.rounds == [0, 1, 2]
    assert len(resumed.models()) == 4


def test_the_best_models_need_validation_data() -> None:
    config = Config.from_flat({**DIGITS, "method": "local", "keep-models": "best"})
    with pytest.raises(ConfigError, match=r'^keep-models = "best": needs validation data'):
        check(config)
