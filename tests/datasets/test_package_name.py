"""Our package `datasets` has the name of Hugging Face's; neither must hide the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LOAD = """
import sys
from pathlib import Path
import coterie.datasets.problem
{then}
from coterie.datasets.partition.options import Partition
from coterie.datasets.table import dataset_of
dataset_of("digits").load(Partition(), 8, 0, Path("."), None)
assert Path(coterie.datasets.problem.__file__).resolve().parent == Path({ours!r})
assert not {{"torch", "torchvision", "flwr"}} & set(sys.modules)
"""


@pytest.mark.parametrize("place", ["on PYTHONPATH", "after ours", "put first later on"])
def test_a_foreign_datasets_package(tmp_path: Path, place: str) -> None:
    """Ours is imported if the repository is first on the path, and stays imported."""
    foreign = tmp_path / "site" / "datasets"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise RuntimeError('the other package')")
    site = str(foreign.parent)
    path = {"on PYTHONPATH": site, "after ours": f"{REPO}{os.pathsep}{site}"}.get(place, "")
    code = LOAD.format(
        then=f"sys.path.insert(0, {site!r})" if place == "put first later on" else "",
        ours=str(REPO / "datasets"),
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path if place == "after ours" else REPO,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
