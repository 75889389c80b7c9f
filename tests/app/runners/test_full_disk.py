"""A disk that is full: one line, a true status, and a run that can be resumed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.runners import local
from coterie.errors import RunError
from tests.checkout import of_this_checkout

KEYS = {"peers": 4, "partition.clusters": 2, "num-server-rounds": 6, "evaluate-every": 1}
LINE = "the disk is full: free space, then continue with: coterie resume "


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "coterie-test", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs permission to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, kilobytes: int) -> None:
    """Fill a disk up to some kilobytes, which stay free."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass
    with (disk / "filler").open("r+b") as file:
        file.truncate(max(0, (disk / "filler").stat().st_size - 1024 * kilobytes))


def ended(config: Config) -> tuple[str, str | None]:
    now = json.loads(Path(config.run_dir, "progress.json").read_text())
    return now["status"], now["error"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that met no full disk."""
    out = tmp_path_factory.mktemp("whole")
    config = Config.from_flat({**KEYS, "out": str(out)}).located("run")
    local.run(config, None, Console(file=io.StringIO()))
    return Path(config.run_dir)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(("when", "kilobytes"), [(0, 8), (3, 0), (6, 0), (6, 64)])
def test_a_run_ends_with_one_line_and_goes_on_when_there_is_space(
    when: int, kilobytes: int, disk: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_flat({**KEYS, "out": str(disk)}).located("run")

    def use_up(t: int, metrics: Any) -> None:
        if t == when:
            fill(disk, kilobytes)

    with pytest.raises(RunError) as error:
        local.run(config, None, Console(file=io.StringIO()), [use_up])
    assert str(error.value) == LINE + config.run_dir
    assert ended(config) == ("failed", str(error.value))
    assert main(["resume", config.run_dir]) == 1
    assert capsys.readouterr().err.endswith(f"the run failed: {LINE}{config.run_dir}\n")
    (disk / "filler").unlink()
    assert main(["resume", config.run_dir]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert ended(config) == ("finished", None)
    assert Path(config.run_dir, "report.html").exists()
    for name in ("metrics.jsonl", "relay/weights.f64"):
        assert Path(config.run_dir, name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.e2e
@pytest.mark.long
def test_nor_does_a_run_on_nodes_show_more_than_a_line(disk: Path) -> None:
    """Neither does it go on without the node that met the full disk."""
    fill(disk, 600)  # less than the checkpoints of two nodes
    keys = [f"{key}={value}" for key, value in KEYS.items()]
    command = [sys.executable, "-m", "coterie", "run", *keys, "--nodes", "2", "--name", "run"]
    environment = of_this_checkout([sys.executable], disk)
    done = subprocess.run(
        command, cwd=disk, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (1, f"the run failed: {LINE}runs/run\n")
    assert json.loads((disk / "runs" / "run" / "progress.json").read_text())["status"] == "failed"
