"""Privacy and a hostile institution at once: `python -m tests.drills.private`.

Three institutions over TLS with authentication and sealed letters, whose policies demand
differential privacy; the third forges every letter on the way out (`tests.fuzz.node`).
CoBo on digits with privacy: what the operator and an honest institution see at the end (`python -m
app status`), epsilon and accuracy of each peer. Then the same without privacy: all must refuse it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from coterie.app.config.schema import Scalar
from coterie.app.institution.commands import status
from coterie.app.runs.rundir import Run
from tests.harness.deployment import Deployment, Host, finish, write_policy

NODES, SECONDS = 3, 1800
LIAR = NODES - 1
RUN: Mapping[str, Scalar] = {
    "method": "cobo", "cobo.gamma": 0.1, "cobo.sampling": "full", "peers": NODES,
    "dataset": "digits", "partition.kind": "iid", "partition.samples-per-peer": 150,
    "model": "linear", "batch-size": 32, "local-steps": 2, "learning-rate": 0.2,
    "num-server-rounds": 4, "evaluate-every": 2, "quorum": NODES - 1, "round-seconds": 120,
    "device": "cpu",
}  # fmt: skip
PRIVACY: Mapping[str, Scalar] = {
    "privacy.kind": "examples", "privacy.noise": 4.0, "privacy.delta": 1e-4, "privacy.budget": 8.0,
}  # fmt: skip
DEMANDED: Mapping[str, Scalar] = {
    "privacy.kind": "examples", "privacy.max-epsilon": 8.0, "privacy.max-delta": 1e-3,
}  # fmt: skip


def refused(deployment: Deployment) -> str:
    """Return the operator's error message for a run without privacy."""
    try:
        finish(deployment, deployment.run({**RUN, "join-seconds": 60}, "plain"), SECONDS)
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    sys.exit("a run without privacy was carried out")


def main() -> None:
    """Carry out both runs and print the results."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(Path(directory), Host(), {k: Host() for k in range(NODES)})
        write_policy(deployment.policy, **DEMANDED)
        manner = deployment.make_hostile(LIAR)
        with deployment:
            manner.write_text("letters")
            finish(deployment, deployment.run({**RUN, **PRIVACY}), SECONDS)
            for party in ("operator", "node-0"):
                console.rule(party)
                status.show(console, status.read(str(deployment.home(party) / "run")))
            run = Run.read(deployment.home("operator") / "run")
            for name in ("epsilon", "test_accuracy"):
                console.print(name, run.at(name, run.last_row()))
            console.rule("without privacy")
            console.print(refused(deployment))


if __name__ == "__main__":
    main()
