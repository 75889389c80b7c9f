"""`coterie run --nodes 2`: Flower's simulation, with Ray, gives the bytes of a run without it."""

from __future__ import annotations

import subprocess
import sys
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
