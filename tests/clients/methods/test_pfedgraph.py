"""pFedGraph: a plain loop, a quadratic program, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.clients.letters import Letters
from coterie.clients.methods.pfedgraph import PFedGraph
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, rule_of, stacked
from tests.kit import CAMP_SAMPLES as SAMPLES


def on_simplex(v: Floats) -> Floats:
    """Project by bisection on the threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.maximum(v - t, 0).sum() > 1 else (low, t)
    return np.asarray(np.maximum(v - high, 0))


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Return models, weights, and similarities of a plain loop."""
    q, alpha, strength = Plain(flat), flat["pfedgraph.alpha"], flat["pfedgraph.lambda"]
    x, u = q.start.copy(), np.zeros_like(q.start)

    def turn(i: int, x: Floats) -> Floats:
        """Return the gradient of - lambda <u, x> / |x|, coordinate by coordinate."""
        length = np.linalg.norm(x)
        return np.asarray(-strength * (u[i] / length - (u[i] @ x) * x / length**3))

    for _ in range(q.rounds):
        x = q.train(x, turn)
        moved = x - q.start
        d = np.array([[-cosine(a, b) for b in moved] for a in moved])
        w = np.zeros((q.n, q.n))
        for i in range(q.n):
            present = np.flatnonzero(q.heard[i])
            p = q.samples[present] / q.samples[present].sum()
            w[i, present] = on_simplex(p - d[i, present] / (2 * alpha))
        u = w @ (x / np.linalg.norm(x, axis=1, keepdims=True))
        x = w @ x
    return x, w, d


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("starts", ["common", "own"])
def test_it_equals_a_plain_loop(tmp_path: Path, topology: str, starts: str, nodes: int) -> None:
    options = {"pfedgraph.alpha": 0.9, "pfedgraph.lambda": 0.3, "topology": topology}
    flat = camps(tmp_path, "pfedgraph", starts=starts, **options)
    x, w, _ = twin(flat)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10
    plain = twin(flat | {"pfedgraph.lambda": 0.0})[0]
    assert np.abs(plain - x).max() > 1e-3  # the term has an effect


def test_the_weights_solve_the_papers_program(tmp_path: Path) -> None:
    """min_w sum_j w_ij d_ij + alpha |w_i - p|^2 over the simplex, solved by scipy's `minimize`."""
    flat = camps(tmp_path, "pfedgraph", **{"pfedgraph.alpha": 0.8, "pfedgraph.lambda": 0.01})
    result, (_, _, d) = run(flat, tmp_path).weights(), twin(flat)
    p = np.array(SAMPLES) / np.sum(SAMPLES)
    for i, row in enumerate(result):
        solved = minimize(
            lambda w, i=i: w @ d[i] + 0.8 * ((w - p) ** 2).sum(), p, method="SLSQP",
            jac=lambda w, i=i: d[i] + 1.6 * (w - p), bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14},
        )  # fmt: skip
        assert np.abs(row - solved.x).max() < 1e-6
    same = CAMP[:, None] == CAMP
    assert result[same].min() > 0 == result[~same].max()


def test_a_large_alpha_without_a_turn_is_fedavg(tmp_path: Path) -> None:
    options = {"pfedgraph.alpha": 1e300, "pfedgraph.lambda": 0.0}
    result = run(camps(tmp_path / "a", "pfedgraph", **options), tmp_path / "a")
    fedavg = run(camps(tmp_path / "b", "fedavg"), tmp_path / "b")
    assert np.abs(result.theta() - fedavg.theta()).max() < 1e-14
    assert np.abs(result.weights() - fedavg.weights()).max() < 1e-15
    on_digits = run(digits("pfedgraph", **options), tmp_path / "c")
    other = run(digits("fedavg"), tmp_path / "d")
    assert torch.allclose(stacked(on_digits), stacked(other), rtol=0, atol=1e-6)


def test_a_small_alpha_takes_the_own_model_alone(tmp_path: Path) -> None:
    """No peer is more similar to a peer than itself: the weights become local training's."""
    options = {"pfedgraph.alpha": 1e-7, "pfedgraph.lambda": 0.0}
    result = run(camps(tmp_path / "a", "pfedgraph", **options), tmp_path / "a")
    local = run(camps(tmp_path / "b", "local"), tmp_path / "b")
    assert np.array_equal(result.weights(), np.eye(6))
    assert np.abs(result.theta() - local.theta()).max() < 1e-14


def test_the_turn_is_the_gradient_of_a_cosine(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    u, x = (torch.randn(6, 3, generator=g, dtype=torch.float64) for _ in range(2))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(((u * leaf).sum(1) / leaf.norm(dim=1)).sum(), leaf)
    result = rule_of(PFedGraph(), camps(tmp_path, "pfedgraph"))._gradient_of_cosine(u, x)
    assert torch.allclose(result, expected, rtol=1e-13)
    assert (
        rule_of(PFedGraph(), camps(tmp_path, "pfedgraph"))._gradient_of_cosine(u, x * 0).abs().max()
        == 0
    )


def test_peers_that_have_not_moved_are_averaged_by_samples(tmp_path: Path) -> None:
    """At the minimum updates are 0: cosines are 0, and the weights are p."""
    rule = rule_of(PFedGraph(), camps(tmp_path, "pfedgraph"))
    state = rule.init()
    recipients, senders = np.nonzero(~np.eye(6, dtype=bool))
    offers = Letters(senders, recipients, senders, np.arange(6), {"x": state.x})
    w_pn = rule.inferred(rule.inbox(1, offers))
    assert np.allclose(w_pn, np.array(SAMPLES) / np.sum(SAMPLES), atol=1e-15)
