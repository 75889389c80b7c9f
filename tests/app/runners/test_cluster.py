"""Ray: two real nodes as processes of this machine, for sweeps and for `flwr run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners import cluster, machine, sweep
from coterie.app.runners.cluster import Machine
from coterie.app.runs import plan, progress
from coterie.app.runs.rundir import Run
from coterie.clients.engine import execution, tuning
from coterie.clients.privacy import Privacy
from coterie.errors import RunError
from tests.app.runners.test_sweep import TINY
from tests.inprocess import ROOT, simulate
from tests.machines import machines, unequal_machines

PEERS, ROUNDS = 3, 2
SWEEP = """
import json, sys
from pathlib import Path
from rich.console import Console
from coterie.app.config.config import Config
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners.sweep import run_all
runs = [with_run_dir(Config.from_flat(flat), Path(sys.argv[1])) for flat in json.loads(sys.argv[2])]
failed = run_all(runs, None, Console(width=200))
print(json.dumps([str(failed.get(run.run_dir, "")) for run in runs]))
"""


@pytest.fixture(scope="module")
def two_machines() -> Iterator[dict[str, str]]:
    """Environment of a user of a Ray cluster of two nodes with one core each."""
    with machines(2) as environment:
        yield environment


@pytest.mark.e2e
@pytest.mark.long
def test_flwr_run_on_a_cluster(tmp_path: Path, two_machines: dict[str, str]) -> None:
    file = tmp_path / "problem.json"
    problem = {
        "curvature": [[1.0, 0.5], [0.8, 0.6], [1.2, 0.9]],
        "centre": [[0.0, 1.0], [0.1, 1.1], [5.0, -3.0]],
        "noise": [0.1, 0.1, 0.1],
        "start": [1.0, 1.0],
    }
    file.write_text(json.dumps(problem))
    config: dict[str, str | int] = {
        "dataset": "quadratic", "quadratic.file": str(file), "peers": PEERS,
        "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "cobo.sampling": "full",
    }  # fmt: skip
    simulate({**config, "run-dir": str(tmp_path / "expected")}, nodes=1)
    overrides = [f"{key}={value}" for key, value in config.items()]
    place = ["--out", str(tmp_path), "--name", "run", "--nodes", "2"]
    command = [sys.executable, "-m", "coterie", "run", *overrides, *place]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=two_machines
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run, expected = Run.read(tmp_path / "run"), Run.read(tmp_path / "expected")
    assert run.rounds.tolist() == expected.rounds.tolist() == [0, ROUNDS]
    for name, values in expected.metrics.items():
        np.testing.assert_allclose(run.metrics[name], values, rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(run.weights, expected.weights, rtol=1e-10)
    assert len(list((tmp_path / "run" / "models").glob("*.safetensors"))) == PEERS


def config(directory: Path, **keys: object) -> Config:
    flat = {key.replace("_", "-"): value for key, value in keys.items()}
    return with_run_dir(Config.from_flat({**TINY, **flat}), directory)


@pytest.mark.e2e
@pytest.mark.long
def test_runs_spread_over_a_cluster_and_one_that_dies_costs_the_others_nothing(
    tmp_path: Path, two_machines: dict[str, str]
) -> None:
    alone = config(tmp_path / "alone", seed=2)
    assert sweep.run_one(alone) is None
    there = tmp_path / "there"
    endless = [config(there, seed=seed, num_server_rounds=10**6) for seed in (0, 1)]
    short = config(there, seed=2)
    over = threading.Event()
    killer = threading.Thread(target=kill_when_all_run, args=(endless, over))
    killer.start()
    flat = json.dumps([each.flat() | {"run-dir": ""} for each in (*endless, short)])
    try:
        done = subprocess.run(
            [sys.executable, "-c", SWEEP, str(there), flat],
            cwd=ROOT, capture_output=True, text=True, timeout=300, env=two_machines,
        )  # fmt: skip
    finally:
        over.set()
        killer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    why = "its process died, perhaps out of memory"
    assert json.loads(done.stdout.splitlines()[-1]) == [why, why, ""]
    assert done.stdout.count(f"failed: {why}") == 2
    assert sweep.is_finished(short)
    metrics = [Path(each.run_dir, "metrics.jsonl").read_bytes() for each in (alone, short)]
    assert metrics[0] == metrics[1]


def kill_when_all_run(configs: list[Config], over: threading.Event) -> None:
    """Kill whoever works on some runs, once they run side by side: two nodes with a core each."""
    directories = {Path(each.run_dir) for each in configs}
    while not over.wait(0.2):
        if all(progress.read(each).get("status") == "running" for each in directories):
            break
    while not over.wait(0.2):
        for handle in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):  # gone in the meantime, or another user's
                if handle.readlink() in directories:
                    os.kill(int(handle.parts[2]), signal.SIGKILL)


@pytest.mark.e2e
@pytest.mark.long
def test_a_sweep_survives_the_larger_of_two_machines(tmp_path: Path) -> None:
    """O11: the runs asked for the memory of the machine that was gone, and Ray waited for it."""
    runs = [config(tmp_path, seed=seed, num_server_rounds=2000) for seed in (0, 1)]
    needed = cluster.estimate(runs[0])
    flat = json.dumps([each.flat() | {"run-dir": ""} for each in runs])
    command = [sys.executable, "-c", SWEEP, str(tmp_path), flat]
    with unequal_machines([needed // 2, 2 * needed]) as (environment, kill):
        swept = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with swept:
            while swept.poll() is None:
                if any(progress.read(Path(each.run_dir)).get("round") for each in runs):
                    break
                threading.Event().wait(0.1)
            kill()
            output, _ = swept.communicate(timeout=300)
    assert swept.returncode == 0, output
    assert json.loads(output.splitlines()[-1]) == ["", ""]
    assert all(map(sweep.is_finished, runs))


def test_what_a_machine_without_the_folder_wrote_comes_back(tmp_path: Path) -> None:
    one = config(tmp_path / "sweep")
    plan.write(tmp_path / "sweep", [one.name])
    folder = cluster.Folder.of(tmp_path / "sweep")
    assert folder.is_here()
    elsewhere = folder._replace(file=(0, 0.0))
    assert not elsewhere.is_here()
    error, files = cluster._carry_out(sweep.line_of_run, one, elsewhere, str(tmp_path / "missing"))
    assert error is None
    assert not Path(one.run_dir).exists()
    assert files is not None
    cluster._unpack(files, Path(one.run_dir))
    assert sweep.is_finished(one)
    assert Run.read(one.run_dir).rounds.tolist() == [0, 2, 4]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nowhere"])
def test_a_cluster_that_is_not_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(RunError, match=f"RAY_ADDRESS={address}: .*or unset RAY_ADDRESS"):
        cluster.survey("cpu")


def test_a_gpu_is_wanted_where_none_is() -> None:
    machines = [Machine(4, 2, 0), Machine(4, 0, 0)]
    assert cluster._usable(machines, "cuda") == machines
    assert [machine.gpus for machine in cluster._usable(machines, "cpu")] == [0, 0]
    with pytest.raises(ConfigError, match="no GPU"):
        cluster._usable(machines[1:], "cuda")


def test_a_run_s_memory_follows_the_law(tmp_path: Path) -> None:
    plain = config(tmp_path, model="mlp")
    adam = plain.with_(optimizer="adam")
    state = 4 * (64 * 64 + 64 + 64 * 10 + 10)  # bytes of one model
    alike = replace(plain, seed=1)
    needed, again, more = cluster.estimates([plain, alike, adam])
    assert needed == again
    assert more - needed == 2 * plain.peers * (2 * state + 4)  # two moments, and a count of steps


def test_a_run_that_needs_more_memory_names_the_key_that_lowers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = config(tmp_path, method="cobo", model="mlp", peers=32)
    answers = 32 * 31 * 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert cluster.memory_by_key(pairs)["topology"] == answers
    assert cluster.memory_by_key(pairs.with_(method="fedavg"))["topology"] == 0
    monkeypatch.setattr(tuning, "ANSWER_BYTES", tuning.Threshold(answers // 2, 0))
    assert cluster.memory_by_key(pairs)["topology"] == answers // 2  # pairs in blocks
    assert cluster.memory_by_key(pairs.with_(method="wga"))["topology"] == answers
    needed = cluster.estimate(pairs)
    monkeypatch.setattr(machine, "memory", lambda: needed)
    assert not cluster.memory_warning(pairs)
    monkeypatch.setattr(machine, "memory", lambda: needed - 1)
    parts = cluster.memory_by_key(pairs)
    line = cluster.memory_warning(pairs)
    assert line.startswith("the run needs about ")
    assert line.endswith(f"are lowered by {max(parts, key=lambda key: parts[key])}")


def test_the_memory_of_a_private_run_is_that_of_the_engine_s_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config(tmp_path, model="cnn", **{"batch-size": 40})
    private = replace(plain, privacy=Privacy(kind="examples"))
    needed, more = cluster.estimates([plain, private])
    parameters = 32 * 26 + 64 * (32 * 25 + 1) + 512 * (64 * 2 * 2 + 1) + 10 * 513
    assert more - needed > 3 * 4 * parameters * 40 - tuning.CHUNK_BYTES
    monkeypatch.setattr(execution, "_share", lambda device: 20 << 20)
    assert cluster.estimate(private) - needed < 25 << 20
