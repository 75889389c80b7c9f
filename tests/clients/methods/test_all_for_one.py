"""All-for-one: a plain loop, and the laws of its estimates and weights."""

from __future__ import annotations

from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose
from coterie.clients.methods.all_for_one import AllForOne, by_definition, normalised, ratio
from coterie.clients.training import Training
from tests.inline import Floats, run
from tests.kit import configured
from tests.problems import classification, write_quadratic

LAMBDA, MEMORY = 0.1, 0.8  # the defaults


def quadratic(path: Path, centre: Floats, noise: Any = 0.0, **more: Any) -> dict[str, Any]:
    """Peers on 1/2 |x - centre_i|^2 from 0; one round of one step."""
    start = np.zeros(centre.shape[1])
    return {
        **write_quadratic(
            path / "problem.json", np.ones_like(centre), centre, start, noise=noise, **more
        ),
        "method": "all-for-one", "num-server-rounds": 1, "local-steps": 1, "learning-rate": 0.1,
    }  # fmt: skip


def camps(path: Path) -> dict[str, Any]:
    """Make six different peers around two centres, with distant starts and unequal samples."""
    g = np.random.default_rng(5)
    centre = np.repeat(2 * g.normal(size=(2, 4)), 3, axis=0) + 0.5 * g.normal(size=(6, 4))
    flat: dict[str, Any] = write_quadratic(
        path / "problem.json", g.uniform(0.5, 1.5, (6, 4)), centre, 2 + g.normal(size=(6, 4)),
        samples=[3, 1, 4, 1, 5, 9],
    )  # fmt: skip
    return flat | {
        "method": "all-for-one", "num-server-rounds": 20, "evaluate-every": 5, "local-steps": 1,
        "learning-rate": 0.3, "all-for-one.refresh-every": 3,
    }  # fmt: skip


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats]:
    """Run the method peer by peer and helper by helper; return the final models and weights."""
    problem = problem_of(Config.from_flat(flat))
    n = problem.peers
    assert problem.start is not None
    a, c, n_k = problem.inputs[:n, 0], problem.inputs[:n, 1], problem.samples
    option = {key.partition(".")[2]: value for key, value in flat.items() if "all-for" in key}
    binary = option.get("criterion", "binary") == "binary"
    eta, momentum = flat["learning-rate"], flat.get("momentum", 0.0)
    x = [row.copy() for row in problem.start]
    velocity = [np.zeros_like(row) for row in x]
    r, alpha = np.full((n, n), -1.0), np.zeros((n, n))
    for t in range(flat["num-server-rounds"]):
        for i in range(n):
            g = [a[k] * (x[i] - c[k]) for k in range(n)]
            if t % option["refresh-every"] == 0:
                for k in range(n):
                    gap = g[k] - g[i]
                    result = max(0.0, 1 - (gap @ gap) / (g[i] @ g[i]))
                    keep = MEMORY if r[i, k] >= 0 and option.get("estimator") != "plain" else 0.0
                    r[i, k] = keep * r[i, k] + (1 - keep) * result
            if option.get("weights") == "paper":
                phi = LAMBDA * (r[i] >= LAMBDA) if binary else r[i]
                alpha[i] = n_k * phi / sum(n_k[j] * r[i, j] * phi[j] for j in range(n))
            else:
                raw = n_k * (r[i] > LAMBDA) if binary else r[i]
                alpha[i] = raw / sum(raw)
            here = x[i].copy()
            for _ in range(flat["local-steps"]):
                local = a[i] * (here - c[i])
                step = alpha[i, i] * local
                for k in range(n):
                    step = step + (k != i) * alpha[i, k] * (g[k] + local - g[i])
                velocity[i] = momentum * velocity[i] + step
                here = here - eta * velocity[i]
            x[i] = here
    return np.array(x), alpha


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({}, 1),
        ({"all-for-one.criterion": "continuous"}, 2),
        ({"all-for-one.estimator": "plain", "all-for-one.refresh-every": 1}, 1),
        ({"all-for-one.estimator": "plain", "all-for-one.criterion": "continuous"}, 1),
        ({"momentum": 0.5, "local-steps": 3, "learning-rate": 0.1}, 2),
        ({"all-for-one.weights": "paper", "learning-rate": 0.2}, 1),
        ({"all-for-one.weights": "paper", "all-for-one.criterion": "continuous"}, 1),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:all-for-one.weights")
def test_it_equals_a_plain_loop(tmp_path: Path, more: dict[str, Any], nodes: int) -> None:
    flat = camps(tmp_path) | more
    result = run(flat, tmp_path, nodes)
    x, alpha = twin(flat)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - alpha).max() < 1e-10
    first = result.weights(result.rounds[1])
    assert np.abs(alpha - first).max() > 0.1  # collaborators have changed


def test_weight_on_oneself_alone_is_local_training_bit_for_bit(tmp_path: Path) -> None:
    flat: dict[str, Any] = {
        "peers": 3, "num-server-rounds": 3, "local-steps": 3, "batch-size": 8, "momentum": 0.9,
        "weight-decay": 1e-3, "mlp.hidden": "8", "partition.samples-per-peer": 20,
        "partition.clusters": 1, "evaluate-every": 3,
    }  # fmt: skip
    alone = run(flat | {"method": "local"}, tmp_path / "local")
    strict = {"all-for-one.lambda": 0.999, "all-for-one.refresh-every": 2}
    result = run(flat | {"method": "all-for-one"} | strict, tmp_path / "all-for-one")
    assert np.array_equal(result.weights(), np.eye(3))
    for ours, theirs in zip(result.models(), alone.models(), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_oracle_trains_one_model_for_each_cluster(tmp_path: Path) -> None:
    flat: dict[str, Any] = {
        "method": "all-for-one", "all-for-one.criterion": "oracle", "peers": 5, "mlp.hidden": "4",
        "partition.clusters": 2, "partition.samples-per-peer": 12, "num-server-rounds": 5,
        "local-steps": 1, "batch-size": 5, "evaluate-every": 5,
    }  # fmt: skip
    result = run(flat | {"batch-size": 12}, tmp_path)  # full batches: no random draws
    truth = np.array([[0, 0, 0, 1, 1]])
    mates = truth == truth.T
    assert np.array_equal(result.weights(), mates / mates.sum(axis=1, keepdims=True))
    models = [np.concatenate([v.ravel() for v in m.values()]) for m in result.models()]
    apart = np.array([[np.abs(x - y).max() for y in models] for x in models])
    assert apart[mates].max() < 1e-6
    assert apart[~mates].min() > 1e-3


# ---- similarity and weights --------------------------------------------------------------------


@pytest.mark.parametrize("s", [-1.0, 0.0, 0.25, 1.0, 1.5, 2.0, 3.0])
def test_a_gradient_scaled_by_s_has_ratio_one_minus_its_square(tmp_path: Path, s: float) -> None:
    flat = quadratic(tmp_path, np.array([[1.0, -2.0, 3.0], [s, -2 * s, 3 * s]]))
    result = run(flat | {"all-for-one.criterion": "continuous"}, tmp_path).weights()[0]
    assert result[1] / result[0] == pytest.approx(max(0.0, 1 - (1 - s) ** 2), abs=1e-12)


def test_ratio_where_gradients_vanish() -> None:
    apart, squared = np.array([0.0, 2.0, 1.0, 1.0, 3.0, -1.0]), np.array([0.0, 0, -1, 2, 2, 2])
    # Both 0, only G_i 0, G_i below its noise, half as far as long, too far, clipped to 1.
    expected = np.array([1, 0, np.nan, 0.5, 0, 1])
    np.testing.assert_array_equal(ratio(apart, squared), expected)


Ratios = arrays(np.float64, (3, 3), elements=st.floats(0, 1)).map(
    lambda r: np.where(np.eye(3) > 0, 1.0, r)
)
Samples = arrays(np.float64, 3, elements=st.integers(1, 1000).map(float))


@given(r=Ratios, n_k=Samples, threshold=st.none() | st.floats(0.01, 0.99))
def test_weights_are_weights(r: Floats, n_k: Floats, threshold: float | None) -> None:
    plain, definition = normalised(r, n_k, threshold), by_definition(r, n_k, threshold)
    for alpha in (plain, definition):
        assert alpha.min() >= 0
        assert np.diag(alpha).min() > 0
        assert not alpha[r == 0].any()
    np.testing.assert_allclose(plain.sum(axis=1), 1)
    # Definition 1: sum_k alpha_ik r_ik = 1, so alpha sums to (sigma_psi / sigma_phi)^2 >= 1.
    np.testing.assert_allclose((definition * r).sum(axis=1), 1)
    assert definition.sum(axis=1).min() > 1 - 1e-12


def test_the_noise_of_a_step_is_that_of_weighted_independent_gradients(tmp_path: Path) -> None:
    """Var(sum_k alpha_ik g_k) = sum_k alpha_ik^2 sigma_k^2, in each of 40,000 coordinates.

    The empirical variance of N normals has relative standard deviation sqrt(2 / N) = 0.7 %.
    """
    sigma, samples = np.array([1.0, 2.0, 0.5]), [1, 2, 5]
    centre = np.full((3, 40_000), 10.0)
    flat = quadratic(tmp_path, centre, sigma, samples=samples)
    result = run(flat, tmp_path)
    alpha = np.array(samples) / 8
    np.testing.assert_allclose(result.weights(), np.tile(alpha, (3, 1)))
    steps = result.theta() / flat["learning-rate"] - 10
    np.testing.assert_allclose(steps.var(axis=1), (alpha**2 * sigma**2).sum(), rtol=0.03)


# ---- the estimates -----------------------------------------------------------------------------


@pytest.mark.slow
def test_products_across_halves_are_unbiased(tmp_path: Path) -> None:
    """Means over 1500 refreshes are within 4 standard errors; the plain ones differ by 2 s and s.

    s = d sigma^2 is the trace of a gradient's variance.
    """
    d, sigma, refreshes = 4, 1.0, 1500
    centre = np.array([[0.5, 0, 0, 0.5], [0, 0.5, 0.5, 0.5]])
    engine = configured(quadratic(tmp_path, centre, sigma))
    truth = np.array([0.75, 0.5])  # |grad R_1 - grad R_0|^2 and |grad R_0|^2 at 0
    x_pd, _ = engine.initial()
    result = []
    for t in range(refreshes):
        halves = engine.batches(t, Purpose.ESTIMATE, batch_size=512, halves=True)
        first, second = (engine.gradients(x_pd, {}, batch).values.numpy() for batch in halves)
        gap1, gap2 = first[1] - first[0], second[1] - second[0]
        result.append([gap1 @ gap2, first[0] @ second[0], gap1 @ gap1, first[0] @ first[0]])
    means, errors = np.mean(result, axis=0), np.std(result, axis=0) / sqrt(refreshes)
    assert (np.abs(means[:2] - truth) < 4 * errors[:2]).all()
    s = d * sigma**2
    assert (np.abs(means[2:] - (truth + np.array([2 * s, s]))) < 4 * errors[2:]).all()


def test_halves_are_disjoint_and_cover_what_was_drawn() -> None:
    training = Training(batch_size=4, local_steps=1)
    engine = Engine(classification([9, 6, 1]), "linear", None, range(3), training)
    first, second = engine.batches(1, Purpose.ESTIMATE, batch_size=8, halves=True)
    assert first.counts_e.tolist() == [4, 3, 1]
    assert second.counts_e.tolist() == [4, 3, 1]
    drawn = [
        [set(half.rows_eb[e, : half.counts_e[e]].tolist()) for half in (first, second)]
        for e in range(3)
    ]
    assert [len(a | b) for a, b in drawn] == [8, 6, 1]
    assert [len(a & b) for a, b in drawn] == [0, 0, 1]  # a single example is in both
    again = engine.batches(2, Purpose.ESTIMATE, batch_size=8, halves=True)[0]
    assert not torch.equal(first.rows_eb[1], again.rows_eb[1])  # all data, split differently


def together(path: Path, signal: float, estimator: str, refreshes: int = 1) -> float:
    """Return the share of collaborating pairs of equal peers, |grad|^2 = `signal` * noise."""
    n, d = 40, 200
    centre = np.full((n, d), sqrt(signal))
    flat = quadratic(path, centre, 1.0)
    flat |= {"num-server-rounds": refreshes, "learning-rate": 1e-9, "evaluate-every": refreshes}
    flat |= {"all-for-one.estimator": estimator, "all-for-one.refresh-every": 1}
    w = run(flat, path).weights()
    return float((w[~np.eye(n, dtype=bool)] > 0).mean())


@pytest.mark.parametrize("signal", [3.0, 11 / 9, 1.0, 0.3])
def test_the_plain_estimate_collapses_as_the_law_says(tmp_path: Path, signal: float) -> None:
    """P(r^ > lambda) = Phi(-E / D) for identical peers, s = 1 the noise, m = |grad|^2 = `signal`.

    With G_i = grad + a, G_k = grad + b: |G_i - G_k|^2 - (1 - lambda) |G_i|^2 has mean
    E = 2 - (1 - lambda)(1 + m) and variance D^2 = (2 lambda^2 + 2 + 4 + 4 (1 - lambda)^2 m) / d
    (from lambda |a|^2 + |b|^2 - 2 <a, b> - 2 (1 - lambda) <grad, a>), d = 200: 1.00, 0.50, 0.18, 0.
    Pairs share gradients, 40 peers: a tolerance of 0.5 / sqrt(40).
    """
    share = 1 - LAMBDA
    mean = 2 - share * (1 + signal)
    deviation = sqrt((2 * LAMBDA**2 + 6 + 4 * share**2 * signal) / 200)
    law = 0.5 * (1 - erf(mean / deviation / sqrt(2)))
    assert together(tmp_path, signal, "plain") == pytest.approx(law, abs=0.08)


@pytest.mark.slow
def test_the_debiased_estimate_keeps_identical_peers_together(tmp_path: Path) -> None:
    assert together(tmp_path, 0.3, "plain", refreshes=5) < 0.01
    assert together(tmp_path, 0.3, "debiased", refreshes=5) > 0.99


# ---- what travels ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "vectors"), [("plain", 1), ("debiased", 2)])
def test_bytes_are_those_of_the_edges_that_are_needed(
    tmp_path: Path, estimator: str, vectors: int
) -> None:
    flat = camps(tmp_path) | {"all-for-one.estimator": estimator, "evaluate-every": 1}
    result = run(flat | {"num-server-rounds": 8}, tmp_path, nodes=3)
    assert not result.refused
    letter = 4 * 8  # d numbers in float64
    n, expected = 6, np.zeros(6)
    for t in range(1, 9):
        refreshed = (t - 1) % 3 == 0
        asks = np.ones((n, n)) if refreshed else result.weights(t - 1) > 0
        asks = asks * (1 - np.eye(n))
        answer = 1 + vectors * refreshed
        expected += letter * (asks.sum(axis=1) + answer * asks.sum(axis=0))
        np.testing.assert_array_equal(result.metric("bytes_sent", t), expected)
    assert not all(result.weights(t).all() for t in range(1, 8))  # some peer was not asked


def test_a_missing_helper_is_left_out_of_the_average(tmp_path: Path) -> None:
    centre = np.array([[1.0, 0.0], [1.2, 0.1], [0.9, 0.2]])
    flat = quadratic(tmp_path, centre, samples=[1, 2, 4]) | {"num-server-rounds": 3}
    engine = configured(flat)
    rule = AllForOne().bind(engine, 3)
    cohort = HostedPeers(engine, rule, 3)
    x = cohort.state.x.numpy()
    for t, edges in [(1, [[1, 0], [2, 0], [0, 1], [2, 1], [0, 2], [1, 2]]), (2, [[0, 1]])]:
        cohort.begin(t)
        cohort.receive(np.array(edges), {})
        before = cohort.state.x.numpy().copy()
        cohort.answer(t, np.array(edges))
        cohort.update(t, {})
    x = cohort.state.x.numpy()
    alpha = np.array([1, 2]) / 3  # peer 0 received from 1; the others nothing
    step = alpha @ (before[0] - centre[:2])
    np.testing.assert_allclose(x[0], before[0] - 0.1 * step, rtol=1e-12)
    np.testing.assert_allclose(x[1:], before[1:] - 0.1 * (before[1:] - centre[1:]), rtol=1e-12)
    np.testing.assert_allclose(rule.weights(cohort.state), np.tile([1, 2, 4], (3, 1)) / 7)


def test_only_neighbours_are_asked(tmp_path: Path) -> None:
    flat = quadratic(tmp_path, np.ones((5, 2))) | {"topology": "ring", "num-server-rounds": 3}
    result = run(flat, tmp_path, nodes=2)
    apart = np.abs(np.subtract.outer(range(5), range(5)))
    assert np.array_equal(result.weights() > 0, np.minimum(apart, 5 - apart) <= 1)


# ---- refusals and warnings ---------------------------------------------------------------------


def test_weights_whose_sum_limits_the_step_are_warned_about(tmp_path: Path) -> None:
    """At scale s = 0.1, r = 0.19: the binary weights sum to 1000 / (1 + 999 * 0.19) = 5.2 where the
    similar peer has 999 times as many samples.
    """
    flat = quadratic(tmp_path, np.array([[1.0], [0.1]]), samples=[1, 999])
    flat |= {"all-for-one.weights": "paper"}
    with pytest.warns(UserWarning, match="learning-rate must be below"):
        run(flat, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lambda", 0.0), ("lambda", 1.0), ("estimator-ema", 1.0), ("estimator-ema", -0.1),
        ("similarity-batch-size", 1), ("refresh-every", 0),
        ("criterion", "best"), ("weights", "even"), ("estimator", "true"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Config.from_flat({"method": "all-for-one", f"all-for-one.{key}": value})
