"""Wings: what a run and a comparison in one process load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

WINGS = "coterie.app.institution", "coterie.app.lab"
CEILING = 300, 45_000
"""Maximum number of modules of the product that a run loads, and of their lines."""
SCRIPT = """
import json, sys
import coterie

keys = {
    "dataset": "digits", "peers": 2, "partition.clusters": 2, "partition.samples-per-peer": 20,
    "num-server-rounds": 1, "device": "cpu", "out": sys.argv[2],
}
if sys.argv[1] == "run":
    coterie.run(None, keys, method="fedavg")
else:
    coterie.compare(["local", "fedavg"], None, keys, seeds=1)
loaded = {name: module.__file__ for name, module in sys.modules.items() if "coterie" in name}
print(json.dumps(loaded))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("task", ["run", "compare"])
def test_one_process_loads_no_other_wing(tmp_path: Path, task: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, task, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "coterie.app.node.node" in loaded
    assert not [name for name in loaded if name.startswith(WINGS)]
    files = [file for name, file in loaded.items() if name.startswith("coterie") and file]
    lines = sum(len(Path(file).read_text("utf-8").splitlines()) for file in files)
    assert (len(files) <= CEILING[0], lines <= CEILING[1]) == (True, True), (len(files), lines)
