"""Estimated and resident memory of runs: `python -m benchmarks.memory`.

FedAvg's CNN, two peers, images of random pixels: plain and private steps, minibatches of 64 and of
512, each run in a process with one thread, as `coterie compare` starts it. The exit code is 1 if an
estimate is below four fifths of the resident memory or above twice of it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

KINDS, BATCHES, IMAGES, GIB = ("none", "examples"), (64, 512), 1400, 2.0**30


def write_images(directory: Path) -> None:
    """Write an MNIST of random pixels."""
    g = np.random.default_rng(0)
    for part, count in (("train", IMAGES), ("t10k", 100)):
        pixels = g.integers(256, size=(count, 28, 28), dtype=np.uint8)
        for what, values in (("images", pixels), ("labels", np.arange(count, dtype=np.uint8) % 10)):
            head = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
            path = directory / "mnist" / f"{part}-{what}-idx{values.ndim}-ubyte"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(head + values.tobytes())


def measure(kind: str, batch: int, directory: Path) -> dict[str, float]:
    """Estimate and measure one run in this process."""
    from coterie.app.config.config import Config
    from coterie.app.config.schema import Scalar
    from coterie.app.runners import cluster, sweep

    flat: dict[str, Scalar] = {
        "method": "fedavg", "dataset": "mnist", "data-dir": str(directory), "model": "cnn",
        "peers": 2, "partition.kind": "iid", "partition.samples-per-peer": 0, "device": "cpu",
        "batch-size": batch, "local-steps": 1, "num-server-rounds": 1, "evaluate-every": 1,
        "privacy.kind": kind, "run-dir": str(directory / f"{kind}-{batch}"),
    }  # fmt: skip
    config = Config.from_flat(flat)
    if error := sweep.run_one(config):
        raise error
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"estimated": cluster.estimate(config), "resident": resident}


def main() -> int:
    """Measure every run in a process of its own, and compare."""
    if sys.argv[1:2] == ["--alone"]:
        of_run, size, place = sys.argv[2:]
        print(json.dumps(measure(of_run, int(size), Path(place))))
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        write_images(Path(directory))
        for kind, batch in product(KINDS, BATCHES):
            command = [sys.executable, "-m", "benchmarks.memory", "--alone", kind, str(batch)]
            output = subprocess.run(
                [*command, directory], env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            row = json.loads(output.splitlines()[-1])
            ratio = row["estimated"] / row["resident"]
            sizes = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in row.items())
            print(f"privacy {kind}, batch {batch}: {sizes}, ratio {ratio:.2f}", flush=True)
            wrong += not 0.8 <= ratio <= 2
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
