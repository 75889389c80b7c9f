"""Test a plain `flwr run`: relay and nodes agree on the directory, and nothing is overwritten."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.app.config.config import ConfigError
from coterie.app.runs import plain_flwr
from coterie.app.runs.rundir import Run
from tests.inprocess import simulate

TINY = {"peers": 4, "partition.clusters": 2, "num-server-rounds": 4, "evaluate-every": 2}

END = plain_flwr.end


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flower's processes work in one place, the user in another; no checkout writes the report."""
    place = tmp_path / "checkout"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    for module in ("coterie.app.server", "coterie.app.institution.process.job"):
        monkeypatch.setattr(f"{module}.workplace", lambda: place)
    monkeypatch.setattr(plain_flwr, "end", lambda run_dir: print(f"ended: {run_dir}"))
    return place


def test_it_is_introduced_told_and_lies_in_the_checkout(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate({**TINY, "method": "dpfl", "dpfl.init-epochs": 1, "name": "mine"}, nodes=2)
    printed = capsys.readouterr().out
    assert "dpfl on digits: 4 peers, label-permutation in 2 clusters, at most 60" in printed
    assert "; Flower's simulation" in printed
    assert "partition.validation = 0.2" in printed
    rounds = [line.split("  ")[0] for line in printed.splitlines() if line.startswith("round ")]
    assert rounds == ["round 0/4", "round 2/4", "round 4/4"]
    directory = workplace / "runs" / "mine"
    assert f"ended: {directory}" in printed
    run = Run.read(directory)
    assert run.rounds.tolist() == [0, 2, 4]
    assert run.split is not None
    assert len(list((directory / "models").glob("*.safetensors"))) == 4
    assert [path.name for path in workplace.parent.iterdir()] == ["checkout"]


def test_a_name_that_exists_is_refused(workplace: Path) -> None:
    simulate({**TINY, "method": "local", "name": "mine"}, nodes=1)
    metrics = workplace / "runs" / "mine" / "metrics.jsonl"
    before = metrics.read_bytes()
    with pytest.raises(ConfigError, match="holds a run already: choose another name"):
        simulate({**TINY, "method": "local", "name": "mine", "seed": 1}, nodes=1)
    assert metrics.read_bytes() == before


def test_what_cannot_run_is_refused_before_anything_is_written(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"set partition\.validation"):
        simulate({**TINY, "method": "dpfl", "partition.validation": 0.0}, nodes=1)
    with pytest.raises(ConfigError, match="track is for runs that `coterie` starts"):
        simulate({**TINY, "track": "tensorboard"}, nodes=1)
    assert not list(workplace.iterdir())


def test_without_the_package_its_end_says_how_to_get_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Flower installs the app's dependencies in an environment of the run, and not Coterie."""
    monkeypatch.setattr(sys, "executable", getattr(sys, "_base_executable"))  # noqa: B009
    END(tmp_path)
    assert f"`pip install coterie`; after it: coterie report {tmp_path}" in capsys.readouterr().out
