"""Test the output of `coterie status` on the relay's machine and on a node's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from coterie.app.config.config import ConfigError
from coterie.app.dashboard.library import Library
from coterie.app.institution.commands import status
from coterie.app.runs import progress
from coterie.app.runs.header import Display
from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import held
from coterie.strategies.relay.commit import Commit, Ledger
from tests.app.fake_run import Story, write_progress, write_run
from tests.output import Terminal


def printed(what: Path | None) -> str:
    console = Terminal(120)
    status.show(console, status.read(None if what is None else str(what)))
    return console.text


def commit(
    recorder: RunRecorder,
    t: int,
    present: set[int],
    fault: str = "",
    refused: str = "",
    names: Mapping[int, str] | None = None,
) -> None:
    faults, refusals = (tuple(filter(None, [line])) for line in (fault, refused))
    ledger = Ledger(t, 2 * t, 1000 * t)
    recorder.round(Commit(ledger, (), refusals, frozenset(present), faults, names or {}))


def test_a_missing_peer_stands_first_with_its_last_round_and_why(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path / "run", peers=3, rounds=9)
    commit(recorder, 0, {0, 1, 2}, names={1: "hospital-b"})
    commit(recorder, 1, {0, 1, 2}, refused="a letter of peer 2")
    commit(recorder, 2, {0, 2}, fault="round 2, update: peers 1: no reply within 5 s")
    commit(recorder, 3, {0, 2})
    text = printed(tmp_path / "run")
    assert "round 3 of 9, running" in text
    rows = [line for line in text.splitlines() if " ago" in line and "last update" not in line]
    assert [" ".join(row.split()) for row in rows] == [
        "hospital-b 1 0 s ago missing",
        "peer 0 3 0 s ago",
        "peer 2 3 0 s ago",
    ]
    assert "peers taking part: 2, missing: 1" in text
    assert "no reply within 5 s" in text
    assert "1 letter refused" in text
    assert "a letter of peer 2" in text


def test_who_has_to_approve_is_said_with_the_minutes_left(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path / "run", peers=3, rounds=9)
    recorder.waiting(["hospital-a", "hospital-b"], ["peer 2"], 500)
    line = (
        "waiting for approval: hospital-a, hospital-b; waiting for the nodes of: peer 2; 9 min left"
    )
    assert line in printed(tmp_path / "run")
    console = Terminal(200, force_terminal=True)
    with Display(console, 9) as display:
        display.show(progress.read(tmp_path / "run"))
    assert line in console.text
    commit(recorder, 0, {0, 1, 2})
    assert "waiting" not in printed(tmp_path / "run")


def test_the_supernode_of_each_peer_is_named(tmp_path: Path) -> None:
    """For `flwr supernode unregister`; Flower lists IDs alone. In one process there is one node."""
    recorder = RunRecorder(tmp_path / "run", 2, 9)
    ids = {0: 2**63 + 1, 1: 2**62 + 3}
    recorder.round(Commit(Ledger(1), present=frozenset({0, 1}), nodes=ids))
    recorder.round(Commit(Ledger(2), present=frozenset({0})))  # the node of peer 1 is gone
    text = printed(tmp_path / "run")
    rows = [line.split() for line in text.splitlines() if " ago" in line and "update" not in line]
    assert [row[:2] + row[-1:] for row in rows if "missing" not in row] == [
        ["peer", "0", str(ids[0])]
    ]
    assert [row[-2] for row in rows if "missing" in row] == [str(ids[1])]
    alone = RunRecorder(tmp_path / "alone", 2, 9)
    alone.round(Commit(Ledger(1), present=frozenset({0, 1}), nodes={0: 0, 1: 0}))
    assert "SuperNode" not in printed(tmp_path / "alone")


def test_a_restarted_relay_still_knows_who_was_missing(tmp_path: Path) -> None:
    commit(RunRecorder(tmp_path / "run", 2, 9), 4, {0, 1}, names={1: "hospital-b"})
    again = RunRecorder(tmp_path / "run", 2, 9, resume=True)
    commit(again, 5, {0})
    assert "peers taking part: 1, missing: 1" in printed(tmp_path / "run")
    assert "hospital-b" in printed(tmp_path / "run")


def test_who_was_not_always_there_has_its_rounds_counted(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path / "run", 2, 9)
    recorder.round(Commit(Ledger(4, awake=(4, 4)), present=frozenset({0, 1})))
    assert "took part" not in printed(tmp_path / "run")
    assert "took_part" not in recorder.progress
    recorder.round(Commit(Ledger(6, awake=(6, 5)), present=frozenset({0, 1})))
    rows = [line.split() for line in printed(tmp_path / "run").splitlines() if " of 6" in line]
    assert [row[-3:] for row in rows] == [["6", "of", "6"], ["5", "of", "6"]]


def test_why_a_run_failed_is_said(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path / "run", 2, 9)
    recorder.fail("round 4, update: nobody is left")
    assert "failed" in printed(tmp_path / "run")
    assert "nobody is left" in printed(tmp_path / "run")


def test_a_run_whose_process_is_gone_is_stopped_as_in_the_dashboard(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write_run(run_dir, Story(rounds=1))
    write_progress(run_dir, status="running", round=1, rounds=9)
    assert "running, last update 0 s ago" in printed(run_dir)
    for path in run_dir.rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)
    with held(run_dir):
        assert "running, last update 60 min ago" in printed(run_dir)
    assert "stopped, last update 60 min ago" in printed(run_dir)
    entry = Library(tmp_path).scan().entry("run")
    assert entry is not None
    assert entry.state.status == "stopped"


def test_without_a_name_the_newest_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for when, name in enumerate(("older", "newer", "oldest")):
        RunRecorder(tmp_path / "runs" / name, 2, 9)
        at = 1000 + (when + 1) % 3
        os.utime(tmp_path / "runs" / name / "progress.json", (at, at))
    assert printed(None).startswith("newer")


def test_a_finished_simulation_has_no_states_to_show(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path, 2, 9)
    folder = tmp_path / "nodes" / "peers-0000-0001-0a1b2c3d"
    folder.mkdir(parents=True)
    (folder / "00000009-0.state").touch()
    assert "peers of this node" in printed(tmp_path)
    recorder.finish()
    assert "peers of this node" not in printed(tmp_path)


def test_a_node_shows_its_state_and_its_last_letters(tmp_path: Path) -> None:
    home = tmp_path / "nodes" / "peer-0001"
    home.mkdir(parents=True)
    for t in (6, 7):
        (home / f"{t:08d}-0.state").touch()
    letter = {
        "direction": "received", "kind": "offer", "round": 7, "from": "0 hospital-a",
        "to": ["1 hospital-b"],
    }  # fmt: skip
    with (tmp_path / "audit-0001.jsonl").open("w") as file:
        for k, verdict in enumerate(["accepted"] * 400 + ["refused: it is a replay"]):
            file.write(json.dumps(letter | {"time": f"2026-01-01T{k:05d}", "verdict": verdict}))
            file.write("\n")
    text = printed(tmp_path)
    assert next(line.split()[:3] for line in text.splitlines() if "ago" in line) == [
        *("peer", "1", "7")
    ]
    assert text.count("accepted") == 4
    assert text.count("it is a replay") == 2


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run of a relay or of a node"):
        status.read(str(tmp_path))
