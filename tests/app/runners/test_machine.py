"""Energy counters of processors, in the files of Linux, and joules of runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from coterie.app.config.config import Config
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners import machine, sweep
from coterie.app.runners.machine import Meter, description
from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import Run
from coterie.strategies.relay.commit import Commit

RANGE = 262_143_328_850
"""Range of the counters of many Intel processors, in microjoules."""


def domain(powercap: Path, number: str, name: str, energy: int) -> Path:
    """Write a domain as Linux shows it; a lower number is a part of a package."""
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    return folder / "energy_uj"


def test_packages_add_up_and_their_parts_and_the_platform_do_not_count(tmp_path: Path) -> None:
    """A package contains its cores; "psys" contains the packages."""
    first, second = (domain(tmp_path, str(k), f"package-{k}", 1_000_000) for k in (0, 1))
    others = [
        domain(tmp_path, number, name, 0)
        for number, name in (("0:0", "core"), ("0:1", "dram"), ("2", "psys"))
    ]
    meter = Meter(tmp_path)
    assert meter.joules() == 0.0
    first.write_text("3500000\n")
    second.write_text("1250000\n")
    for other in others:
        other.write_text("9000000\n")
    assert meter.joules() == 2.5 + 0.25
    first.write_text("3500001\n")
    assert meter.joules() == 2.5 + 0.25 + 1e-6


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    """5 J before its end, then at 2 J: 7 J; again after readings in between."""
    counter = domain(tmp_path, "0", "package-0", RANGE - 5_000_000)
    meter = Meter(tmp_path)
    counter.write_text("2000000\n")
    assert meter.joules() == 7.0
    for energy in (RANGE - 1_000_000, 1_000_000):
        counter.write_text(f"{energy}\n")
        joules = meter.joules()
    assert joules == pytest.approx(RANGE / 1e6 + 6.0, rel=1e-12)


def test_a_counter_that_starts_again_twice_in_a_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for joules in between: a thread reads the counter."""
    monkeypatch.setattr(machine, "_PAUSE", 0.001)
    counter = domain(tmp_path, "0", "package-0", 0)
    with Meter(tmp_path) as meter:
        for energy in (RANGE // 2, 0, RANGE // 2, 0):
            counter.with_name("next").write_text(f"{energy}\n")
            counter.with_name("next").replace(counter)
            while meter._last != [energy]:
                assert "energy" in {thread.name for thread in threading.enumerate()}
    assert meter.joules() == pytest.approx(2 * RANGE / 1e6)


def test_without_counters_there_are_no_joules(tmp_path: Path) -> None:
    assert Meter(tmp_path / "absent").joules() is None
    domain(tmp_path, "2", "psys", 0)
    assert Meter(tmp_path).joules() is None


def test_a_counter_that_cannot_be_read_is_no_zero(tmp_path: Path) -> None:
    """Neither from the start, as for users without permission, nor later, nor ever again.

    Root can read a file without permissions, so the counter is a directory.
    """
    domain(tmp_path, "0", "package-0", 0)
    closed = domain(tmp_path, "1", "package-1", 0)
    meter = Meter(tmp_path)
    closed.unlink()
    closed.mkdir()
    assert meter.joules() is None
    assert Meter(tmp_path).joules() is None
    closed.rmdir()
    closed.write_text("5\n")
    assert meter.joules() is None


def test_a_machine_has_a_processor_and_cores() -> None:
    assert " core" in description()
    assert description("NVIDIA H200").endswith(", NVIDIA H200")


TINY: dict[str, Any] = {
    "method": "fedavg", "peers": 2, "num-server-rounds": 4, "evaluate-every": 2, "device": "cpu",
    "partition.clusters": 2,
}  # fmt: skip


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the counters of a machine with one package, to which every commit adds a joule."""
    counter = domain(tmp_path / "powercap", "0", "package-0", RANGE - 1_500_000)
    commit = RunRecorder.round

    def add(recorder: RunRecorder, committed: Commit) -> None:
        counter.write_text(f"{(int(counter.read_text()) + 1_000_000) % RANGE}\n")
        commit(recorder, committed)

    monkeypatch.setattr(RunRecorder, "round", add)
    monkeypatch.setattr(machine, "POWERCAP", tmp_path / "powercap")
    return tmp_path / "powercap"


def executed(directory: Path, *, is_alone: bool) -> Run:
    """Run, or continue, the same configuration in a directory."""
    config = with_run_dir(Config.from_flat(TINY), directory)
    error = sweep.run_one(config, is_alone=is_alone)
    assert error is None
    return Run.read(config.run_dir)


def stopped(directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_alone: bool) -> None:
    """Interrupt the run after the commit of round 2."""
    commit = RunRecorder.round

    def interrupt(recorder: RunRecorder, committed: Commit) -> None:
        commit(recorder, committed)
        if committed.ledger.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "round", interrupt)
        with pytest.raises(KeyboardInterrupt):
            executed(directory, is_alone=is_alone)


def metrics(run: Run) -> bytes:
    return (run.directory / "metrics.jsonl").read_bytes()


@pytest.mark.usefixtures("powercap")
def test_a_run_has_joules_only_if_it_was_alone(tmp_path: Path) -> None:
    """Rounds 0 and 2 and 4 are committed: three joules. No metric has them."""
    alone = executed(tmp_path / "alone", is_alone=True)
    beside = executed(tmp_path / "beside", is_alone=False)
    assert alone.progress["joules"] == 3.0
    assert json.loads((alone.directory / "summary.json").read_text())["joules"] == 3.0
    assert "joules" not in beside.progress
    assert "joules" not in (beside.directory / "summary.json").read_text()
    assert alone.progress["machine"] == beside.progress["machine"] == description()
    assert metrics(alone) == metrics(beside)
    assert b"joules" not in metrics(alone)


@pytest.mark.usefixtures("powercap")
@pytest.mark.parametrize(("first", "then", "joules"), [(1, 1, 3.0), (1, 0, None), (0, 1, None)])
def test_a_continued_run_has_the_joules_of_all_its_rounds_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, then: bool, joules: float | None
) -> None:
    stopped(tmp_path / "run", monkeypatch, is_alone=bool(first))
    assert executed(tmp_path / "run", is_alone=bool(then)).progress.get("joules") == joules
