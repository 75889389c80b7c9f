"""L2C: a plain loop, the gradient of the weights by finite differences, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Letters
from coterie.clients.methods.l2c import L2C, WEIGHT_DECAY, slope
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, rule_of, stacked


def softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max())
    return np.asarray(raised / raised.sum())


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats]:
    """Return models and weights of a plain loop."""
    q, rate = Plain(flat), flat.get("l2c.rate", 0.1)
    x, logits = q.start.copy(), np.zeros((q.n, q.n))
    m, v = np.zeros((q.n, q.n)), np.zeros((q.n, q.n))
    near = [[j for j in range(q.n) if q.heard[i, j] and j != i] for i in range(q.n)]
    for t in range(1, q.rounds + 1):
        before = x
        delta = before - q.train(before)
        x, w = np.zeros_like(x), np.zeros((q.n, q.n))
        for i in range(q.n):
            who = sorted([i, *near[i]])
            w[i, who] = softmax(logits[i, who])
            x[i] = before[i] - sum(w[i, j] * delta[j] for j in who)
            g = q.a[i] * (x[i] - q.v[i])
            s = np.array([-delta[j] @ g for j in range(q.n)])
            descent = w[i] * (s - w[i] @ s) + WEIGHT_DECAY * logits[i]
            m[i] = 0.9 * m[i] + 0.1 * descent
            v[i] = 0.999 * v[i] + 0.001 * descent**2
            size = np.sqrt(v[i] / (1 - 0.999**t)) + 1e-8
            logits[i] = logits[i] - rate * m[i] / (1 - 0.9**t) / size
            if t >= flat["l2c.warm-up"]:
                ranked = [int(j) for j in np.argsort(-logits[i]) if j in near[i]]
                near[i] = ranked[: flat["l2c.keep"]]
    return x, w


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("starts", ["common", "own"])
def test_it_equals_a_plain_loop(tmp_path: Path, starts: str, topology: str, nodes: int) -> None:
    options = {"l2c.warm-up": 3, "l2c.keep": 2 if topology == "full" else 1}
    flat = camps(tmp_path, "l2c", starts=starts, topology=topology, **options)
    x, w = twin(flat)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10
    assert (np.count_nonzero(w, axis=1) == options["l2c.keep"] + 1).all()
    assert np.abs(twin(flat | {"l2c.rate": 0.0})[0] - x).max() > 1e-3  # the weights are learnt


def test_the_slope_is_the_gradient_of_the_validation_loss() -> None:
    """L(x - sum_j softmax(alpha)_j Delta_j) by central differences."""
    g = np.random.default_rng(0)
    a, centre, x = g.uniform(0.5, 1.5, 3), g.normal(size=3), g.normal(size=3)
    delta, logits = g.normal(size=(5, 3)), g.normal(size=5)

    def loss(logits: Floats) -> float:
        return float((a * (x - softmax(logits) @ delta - centre) ** 2).sum() / 2)

    w = softmax(logits)
    s = -delta @ (a * (x - w @ delta - centre))
    steps = 1e-5 * np.eye(5)
    expected = [(loss(logits + h) - loss(logits - h)) / 2e-5 for h in steps]
    assert slope(w[None], s[None])[0].tolist() == pytest.approx(expected, rel=1e-8)


def test_equal_updates_leave_the_weights_uniform() -> None:
    assert not slope(np.full((1, 4), 0.25), np.full((1, 4), -3.0)).any()


def test_weights_that_are_not_learnt_are_fedavg(tmp_path: Path) -> None:
    """Equal weights of updates from a common start are equal weights of models."""
    options = {"l2c.rate": 0.0, "l2c.warm-up": 99}
    result = run(digits("l2c", **options), tmp_path / "a")
    fedavg = run(digits("fedavg"), tmp_path / "b")  # all peers have as many examples
    assert torch.allclose(stacked(result), stacked(fedavg), rtol=0, atol=1e-6)
    assert np.allclose(result.weights(), 1 / 3, atol=1e-15)


def test_the_weights_leave_the_other_camp(tmp_path: Path) -> None:
    """Updates of the other camp raise the validation loss, those of the own camp lower it."""
    flat = camps(tmp_path, "l2c", **{"l2c.warm-up": 99, "evaluate-every": 1})
    result, same = run(flat, tmp_path), CAMP[:, None] == CAMP
    away = [result.weights(t)[~same].reshape(6, 3).sum(axis=1) for t in range(1, 9)]
    assert np.allclose(away[0], 0.5)
    assert (np.diff(away, axis=0) < 0).all()
    kept = run(flat | {"l2c.warm-up": 4, "l2c.keep": 2}, tmp_path / "kept")
    assert np.array_equal(kept.weights() > 0, same)


def test_after_the_warm_up_a_peer_requests_those_it_keeps(tmp_path: Path) -> None:
    options = {"l2c.warm-up": 3, "l2c.keep": 2, "evaluate-every": 1}
    result = run(camps(tmp_path, "l2c", **options), tmp_path)
    received = np.array([result.metric("bytes_received", t) for t in range(9)])
    letters = np.diff(received, axis=0) / (3 * 8)  # three numbers of eight bytes
    assert (letters[:3] == 5).all()
    assert (letters[3:] == 2).all()


def test_a_missing_update_has_no_weight_and_its_logit_stays(tmp_path: Path) -> None:
    """Peer 0 receives the updates of 1 and 3 only; peer 1 none: it keeps its trained model."""
    rule = rule_of(L2C(), camps(tmp_path, "l2c"))
    state, offers = rule.offer(rule.init(), 1)
    senders, recipients = np.array([[1, 0], [3, 0]]).T
    letters = Letters(senders, recipients, senders, np.arange(6), offers)
    after = rule.update(state, rule.inbox(1, letters))
    assert np.allclose(after.w[0], [1 / 3, 1 / 3, 0, 1 / 3, 0, 0], atol=1e-15)
    assert not after.logits[0, [2, 4, 5]].any()
    assert np.array_equal(after.w[1:], np.eye(6)[1:])
    assert after.x[1:].equal(state.x[1:])


def test_an_old_update_has_a_smaller_weight(tmp_path: Path) -> None:
    rule = rule_of(L2C(), camps(tmp_path, "l2c"))
    rule.engine.staleness_discount = 1.0
    state, offers = rule.offer(rule.init(), 1)
    senders, recipients = np.array([[1, 0], [3, 0]]).T
    ages = np.array([0, 1, 0, 0, 0, 0])
    letters = Letters(senders, recipients, senders, np.arange(6), offers, ages)
    after = rule.update(state, rule.inbox(1, letters))
    assert np.allclose(after.w[0], np.array([2, 1, 0, 2, 0, 0]) / 5, atol=1e-15)


def test_the_validation_gradient_is_that_of_the_validation_data() -> None:
    """The engine's gradient on another split, against autograd on its examples."""
    config = Config.from_flat(digits("l2c", dtype="float64", model="linear"))
    engine = Engine(
        problem_of(config), "linear", None, range(3), config.training, device="cpu",
        dtype="float64",
    )  # fmt: skip
    x_pd, buffers = engine.initial()
    batch = engine.data.everything(split="validation")
    result = engine.gradients(x_pd, buffers, batch)
    for p in range(3):
        count = int(engine.data.shards["validation"].lengths_p[p])
        assert count
        rows = torch.arange(count)[None]
        inputs, targets = engine.data.examples("validation", torch.tensor([p]), rows)
        leaf = x_pd[p].clone().requires_grad_()
        weight, bias = leaf[:640].view(10, 64), leaf[640:]
        outputs = inputs[0].flatten(1) @ weight.T + bias
        loss = torch.nn.functional.cross_entropy(outputs, targets[0])
        loss.backward()
        assert leaf.grad is not None
        assert torch.allclose(result.values[p], leaf.grad, rtol=1e-10, atol=1e-12)
    assert engine.n_gradients.tolist() == [4, 4, 4]
