"""A deployment computes what a simulation computes: CoBo and DPFL on Fashion-MNIST, three peers.

The same configuration is run in one process of this machine, and by three institutions over TLS
with authentication and sealed letters. Prints the largest relative difference of any metric.
`python -m tests.drills.parity [METHOD ...]`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
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

PEERS, ROUNDS = 3, 3
METHODS: Mapping[str, Mapping[str, Scalar]] = {
    "cobo": {"cobo.sampling": "full"},
    "dpfl": {"dpfl.init-epochs": 1, "partition.validation": 0.2},
}


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes
    ----------
    difference : largest |deployed - simulated| / max(1, |simulated|) over metrics, peers, rounds.
    seconds : of the deployed run.
    """

    method: str
    difference: float
    seconds: float


def settings(method: str) -> dict[str, Scalar]:
    """The run's configuration."""
    return {
        "method": method, "peers": PEERS, "num-server-rounds": ROUNDS, "evaluate-every": 1,
        "dataset": "fashion-mnist", "partition.clusters": 2, "partition.samples-per-peer": 300,
        "local-steps": 2, "device": "cpu", **METHODS[method],
    }  # fmt: skip


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


def rows(deployment: Deployment, directory: Path, methods: Sequence[str]) -> Iterator[Row]:
    """Run each method both ways."""
    for method in methods:
        config = Config.from_flat(settings(method) | {"run-dir": str(directory / method)})
        expected = simulated(config)
        began = time.monotonic()
        finish(deployment, deployment.run(settings(method), method))
        seconds = time.monotonic() - began
        deployed = Run.read(deployment.home("operator") / method)
        yield Row(method, difference(deployed, expected), round(seconds, 1))


def main() -> None:
    """Print the table; fails where a method differs by more than 1e-5."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with Deployment(place / "deployment", Host(), {k: Host() for k in range(PEERS)}) as there:
            for row in rows(there, place, sys.argv[1:] or list(METHODS)):
                print(row, flush=True)
                if row.difference > 1e-5:
                    sys.exit(f"{row.method}: deployment and simulation differ")


if __name__ == "__main__":
    main()
