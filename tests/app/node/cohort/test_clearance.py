"""Clearance of a cohort: laws of the measurement on real models, and off is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.node.cohort import clearance
from coterie.app.node.cohort.mail import offers_of
from coterie.clients.letters import Letters
from coterie.datasets.problem import Split
from tests.inline import run
from tests.kit import digits
from tests.stepping import Stepping

SMALL: dict[str, Any] = {
    "partition.kind": "iid", "partition.samples-per-peer": 60, "partition.validation": 0.2,
    "peers": 3, "num-server-rounds": 4, "evaluate-every": 2, "local-steps": 5, "seed": 1,
}  # fmt: skip
RISKS = ("letter_auc", "letter_tpr", "letter_fewest", "letter_readable")


def offers(stepping: Stepping, x_pd: torch.Tensor) -> Letters:
    peers = stepping.cohort.peers
    return offers_of(peers, {"x": x_pd}, np.ones(len(peers), dtype=np.int64))


def test_a_model_that_saw_nobody_tells_of_nobody() -> None:
    """Members and held-out digits are exchangeable for a start model: 95 % of the intervals."""
    stepping = Stepping(digits("local", **SMALL | {"peers": 25}))
    engine, state = stepping.cohort.engine, stepping.state
    covers, total = 0, 0
    for seed in range(8):
        x_pd = torch.randn(state.x.shape, generator=torch.Generator().manual_seed(seed))
        for measured in clearance.of_offers(engine, state, offers(stepping, x_pd / 3)).values():
            for attack in ("threshold", "ratio"):
                low, high = measured[attack]["auc"][1:]
                covers, total = covers + (low <= 0.5 <= high), total + 1
    # Peers share examples, and so do seeds: their number counts as a quarter.
    assert covers / total >= binom.ppf(1e-3, total // 4, 0.95) / (total // 4)


def test_a_model_that_memorised_is_near_one() -> None:
    """Labels of digits are drawn: a network can only remember them."""
    keys = {"local-steps": 1500, "num-server-rounds": 1, "model": "mlp", "learning-rate": 0.05}
    flat = digits("local", **SMALL | keys)
    made = problem_of(Config.from_flat(flat))
    labels = np.random.default_rng(0).integers(0, 10, len(made.inputs))
    parts: dict[str, Any] = {
        name: Split(part.rows, tuple(labels[rows] for rows in part.rows))
        for name, part in vars(made).items()
        if isinstance(part, Split)
    }
    stepping = Stepping(flat, problem=replace(made, **parts))
    stepping.to(1)
    engine, state = stepping.cohort.engine, stepping.state
    for measured in clearance.of_offers(engine, state, offers(stepping, state.x)).values():
        assert measured["ratio"]["auc"][0] > 0.9
        assert "behind" not in measured


@pytest.mark.parametrize("method", ["fedavg", "wga", "fedrep"])
def test_measuring_changes_no_number_and_does_not_depend_on_nodes(
    tmp_path: Path, method: str
) -> None:
    off = run(digits(method, **SMALL), tmp_path / "off")
    on = run(digits(method, **SMALL | {"clearance": True}), tmp_path / "on")
    nodes = run(digits(method, **SMALL | {"clearance": True}), tmp_path / "nodes", 3)
    for key, report in on.reports.items():
        metrics = dict(report.metrics)
        risks = {name: metrics.pop(name) for name in RISKS}
        assert metrics == off.reports[key].metrics
        assert (risks["letter_auc"] is None) == (key[0] == 0)
        assert risks == {name: nodes.reports[key].metrics[name] for name in RISKS}
    assert not any(name in off.reports[2, 0].metrics for name in RISKS)


def test_a_resumed_run_measures_the_same(tmp_path: Path) -> None:
    flat = digits("fedavg", **SMALL | {"clearance": True})
    whole = run(flat, tmp_path / "whole")
    part = run(flat, tmp_path / "part", until=3)
    rest = run(flat, tmp_path / "part", after=part)
    assert rest.reports[4, 1].metrics == whole.reports[4, 1].metrics


def test_an_answer_of_one_row_can_be_read() -> None:
    """The gradient of a minibatch of one has the row; of all examples it has none."""
    for batch_size, readable in ((1, 1), (40, 0)):
        keys = SMALL | {"batch-size": batch_size, "local-steps": 1, "peers": 2}
        stepping = Stepping(digits("wga", **keys))
        cohort = stepping.cohort
        stepping.to(1)
        sent = cohort.sent
        measured = clearance.of_answers(cohort.engine, stepping.state, sent, cohort.received)
        assert {each["readable"] for each in measured.values()} == {readable}
        assert len(measured) == 2


def test_an_answer_is_a_direction_in_which_members_lose() -> None:
    """A gradient over few patients, at a model that fits nobody, tells who they are."""
    keys = SMALL | {
        "partition.samples-per-peer": 12,
        "peers": 2,
        "local-steps": 1,
        "batch-size": 12,
    }
    stepping = Stepping(digits("wga", **keys))
    cohort = stepping.cohort
    engine, state = cohort.engine, stepping.state
    g_pd = engine.gradients(state.x, state.buffers, engine.data.everything()).values
    ends = np.array([0, 1]), np.array([1, 0])
    rows = np.arange(2)
    received = Letters(*ends, rows, rows, {"x": state.x})
    sent = Letters(ends[1], ends[0], rows, ends[1], {"g": g_pd[ends[1]]}, kind="answer")
    for each in clearance.of_answers(engine, state, sent, received).values():
        assert each["ratio"]["auc"][0] > 0.6
