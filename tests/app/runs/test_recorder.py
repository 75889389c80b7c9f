from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import Run
from coterie.strategies.protocol import Report
from coterie.strategies.relay.commit import Commit, Ledger


def report(t: int, peer: int, loss: float | None = 1.0, sent: int = 0) -> Report:
    weights = (1.0, t / 10) if peer == 0 else (peer / 4, 1.0)
    accuracy = None if loss is None else 1 / (1 + loss)
    return Report(
        t, peer, {"test_loss": loss, "test_accuracy": accuracy, "bytes_sent": sent}, weights
    )


def record(recorder: RunRecorder, t: int, *reports: Report, refused: int = 0) -> None:
    here = frozenset(r.peer for r in reports)
    ledger = Ledger(t, 10 * t + 4, 100 * t)
    recorder.round(Commit(ledger, reports, refused * ("bad letter",), here))


def make(directory: Path, resume: bool = False, durable: bool = False) -> RunRecorder:
    directory.mkdir(exist_ok=True)
    (directory / "config.toml").write_text('method = "cobo"\npeers = 2\n')
    return RunRecorder(directory, peers=2, rounds=9, resume=resume, durable=durable)


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    losses = [0.1 + 0.2, 1e-300, 123456789.123456789]
    for t, loss in enumerate(losses):
        record(recorder, t, report(t, 0, loss), report(t, 1, None))
    recorder.finish()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["test_loss"] for line in lines[::2]] == losses
    assert {line["test_loss"] for line in lines[1::2]} == {None}
    run = Run.read(tmp_path)
    assert run.weight_rounds.tolist() == [0, 1, 2]
    assert run.weights.tolist() == [[[1.0, t / 10], [0.25, 1.0]] for t in range(3)]


def test_a_row_has_its_own_round_peer_and_name_whatever_the_metrics_are_called(
    tmp_path: Path,
) -> None:
    recorder = make(tmp_path)
    forged = {"round": 7.0, "peer": 1.0, "peer_name": 3.0, "test_loss": 2.0}
    reports = (Report(0, 0, forged, (1.0, 0.0)), report(0, 1))
    recorder.round(Commit(Ledger(), reports, names={0: "hospital-a"}))
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first == {"round": 0, "peer": 0, "peer_name": "hospital-a", "test_loss": 2.0}
    assert list(second)[:3] == ["round", "peer", "peer_name"]
    assert second["peer_name"] == "peer 1"
    again = make(tmp_path, resume=True)
    record(again, 1, report(1, 0))
    assert Run.read(tmp_path).names == ("hospital-a", "peer 1")


def test_progress(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    record(recorder, 0, report(0, 0, 1.0, 5), report(0, 1, 3.0, 6))
    record(recorder, 1, refused=2)
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert progress.pop("seconds") >= 0
    assert {peer: t for peer, (t, _) in progress.pop("last_seen").items()} == {"0": 0, "1": 0}
    assert progress == {
        "round": 1,
        "rounds": 9,
        "status": "running",
        "error": None,
        "messages": 14,
        "bytes": 11,
        "relayed_bytes": 100,
        "sealing_bytes": 0,
        "refused": 2,
        "names": {},
        "refusals": ["bad letter", "bad letter"],
        "faults": [],
        "evaluated": 0,
        "mean_test_accuracy": 0.375,  # (1/2 + 1/4) / 2
        "std_test_accuracy": 0.125,
        "mean_test_loss": 2.0,
        "diverged": 0,
        "breaks": [],
        "backend": "",
    }
    recorder.fail("round 2, update: peers 1: gone")
    failed = json.loads((tmp_path / "progress.json").read_text())
    assert (failed["status"], failed["error"]) == ("failed", "round 2, update: peers 1: gone")


def test_progress_says_how_many_peers_the_last_evaluation_had(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    record(recorder, 0, report(0, 0, 1.0), report(0, 1, 3.0))
    assert "evaluated_peers" not in recorder.progress
    record(recorder, 1, report(1, 1, 5.0))
    assert (recorder.progress["evaluated"], recorder.progress["evaluated_peers"]) == (1, 1)
    assert recorder.progress["mean_test_loss"] == 3.0  # the last of each: (1 + 5) / 2


def test_a_peer_whose_loss_is_gone_has_diverged(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    record(recorder, 0, report(0, 0, 1.0), report(0, 1, None))  # peer 1 has no test data
    assert recorder.progress["diverged"] == 0
    record(recorder, 1, report(1, 0, None), report(1, 1, None))
    assert recorder.progress["diverged"] == 1
    again = make(tmp_path, resume=True)
    record(again, 2, report(2, 0, None), report(2, 1, None))
    assert again.progress["diverged"] == 1


def test_a_peer_that_did_not_report_heard_nobody(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    record(recorder, 3, report(3, 0))
    recorder.finish()
    run = Run.read(tmp_path)
    assert run.weights.tolist() == [[[1.0, 0.3], [0.0, 1.0]]]
    assert run.reported.tolist() == [[True, False]]
    assert math.isnan(run.metric("test_loss")[0, 1])


@pytest.mark.parametrize("ends", [RunRecorder.finish, RunRecorder.stop])
@pytest.mark.parametrize("durable", [False, True])  # a node of a deployment may be on this machine
def test_only_a_finished_simulation_loses_its_states(
    tmp_path: Path, ends: Callable[[RunRecorder], None], durable: bool
) -> None:
    recorder, nodes = make(tmp_path, durable=durable), tmp_path / "nodes"
    states = {nodes / name for name in ("peers-0000-0001-0a1b2c3d/00000009-0.state",
        "peer-0002/00000009-1-0256.state", "letters-0000.state", "copies-0000.state")}  # fmt: skip
    others = {nodes / "attempt", nodes / "peer-0002" / "mine.state"}
    for file in states | others:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    ends(recorder)
    kept = {path for path in nodes.rglob("*") if path.is_file()}
    assert kept == (states | others if durable or ends is RunRecorder.stop else others)


def test_resume_cuts_what_the_checkpoint_does_not_cover(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    for t in range(4):
        record(recorder, t, report(t, 0), report(t, 1), refused=1)
    checkpoint = tmp_path / "relay" / "checkpoint.json"
    committed = checkpoint.read_text()
    record(recorder, 4, report(4, 0), report(4, 1))
    checkpoint.write_text(committed)  # the relay died before it committed round 4 ...
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "pe')  # ... and in the middle of a line
    with (tmp_path / "relay" / "weights.f64").open("ab") as file:
        file.write(b"half a number")
    again = make(tmp_path, resume=True)
    assert again.ledger == Ledger(3, 34, 300)
    record(again, 4, report(4, 0, 7.0), report(4, 1, 7.0))
    again.finish()
    run = Run.read(tmp_path)
    assert run.rounds.tolist() == run.weight_rounds.tolist() == [0, 1, 2, 3, 4]
    assert run.metric("test_loss")[4].tolist() == [7.0, 7.0]
    assert json.loads((tmp_path / "progress.json").read_text())["refused"] == 4


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_run_that_committed_no_round_begins_again(
    resume: bool, checkpoint: bool, tmp_path: Path
) -> None:
    record(make(tmp_path), 0, report(0, 0), report(0, 1))
    if not checkpoint:
        (tmp_path / "relay" / "checkpoint.json").unlink()
    recorder = make(tmp_path, resume)
    assert recorder.ledger.round == 0
    record(recorder, 0, report(0, 0), report(0, 1))
    recorder.finish()
    assert Run.read(tmp_path).rounds.tolist() == [0]
    assert np.load(tmp_path / "collaboration.npz")["rounds"].tolist() == [0]
