"""Test sparse collaboration matrices of many peers: only peers that were awake have rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie.app.node.cohort.cohort
import coterie.app.runs.recorder
import coterie.strategies.relay.vetting
from coterie.app.institution.security.disclosure import limited
from coterie.app.runs.recorder import RunRecorder
from coterie.strategies.protocol import Report
from coterie.strategies.relay.commit import Commit, Ledger
from tests.inline import run
from tests.problems import write_quadratic

N = 8


def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        coterie.app.node.cohort.cohort,
        coterie.app.runs.recorder,
        coterie.strategies.relay.vetting,
    ):
        monkeypatch.setattr(module, "MATRIX", 4)


@pytest.mark.parametrize("method", ["cobo", "fedavg"])
def test_the_entries_are_those_of_the_whole_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    g = np.random.default_rng(0)
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "problem.json", g.uniform(0.5, 1, (N, 3)), g.normal(size=(N, 3)), [0.0] * 3
    ) | {
        "method": method, "num-server-rounds": 4, "schedule.kind": "sample",
        "schedule.fraction": 0.5, "cobo.gamma": 0.3,
    }  # fmt: skip
    whole = run(flat, tmp_path / "whole")
    few_are_many(monkeypatch)
    for nodes in (1, 3):
        sparse = run(flat, tmp_path / f"of {nodes}", nodes)
        assert not sparse.refused
        awake = whole.config.strategy().schedule.awake
        for (t, peer), report in sparse.reports.items():
            assert report.metrics == whole.reports[t, peer].metrics
            assert bool(report.columns) == bool(awake(t)[peer] and t > 0)
            if report.columns:
                others = {*np.flatnonzero(awake(t)).tolist()}
                assert {peer} < {*report.columns} <= others | {peer}
                row = whole.reports[t, peer].weights
                assert report.weights == tuple(row[other] for other in report.columns)


def test_they_are_recorded_and_cut_like_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_are_many(monkeypatch)
    report = Report(2, 5, {"test_loss": 1.0}, (0.25, 0.75), (3, 5))
    for resume in (False, True):
        recorder = RunRecorder(tmp_path, N, 9, resume=resume)
        t = recorder.ledger.round + 1
        asleep = Report(t, 0, {"test_loss": 1.0}, ())
        recorder.round(Commit(Ledger(t), (report, asleep)))
        recorder.finish()
    with np.load(tmp_path / "collaboration.npz") as archive:
        arrays = {name: archive[name].tolist() for name in archive.files}
    assert arrays == {
        "rounds": 4 * [2], "peers": 4 * [5], "others": 2 * [3, 5], "weights": 2 * [0.25, 0.75],
    }  # fmt: skip


def test_what_is_not_disclosed_is_about_the_peer_alone() -> None:
    report = limited(Report(2, 5, {"test_loss": 1.0}, (0.25, 0.75), (3, 5)), "none")
    assert report.weight_by_peer == {5: 1.0}


@pytest.mark.parametrize("columns", [(5, 3), (3, 3), (3, N), (-1, 3), (3,)])
def test_a_row_about_others_than_peers_is_refused(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[int, ...]
) -> None:
    few_are_many(monkeypatch)
    assert not coterie.strategies.relay.vetting.is_row((0.5, 0.5), columns, N)
    assert coterie.strategies.relay.vetting.is_row((0.5, 0.5), (3, 5), N)
