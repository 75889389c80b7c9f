"""Bias correction: its law and floors on quadratics, plain loops, the oracle, invalid options.

The law of u = (x - x*_0, c - d) in one coordinate, d the gradient of the helpers' average at x*_0:
u_{t+1} = M u_t + B (n_0, n_avg), from x - x*_0 = e and g_avg = a1 e + d + n_avg, g_0 = a0 e + n_0:

    x - x*_0 <- e - eta ((1 - alpha) (a0 e + n_0) + alpha (a1 e + n_avg - (c - d)))
    c - d <- (1 - beta) (c - d) + beta ((a1 - a0) e + n_avg - n_0),

Var (n_0, n_avg) = Q = diag(sigma^2, sigma^2 / N). Starts: e ~ N(-x*_0, 1), c = 0. u is normal; of K
independent trials a sample mean deviates by more than 5 sqrt(V_ii / K) and a sample covariance by
more than 5 sqrt((V_ii V_jj + V_ij^2) / K) with probability below 1e-6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.config import Config, ConfigError
from tests.inline import run
from tests.problems import write_quadratic
from tests.stepping import Stepping

Floats = npt.NDArray[np.float64]
TRIALS = 10_000
A0, A1, C0, C1, SIGMA = 1.0, 2.0, 1.0, 5.0, 10.0
D = A1 * (C0 - C1)


def noisy(**more: Any) -> dict[str, Any]:
    """Make one user, three helpers, and `TRIALS` trials of a step."""
    flat = {
        "method": "bias-correction", "dataset": "noisy-quadratic", "peers": 4, "local-steps": 1,
        "learning-rate": 0.05, "num-server-rounds": 1000, "bias-correction.targets": "0",
        "bias-correction.alpha": 0.6, "bias-correction.beta": 0.1, "noisy-quadratic.helpers": 3,
        "noisy-quadratic.trials": TRIALS,
    }  # fmt: skip
    return flat | {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}


def law(alpha: float, beta: float, eta: float, helpers: int, a1: float = A1) -> tuple[Floats, ...]:
    """Return M and B Q B'."""
    M = np.array(
        [[1 - eta * ((1 - alpha) * A0 + alpha * a1), eta * alpha], [beta * (a1 - A0), 1 - beta]]
    )
    B = np.array([[-eta * (1 - alpha), -eta * alpha], [-beta, beta]])
    return M, B @ np.diag([SIGMA**2, SIGMA**2 / helpers]) @ B.T


def floor(alpha: float, beta: float, eta: float, helpers: int) -> float:
    """Return the stationary loss a0/2 V_00, V = M V M' + B Q B'; the mean is 0."""
    M, BQB = law(alpha, beta, eta, helpers)
    V = np.linalg.solve(np.eye(4) - np.kron(M, M), BQB.ravel()).reshape(2, 2)
    assert np.abs(np.linalg.eigvals(M)).max() < 1
    return float(A0 / 2 * V[0, 0])


def assert_normal(sample_2k: Floats, mean: Floats, V: Floats) -> None:
    k = sample_2k.shape[1]
    bound = 5 * np.sqrt((np.outer(V.diagonal(), V.diagonal()) + V**2) / k)
    assert (np.abs(sample_2k.mean(axis=1) - mean) < 5 * np.sqrt(V.diagonal() / k)).all()
    assert (np.abs(np.cov(sample_2k) - V) < bound).all()


def test_mean_and_covariance_follow_the_law() -> None:
    M, BQB = law(0.6, 0.1, 0.05, 3)
    stepping = Stepping(noisy())
    mean, V = np.array([-C0, -D]), np.diag([1.0, 0.0])
    for t in range(1, 81):
        mean, V = M @ mean, M @ V @ M.T + BQB
        if t in (1, 2, 20, 80):
            state = stepping.to(t)
            u = np.stack([state.x[0].numpy() - C0, state.c[0].numpy() - D])
            assert_normal(u, mean, V)


def test_stationary_losses_of_the_paper() -> None:
    """Figure 2: alpha*, eta = beta = 1e-4. Figure 5: alpha = N / (N + 1), eta = 5e-4."""
    beta = 1e-4
    assert floor(10 * (2 - beta) / 22, beta, 1e-4, 10) == pytest.approx(9.38e-4, abs=5e-7)
    figure5 = [floor(n / (n + 1), beta, 5e-4, n) for n in (1, 10, 20, 50)]
    assert figure5 == pytest.approx([5.15e-3, 1.72e-3, 1.44e-3, 1.26e-3], abs=5e-6)


@pytest.mark.slow
def test_the_loss_falls_to_the_floor() -> None:
    """At eta = beta = 0.2 the slow mode of M has a time constant of 10 rounds."""
    flat = noisy(learning_rate=0.2, num_server_rounds=100, bias_correction__beta=0.2)
    x = Stepping(flat).to(100).x[0].numpy()
    expected = floor(0.6, 0.2, 0.2, 3)
    spread = expected * np.sqrt(2 / TRIALS)  # of the mean of K squares of a centred normal
    assert abs(A0 / 2 * np.mean((x - C0) ** 2) - expected) < 5 * spread


@pytest.mark.slow
def test_moving_the_helpers_moves_nothing_in_the_end() -> None:
    """With the same noise and other helpers, runs differ by M^t (0, d - d'), which vanishes."""
    flat = noisy(learning_rate=0.2, bias_correction__beta=0.2, noisy_quadratic__trials=5)
    one, other = (Stepping(flat | {"noisy-quadratic.helper-centre": c}) for c in (5.0, -20.0))
    M, _ = law(0.6, 0.2, 0.2, 3)
    shift = A1 * (5.0 - -20.0)  # d' - d
    for t in (1, 10, 130):
        a, b = one.to(t), other.to(t)
        expected = np.linalg.matrix_power(M, t) @ [0.0, -shift]
        assert np.allclose((b.x - a.x)[0].numpy(), expected[0], rtol=0, atol=1e-10)
        assert np.allclose((b.c - a.c)[0].numpy(), expected[1] + shift, rtol=0, atol=1e-9)
    assert abs(expected[0]) < 1e-4


@pytest.mark.parametrize("alpha", [0.4, "auto"])
def test_noise_free_steps_match_a_plain_loop(tmp_path: Path, alpha: float | str) -> None:
    g = np.random.default_rng(1)
    n, eta, beta, rounds = 5, 0.1, 0.3, 25
    a, centre = g.uniform(0.5, 1.5, (n, 3)), g.normal(size=(n, 3))
    x, c = g.normal(size=(n, 3)), np.zeros((n, 3))
    flat: dict[str, Any] = write_quadratic(tmp_path / "problem.json", a, centre, x) | {
        "method": "bias-correction", "bias-correction.alpha": alpha, "bias-correction.beta": beta,
        "local-steps": 1, "learning-rate": eta, "num-server-rounds": rounds,
    }  # fmt: skip
    result = run(flat, tmp_path)
    weight = alpha if isinstance(alpha, float) else 4 * (2 - beta) / (2 * 5)
    for _ in range(rounds):
        local = a * (x - centre)
        asked = a[None] * (x[:, None] - centre[None])  # [i, k]: gradient of k at the model of i
        average = (asked.sum(axis=1) - local) / (n - 1)
        step = (1 - weight) * local + weight * (average - c)
        c = (1 - beta) * c + beta * (average - local)
        x = x - eta * step
    assert np.abs(result.theta() - x).max() < 1e-10
    expected = np.where(np.eye(n) > 0, 1 - weight, weight / (n - 1))
    assert np.allclose(result.weights(), expected, atol=1e-15)


@pytest.mark.parametrize("oracle_noise", [0.0, 5.0])
def test_an_oracle_leaves_variance_only(oracle_noise: float) -> None:
    """Theorem 2: the step's mean is grad f_0; its variance (1 - alpha)^2 sigma^2 + alpha^2
    (sigma^2 + v^2) / N, v the noise of each helper's oracle.
    """
    flat = noisy(bias_correction__bias="oracle", bias_correction__oracle_noise=oracle_noise)
    stepping = Stepping(flat)
    s2 = 0.4**2 * SIGMA**2 + 0.6**2 * (SIGMA**2 + oracle_noise**2) / 3
    mean, variance, q = -C0, 1.0, 1 - 0.05 * A0
    for t in range(1, 31):
        mean, variance = q * mean, q**2 * variance + 0.05**2 * s2
        if t in (1, 30):
            e = stepping.to(t).x[0].numpy() - C0
            assert abs(e.mean() - mean) < 5 * np.sqrt(variance / TRIALS)
            assert abs(e.var() - variance) < 5 * variance * np.sqrt(2 / TRIALS)


def test_a_round_without_answers_leaves_the_estimate() -> None:
    there = Stepping(noisy(), lambda t, edges: np.full(len(edges), t != 2))
    first, second = there.to(1), there.to(2)
    assert (first.c == second.c).all()
    assert (second.w == np.eye(4)).all()
    assert (there.to(3).c != second.c)[0].all()


def test_peers_that_are_no_targets_learn_no_bias() -> None:
    state = Stepping(noisy()).to(3)
    assert (state.c[1:] == 0).all()
    assert (state.w[1:] == np.eye(4)[1:]).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bias-correction.targets", "0,7", "peers are 0 to 3"),
        ("bias-correction.oracle-noise", 1.0, 'needs bias = "oracle"'),
        ("bias-correction.bias", "true", "must be"),
    ],
)
def test_refusals(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat(noisy() | {key: value})


@pytest.mark.parametrize("oracle_noise", [0.0, 5.0, 30.0])
def test_alpha_of_a_noisy_oracle_minimises_the_variance(oracle_noise: float) -> None:
    """Section 5.1: alpha minimises (1 - a)^2 sigma^2 + a^2 (sigma^2 + v^2) / N."""
    flat = noisy(
        bias_correction__bias="oracle",
        bias_correction__alpha="auto",
        bias_correction__oracle_noise=oracle_noise,
    )
    alpha = 1 - Stepping(flat).to(1).w[0, 0]
    a = np.linspace(0, 1, 100_001)
    variance = (1 - a) ** 2 * SIGMA**2 + a**2 * (SIGMA**2 + oracle_noise**2) / 3
    assert alpha == pytest.approx(a[variance.argmin()], abs=1e-5)


def test_without_noise_a_noisy_oracle_is_not_asked() -> None:
    """Section 5.1, second case: the baseline is gradient descent and alpha* = 0."""
    flat = noisy(
        bias_correction__bias="oracle",
        bias_correction__alpha="auto",
        bias_correction__oracle_noise=1.0,
        noisy_quadratic__noise=0.0,
        noisy_quadratic__trials=3,
    )
    assert (Stepping(flat).to(3).w == np.eye(4)).all()
