"""Machine of a run: its name and its processor cores."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from coterie.app.runs import units


def cores() -> int:
    """Return the number of cores of this process, or of the machine if the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes that this process may have: those of the machine, or of its cgroup."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup 2 and 1
        with suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(Path("/sys/fs/cgroup", file).read_text(encoding="ascii")))
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
