"""Machine of a run: its name, and the energy that its processors use.

Linux counts the energy of each processor package (RAPL). On many machines only root can read it.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

from coterie.app.runners import cores
from coterie.app.runs import units

POWERCAP = Path("/sys/class/powercap")
"""Linux's energy counters."""
_PAUSE = 30.0
"""Seconds between readings: under load, a counter starts again after a few minutes."""


def description(gpu: str = "") -> str:
    """Return processor and number of cores of this machine, and the GPU of a run if it has one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = model[1].strip() if model else platform.machine()
    return ", ".join(filter(None, [name, units.plural(cores.count(), "core"), gpu]))


class Meter:
    """Context manager that measures the energy of all processors of this machine.

    `powercap` is the directory of the counters, as `POWERCAP`; None: measure nothing.
    """

    def __init__(self, powercap: Path | None) -> None:
        self._ranges, self._last = dict[Path, int](), list[int]()
        self._microjoules, self._lock, self._over = 0, Lock(), Event()
        try:
            for each in powercap.glob("intel-rapl:*") if powercap else ():
                if (each / "name").read_text(encoding="utf-8").startswith("package"):
                    self._ranges[each / "energy_uj"] = _number(each / "max_energy_range_uj")
            self._last = [*map(_number, self._ranges)]
        except (OSError, ValueError):
            self._ranges.clear()

    def __enter__(self) -> Self:
        if self._ranges:
            Thread(target=self._read_at_times, name="energy", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _read_at_times(self) -> None:
        while not self._over.wait(_PAUSE):
            self.joules()

    def joules(self) -> float | None:
        """Return the energy since the start; None if a counter is missing or not readable."""
        with self._lock:
            try:
                now = [*map(_number, self._ranges)]
            except (OSError, ValueError):
                self._ranges.clear()
            if not self._ranges:
                return None
            for before, after, end in zip(self._last, now, self._ranges.values(), strict=True):
                self._microjoules += (after - before) % end
            self._last = now
            return self._microjoules / 1e6


def _number(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))
