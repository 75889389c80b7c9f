"""`flwr run .` as the README has it, on a machine that never ran Flower."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.app.runs.plain_flwr import OPEN
from coterie.app.runs.rundir import Run
from tests.checkout import START_SUPERLINK, bare_environment, copy, end_processes, install

pytestmark = pytest.mark.e2e

TINY = "num-server-rounds=4 evaluate-every=2 peers=4 partition.clusters=2 local-steps=1"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a copy of the checkout with its own `.venv`, as after `make install`."""
    checkout = copy(tmp_path_factory.mktemp("machine") / "coterie")
    install(checkout)
    yield checkout
    end_processes(checkout.parent)


@pytest.fixture(scope="module")
def environment(checkout: Path) -> dict[str, str]:
    home = checkout.parent
    (home / "flwr").mkdir()
    federation = '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
    federation += '[superlink.four]\naddress = ":local:"\noptions.num-supernodes = 4\n'
    (home / "flwr" / "config.toml").write_text(federation)
    bare = bare_environment(home)
    (home / "elsewhere").mkdir()
    activated = f"source {checkout}/.venv/bin/activate && {START_SUPERLINK}"
    subprocess.run(["bash", "-c", activated], cwd=home / "elsewhere", env=bare, check=True)
    return bare


def flwr_run(
    place: Path, checkout: Path, environment: dict[str, str], app: str, *options: str, rc: int = 0
) -> str:
    """Run the README's block in a directory; what it prints."""
    words = " ".join(f"'{option}'" for option in options)
    activate = checkout / ".venv" / "bin" / "activate"
    done = subprocess.run(
        ["bash", "-c", f"source {activate} && flwr run {app} {words} --stream"],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == rc, done.stdout
    return done.stdout


def test_it_ends_with_the_table_and_a_finished_run_in_the_checkout(
    checkout: Path, environment: dict[str, str]
) -> None:
    """Flower's SuperLink was started elsewhere, and nothing is written there."""
    elsewhere = checkout.parent / "elsewhere"
    output = flwr_run(elsewhere, checkout, environment, str(checkout), "--run-config", TINY)
    assert not list(elsewhere.iterdir())
    assert "uv" not in output, "nothing is installed"
    assert output.index(OPEN) < output.index(" on digits: ")
    for t in (0, 2, 4):
        assert re.search(rf"round {t}/4  accuracy 0\.\d{{3}} ± 0\.\d{{3}}  .*B", output), output
    assert "training examples of each class" in output
    assert "Worst peer" in output
    match = re.search(r"run directory: (\S+)", output)
    assert match is not None, output
    run_dir = Path(match[1])
    assert run_dir.parent == checkout / "runs"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 4)
    assert f"{summary['mean_test_accuracy']:.1%}".replace("%", " %") in output.replace("\xa0", " ")
    assert (run_dir / "report.html").exists()
    assert len(list((run_dir / "models").glob("*.safetensors"))) == 4


@pytest.mark.long
def test_a_federation_of_the_user_s_and_a_method_that_needs_validation_data(
    checkout: Path, environment: dict[str, str]
) -> None:
    more = f'{TINY} method="dpfl" dpfl.init-epochs=1 name="mine"'
    output = flwr_run(checkout, checkout, environment, ".", "four", "--run-config", more)
    assert "partition.validation = 0.2" in output
    assert "4 simulated SuperNodes" in output
    assert "Worst peer" in output, output
    before = (checkout / "runs" / "mine" / "metrics.jsonl").read_bytes()
    assert Run.read(checkout / "runs" / "mine").rounds.tolist() == [0, 2, 4]
    again = flwr_run(checkout, checkout, environment, ".", "--run-config", more)
    assert "holds a run already: choose another name" in again
    assert (checkout / "runs" / "mine" / "metrics.jsonl").read_bytes() == before


@pytest.mark.long
def test_another_clone_s_code_is_refused(checkout: Path, environment: dict[str, str]) -> None:
    """Neither its environment nor a SuperLink that was started in it runs this clone."""
    clone = copy(checkout.parent / "second" / "coterie")
    runs = sorted(checkout.glob("runs/*"))
    output = flwr_run(clone, checkout, environment, ".", rc=1)
    assert f"in the environment of the clone {checkout}, not of {clone}:" in output
    install(clone)
    with (clone / "strategies" / "plans.py").open("a") as changed:
        changed.write("# changed\n")
    output = flwr_run(clone, clone, environment, ".", "--run-config", TINY)
    assert f"in the environment of the clone {checkout}, not of" in output
    assert sorted(checkout.glob("runs/*")) == runs
    assert not (clone / "runs").exists()
    command = [str(checkout / ".venv" / "bin" / "coterie"), "list", "schedules"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    assert f"note: this is the code of {checkout}, not of the clone" in done.stderr
