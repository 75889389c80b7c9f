"""A deployment computes what a simulation computes.

CoBo and DPFL on Fashion-MNIST with three peers, partial pooling on heart disease with four: the
same configuration is run in one process of this machine, and by institutions over TLS with
authentication and sealed letters. Prints the largest relative difference of any metric, and the
costs of the deployed run.
`python -m tests.drills.parity [METHOD ...]`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import check
from coterie.app.config.schema import Scalar
from coterie.app.runners import inline
from coterie.app.runs import rundir
from coterie.app.runs.rundir import Run
from tests.harness.deployment import Deployment, Host, finish

IMAGES: Mapping[str, Scalar] = {
    "peers": 3, "num-server-rounds": 3, "dataset": "fashion-mnist", "partition.clusters": 2,
    "partition.samples-per-peer": 300, "local-steps": 2,
}  # fmt: skip
METHODS: Mapping[str, Mapping[str, Scalar]] = {
    "cobo": {"cobo.sampling": "full", **IMAGES},
    "dpfl": {"dpfl.init-epochs": 1, "partition.validation": 0.2, **IMAGES},
    "partial-pooling": {
        "peers": 4, "num-server-rounds": 1, "dataset": "heart-disease", "model": "linear",
        "partial-pooling.min-rows": 8,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes
    ----------
    difference : largest |deployed - simulated| / max(1, |simulated|) over metrics, peers, rounds.
    seconds : from the command to its end, deployed.
    sent : bytes of the letters of a peer, mean over peers.
    """

    method: str
    difference: float
    seconds: float
    sent: float


def settings(method: str) -> dict[str, Scalar]:
    """The run's configuration."""
    return {"method": method, "evaluate-every": 1, "device": "cpu", **METHODS[method]}


def difference(a: Run, b: Run) -> float:
    """Return the largest difference between two runs of the same configuration."""
    assert a.rounds.tolist() == b.rounds.tolist()
    assert a.metrics.keys() == b.metrics.keys()
    pairs = [(a.metrics[name], b.metrics[name]) for name in a.metrics]
    pairs.append((a.weights, b.weights))
    return max(
        float(np.nan_to_num(np.abs(x - y) / np.maximum(1, np.abs(y))).max()) for x, y in pairs
    )


def simulated(config: Config) -> Run:
    """The run in this process."""
    rundir.create(config, check(config))
    inline.run(config)
    return Run.read(config.run_dir)


def row(directory: Path, method: str) -> Row:
    """Run a method both ways."""
    keys = settings(method)
    config = Config.from_flat(keys | {"run-dir": str(directory / "simulated")})
    expected = simulated(config)
    hosts = {peer: Host() for peer in range(config.peers)}
    with Deployment(directory / "deployment", Host(), hosts) as deployment:
        began = time.monotonic()
        finish(deployment, deployment.run(keys))
        seconds = time.monotonic() - began
        deployed = Run.read(deployment.home("operator") / "run")
    sent = float(deployed.metrics["bytes_sent"][-1].mean())
    return Row(method, difference(deployed, expected), round(seconds, 1), sent)


def main() -> None:
    """Print the table; fails where a method differs by more than 1e-5."""
    for method in sys.argv[1:] or list(METHODS):
        with tempfile.TemporaryDirectory() as directory:
            made = row(Path(directory), method)
        print(made, flush=True)
        if made.difference > 1e-5:
            sys.exit(f"{made.method}: deployment and simulation differ")


if __name__ == "__main__":
    main()
