"""Measures of weights, mixtures and trials, each on a run whose value is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coterie.app.experiments.measures import SameTrial
from coterie.app.experiments.table import Cell, Table, Trial
from coterie.app.lab.reproduction.measures import MEASURES, _smallest_cluster, components
from coterie.app.runs.rundir import Run
from coterie.app.runs.settings import RunSettings
from tests.app.lab.reproduction.test_results import number


def made_up(**fields: Any) -> Run:
    """Make an object with some fields of a run."""
    metrics = fields.pop("metrics", {})
    if "at" in fields:
        fields["last"] = lambda name="test_accuracy": fields["at"](name, None)
    fields |= {
        "settings": RunSettings.of({"method": "cobo"}),
        "metrics": metrics,
        "metric": metrics.__getitem__,
    }
    return cast(Run, SimpleNamespace(**fields))


def test_measures_of_weights() -> None:
    """Three peers, two clusters; round 0 is not counted.

    Largest weights: 1, 1, 1 in round 1 and 0.5, 0.75, 1 in round 2. Half the sum of the changes:
    0.5, 0.25, 0. Weight that leaves the cluster in the end: 0.5, 0.25, 0.
    """
    eye = np.eye(3)
    final = np.array([[0.5, 0.0, 0.5], [0.0, 0.75, 0.25], [0.0, 0.0, 1.0]])
    run = made_up(
        weight_rounds=np.array([0, 1, 2]),
        weights=np.stack([np.full((3, 3), 1 / 3), eye, final]),
        clusters=np.array([0, 0, 1]),
    )
    assert number("largest_weight", run) == pytest.approx((3 + 2.25) / 6)
    assert number("weight_change", run) == pytest.approx(0.25)
    assert number("outside_weight", run) == pytest.approx(0.25)
    assert number("outside_weight", made_up(clusters=None)) is np.nan


def test_measures_of_clusters() -> None:
    """Means 0.6, 0.9 and 0.7; the cluster 5 has one peer, the others two."""
    accuracy = np.array([0.5, 0.7, 0.9, 0.6, 0.8])
    run = made_up(
        clusters=np.array([2, 2, 5, 0, 0]), peers=5,
        last_row=lambda: np.zeros(5, dtype=int), at=lambda name, row: accuracy,
    )  # fmt: skip
    assert number("cluster_gap", run) == pytest.approx(0.3)
    small = _smallest_cluster(run, SameTrial())
    assert small[2] == 0.9
    assert np.isnan(small[[0, 1, 3, 4]]).all()
    place, trial = Cell("row"), Trial(0, 0)
    assert Table({place: {trial: run}}).number(place, trial, MEASURES["smallest_cluster"]) == 0.9
    unknown = made_up(clusters=None, peers=5)
    assert np.isnan(_smallest_cluster(unknown, SameTrial())).all()
    assert number("cluster_gap", unknown) is np.nan


def test_components_that_lead_somewhere_are_used() -> None:
    """Component 1 is the second largest of every peer, so two of three are used."""
    pi_kn = np.array([[0.6, 0.5, 0.1], [0.4, 0.4, 0.3], [0.0, 0.1, 0.6]])
    metrics = {f"component_{k}": pi_n[None] for k, pi_n in enumerate(pi_kn)}
    run = made_up(metrics=metrics, rounds=np.array([1]), peers=3)
    assert components(run).tolist() == [pi_kn.tolist()]
    assert number("components_used", run) == 2
    assert number("components_used", made_up(rounds=np.array([1]), peers=3)) is np.nan


def test_the_seeds_of_a_division_are_averaged(tmp_path: Path) -> None:
    """Loss per peer s + 10 d for seed s and division d: means 0.5 + 10 d by division."""

    def run_of(split: int, seed: int) -> Run:
        loss = np.array([seed + 10.0 * split] * 2)
        return made_up(
            metrics={"test_loss": loss[None]}, rounds=np.array([0]), peers=2,
            last_row=lambda: np.zeros(2, dtype=int), at=lambda name, row: loss,
        )  # fmt: skip

    place = Cell("row")
    of = {Trial(d, s): run_of(d, s) for s in range(2) for d in range(3)}
    result = Table({place: of}).repeats(place, MEASURES["loss"])
    assert {split: value.tolist() for split, value in result.items()} == {
        0: [0.5, 0.5], 1: [10.5, 10.5], 2: [20.5, 20.5],
    }  # fmt: skip


def test_rounds_until_a_loss_is_reached() -> None:
    loss = np.array([[1.0], [1e-3], [9e-5], [2e-4]])
    reached = made_up(metrics={"test_loss": loss}, rounds=np.array([0, 5, 10, 15]))
    assert number("rounds_to_1e-4", reached) == 10
    never = made_up(metrics={"test_loss": loss[:2]}, rounds=np.array([0, 5]))
    assert number("rounds_to_1e-4", never) == np.inf
    assert number("rise", reached) == 1.0


def test_train_measures_weigh_peers_by_their_examples() -> None:
    """Peers with 1 and 3 examples: train (1 * 1 + 3 * 0.6) / 4, test (0.5 + 3 * 0.5) / 4."""
    values = {"train_accuracy": [1.0, 0.6], "test_accuracy": [0.5, 0.5], "train_loss": [0.1, 0.1]}
    run = made_up(
        samples=np.array([1.0, 3.0]), peers=2, last_row=lambda: None,
        at=lambda name, row: np.array(values[name]),
    )  # fmt: skip
    assert number("weighted_train", run) == pytest.approx(0.7)
    assert number("train_gap", run) == pytest.approx(0.2)
    assert number("log_train_loss", run) == pytest.approx(-1.0)
