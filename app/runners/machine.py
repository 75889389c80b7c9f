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

    Parameters
    ----------
    powercap : Path or None
        Directory of the counters, as `POWERCAP`; None: measure nothing.
    """

    def __init__(self, powercap: Path | None) -> None:
        self._packages: list[tuple[Path, int]] = []
        self._last: list[int] = []
        self._microjoules, self._lock, self._over = 0, Lock(), Event()
        try:
            folders = [
                each
                for each in (powercap.glob("intel-rapl:*") if powercap else ())
                if (each / "name").read_text(encoding="utf-8").startswith("package")
            ]
            self._packages = [
                (each / "energy_uj", _number(each / "max_energy_range_uj")) for each in folders
            ]
            self._last = [_number(path) for path, _ in self._packages]
        except (OSError, ValueError):
            self._packages = []

    def __enter__(self) -> Self:
        if self._packages:
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
                now = [_number(path) for path, _ in self._packages]
            except (OSError, ValueError):
                self._packages = []
            if not self._packages:
                return None
            for (_, range_), before, after in zip(self._packages, self._last, now, strict=True):
                self._microjoules += (after - before) % range_
            self._last = now
            return self._microjoules / 1e6


def _number(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))
