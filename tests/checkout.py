"""A copy of the checkout, its `.venv` as `make install` leaves it, and a Flower of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coterie.app.runners.guard import working_in
from coterie.app.runners.superlink import QUIET

ROOT = Path(__file__).parents[1]
START_SUPERLINK = """python -c '
from flwr.cli import local_superlink
local_superlink.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0
local_superlink._start_local_superlink()
'"""
"""Shell command: start Flower's local SuperLink as `flwr run` does, which gives up after 15 s.

A machine that runs other tests beside it needs longer now and then.
"""


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def of_this_checkout(command: Sequence[str], place: Path) -> dict[str, str]:
    """Return an environment in which `command`, a Python, runs the `coterie` of this checkout.

    An AssertionError names the file if it is another one, such as an installed version: a test of
    security that starts processes would attack that.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import coterie.app.client as ours; print(ours.__file__)"
    there = subprocess.check_output([*command, "-c", code], cwd=place, env=environment, text=True)
    assert Path(there.strip()).resolve().is_relative_to(ROOT), f"not this checkout: {there}"
    return environment


def copy(place: Path) -> Path:
    """Copy what git tracks or would track to `place`, links as links."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


def site_packages() -> list[str]:
    """Return the folders with this environment's libraries."""
    return [*dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))]


def install(checkout: Path) -> None:
    """Give `checkout` an environment of its own, with the packages and commands of this one."""
    bin_ = checkout / ".venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bin_.parent)], check=True)
    packages = next(bin_.parent.glob("lib/python*/site-packages"))
    (packages / "packages.pth").write_text("\n".join([*site_packages(), ""]))
    for script in Path(sys.executable).parent.glob("fl*w*"):  # flwr, flower-superlink and so on
        _, _, rest = script.read_text().partition("\n")
        (bin_ / script.name).write_text(f"#!{bin_ / 'python'}\n{rest}")
        (bin_ / script.name).chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "install", "--quiet"]
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(checkout)]
    subprocess.run([*pip, *editable], check=True)
    with (bin_ / "activate").open("a") as activate:
        activate.writelines(f"export {name}={value}\n" for name, value in QUIET.items())
    (bin_.parent / ".installed").touch()


def bare_environment(home: Path) -> dict[str, str]:
    """Environment of a user who never ran Flower; others may run Flower on this machine."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",  # see tests/conftest.py
        "no_proxy": "127.0.0.1",
    }


def end_processes(place: Path) -> None:
    """End what works below a folder, as the local SuperLink that `flwr run` leaves behind."""
    until = time.monotonic() + 20
    while (left := working_in(place)) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
