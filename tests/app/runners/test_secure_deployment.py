"""Three institutions over TLS, known by their keys, with sealed letters and separate executors."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from app.cli import status
from app.runs.rundir import Run
from app.security.seal import KEY
from benchmarks.deployment import CONNECTION, Deployment, Host, finish, quadratics
from benchmarks.parity import difference
from tests.inprocess import simulate

PEERS = 3


@pytest.mark.e2e
def test_a_secure_deployment_computes_what_a_simulation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quadratics(tmp_path / "problem.json", PEERS) | {
        "method": "cobo", "num-server-rounds": 1, "evaluate-every": 1, "cobo.sampling": "full",
    }  # fmt: skip
    simulate(config | {"run-dir": str(tmp_path / "expected")}, nodes=1)
    place = tmp_path / "deployment"
    with Deployment(place, Host(), {peer: Host() for peer in range(PEERS)}) as deployment:
        finish(deployment, deployment.run(config), 280)
        run = Run.read(deployment.home("operator") / "run")
        assert difference(run, Run.read(tmp_path / "expected")) < 1e-10
        for peer in range(PEERS):
            home = deployment.home(f"node-{peer}") / "run"
            assert (home / "models" / f"peer-{peer:04d}.safetensors").is_file()
            letters = [
                json.loads(line)
                for line in (home / f"audit-{peer:04d}.jsonl").read_text().splitlines()
            ]
            assert all(letter["sealed"] for letter in letters)
            # Of each pair an offer to all, then an answer each way.
            verdicts = Counter(letter["verdict"] for letter in letters)
            assert verdicts == {"sent": PEERS, "accepted": 2 * (PEERS - 1)}
        assert run.progress["sealing_bytes"] == 2 * PEERS * (PEERS - 1) * KEY
        assert not (run.directory / "models").exists()
        monkeypatch.setenv("FLWR_HOME", str(deployment.home("operator")))
        console = Console(width=120)
        with console.capture() as shown:
            status.show(console, CONNECTION)
    assert re.search(r"\d+ +coterie/coterie +finished:completed +\d", shown.get())
    assert len(re.findall(r"\d+ +online +2\d{3}-", shown.get())) == PEERS
