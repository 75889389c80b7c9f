"""The figures that papers calculate: the formulas against definitions and against the methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies import theory
from studies.svg import save


def test_whoever_is_sufficient_has_a_similar_gradient_wherever_the_loss_is_that_large() -> None:
    """Lemma 2 of All-for-one, with the exact gradients of |x - optimum|^2."""
    g = np.random.default_rng(1)
    optima, excess = g.normal(size=(6, 2)), 3.0
    size = theory.sufficient_sizes(optima, np.array([excess]))[0]
    assert 1 < size < 6
    least = np.full(
        (6, 6), np.inf
    )  # similarity ratio of k at i, where i's excess is 3 or a bit more
    for i, angle in np.ndindex(6, 360):
        way = np.array([np.cos(angle), np.sin(angle)])
        gradients = 2 * (optima[i] + np.sqrt(excess * 1.001) * way - optima)
        apart = np.square(gradients - gradients[i]).sum(axis=1)
        least[i] = np.minimum(least[i], 1 - apart / np.square(gradients[i]).sum())
    assert (least >= theory.THRESHOLD).sum(axis=1).mean() == size


def test_everybody_is_sufficient_for_little_and_nobody_else_for_everything() -> None:
    optima = np.random.default_rng(0).normal(size=(20, 2))
    assert theory.sufficient_sizes(optima, np.array([1e6, 1e-9])).tolist() == [20, 1]


@pytest.mark.parametrize("helpers", [1.0, 10.0, 50.0])
def test_a_copy_speeds_up_by_the_number_of_peers_and_much_bias_not_at_all(helpers: float) -> None:
    found = theory.speed_up(np.array(helpers), np.array([0.0, 1e9]))
    assert found == pytest.approx([helpers + 1, 1.0])


def test_figures_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(theory.speed_up_figure(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
