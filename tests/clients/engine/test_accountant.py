"""The accountant against a second one, which is written from the definitions.

Full batches: Gaussian mechanisms compose to one Gaussian mechanism, whose epsilon is known exactly.
Minibatches: two data sets that differ in one example, whose gradients are opposite and as long as
the clip allows. What can be proven of these two worlds is a lower bound of epsilon. Lengths are in
multiples of the clip.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.fft import next_fast_len
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from coterie.clients.engine import accountant
from coterie.clients.engine.engine import Engine
from coterie.clients.privacy import MAX_NOISE, MIN_NOISE, Privacy
from coterie.clients.training import Training
from tests.problems import classification

Floats = npt.NDArray[np.float64]


# ---- full batches -------------------------------------------------------------------------------


def exact_epsilon(multiplier: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism (Balle and Wang, ICML 2018, theorem 8)."""

    def gap(eps: float) -> float:
        a, b = 0.5 / multiplier, eps * multiplier
        return float(norm.cdf(a - b) - math.exp(min(eps, 700)) * norm.cdf(-a - b)) - delta

    return float(brentq(gap, 0, 600)) if gap(0) > 0 else 0.0


def test_epsilon_of_whole_data_is_the_exact_one() -> None:
    """Rényi orders alone lose 7 to 25 %."""
    g = np.random.default_rng(0)
    for _ in range(200):
        noise, times = g.uniform(2, 20), int(g.integers(1, 50))
        delta = 10.0 ** -g.uniform(3, 7)
        rdp = times * accountant.query(100, 100, noise, 1)
        epsilon = accountant.epsilon(rdp[None], delta)[0]
        exact = exact_epsilon(noise / 2 / times**0.5, delta)
        assert epsilon == pytest.approx(exact, rel=1e-6, abs=1e-6)
    mixed = rdp + accountant.query(100, 10, 5.0, 1)  # with drawn minibatches: the orders
    assert accountant.epsilon(mixed[None], 1e-5)[0] > accountant.epsilon(rdp[None], 1e-5)[0]


def sampled_by_hand(examples: int, drawn: int, multiplier: float, order: int) -> float:
    """Theorem 27 of Wang, Balle and Kasiviswanathan for the Gaussian mechanism, whole orders."""
    q = drawn / examples
    loss = [x * (x + 1) / (2 * multiplier**2) for x in range(order)]  # cgf of order x

    def difference(k: int) -> float:
        """log of the k-th forward difference of exp(cgf) at 0."""
        terms = [math.comb(k, i) * (-1) ** (k - i) * math.exp(_cgf(i - 1)) for i in range(k + 1)]
        return math.log(max(abs(sum(terms)), 1e-300))

    def _cgf(x: int) -> float:
        return x * (x + 1) / (2 * multiplier**2)

    assert loss[0] == 0
    logs = [0.0]
    for j in range(2, order + 1):
        if j == 2:
            bound = min(math.log(4) + math.log(math.expm1(_cgf(1))), _cgf(1) + math.log(2))
        else:
            half = 2 * (j // 2), 2 * ((j + 1) // 2)
            bound = min(math.log(4) + 0.5 * sum(map(difference, half)), math.log(2) + _cgf(j - 1))
        logs.append(math.log(math.comb(order, j)) + j * math.log(q) + bound)
    return float(logsumexp(logs)) / (order - 1)


def test_sampling_is_accounted_as_in_the_paper() -> None:
    g = np.random.default_rng(1)
    for _ in range(6):
        examples, noise = int(g.integers(20, 200)), float(g.uniform(2, 6))
        drawn = int(g.integers(1, examples // 3))
        rdp = accountant.query(examples, drawn, noise, 1)
        for order in (2, 3, 4, 5):
            expected = sampled_by_hand(examples, drawn, noise / 2, order)
            assert rdp[accountant.ORDERS.index(order)] == pytest.approx(expected, rel=1e-6)


def converted(rdp: float, order: float, delta: float) -> float:
    """Epsilon of a Rényi divergence (Balle et al., AISTATS 2020, theorem 21)."""
    return rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@pytest.mark.parametrize("steps", [1, 7, 40])
def test_an_engine_charges_full_batches_exactly(steps: int) -> None:
    """T gradients with noise s diverge by alpha T / (2 (s / 2)^2), at any models."""
    noise, delta = 6.0, 1e-4
    engine = Engine(
        classification((9, 6)), "linear", None, range(2), Training(batch_size=9), device="cpu",
        privacy=Privacy("examples", noise=noise, delta=delta),
    )  # fmt: skip
    x_pd, buffers = engine.initial()
    for batch in engine.batches(1, steps=steps):
        engine.gradients(x_pd, buffers, batch)
    assert engine.guard is not None
    closed = np.array(accountant.ORDERS) * steps / (2 * (noise / 2) ** 2)
    np.testing.assert_allclose(engine.guard.rdp, np.stack([closed, closed]), rtol=1e-12)
    exact = exact_epsilon(noise / 2 / steps**0.5, delta)
    np.testing.assert_allclose(engine.guard.epsilon(), exact, rtol=1e-6, atol=1e-9)


# ---- minibatches --------------------------------------------------------------------------------


def log_densities(q: float, noise: float, x: Floats) -> tuple[Floats, Floats]:
    """Log densities of what the two worlds show along the example's gradient.

    With probability q the example is in the minibatch and adds 1, or -1; else it adds nothing.
    """
    absent = math.log1p(-q) + norm.logpdf(x, 0, noise) if q < 1 else np.full_like(x, -np.inf)
    present = (math.log(q) + norm.logpdf(x, gradient, noise) for gradient in (1, -1))
    one, other = (np.logaddexp(absent, each) for each in present)
    return one, other


def proven_epsilon(q: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon below which `delta` cannot be after so many minibatches, in these two worlds.

    delta(epsilon) is the mean of max(0, 1 - exp(epsilon - loss)) in the first world, where `loss`
    is the sum over all steps of log(density in the one / density in the other). Each loss is
    rounded down to a multiple of `grain`, and mass beyond the grid is left out: both make delta
    smaller. Sums of losses are convolutions of their distributions.
    """
    grain, span = 1e-3, 12.0
    edges = np.linspace(-1 - span * noise, 1 + span * noise, 200_001)
    middle = (edges[1:] + edges[:-1]) / 2
    mass = (1 - q) * np.diff(norm.cdf(edges, 0, noise)) + q * np.diff(norm.cdf(edges, 1, noise))
    # The loss increases in x: that at the left end of a cell is the least of the cell.
    one, other = log_densities(q, noise, edges[:-1])
    assert (np.diff(np.subtract(*log_densities(q, noise, middle))) > -1e-9).all()
    loss = np.floor((one - other) / grain).astype(np.int64)
    length = next_fast_len(steps * int(loss.max() - loss.min()) + 1)
    histogram = np.bincount(loss - loss.min(), mass, minlength=length)
    summed = np.fft.irfft(np.fft.rfft(histogram) ** steps, length).clip(min=0)
    losses = (steps * loss.min() + np.arange(length)) * grain

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        return float((summed[above] * -np.expm1(epsilon - losses[above])).sum()) - delta

    return float(brentq(excess, 0.0, losses[-1])) if excess(0.0) > 0 else 0.0


@pytest.mark.some(12)
@pytest.mark.parametrize("noise", [1.0, 2.0, 4.0, 10.0])
@pytest.mark.parametrize(("examples", "drawn"), [(64, 64), (64, 48), (64, 16), (200, 8), (50, 1)])
@pytest.mark.parametrize("steps", [1, 20])
def test_epsilon_is_at_least_what_can_be_proven(
    examples: int, drawn: int, noise: float, steps: int
) -> None:
    delta = 1e-4
    proven = proven_epsilon(drawn / examples, noise, steps, delta)
    epsilon = accountant.epsilon(steps * accountant.query(examples, drawn, noise, 1)[None], delta)[
        0
    ]
    assert proven <= epsilon
    if drawn == examples:
        exact = exact_epsilon(noise / 2 / steps**0.5, delta)
        assert exact - 2e-3 * steps <= proven <= exact, "the second accountant is one"


@pytest.mark.some(8)
@pytest.mark.parametrize("noise", np.geomspace(MIN_NOISE, MAX_NOISE, 9).tolist())
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.25, 0.5, 0.99])
def test_divergences_are_sound_for_all_noise_that_is_allowed(noise: float, q: float) -> None:
    """Finite, and no smaller than those of the two worlds, by integration at every order."""
    examples = 10**6
    rdp = accountant.query(examples, round(q * examples), noise, 1)
    assert np.isfinite(rdp).all()
    for order, divergence in zip(accountant.ORDERS, rdp, strict=True):
        ends = 2 * order + 14 * noise
        x = np.linspace(-ends, ends, 2 * math.ceil(4 * ends / noise) + 1)
        one, other = log_densities(q, noise, x)
        logs = order * one + (1 - order) * other + math.log(x[1] - x[0])
        true = float(logsumexp(logs)) / (order - 1)
        assert divergence >= true * (1 - 1e-6) - 1e-13, f"order {order}"
    total = rdp.copy()
    for before in range(1, 4):
        total += accountant.another(examples, round(q * examples), noise, before)
        together = accountant.query(examples, round(q * examples), noise, before + 1)
        assert (total >= together * (1 - 1e-12)).all()


@pytest.mark.parametrize("noise", [0.0, 1e-170, 1e-160, 6e-153, 0.0099, 1e7, 1e160, math.nan])
def test_noise_that_cannot_be_accounted_for_costs_infinitely(noise: float) -> None:
    for drawn, before in ((10, 0), (100, 0), (10, 3)):
        assert (accountant.another(100, drawn, noise, before) == math.inf).all()


@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf, math.inf])
def test_epsilon_of_what_is_no_divergence_is_infinite(value: float) -> None:
    rdp = np.full((1, len(accountant.ORDERS)), value)
    assert accountant.epsilon(rdp, 1e-5)[0] == math.inf
    rdp[0, 0] = 1.0
    assert accountant.epsilon(rdp, 1e-5)[0] == pytest.approx(converted(1.0, 1.25, 1e-5))


@pytest.mark.parametrize("key", ["clip", "noise", "delta", "budget"])
@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf])
def test_options_that_are_no_numbers_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        Privacy("examples", **{key: value})


@pytest.mark.parametrize("clip", [1e-7, 1e7, 1e38])
def test_a_clip_that_floating_point_does_not_keep_is_refused(clip: float) -> None:
    """Below these bounds the noise rounds to 0, above them sums overflow; both reveal examples."""
    with pytest.raises(ValueError, match=r"clip = .*: must be 1e-06 to 1e\+06"):
        Privacy("examples", clip=clip)
