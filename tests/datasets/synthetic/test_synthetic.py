"""Synthetic problems: optima, losses and groups, which are known by construction."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import Problem
from coterie.datasets.synthetic.quadratic import NoisyQuadraticOptions, load_noisy_quadratic
from coterie.datasets.synthetic.regressions import (
    LeastSquaresOptions,
    SineOptions,
    load_least_squares,
    load_sine,
)
from coterie.datasets.table import dataset_of

NAMES = {
    "noisy-quadratic": NoisyQuadraticOptions,
    "least-squares": LeastSquaresOptions,
    "sine": SineOptions,
}
MADE = {
    "noisy-quadratic": load_noisy_quadratic,
    "least-squares": load_least_squares,
    "sine": load_sine,
}


def load(name: str, peers: int, seed: int = 0, **options: Any) -> Problem:
    return dataset_of(name).load(Partition(), peers, seed, Path("data"), NAMES[name](**options))


@pytest.mark.parametrize(("name", "peers"), [*zip(NAMES, (11, 6, 6), strict=True)])
def test_a_problem_is_a_pure_function_of_seed_and_options(name: str, peers: int) -> None:
    one = load(name, peers)
    again = MADE[name](peers, 0, NAMES[name]())  # type: ignore[operator]
    other = load(name, peers, seed=1)
    for part in ("train", "test"):
        for i in range(peers):
            rows = getattr(one, part).rows[i]
            assert (rows == getattr(again, part).rows[i]).all()
            assert (one.inputs[rows] == again.inputs[rows]).all()
    varied = (one.start, other.start) if name == "noisy-quadratic" else (one.inputs, other.inputs)
    assert varied[0] is not None
    assert varied[1] is not None
    assert not np.array_equal(*varied)
    assert len(one.describe()) == peers


def test_noisy_quadratics_are_figure_2_by_default() -> None:
    problem = load("noisy-quadratic", 11)
    curvature, centre = problem.inputs[:11, :, 0].T
    assert curvature.tolist() == [1.0] + [2.0] * 10
    assert centre.tolist() == [1.0] + [5.0] * 10
    assert problem.inputs.shape == (22, 2, 100)
    assert problem.clusters is None
    assert problem.noise is not None
    assert problem.noise.tolist() == [10.0] * 11
    assert problem.start is not None
    assert abs(problem.start.mean()) < 5 / math.sqrt(problem.start.size)
    assert abs(problem.start.var() - 1) < 5 * math.sqrt(2 / problem.start.size)


def test_a_users_test_loss_is_the_mean_over_trials_and_helpers_have_none() -> None:
    problem = load("noisy-quadratic", 4, helpers=3, trials=7)
    x = np.arange(7.0)
    (row,) = problem.test.rows[0]
    a, c = problem.inputs[row]
    assert 0.5 * (a * (x - c) ** 2).sum() == pytest.approx(np.mean(0.5 * (x - 1) ** 2))
    (row,) = problem.train.rows[0]
    a, c = problem.inputs[row]
    assert 0.5 * (a * (x - c) ** 2).sum() == pytest.approx(np.sum(0.5 * (x - 1) ** 2))
    assert problem.test.sizes.tolist() == [1, 0, 0, 0]
    assert problem.train.sizes.tolist() == [1, 1, 1, 1]


def test_lists_make_groups() -> None:
    problem = load(
        "noisy-quadratic", 9, helpers="1,3,2", helper_centre="2,-5,1e1", helper_curvature=0.5
    )
    assert problem.clusters is not None
    assert problem.clusters.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    curvature, centre = problem.inputs[:9, :, 0].T
    assert curvature.tolist() == [1, 0.5, 1, 0.5, 0.5, 0.5, 1, 0.5, 0.5]
    assert centre.tolist() == [1, 2, 1, -5, -5, -5, 1, 10, 10]
    assert problem.test.sizes.tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 0]


def test_groups_have_users_with_centres_of_their_own() -> None:
    problem = load("noisy-quadratic", 5, helpers="1,2", user_centre="-3,3", helper_centre="-3,3")
    assert problem.inputs[:5, 1, 0].tolist() == [-3, -3, 3, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"helpers": "1,2", "helper-centre": "1,2,3"}, "must have the same length"),
        ({"helpers": "1,2", "user-centre": "1,2,3"}, "must have the same length"),
        ({"helpers": 0}, "helpers must be integers of at least 1"),
        ({"helpers": "1.5"}, "helpers must be integers of at least 1"),
        ({"helpers": "many"}, 'helpers must be a number or a list like "1,10,50", not "many"'),
        ({"helper-centre": "1,,2"}, "helper-centre must be"),
        ({"helper-curvature": "nan"}, "helper-curvature must be"),
        ({"helper-curvature": -1.0}, "helper-curvature must be at least 0"),
        ({"helpers": "3,4"}, "2 user.s. with 7 helpers make 9 peers, but peers = 11"),
    ],
)
def test_impossible_noisy_quadratics(options: dict[str, Any], message: str) -> None:
    flat = {f"noisy-quadratic.{key}": value for key, value in options.items()}
    with pytest.raises(ConfigError, match=f"noisy-quadratic: .*{message}"):
        Config.from_flat({"dataset": "noisy-quadratic", "peers": 11, **flat})


@pytest.mark.parametrize("d", [2, 10])
def test_least_squares_has_the_centres_as_its_optima(d: int) -> None:
    problem = load("least-squares", 5, dimension=d, samples=50)
    assert problem.clusters is not None
    assert problem.clusters.tolist() == [0, 1, 0, 1, 0]
    centre = np.random.default_rng([0, 0]).uniform(-10, 10, (2, d))
    for split in (problem.train, problem.test):
        for i in range(5):
            x, y = problem.inputs[split.rows[i]], split.targets[i]
            assert np.allclose(x @ centre[i % 2], y[:, 0], atol=1e-12)
            result = np.linalg.lstsq(x, y, rcond=None)[0][:, 0]
            assert np.allclose(result, centre[i % 2], atol=1e-10)
    assert (problem.test.rows[0] == problem.test.rows[2]).all()
    assert len(np.unique(np.concatenate(problem.train.rows))) == 5 * 50


def test_a_peers_observations_do_not_depend_on_how_many_peers_there_are() -> None:
    few, many = load("least-squares", 2), load("least-squares", 8)
    for i in range(2):
        assert (few.inputs[few.train.rows[i]] == many.inputs[many.train.rows[i]]).all()
        assert (few.train.targets[i] == many.train.targets[i]).all()


def test_sine_points_lie_on_successive_intervals() -> None:
    peers, noise = 8, 0.1
    problem = load("sine", peers, periods=2.0, noise=noise, samples=300)
    width = 2 * math.pi * 2 / peers
    for split in (problem.train, problem.test):
        for i in range(peers):
            x = problem.inputs[split.rows[i]][:, 0]
            assert ((x >= i * width) & (x < (i + 1) * width)).all()
            error = split.targets[i][:, 0] - np.sin(x)
            assert abs(error.mean()) < 5 * noise / math.sqrt(len(error))
            assert abs(error.var() - noise**2) < 5 * noise**2 * math.sqrt(2 / len(error))
    train = problem.inputs[np.concatenate(problem.train.rows)]
    assert problem.mean == pytest.approx(train.mean())
    assert problem.std == pytest.approx(train.std())


def test_more_clusters_than_peers_are_refused() -> None:
    flat: dict[str, Any] = {"dataset": "least-squares", "least-squares.clusters": 9}
    with pytest.raises(ConfigError, match="clusters = 9 must be at most peers = 8"):
        Config.from_flat(flat)


def test_regressions_are_learnt_by_linear_models() -> None:
    assert Config.from_flat({"dataset": "sine"}).network == "linear"
    assert Config.from_flat({"dataset": "sine", "model": "mlp"}).network == "mlp"
    assert Config.from_flat({"dataset": "noisy-quadratic", "peers": 11}).network == "auto"


def test_phantoms_are_heads_and_their_scanners_disagree() -> None:
    natural = Partition(kind="natural", samples_per_peer=0)
    problem = dataset_of("phantoms").load(natural, 3, 0, Path("data"), None)
    assert problem.train.sizes.tolist() == [40, 23, 10]
    assert problem.test.sizes.tolist() == [10, 6, 2]
    brighter = []
    for rows, masks in zip(problem.train.rows, problem.train.targets, strict=True):
        volumes = problem.inputs[rows, 0]
        np.testing.assert_allclose(volumes.mean(axis=(1, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(volumes.std(axis=(1, 2, 3)), 1, atol=1e-5)
        brain = masks.astype(bool)
        grown = np.zeros_like(brain)
        for axis, step in itertools.product((1, 2, 3), (-1, 1)):
            grown |= np.roll(brain, step, axis)
        brighter.append(volumes[brain].mean() - volumes[grown & ~brain].mean())
        assert volumes[brain].mean() > volumes[~brain].mean()
    first, second, third = brighter
    assert first > third > second
    assert second < 0
