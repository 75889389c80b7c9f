"""Three hospitals as processes: one letter is held, the others finish, and the sheet says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.app.cli.main import main
from coterie.app.institution.security import clearance
from coterie.app.runs.rundir import Run
from tests.attacks.test_clearance import COIN, FORESTS, fix_split, write_table
from tests.harness.deployment import Deployment, Host, finish, write_policy

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_a_memorising_tree_is_held_and_the_others_finish(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "deployment", Host(), {peer: Host() for peer in range(3)})
    limits: dict[str, Any] = {
        "data.sets": "table", "data.columns": "a, b", "data.label": "y", "answers.kind": "plain",
        "answers.min-examples": 1, "answers.threshold-step": 0.0, "clearance.action": "hold",
        "data.classes": "no, yes",
    }  # fmt: skip
    write_policy(deployment.policy, **limits)
    for peer in range(3):
        home = deployment.home(f"node-{peer}")
        (home / "data").mkdir()
        write_table(home / "data", peer)
        fix_split(home)
        service = deployment.services[f"node-{peer}"]
        more = f'device="cpu" data-dir="{home / "data"}"'
        service.command = tuple(part.replace('device="cpu"', more) for part in service.command)
    run = {key: value for key, value in FORESTS.items() if key != "name"}
    with deployment:  # its files are gone when it ends
        finish(deployment, deployment.run(run, "held"))
        results = Run.read(deployment.home("operator") / "held")
        assert results.progress["status"] == "finished"
        for peer in range(3):
            directory = deployment.home(f"node-{peer}") / "held"
            assert (directory / "models" / f"peer-{peer:04d}.safetensors").is_file()
            assert main(["keys", "verify", str(directory), "--file", str(deployment.trust)]) == 0
            (letter,) = (clearance.read(directory) or {})["letters"]
            assert letter["verdict"] == ("held" if peer == COIN else "sent")
            if peer == COIN:
                assert "membership, AUC" in letter["reasons"][0]
                assert "membership, AUC" in (directory / "clearance.md").read_text()
