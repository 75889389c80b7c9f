"""Cost of a FedAvg round by number of peers: `python -m benchmarks.growth [FIGURE.svg]`.

The MLP 784-100-10, five steps of ten images of Fashion-MNIST per round, inline, each number of
peers in a separate process: processor seconds per round and peak memory, with straight lines
fitted to them.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

PEERS = (8, 32, 100, 320, 1000)
ROUNDS = 8
GIB = 2.0**30


def measure(peers: int) -> dict[str, float]:
    """Measure one run in this process."""
    from coterie.app.config.config import Config
    from coterie.app.config.preflight import check
    from coterie.app.config.schema import Scalar
    from coterie.app.runners import inline
    from coterie.app.runs import rundir

    ends: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        flat: dict[str, Scalar] = {
            "method": "fedavg", "dataset": "fashion-mnist", "model": "mlp", "mlp.hidden": "100",
            "peers": peers, "partition.kind": "dirichlet", "partition.samples-per-peer": 50,
            "partition.alpha": 1.0, "batch-size": 10, "local-steps": 5, "device": "cpu",
            "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "run-dir": f"{directory}/run",
        }  # fmt: skip
        config = Config.from_flat(flat)
        rundir.create(config, check(config))
        inline.run(config, lambda _: ends.append(time.process_time()))
    taken = [after - before for before, after in pairwise(ends[1:-1])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return {"peers": peers, "seconds": statistics.median(taken), "gib": peak}


def draw(rows: list[dict[str, float]], lines: dict[str, tuple[float, float]], path: Path) -> None:
    """Draw points and lines on logarithmic axes."""
    from matplotlib.figure import Figure

    from studies.svg import save

    figure = Figure(figsize=(7, 3), layout="constrained")
    n = np.geomspace(PEERS[0], PEERS[-1], 50)
    for axes, (what, (fixed, each)) in zip(figure.subplots(1, 2), lines.items(), strict=True):
        axes.loglog(
            [row["peers"] for row in rows], [row[what] for row in rows], "o", color="#1f6f6f"
        )
        axes.loglog(n, fixed + each * n, color="#1f6f6f", linewidth=1)
        axes.set(
            xlabel="peers", ylabel={"seconds": "seconds a round", "gib": "GiB at the peak"}[what]
        )
    save(figure, path)


def main() -> None:
    """Measure, fit and draw."""
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    rows = []
    for peers in PEERS:
        command = [sys.executable, "-m", "benchmarks.growth", "--alone", str(peers)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    lines = {}
    for what in ("seconds", "gib"):
        n, y = (np.array([row[key] for row in rows]) for key in ("peers", what))
        each, fixed = np.polyfit(n, y, 1, w=1 / y)  # relative errors count
        lines[what] = float(fixed), float(each)
        print(f"{what}: {fixed:.4f} + {each:.6f} a peer")
    if sys.argv[1:]:
        draw(rows, lines, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
