"""Machine of a run: its name, processor cores and memory."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from coterie.app.runs import units

_LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""Controller of a tree of cgroups -> file with the limit; version 2 has one tree for all."""


def cores() -> int:
    """Return the number of cores of this process, or of the machine if the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may have: those of the machine, or of its cgroups.

    Every cgroup above that of the process has a limit, too, as those of SLURM, systemd and Docker.
    """
    limits, groups = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")], ["0::/"]
    with suppress(OSError):
        groups += (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    for _, controller, path in (group.split(":", 2) for group in groups):
        top = root / "sys/fs/cgroup" / controller
        place = top / path.lstrip("/")
        for each in (place, *place.parents) if controller in _LIMITS else ():
            if each.is_relative_to(top):
                with suppress(OSError, ValueError):  # "max": no limit
                    limits.append(int((each / _LIMITS[controller]).read_text("ascii")))
    return min(limits)


def description(gpu: str = "") -> str:
    """Return processor and number of cores of this machine, and the GPU of a run if it has one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = model[1].strip() if model else platform.machine()
    return ", ".join(filter(None, [name, units.plural(cores(), "core"), gpu]))
