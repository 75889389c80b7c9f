"""Machines under systemd, each with an address of its own: systemd-nspawn; needs root.

A machine has this machine's files below an overlay, so that nothing is downloaded, and what it
writes is gone at its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import site_packages
from tests.harness.deployment import Host

_BOOT_SECONDS = 120.0
_LIBRARIES = "/opt/libraries"


@dataclass(frozen=True)
class Machine:
    """Booted machine, whose root folder is seen at `root`."""

    root: Path
    leader: int  # its first process

    def do(self, script: str, **variables: str) -> str:
        """Execute a script as root and return its output; an AssertionError has it if it fails."""
        command = [
            "nsenter",
            "--target",
            str(self.leader),
            "--all",
            "bash",
            "-euo",
            "pipefail",
            "-c",
        ]
        environment = {"PATH": "/opt/python/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        done = subprocess.run(
            [*command, f"cd /root\n{script}"], env=environment | variables, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{self.journal()}"
        return done.stdout

    def journal(self) -> str:
        """Return the last lines of the services."""
        show = ["journalctl", "--no-pager", "--lines=60", "--unit=coterie-*"]
        enter = ["nsenter", "--target", str(self.leader), "--all"]
        return subprocess.run([*enter, *show], capture_output=True, text=True).stdout


@contextmanager
def machine(name: str, host: Host, place: Path) -> Iterator[Machine]:
    """Boot a machine in the network namespace of a host; it has this Python in /opt/python."""
    root, scratch = place / "root", place / "scratch"
    for folder in (root, scratch):
        folder.mkdir(parents=True)
    with ExitStack() as stack:
        _mount(stack, scratch, "-t", "tmpfs", "tmpfs")
        for part in ("upper", "work"):
            (scratch / part).mkdir()
        layers = f"lowerdir=/,upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
        _mount(stack, root, "-t", "overlay", "-o", layers, "overlay")
        (libraries,) = site_packages()
        command = [
            "systemd-nspawn", "--quiet", f"--directory={root}", f"--machine=coterie-{name}",
            "--register=no", "--keep-unit",
            f"--network-namespace-path=/run/netns/{host.prefix[-1]}",
            f"--bind-ro={sys.base_prefix}:/opt/python", f"--bind-ro={libraries}:{_LIBRARIES}",
            "--resolv-conf=off", "--boot", "systemd.unit=basic.target",
        ]  # fmt: skip
        log = stack.enter_context((place / "boot.log").open("wb"))
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(running.wait)
        stack.callback(running.terminate)
        yield Machine(root, _leader(running, place / "boot.log"))


def install(machine: Machine, script: str) -> None:
    """Execute the page's installation with this environment's libraries instead of an index's."""
    python = "/opt/coterie/bin/python"
    libraries = f"echo {_LIBRARIES} > $(echo /opt/coterie/lib/python3*/site-packages)/libraries.pth"
    # Its own folder may be below /root, which the services do not see.
    machine.do("echo /opt/python/lib > /etc/ld.so.conf.d/python.conf && ldconfig")
    machine.do(script.replace("pip install", "pip install --quiet --no-deps") + libraries)
    for program in Path(sys.executable).parent.glob("fl*w*"):  # Flower's commands
        _, _, rest = program.read_text().partition("\n")
        there = machine.root / "opt/coterie/bin" / program.name
        there.write_text(f"#!{python}\n{rest}")
        there.chmod(0o755)


def _leader(running: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until systemd has booted; return its process."""
    deadline = time.monotonic() + _BOOT_SECONDS
    while time.monotonic() < deadline and running.poll() is None:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        for leader in children:
            enter = ["nsenter", "--target", leader, "--all", "systemctl", "is-system-running"]
            if "running" in subprocess.run(enter, capture_output=True, text=True).stdout:
                return int(leader)
        time.sleep(0.2)
    raise AssertionError(f"no boot:\n{log.read_text(errors='replace')[-3000:]}")


def _mount(stack: ExitStack, place: Path, *what: str) -> None:
    subprocess.run(["mount", *what, str(place)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(place)])


def missing() -> str:
    """Return why no machine can be booted here, or nothing."""
    if os.geteuid():
        return "machines under systemd need root"
    tools = subprocess.run(["which", "systemd-nspawn", "nsenter", "ip"], capture_output=True)
    return (
        "no systemd-nspawn (Debian: systemd-container), or no iproute2" if tools.returncode else ""
    )
