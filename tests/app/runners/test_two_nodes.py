"""`coterie run --nodes 2`: Flower's simulation, with Ray, gives the bytes of a run without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TINY = ("num-server-rounds=2", "evaluate-every=1", "peers=4", "partition.clusters=2")


@pytest.mark.e2e
def test_two_nodes_compute_what_one_process_does(tmp_path: Path) -> None:
    for name, more in (("alone", ()), ("nodes", ("--nodes", "2"))):
        place = ("--out", str(tmp_path), "--name", name)
        command = [sys.executable, "-m", "coterie", "run", *TINY, *more, *place]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    alone, nodes = (tmp_path / name / "metrics.jsonl" for name in ("alone", "nodes"))
    assert nodes.read_bytes() == alone.read_bytes()


@pytest.mark.long
@pytest.mark.e2e
def test_a_node_stays_in_one_process(tmp_path: Path) -> None:
    """Eight nodes: built once, in one process each, and no state is read from the disk."""
    counts = tmp_path / "counts"
    command = [sys.executable, "-m", "coterie", "run", "--nodes", "8", "--out", str(tmp_path)]
    command += ["dataset=tests.app.runners.counted:source", "method=cobo", "peers=8"]
    command += ["partition.samples-per-peer=0", "partition.min-samples=1", "num-server-rounds=3"]
    environment = {**os.environ, "COTERIE_COUNTS": str(counts)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in counts.read_text().splitlines()]
    number = Counter(what for what, _ in lines)
    assert number == {"node": 8, "recall": 2 * 3 * 8}, "no read"
    assert len({process for _, process in lines}) <= (os.cpu_count() or 1)
