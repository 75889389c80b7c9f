"""The figures that papers calculate: the formulas against definitions and against the methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.lab.reproduction import formulas
from studies.svg import save


def test_whoever_is_sufficient_has_a_similar_gradient_wherever_the_loss_is_that_large() -> None:
    """Lemma 2 of All-for-one, with the exact gradients of |x - optimum|^2."""
    g = np.random.default_rng(1)
    optima, excess = g.normal(size=(6, 2)), 3.0
    size = formulas.sufficient_sizes(optima, np.array([excess]))[0]
    assert 1 < size < 6
    least = np.full(
        (6, 6), np.inf
    )  # similarity ratio of k at i, where i's excess is 3 or a bit more
    for i, angle in np.ndindex(6, 360):
        way = np.array([np.cos(angle), np.sin(angle)])
        gradients = 2 * (optima[i] + np.sqrt(excess * 1.001) * way - optima)
        apart = np.square(gradients - gradients[i]).sum(axis=1)
        least[i] = np.minimum(least[i], 1 - apart / np.square(gradients[i]).sum())
    assert (least >= formulas.THRESHOLD).sum(axis=1).mean() == size


def test_everybody_is_sufficient_for_little_and_nobody_else_for_everything() -> None:
    optima = np.random.default_rng(0).normal(size=(20, 2))
    assert formulas.sufficient_sizes(optima, np.array([1e6, 1e-9])).tolist() == [20, 1]


@pytest.mark.parametrize("helpers", [1.0, 10.0, 50.0])
def test_a_copy_speeds_up_by_the_number_of_peers_and_much_bias_not_at_all(helpers: float) -> None:
    speed_ups = formulas.speed_up(np.array(helpers), np.array([0.0, 1e9]))
    assert speed_ups == pytest.approx([helpers + 1, 1.0])


@pytest.mark.slow
def test_figures_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(formulas.wga_speed_up(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def noisy(rounds: int, eta: float = 0.05, schedule: str = "step", **more: Any) -> dict[str, Any]:
    """Return a run's configuration on figure 2's noisy quadratics, tables nested."""
    quadratic = {
        "user-curvature": 1.0, "helper-curvature": 2.0, "user-centre": 1.0, "helper-centre": 5.0,
        "noise": 10.0, "helpers": 10,
    }  # fmt: skip
    return {
        "method": "local",
        "num-server-rounds": rounds, "learning-rate": eta, "learning-rate-schedule": schedule,
        "local-steps": 1, "noisy-quadratic": quadratic | more.pop("noisy_quadratic", {}),
        "wga": {"alpha": 0.02},
        "bias-correction": {"alpha": "auto", "beta": 0.02, "oracle-noise": 0.0},
    } | more  # fmt: skip


def test_losses_after_many_rounds_are_the_floors() -> None:
    for method, within in (("local", 1e-9), ("wga", 1e-9), ("bias-correction", 1e-6)):
        config = noisy(2000, method=method)
        assert formulas.loss(config) == pytest.approx(formulas.floor(config), rel=within)


def test_floors_are_those_of_scalar_recursions() -> None:
    """Alone eta sigma^2 / (2 (2 - eta a0)); WGA with h = 1.02 and the bias 0.02 * 2 * 4 / h."""
    assert formulas.floor(noisy(1)) == pytest.approx(0.05 * 100 / (2 * 1.95), rel=1e-12)
    h, variance = 1.02, 100 * (0.98**2 + 0.02**2 / 10)
    wanted = ((0.16 / h) ** 2 + 0.05 * variance / (h * (2 - 0.05 * h))) / 2
    assert formulas.floor(noisy(1, method="wga")) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("rounds", [1, 7, 100])
def test_steps_of_1_over_t_make_the_mean_of_the_samples(rounds: int) -> None:
    """Mean estimation: sigma^2 / 2T alone; with weight alpha, plus (alpha (c1 - c0))^2 / 2."""
    config = noisy(rounds, 1.0, "inverse-time", noisy_quadratic={"helper-curvature": 1.0})
    assert formulas.loss(config) == pytest.approx(100 / (2 * rounds), rel=1e-12)
    variance = 100 * (0.98**2 + 0.02**2 / 10) / rounds
    wga = formulas.loss(config | {"method": "wga"})
    assert wga == pytest.approx((variance + 0.08**2) / 2, rel=1e-12)


def test_copies_are_worth_their_number() -> None:
    """N copies with uniform weights: sigma^2 / (N + 1)."""
    alike = {"helper-curvature": 1.0, "helper-centre": 1.0, "helpers": "9,9"}
    config = noisy(50, 1.0, "inverse-time", noisy_quadratic=alike, method="all-for-one")
    assert formulas.loss(config) == pytest.approx(100 / 10 / (2 * 50), rel=1e-12)


def test_a_noise_free_oracle_is_worth_as_many_copies_and_a_poor_one_nothing() -> None:
    config = noisy(1)
    alone = formulas.floor(config)
    assert formulas.oracle_floor(config) == pytest.approx(alone / 11, rel=1e-12)
    poor = config["bias-correction"] | {"oracle-noise": 1e6}
    assert formulas.oracle_floor(config | {"bias-correction": poor}) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("beta", "eta", "ratio"),
    [(0.05, 0.1, 0.39), (0.05, 0.01, 0.85), (0.05, 0.001, 0.98), (0.005, 0.01, 0.39)],
)
def test_the_default_alpha_has_the_lowest_floor(beta: float, eta: float, ratio: float) -> None:
    """N (2 - beta) / (2 (N + 1)) for ten helpers of the user's curvature: docs/methods."""
    alike = {"helper-curvature": 1.0}

    def floor(alpha: float | str, method: str = "bias-correction") -> float:
        config = noisy(1, eta, noisy_quadratic=alike, method=method)
        return formulas.floor(config | {"bias-correction": {"alpha": alpha, "beta": beta}})

    best = floor("auto")
    assert best <= min(floor(alpha) for alpha in np.linspace(0, 1, 101))
    assert best / floor("auto", "local") == pytest.approx(ratio, abs=0.005)
