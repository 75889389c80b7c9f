"""Facade: plain loops with and without a core, limits, and averages by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coterie.clients.letters import Letters
from coterie.clients.methods.ifca import Facade
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, configured, digits, rule_of, stacked

BODY, HEAD = 64 * 6 + 6, 6 * 10 + 10


def without_core(flat: dict[str, Any], k: int) -> tuple[Floats, Floats]:
    """Return personal models and weights; a quadratic's only layer is a head."""
    q = Plain(flat)
    heads = np.tile(q.start[:k], (q.n, 1, 1))
    w = np.zeros((q.n, k, q.n))

    def choices() -> list[int]:
        return [int(np.argmin([q.loss(i, x) for x in heads[i]])) for i in range(q.n)]

    chosen = choices()
    for _ in range(q.rounds):
        trained = q.train(heads[np.arange(q.n), chosen])
        for i in range(q.n):
            heads[i, chosen[i]] = trained[i]
        before, heads = heads, heads.copy()
        for i in range(q.n):
            for c in range(k):
                others = [j for j in range(q.n) if q.heard[i, j] and j != i and chosen[j] == c]
                parts = [before[i, c], *(trained[j] for j in others)]
                heads[i, c] = sum(parts) / len(parts)
                w[i, c] = [float(j == i or j in others) / len(parts) for j in range(q.n)]
        chosen = choices()
    return heads[np.arange(q.n), chosen], w[np.arange(q.n), chosen]


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("k", [2, 3])
def test_without_a_core_it_equals_a_plain_loop(
    tmp_path: Path, k: int, topology: str, nodes: int
) -> None:
    flat = camps(tmp_path, "facade", starts="own", topology=topology, **{"facade.clusters": k})
    x, w = without_core(flat, k)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-14


def with_core(flat: dict[str, Any], k: int) -> torch.Tensor:
    """Return the personal models (n, d) of a loop over peers with autograd."""
    engine, rounds = configured(flat), flat["num-server-rounds"]
    n, rate, momentum = engine.n, engine.training.learning_rate, engine.training.momentum
    cores = [engine.initial()[0][0, :BODY].clone() for _ in range(n)]
    heads = [[engine.starts(k)[c, BODY:].clone() for c in range(k)] for _ in range(n)]
    velocity = [torch.zeros(BODY + HEAD, dtype=torch.float64) for _ in range(n)]

    def loss(x: torch.Tensor, p: int, rows: torch.Tensor) -> torch.Tensor:
        inputs, targets = engine.data.examples("train", torch.tensor([p]), rows)
        w1, b1 = x[: 64 * 6].view(6, 64), x[64 * 6 : BODY]
        w2, b2 = x[BODY : BODY + 60].view(10, 6), x[BODY + 60 :]
        hidden = F.relu(inputs[0].flatten(1) @ w1.T + b1)
        return F.cross_entropy(hidden @ w2.T + b2, targets[0])

    def choice(p: int) -> int:
        every = torch.arange(int(engine.data.shards["train"].lengths_p[p]))[None]
        losses = [float(loss(torch.cat([cores[p], h]), p, every)) for h in heads[p]]
        return int(np.argmin(losses))

    chosen = [choice(p) for p in range(n)]
    for t in range(1, rounds + 1):
        for p in range(n):
            x = torch.cat([cores[p], heads[p][chosen[p]]])
            for batch in engine.batches(t):
                leaf = x.clone().requires_grad_()
                (g,) = torch.autograd.grad(loss(leaf, p, batch.rows_eb[p : p + 1]), leaf)
                velocity[p] = momentum * velocity[p] + g
                x = x - rate * velocity[p]
            cores[p], heads[p][chosen[p]] = x[:BODY], x[BODY:]
        trained = [heads[p][chosen[p]] for p in range(n)]
        mean = sum(cores[1:], cores[0]) / n
        cores = [mean.clone() for _ in range(n)]
        for p in range(n):
            for c in range(k):
                others = [trained[j] for j in range(n) if j != p and chosen[j] == c]
                heads[p][c] = sum(others, heads[p][c]) / (len(others) + 1)
        chosen = [choice(p) for p in range(n)]
    return torch.stack([torch.cat([cores[p], heads[p][chosen[p]]]) for p in range(n)])


@pytest.mark.parametrize("nodes", [1, 3])
def test_with_a_core_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = digits("facade", **{"facade.clusters": 3, "dtype": "float64", "num-server-rounds": 4})
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    models = run(flat, tmp_path, nodes).models()
    result = torch.stack([torch.cat([m[name].flatten() for name in names]) for m in models])
    assert (result - with_core(flat, 3)).abs().max() < 1e-12


def test_one_head_is_fedavg_with_equal_weights(tmp_path: Path) -> None:
    """The peers have as many examples as each other."""
    result = run(digits("facade", **{"facade.clusters": 1}), tmp_path / "a")
    fedavg = run(digits("fedavg"), tmp_path / "b")
    assert torch.allclose(stacked(result), stacked(fedavg), rtol=0, atol=1e-6)
    assert np.allclose(result.weights(), 1 / 3, atol=1e-15)


def test_letters_are_fedavgs_and_one_number(tmp_path: Path) -> None:
    result = run(digits("facade"), tmp_path / "a", 3)
    fedavg = run(digits("fedavg"), tmp_path / "b", 3)
    letters = 3 * 2  # rounds, other peers
    sent = result.metric("bytes_sent") - fedavg.metric("bytes_sent")
    assert sent.tolist() == [4 * letters] * 3


def test_all_peers_share_the_core_and_those_of_a_choice_the_head(tmp_path: Path) -> None:
    flat = digits("facade", **{"peers": 4, "partition.clusters": 2, "num-server-rounds": 6})
    result = run(flat, tmp_path)
    assert (stacked(result, "1.weight") == stacked(result, "1.weight")[0]).all()
    w, heads = result.weights() > 0, stacked(result, "3.weight")
    for i in range(4):
        for j in range(4):
            if w[i, j] and w[j, i]:
                assert torch.allclose(heads[i], heads[j], rtol=0, atol=1e-6)


def test_it_finds_the_camps(tmp_path: Path) -> None:
    flat = camps(tmp_path, "facade", starts="own", **{"facade.clusters": 2})
    flat |= {"num-server-rounds": 70, "local-steps": 1, "momentum": 0.0, "learning-rate": 0.6}
    result, q = run(flat, tmp_path), Plain(flat)
    same = CAMP[:, None] == CAMP
    assert np.allclose(result.weights(), same / 3, atol=1e-15)
    assert np.allclose(result.theta(), same @ (q.a * q.c) / (same @ q.a), atol=1e-12)


def test_heads_by_hand(tmp_path: Path) -> None:
    """Peer 0 receives head 0 of 3 and 4 and an invalid number of 5; peer 2 receives head 1."""
    rule = rule_of(Facade(3), camps(tmp_path, "facade", starts="own", **{"facade.clusters": 3}))
    state = rule.init()
    x = torch.arange(18, dtype=torch.float64).view(6, 3)
    cluster = torch.tensor([0.0, 0, 1, 0, 0, 9], dtype=torch.float64)
    senders, recipients = np.array([[3, 0], [4, 0], [5, 0], [1, 2]]).T
    tensors = {"x": x, "cluster": cluster}
    letters = Letters(senders, recipients, senders, np.arange(6), tensors)
    heads, before = rule.update(state, rule.inbox(1, letters)).heads, state.heads
    assert torch.allclose(heads[0, 0], (before[0, 0] + x[3] + x[4]) / 3)
    assert heads[0, 1:].equal(before[0, 1:])
    assert torch.allclose(heads[2, 0], (before[2, 0] + x[1]) / 2)
    assert heads[5].equal(before[5])


def test_an_old_head_counts_less_and_an_expired_own_one_not_at_all(tmp_path: Path) -> None:
    """Peer 1's head is one round old and a = 1: half the weight of peer 0's own."""
    rule = rule_of(Facade(3), camps(tmp_path, "facade", starts="own", **{"facade.clusters": 3}))
    rule.engine.staleness_discount = 1.0
    state = rule.init()
    x = torch.arange(18, dtype=torch.float64).view(6, 3)
    senders, recipients = np.array([[1, 0], [1, 2]]).T
    letters = Letters(
        senders, recipients, senders, np.arange(6), {"x": x, "cluster": x[:, 0] * 0},
        np.array([0, 1, 0, 0, 0, 0]), np.array([2]),
    )  # fmt: skip
    heads, before = rule.update(state, rule.inbox(1, letters)).heads, state.heads
    assert torch.allclose(heads[0, 0], (before[0, 0] + x[1] / 2) / 1.5)
    assert torch.allclose(heads[2, 0], x[1])
    assert heads[2, 1:].equal(before[2, 1:])


def test_a_random_graph_per_round_is_a_topology(tmp_path: Path) -> None:
    options = {"topology": "epidemic", "topology-degree": 2, "facade.clusters": 2}
    flat = camps(tmp_path, "facade", starts="own", **options)
    result = run(flat, tmp_path, 2)
    assert ((result.weights() > 0).sum(axis=1) <= 3).all()
    assert np.array_equal(result.metric("bytes_received"), [8 * 2 * 4 * 8] * 6)
