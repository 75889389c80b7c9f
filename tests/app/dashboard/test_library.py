"""Library: runs and comparisons of a directory, and their states."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from coterie.app.dashboard.library import Library
from coterie.app.runs import plan
from coterie.app.runs.rundir import held
from tests.app.dashboard.running import Running, running
from tests.app.fake_run import Story, write_config, write_progress, write_run


def long_ago(run_dir: Path, seconds: float = 3600.0) -> None:
    """Make all files of the run this old."""
    for path in run_dir.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def state(run_dir: Path) -> str:
    entry = Library(run_dir.parent).scan().entry(run_dir.name)
    assert entry is not None
    return entry.state.status


def test_a_run_goes_on_while_its_launcher_holds_it_and_is_stopped_when_that_is_gone(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "mine") as run:
        run.reach(10)
        long_ago(run.directory)
        assert state(run.directory) == "running", "a round may take an hour"
    assert state(run.directory) == "stopped", "killed: it could not say so itself"
    run.reach(20)
    assert state(run.directory) == "running", "it has just written, wherever its launcher is"


def test_looking_never_takes_the_lock(tmp_path: Path) -> None:
    """Otherwise a run that starts at that moment would be refused."""
    run = Running(tmp_path / "mine")
    long_ago(run.directory)
    library = Library(tmp_path)
    for _ in range(20):
        with held(run.directory):
            library.scan()
    with running(tmp_path / "mine"):
        pass


def test_the_relay_of_a_deployment_has_two_deadlines_to_speak(tmp_path: Path) -> None:
    run = Running(tmp_path / "mine")
    write_config(run.directory, {"peers": 4, "round-seconds": 100.0})
    (run.directory / "split.json").unlink()
    long_ago(run.directory, 190)
    assert state(run.directory) == "running"
    long_ago(run.directory, 230)
    assert state(run.directory) == "stopped"


@pytest.mark.parametrize(
    ("status", "error", "expected", "why"),
    [
        ("finished", None, "finished", ""),
        ("failed", "node 2 < node 3", "failed", "node 2 < node 3"),
        ("stopped", None, "stopped", ""),
        ("diverged", "every peer diverged", "diverged", "every peer diverged"),
        ("running", None, "stopped", ""),
        ("odd", None, "damaged", "progress.json: status: "),
    ],
)
def test_a_run_that_does_not_go_on(
    tmp_path: Path, status: str, error: str | None, expected: str, why: str
) -> None:
    write_run(tmp_path / "mine", Story(rounds=1))
    write_progress(tmp_path / "mine", status=status, error=error, round=3, rounds=9)
    long_ago(tmp_path / "mine")
    entry = Library(tmp_path).scan().runs["mine"]
    assert entry.state.status == expected
    assert why in entry.state.error
    assert bool(why) == bool(entry.state.error)


@pytest.mark.parametrize("name", ["config.toml", "progress.json"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[1, 2]", b"\xff\xfe", b'"text"', b"null", b"{}"),
        b'{"status": "finished", "round": 1, "bytes": "many"}',
        b'{"status": "running", "round": 1, "rounds": [], "seconds": 1.0}',
    ],
)
def test_a_damaged_run_costs_the_others_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    for each in ("mine", "other"):
        write_run(tmp_path / each, Story(rounds=1))
    (tmp_path / "mine" / name).write_bytes(content)
    runs = Library(tmp_path).scan().runs
    assert runs["other"].state.status == "finished"
    assert runs["mine"].state.status == "damaged"
    assert "\n" not in runs["mine"].state.error
    assert name in runs["mine"].state.error


def test_the_pace_and_what_remains(tmp_path: Path) -> None:
    for each, (done, seconds) in {"fast": (50, 10.0), "slow": (10, 600.0), "new": (0, 1.0)}.items():
        write_run(tmp_path / each, Story(rounds=1))
        write_progress(tmp_path / each, status="running", round=done, rounds=100, seconds=seconds)
    runs = Library(tmp_path).scan().runs
    paces = {name: entry.state.pace for name, entry in runs.items()}
    assert paces == {
        "fast": "5 rounds/s, 10.0 s left",
        "slow": "1 min 00 s per round, 1 h 30 min left",
        "new": "",
    }


def test_what_there_is(tmp_path: Path) -> None:
    assert Library(tmp_path / "none yet").scan().runs == {}
    for path in ("alone", "mine/deep", "compare/digits/local-0", "compare/digits/local-1"):
        write_run(tmp_path / path, Story(rounds=1))
    write_run(tmp_path / "compare/digits/tuning/local-9", Story(rounds=1))
    write_run(tmp_path / ".hidden", Story(rounds=1))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.toml").write_text("")
    plan.write(tmp_path / "compare/digits/tuning", ["local-9", "local-8"])
    library = Library(tmp_path)
    scan = library.scan()
    group = scan.groups["compare/digits"]
    assert scan.runs.keys() == {"alone", "mine/deep"}
    assert [entry.name for entry in group.runs] == ["local-0", "local-1"]
    assert [entry.name for entry in group.trials] == ["local-9"]
    assert (group.finished, group.total, group.pending) == (3, 4, 1)
    assert scan.entry("compare/digits/tuning/local-9") == group.trials[0]

    plan.write(tmp_path / "compare/digits", ["local-1", "cobo-1"])  # another comparison
    scan = Library(tmp_path).scan()
    assert [entry.name for entry in scan.groups["compare/digits"].runs] == ["local-1"]
    assert "compare/digits/local-0" in scan.runs, "it is not of this comparison"
    assert Library(tmp_path / "alone").scan().runs.keys() == {"."}, "a run itself"
    assert Library(tmp_path / "compare/digits").scan().groups.keys() == {"."}


def test_a_comparison_s_state_is_that_of_its_runs(tmp_path: Path) -> None:
    plan.write(tmp_path, ["local-0", "cobo-0"])
    first = Running(tmp_path / "local-0")

    def group_state() -> str:
        return Library(tmp_path).scan().groups["."].state

    assert group_state() == "running"
    first.recorder.finish()
    assert group_state() == "running", "the next begins in a moment"
    long_ago(first.directory)
    assert group_state() == "stopped"
    second = Running(tmp_path / "cobo-0")
    second.recorder.fail("out of memory")
    assert group_state() == "failed"
    second.recorder.finish()
    assert group_state() == "finished"
