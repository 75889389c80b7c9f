"""Runs in this process need nothing of Linux: they work on a stand-in for macOS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coterie import macos
from tests.hospitals import write_hospitals
from tests.output import csv_rows

KEYS = ["peers=3", "num-server-rounds=2", "evaluate-every=1", "partition.clusters=1"]
TABLE = [
    "dataset=table", "data-dir=hospitals", "table.columns=all", "table.label=readmitted",
    "table.schema=file", "table.missing=mean", "model=linear",
]  # fmt: skip
COMMANDS = [
    ["list"],
    ["list", "cobo"],
    ["run", "method=cobo", *KEYS, "--name", "first"],
    ["report", "runs/first"],
    ["run", "method=fedavg", "model=lenet", *KEYS, "privacy.kind=examples", "--name", "private"],
    ["run", "method=fedem", *KEYS, *TABLE, "--name", "tables"],
    ["schema", "hospitals/north/train.csv", "--out", "draft.toml"],
    ["predict", "runs/tables", "--peer", "west", "hospitals/west/test.csv"],
    ["compare", *KEYS, "--methods", "local,fedavg", "--seeds", "1", "--workers", "1"],
    ["sweep", *KEYS, "learning-rate=0.1,0.3", "--seeds", "1", "--workers", "1"],
    ["status"],
]


def on_macos(folder: Path, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    (folder / "commands.json").write_text(json.dumps(commands))
    script = Path(macos.__file__)
    path = os.pathsep.join([str(macos.ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(script), "commands.json"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("macos")
    write_hospitals(folder / "hospitals")
    return folder


@pytest.mark.long
def test_commands_of_this_process_work_on_macos(folder: Path) -> None:
    done = on_macos(folder, COMMANDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "runs" / "first" / "report.html").is_file()
    assert len(csv_rows(folder / "predictions.csv")) == 30


@pytest.mark.long
def test_flower_on_this_machine_is_refused_there(folder: Path) -> None:
    done = on_macos(folder, [["run", *KEYS, "--nodes", "2"]])
    assert done.returncode == 1
    assert "--nodes and --federation need Linux" in done.stderr


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("os.sched_getaffinity(0)", "AttributeError"),
        ("open('/proc/meminfo')", "FileNotFoundError"),
        ("pathlib.Path('/proc/self/status').read_text()", "FileNotFoundError"),
        ("list(pathlib.Path('/proc').glob('*'))", "FileNotFoundError"),
        ("ctypes.CDLL('libc.so.6')", "OSError"),
        ("select.epoll()", "AttributeError"),
        ("fcntl.F_OFD_SETLK", "AttributeError"),
    ],
)
def test_the_stand_in_lacks_what_macos_lacks(folder: Path, call: str, error: str) -> None:
    """A call of Linux in our code fails: this one is compiled as if it stood in app/."""
    program = (
        "import ctypes, fcntl, os, pathlib, select\n"
        "from tests.coterie import macos\n"
        "macos.become_macos()\n"
        f"exec(compile({call!r}, os.path.join(macos.ROOT, 'app', 'x.py'), 'exec'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=macos.ROOT, capture_output=True, text=True
    )
    assert error in done.stderr
