"""systemd units: valid, restricted, and with the commands of the guide."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "app/institution/commands/units").glob("*.service"))
GUIDE = ROOT / "docs" / "consortium" / "without-docker.md"
EXPOSED = 20
"""Maximum exposure of a unit in `systemd-analyze security`, 0 to 100; 96 without options."""


def command(text: str, program: str) -> list[list[str]]:
    """Return the option names of each call of a program, with continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (line for line in joined.splitlines() if program in line)
    return [sorted(re.findall(r"--[\w-]+", line)) for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: str(path.name))
def test_a_unit_runs_what_the_guide_rehearses(unit: Path) -> None:
    text = unit.read_text("utf-8")
    program = re.search(r"^ExecStart=\S*/(flower-\w+)", text, re.M)
    assert program is not None
    (options,) = command(text, f"/{program[1]}")
    assert options in command(GUIDE.read_text("utf-8"), program[1])


def test_the_guide_names_every_unit() -> None:
    assert len(UNITS) == 4
    for unit in UNITS:
        assert f"`{unit.stem}`" in GUIDE.read_text("utf-8")


@pytest.mark.e2e
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    installed = str(Path(sys.executable).parent)
    for unit in UNITS:
        text = unit.read_text("utf-8").replace("/opt/coterie/bin", installed)
        (tmp_path / unit.name).write_text(text)
    files = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for file in files:
        judged = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSED}", file],
            capture_output=True, text=True,
        )  # fmt: skip
        assert judged.returncode == 0, judged.stdout
