"""A run that was stopped, of which something is damaged or missing when it is resumed."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.runners import inline
from coterie.app.runners.finish import finish
from coterie.app.runs.files import ResultsError
from coterie.strategies.errors import RelayError
from tests.problems import write_quadratic

PEERS = 3


class PowerCutError(BaseException):
    """The end of the process."""


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    g, place = np.random.default_rng(0), tmp_path_factory.mktemp("problem")
    problem = write_quadratic(
        place / "problem.json", g.uniform(0.5, 1, (PEERS, 4)), g.normal(size=(PEERS, 4)), [0.0] * 4
    )
    return problem | {"method": "cobo", "num-server-rounds": 8, "evaluate-every": 2}


@pytest.fixture(scope="module")
def stopped(flat: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run whose power was cut after round 4."""
    return begun(flat, tmp_path_factory.mktemp("runs") / "run")


def begun(flat: dict[str, Any], directory: Path, end: int = 5) -> Path:
    def cut(now: Mapping[str, Any]) -> None:
        if now["round"] == end:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        inline.run(config(flat, directory), cut)
    return directory


def config(flat: dict[str, Any], directory: Path, **changes: Any) -> Config:
    return Config.from_flat(flat | {"run-dir": str(directory)} | changes)


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def resumed(flat: dict[str, Any], run: Path) -> Path:
    """Go on with a run; it sums itself up."""
    (run / "config.toml").write_text(config(flat, run).toml())
    inline.run(config(flat, run, resume=True))
    finish(run, Console(file=io.StringIO(), width=200))
    return run


def breaks(run: Path) -> list[str]:
    summary: list[str] = json.loads((run / "summary.json").read_text())["breaks"]
    return summary


def newest_state(run: Path) -> Path:
    """The file with the newest state of the run's one node."""
    return max((run / "nodes").glob("peers-*/*.state"))


def flipped(path: Path) -> None:
    """Flip the highest bit of an exponent, or some other bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


DAMAGE = (flipped, cut, emptied, removed)


@pytest.mark.slow
def test_what_is_whole_goes_on_as_if_nothing_had_happened(
    flat: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    whole = config(flat, tmp_path / "whole")
    inline.run(whole)
    resumed(flat, run)
    assert breaks(run) == []
    expected = Path(whole.run_dir, "metrics.jsonl").read_bytes()
    assert (run / "metrics.jsonl").read_bytes() == expected


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["metrics.jsonl", "relay/weights.f64", "relay/checkpoint.json"])
def test_the_relay_refuses_what_is_not_what_it_wrote(
    flat: dict[str, Any], run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(run / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ResultsError, match=rf"{name}: .*put a copy back"):
        resumed(flat, run)
    before.pop(run / "config.toml", None)
    assert {path: path.read_bytes() for path in before} == before, "nothing is written over"


@pytest.mark.parametrize("damage", DAMAGE[:3])
def test_a_node_refuses_what_is_not_what_it_wrote(
    flat: dict[str, Any], run: Path, damage: Callable[[Path], None]
) -> None:
    newest = newest_state(run)
    damage(newest)
    with pytest.raises(RelayError, match=rf"{newest}: damaged.*to continue from an older"):
        resumed(flat, run)
    assert newest.exists()


def test_a_state_of_other_peers_or_another_version_is_refused(
    flat: dict[str, Any], run: Path
) -> None:
    newest = newest_state(run)
    newest.rename(newest.with_name(newest.name.replace("4", "3")))
    with pytest.raises(RelayError, match=r"damaged, or of another run"):
        resumed(flat, run)


def test_the_state_of_another_run_is_refused(
    flat: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    other = begun(flat | {"seed": 1}, tmp_path / "other")
    shutil.rmtree(run / "nodes")
    shutil.copytree(other / "nodes", run / "nodes")
    with pytest.raises(RelayError, match=r"damaged, or of another run"):
        resumed(flat, run)


def test_a_checkpoint_of_another_configuration_is_refused(flat: dict[str, Any], run: Path) -> None:
    with pytest.raises(ResultsError, match=r"checkpoint.json: damaged, or of a run with another"):
        resumed(flat | {"seed": 1}, run)


@pytest.mark.slow
def test_a_run_whose_states_are_gone_says_that_it_is_no_continuation(
    flat: dict[str, Any], run: Path
) -> None:
    shutil.rmtree(run / "nodes")
    resumed(flat, run)
    assert breaks(run) == [
        "round 4: peers 0, 1, 2 restarted from the initial state; later progress, up to round 4, "
        "is lost"
    ]
    assert "was not continued exactly" in (run / "report.html").read_text()


def test_a_run_that_had_not_trained_has_lost_nothing(flat: dict[str, Any], tmp_path: Path) -> None:
    run = begun(flat, tmp_path / "run", end=1)
    shutil.rmtree(run / "nodes")
    assert breaks(resumed(flat, run)) == []


def test_foreign_files_are_left_alone(flat: dict[str, Any], run: Path) -> None:
    foreign = [newest_state(run).with_name(name) for name in ("a.safetensors", "b.state")]
    for path in foreign:
        path.write_bytes(b"mine")
    assert breaks(resumed(flat, run)) == []
    assert all(path.read_bytes() == b"mine" for path in foreign)
