"""WGA: its law on quadratics, its bias floor, plain loops, shares and invalid options.

The law, with e = x - x*_0, one coordinate of user 0 with curvature a0 and N helpers that average
to curvature a1 and have gradient d at x*_0:

    e_{t+1} = (1 - eta abar) e_t - eta (alpha d + (1 - alpha) n_0 + alpha n_avg),
    abar = (1 - alpha) a0 + alpha a1,  Var n_0 = sigma^2,  Var n_avg = sigma^2 / N,

so e_t is normal with the mean and variance of `moments`. Over K independent normal trials the mean
deviates by more than 5 sqrt(V / K), and the variance by more than 5 V sqrt(2 / K), with
probability below 1e-6.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.clients.methods.wga import best_alpha
from tests.inline import run
from tests.problems import write_quadratic
from tests.stepping import Stepping

Floats = npt.NDArray[np.float64]
TRIALS = 10_000
A0, A1, C0, C1, SIGMA = 1.0, 2.0, 1.0, 5.0, 10.0
D = A1 * (C0 - C1)  # gradient of the helpers' average at the user's optimum


def noisy(**more: Any) -> dict[str, Any]:
    """Make one user, three helpers, and `TRIALS` trials of a step."""
    flat = {
        "method": "wga", "dataset": "noisy-quadratic", "peers": 4, "local-steps": 1,
        "learning-rate": 0.05, "num-server-rounds": 1000, "wga.targets": "0", "wga.alpha": 0.3,
        "noisy-quadratic.helpers": 3, "noisy-quadratic.trials": TRIALS,
    }  # fmt: skip
    return flat | {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}


def moments(
    t: int, *, alpha: float, eta: float = 0.05, helpers: int = 3, a1: float = A1, d: float = D
) -> tuple[float, float]:
    """Return mean and variance of e_t from e_0 ~ N(-x*_0, 1)."""
    abar = (1 - alpha) * A0 + alpha * a1
    s2 = ((1 - alpha) ** 2 + alpha**2 / helpers) * SIGMA**2
    mean, variance = -C0, 1.0
    for _ in range(t):
        mean = (1 - eta * abar) * mean - eta * alpha * d
        variance = (1 - eta * abar) ** 2 * variance + eta**2 * s2
    return mean, variance


def assert_normal(sample: Floats, mean: float, variance: float) -> None:
    assert abs(sample.mean() - mean) < 5 * math.sqrt(variance / len(sample))
    assert abs(sample.var() - variance) < 5 * variance * math.sqrt(2 / len(sample))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_mean_and_variance_follow_the_law(alpha: float) -> None:
    stepping = Stepping(noisy(wga__alpha=alpha))
    for t in (1, 10, 60):
        e = stepping.to(t).x[0].numpy() - C0
        assert_normal(e, *moments(t, alpha=alpha))


def test_stationary_losses_of_figure_2() -> None:
    """Loss a0/2 (mean^2 + variance) at eta = 1e-4: alone 2.500e-3, WGA with alpha 1e-3 2.525e-3."""

    def floor(alpha: float, eta: float) -> float:
        abar = (1 - alpha) * A0 + alpha * A1
        s2 = ((1 - alpha) ** 2 + alpha**2 / 10) * SIGMA**2
        return A0 / 2 * ((alpha * D / abar) ** 2 + eta * s2 / (abar * (2 - eta * abar)))

    assert floor(0.0, 1e-4) == pytest.approx(2.500e-3, abs=5e-7)
    assert floor(1e-3, 1e-4) == pytest.approx(2.525e-3, abs=5e-7)
    mean, variance = moments(2000, alpha=0.3, eta=0.01, helpers=10)
    assert A0 / 2 * (mean**2 + variance) == pytest.approx(floor(0.3, 0.01), rel=1e-9)


def test_the_test_loss_is_the_mean_over_trials_and_falls_to_the_floor() -> None:
    stepping = Stepping(noisy(learning_rate=0.2, num_server_rounds=40))
    x = stepping.to(40).x[0].numpy()
    loss = stepping.cohort.evaluate(40)[0].metrics["test_loss"]
    assert loss is not None
    assert loss == pytest.approx(A0 / 2 * np.mean((x - C0) ** 2), rel=1e-12)
    mean, variance = moments(10_000, alpha=0.3, eta=0.2)
    expected = A0 / 2 * (mean**2 + variance)
    spread = A0 / 2 * math.sqrt((2 * variance**2 + 4 * mean**2 * variance) / TRIALS)
    assert abs(loss - expected) < 5 * spread


@pytest.mark.slow
def test_moving_the_helpers_moves_the_fixed_point() -> None:
    """With the same noise and other helpers, settled runs differ by -alpha (d' - d) / abar."""
    flat = noisy(learning_rate=0.2, noisy_quadratic__trials=5)
    one = Stepping(flat).to(70).x[0]
    other = Stepping(flat | {"noisy-quadratic.helper-centre": 9.0}).to(70).x[0]
    abar = 0.7 * A0 + 0.3 * A1
    expected = -0.3 * A1 * (5.0 - 9.0) / abar  # up to (1 - eta abar)^70 = 7e-10
    assert np.allclose((other - one).numpy(), expected, rtol=1e-8)


def problem(
    directory: Path, n: int = 5, d: int = 3
) -> tuple[dict[str, Any], Floats, Floats, Floats]:
    g = np.random.default_rng(1)
    curvature, centre = g.uniform(0.5, 1.5, (n, d)), g.normal(size=(n, d))
    start = g.normal(size=(n, d))
    flat = write_quadratic(directory / "problem.json", curvature, centre, start)
    return dict(flat), curvature, centre, start


@pytest.mark.parametrize("steps", [1, 3])
def test_noise_free_steps_match_a_plain_loop(tmp_path: Path, steps: int) -> None:
    flat, a, c, x = problem(tmp_path)
    n, alpha, eta, rounds = len(x), 0.4, 0.1, 12
    result = run(
        flat | {"method": "wga", "wga.alpha": alpha, "wga.targets": "0,3,4", "local-steps": steps,
                "learning-rate": eta, "num-server-rounds": rounds},
        tmp_path,
    )  # fmt: skip
    for _ in range(rounds):
        after = x.copy()
        for i in range(n):
            x0, y = x[i], x[i].copy()
            helpers = np.mean([a[k] * (x0 - c[k]) for k in range(n) if k != i], axis=0)
            for _ in range(steps):
                local = a[i] * (y - c[i])
                moved = helpers + local - a[i] * (x0 - c[i])
                y -= eta * ((1 - alpha) * local + alpha * moved if i in (0, 3, 4) else local)
            after[i] = y
        x = after
    assert np.abs(result.theta() - x).max() < 1e-10
    expected = np.where(np.eye(n) > 0, 1 - alpha, alpha / (n - 1))
    expected[[1, 2]] = np.eye(n)[[1, 2]]
    assert np.allclose(result.weights(), expected, atol=1e-15)
    asked = np.isin(range(n), (0, 3, 4))  # 3 x 8 bytes of model or answer on each of 12 edges
    assert (result.metric("bytes_sent") == rounds * 24 * (4 * asked + asked.sum() - asked)).all()


def test_a_round_of_many_steps_has_the_noise_of_as_many_steps() -> None:
    """With q = 1 - eta a and a1 = a0 = a, from the header's step: e_m = q^m e_0 - eta (1 - alpha)
    sum q^(m-1-s) n_s - eta alpha (d + n_avg) sum q^s, and Var n_avg = sigma^2 / (N m).
    """
    m, alpha, eta, helpers = 4, 0.6, 0.05, 3
    flat = noisy(local_steps=m, wga__alpha=alpha, noisy_quadratic__helper_curvature=A0)
    e = Stepping(flat).to(1).x[0].numpy() - C0
    q = (1 - eta * A0) ** np.arange(m + 1)
    pushed = eta * alpha * q[:m].sum()
    variance = q[m] ** 2 + SIGMA**2 * (
        (eta * (1 - alpha)) ** 2 * (q[:m] ** 2).sum() + pushed**2 / (helpers * m)
    )
    assert_normal(e, -C0 * q[m] - pushed * A0 * (C0 - C1), variance)


@pytest.mark.parametrize("steps", [1, 2])
def test_alpha_0_is_local_bit_for_bit(tmp_path: Path, steps: int) -> None:
    flat: dict[str, Any] = {
        "dataset": "digits", "peers": 3, "num-server-rounds": 3, "local-steps": steps,
        "partition.samples-per-peer": 20, "partition.clusters": 1, "mlp.hidden": "8",
        "momentum": 0.5, "batch-size": 5,
    }  # fmt: skip
    alone = run(flat | {"method": "local"}, tmp_path / "local")
    wga = run(flat | {"method": "wga", "wga.alpha": 0.0}, tmp_path / "wga")
    for one, other in zip(alone.models(), wga.models(), strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    assert (wga.weights() == np.eye(3)).all()


def test_helpers_that_do_not_answer_are_left_out() -> None:
    """Round 1: helper 2 is missing; round 2: no answers, so the step is local."""
    there = Stepping(noisy(), lambda t, edges: (edges[:, 1] != 2) & (t == 1))
    first = there.to(1)
    assert np.allclose(first.w[0], [0.7, 0.15, 0.0, 0.15], atol=1e-15)
    assert_normal(first.x[0].numpy() - C0, *moments(1, alpha=0.3, helpers=2))
    second = there.to(2)
    assert (second.w == np.eye(4)).all()
    noise = there.cohort.engine.batches(2)[0].noise_ed
    assert noise is not None
    expected = first.x[0] - 0.05 * (A0 * (first.x[0] - C0) + noise[0])
    assert np.allclose(second.x[0], expected, rtol=1e-14)


def test_stated_noise_gives_exact_inverse_variance_shares(tmp_path: Path) -> None:
    flat, *_ = problem(tmp_path, n=4)
    table = (tmp_path / "problem.json").read_text()
    (tmp_path / "problem.json").write_text(table.replace("[0.0, 0.0, 0.0, 0.0]", "[9, 1, 2, 4]"))
    chosen = {"method": "wga", "wga.weights": "inverse-variance", "wga.alpha": 0.5}
    w = Stepping(flat | chosen).to(1).w
    assert np.allclose(w[0], [0.5, *(0.5 * np.array([16, 4, 1]) / 21)], rtol=1e-14)


def test_measured_variance_and_bias(tmp_path: Path) -> None:
    """A translated copy (a1 = a0) at a small eta: b and its variance hardly change as x moves.

    |g_t - g_t-1|^2 / 2 sums K independent squares of mean sigma^2 and variance 2 sigma^4, and
    <b_t, b_t-1> sums products of mean d^2 and variance s^4 + 2 d^2 s^2, s^2 = sigma^2 (1 + 1/N);
    averaging over rounds only narrows both.
    """
    flat = noisy(learning_rate=1e-4, wga__alpha="auto", noisy_quadratic__helper_curvature=A0)
    stepping = Stepping(flat)
    stepping.cohort.engine.noise = None  # as if the problem did not state it
    stepping.cohort.restart()
    stepping.cohort.begin(1)
    state = stepping.to(6)
    d2, s2 = (A0 * (C0 - C1)) ** 2, SIGMA**2 * (1 + 1 / 3)
    assert abs(state.variance[0] / TRIALS - SIGMA**2) < 5 * SIGMA**2 * math.sqrt(2 / TRIALS)
    assert abs(state.zeta2[0] / TRIALS - d2) < 5 * math.sqrt((s2**2 + 2 * d2 * s2) / TRIALS)
    ratio = 1000 * state.zeta2[0] / state.variance[0]
    expected = 1 / (1 + 1 / 3 + ratio)
    assert 1 - stepping.to(7).w[0, 0] == pytest.approx(expected, rel=1e-9)


def test_auto_without_bias_trusts_everyone_alike(tmp_path: Path) -> None:
    """Noise-free copies: no bias, so alpha* = N / (N + 1) from round 3."""
    g = np.random.default_rng(0)
    centre, start = np.tile(g.normal(size=2), (3, 1)), np.tile(g.normal(size=2), (3, 1))
    flat = write_quadratic(tmp_path / "problem.json", np.ones((3, 2)), centre, start)
    stepping = Stepping(flat | {"method": "wga", "learning-rate": 0.1})
    assert (stepping.to(2).w == np.eye(3)).all()
    assert np.allclose(stepping.to(3).w, 1 / 3)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wga.targets", "0,7", 'targets = "0,7", but peers are 0 to 3'),
        ("wga.targets", "", "targets must be"),
        ("wga.targets", "0;1", "targets must be"),
        ("wga.alpha", "best", 'must be a number or "auto"'),
        ("wga.weights", "mine", "must be"),
    ],
)
def test_refusals(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat(noisy() | {key: value})


def bound(t: int, a: float, helpers: float, zeta: float, m: float) -> float:
    """Return theorem 1's bound of the loss after t steps, L = mu = 1, from its recursion.

    f(x - eta g) <= f - eta <grad, E g> + eta / 2 (|E g|^2 + eta s^2) for eta <= 1, where
    E g - grad is a times the bias, so 2 <grad, E g> - |E g|^2 >= (1 - m a^2) |grad|^2 - a^2 zeta^2,
    and |grad|^2 >= 2 f.
    """
    eta = math.log(t) / ((1 - m * a**2) * t)
    s2 = SIGMA**2 * ((1 - a) ** 2 + a**2 / helpers)
    assert eta <= 1
    loss = (C0**2 + 1) / 2
    for _ in range(t):
        loss = (1 - eta * (1 - m * a**2)) * loss + eta / 2 * (a**2 * zeta**2 + eta * s2)
    return loss


def relative_bound(alpha: Any, helpers: Any, bias: Any, growth: float) -> Any:
    """Theorem 1's bound relative to training alone; the symbols of `best_alpha`."""
    slowed = 1 - growth * alpha**2
    return ((1 - alpha) ** 2 + alpha**2 / helpers) / slowed**2 + bias * alpha**2 / slowed


CASES = [(1, 0.2, 0.0), (10, 0.49, 0.0), (10, 0.49, 0.3), (64, 1.0, 0.0), (3, 4.0, 0.2)]


@pytest.mark.parametrize(("helpers", "m", "zeta"), [*CASES, (10, 0.0, 0.3), (4, 0.9, 2.0)])
def test_alpha_star_minimises_the_bound(helpers: int, m: float, zeta: float) -> None:
    """Up to what the start leaves of it, 1 / T, and the factor ln T that the paper drops."""
    t = 200_000
    kappa = t * zeta**2 / SIGMA**2 / math.log(t)
    alpha = float(best_alpha(np.array(helpers), np.array(kappa), m))
    end = min(1.0, 1 / math.sqrt(m or 1))
    a = np.linspace(0, end, 100_001)[:-1]
    all_of_them = relative_bound(a, np.array(helpers), np.array(kappa), m)
    best = float(relative_bound(np.array(alpha), np.array(helpers), np.array(kappa), m))
    assert 0 <= alpha < end
    assert best <= all_of_them.min() * (1 + 1e-12)
    assert best == pytest.approx(all_of_them.min(), rel=1e-6)
    leading = SIGMA**2 * math.log(t) / (2 * t)
    assert bound(t, alpha, helpers, zeta, m) == pytest.approx(best * leading, rel=0.05)


@pytest.mark.parametrize(("helpers", "m", "zeta"), CASES)
def test_the_loss_at_alpha_star_stays_below_its_bound(helpers: int, m: float, zeta: float) -> None:
    """Helpers of curvature 1 - sqrt m slow the user down most, and 1 + sqrt m least.

    With a bias d at the optimum, (r e + d)^2 <= 2 r^2 e^2 + 2 d^2: half of m and zeta^2 for each.
    """
    t = 5_000
    kappa = t * zeta**2 / SIGMA**2 / math.log(t)
    alpha = float(best_alpha(np.array(helpers), np.array(kappa), m))
    eta = math.log(t) / ((1 - m * alpha**2) * t)
    r, d = (math.sqrt(m / 2), zeta / math.sqrt(2)) if zeta else (math.sqrt(m), 0.0)
    for a1 in (1 - r, 1 + r):
        mean, variance = moments(t, alpha=alpha, eta=eta, helpers=helpers, a1=a1, d=d)
        assert (mean**2 + variance) / 2 <= bound(t, alpha, helpers, zeta, m)


def test_alpha_star_in_its_limits() -> None:
    """m = 0: 1 / (1 + 1/N + kappa); N infinite, zeta = 0: min(1, 1 - sqrt(1 - 1/m)); no helpers: 0.

    With m = 1 even infinitely many helpers give a speed-up of 4 only: (1 - a)^2 / (1 - a^2)^2.
    """
    zero = np.array(0.0)
    with np.errstate(divide="ignore"):
        alphas = best_alpha(np.array([10, 1, 0]), np.array([0.0, 1.0, 0.0]), 0.0)
        none = best_alpha(np.array([0, 0]), np.array([0.0, np.inf]), 0.5)
    assert alphas.tolist() == [1 / 1.1, 1 / 3.0, 0.0]
    assert none.tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
    many = np.array(np.inf)
    assert best_alpha(many, zero, 4.0) == pytest.approx(1 - math.sqrt(0.75), rel=1e-9)
    assert best_alpha(many, zero, 0.5) == pytest.approx(1)
    assert best_alpha(np.array(7), np.array(0.2), 1e-12) == pytest.approx(1 / (1 + 1 / 7 + 0.2))
    close = np.array(1 - 1e-6)
    assert relative_bound(close, many, zero, 1.0) == pytest.approx(1 / 4, rel=1e-5)


def test_helpers_with_twice_the_loss_are_weighted_by_their_growth() -> None:
    """Curvature 2 instead of 1 at the same centre: m = (1 - 2)^2, zeta = 0, so kappa = 0.

    zeta^2 is estimated as the mean of <b_t, b_t-1> - m <g_t, g_t-1>, whose expectation is
    (a1 - a0)^2 e^2 - m a0^2 e^2 = 0 up to the steps; its noise, relative to sigma^2, is of order
    1 / sqrt(rounds * trials).
    """
    flat = noisy(wga__alpha="auto", wga__bias_growth=1.0, noisy_quadratic__helper_centre=C0,
                 learning_rate=1e-3, num_server_rounds=50)  # fmt: skip
    state = Stepping(flat).to(50)
    sigma2 = SIGMA**2 * TRIALS
    assert abs(state.zeta2[0]) / sigma2 < 5 / math.sqrt(48 * TRIALS) * 3
    bias = 50 * max(state.zeta2[0], 0.0) / sigma2
    expected = float(best_alpha(np.array(3), np.array(bias), 1.0))
    assert state.w[0, 0] == pytest.approx(1 - expected, abs=0.02)
