"""Privacy and a hostile institution at once: `python -m benchmarks.private_deployment`.

Three institutions over TLS with authentication and sealed letters, whose policies demand
differential privacy; the third forges every letter on the way out (`benchmarks.hostile_node`). A
run without privacy is asked for first: all must refuse it. Then CoBo on digits with privacy: what
the operator and an honest institution see (`python -m app status`), and what each privacy ledger
has at the end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from app.cli import status
from app.config.schema import Scalar
from app.runs.rundir import Run
from benchmarks.deployment import Deployment, Host, finish, write_policy

NODES = 3
LIAR = NODES - 1
RUN: Mapping[str, Scalar] = {
    "method": "cobo", "cobo.gamma": 0.1, "cobo.sampling": "full", "peers": NODES,
    "dataset": "digits", "partition.kind": "iid", "partition.samples-per-peer": 150,
    "model": "linear", "batch-size": 32, "local-steps": 2, "learning-rate": 0.2,
    "num-server-rounds": 8, "evaluate-every": 2, "quorum": NODES - 1, "round-seconds": 120,
    "device": "cpu",
}  # fmt: skip
PRIVACY: Mapping[str, Scalar] = {
    "privacy.kind": "examples", "privacy.noise": 4.0, "privacy.delta": 1e-4, "privacy.budget": 8.0,
}  # fmt: skip
DEMANDED: Mapping[str, Scalar] = {
    "privacy.kind": "examples", "privacy.most-epsilon": 8.0, "privacy.most-delta": 1e-3,
}  # fmt: skip


def refused(deployment: Deployment) -> str:
    """What the operator is told of a run without privacy."""
    try:
        finish(deployment, deployment.run(RUN, "plain"))
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    sys.exit("a run without privacy was carried out")


def main() -> None:
    """Play both runs and show what there is to be seen."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(Path(directory), Host(), {k: Host() for k in range(NODES)})
        write_policy(deployment.policy, **DEMANDED)
        manner = deployment.make_hostile(LIAR)
        with deployment:
            console.print(f"Without privacy: {refused(deployment)}")
            manner.write_text("letters")
            finish(deployment, deployment.run({**RUN, **PRIVACY}, "run"))
            operator, institution = deployment.home("operator"), deployment.home("node-0")
            for title, run in (("operator", operator / "run"), ("institution 0", institution)):
                console.rule(title)
                for line in status.of_run(run):
                    console.print(line)
            console.rule("epsilon")
            run = Run.read(operator / "run")
            console.print(
                run.at("epsilon", run.last_row()), run.at("test_accuracy", run.last_row())
            )


if __name__ == "__main__":
    main()
