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


def counted(folder: Path) -> list[list[str]]:
    """Run eight nodes in `folder`; return what processes did: "node", "read" or "recall", ID."""
    command = [sys.executable, "-m", "coterie", "run", "--nodes", "8", "--out", str(folder)]
    command += ["dataset=tests.app.runners.counted:source", "method=cobo", "peers=8"]
    command += ["partition.samples-per-peer=0", "partition.min-samples=1", "num-server-rounds=3"]
    command += ["--name", "run"]
    environment = {**os.environ, "COTERIE_COUNTS": str(folder / "counts")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in (folder / "counts").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.e2e
def test_a_node_stays_in_one_process_and_survives_its_death(tmp_path: Path) -> None:
    """Built once, and no state is read from the disk; killed, read again, with the same numbers."""
    (calm := tmp_path / "calm").mkdir()
    (killed := tmp_path / "killed").mkdir()
    lines = counted(calm)
    number = Counter(what for what, _ in lines)
    assert number == {"node": 8, "recall": 2 * 3 * 8}, "no read"
    assert len({process for _, process in lines}) <= (os.cpu_count() or 1)
    (killed / "dies").touch()
    assert "read" in {what for what, _ in counted(killed)}
    assert not (killed / "dies").exists()
    results = [(folder / "run" / "metrics.jsonl").read_bytes() for folder in (calm, killed)]
    assert results[0] == results[1]
