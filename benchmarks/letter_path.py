"""Number of modules, functions and module changes of one sealed round.

`python -m benchmarks.letter_path [CHECKOUT]` counts, in this checkout or another one, the Python
calls from the commit of one round to that of the next, in the middle of a CoBo run: four peers on
digits, two in-process nodes with two peers each, every letter between them sealed, no evaluation.

- Modules: files of app/, strategies/, clients/ and datasets/ in which a function was called.
- Functions: those called, comprehensions and lambdas among them (Python 3.11 has a frame for each).
- Module changes: calls whose nearest caller in these folders is in another module. A generator
  counts when it begins, not when it continues.

Commit e226b70, before app/ and clients/ had folders: 36 modules, 292 functions, 1,126 changes.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDERS = "app", "strategies", "clients", "datasets"
ROUNDS, MEASURED = 5, 3
RUN: dict[str, Any] = {
    "method": "cobo", "sealing": True, "dataset": "digits", "peers": 4, "partition.clusters": 2,
    "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "device": "cpu",
}  # fmt: skip


@dataclass
class Calls:
    """Profiler (`sys.setprofile`) of the calls in one checkout's folders.

    Attributes
    ----------
    functions : Counter of (str, CodeType)
        Number of calls of each (module, function).
    changes : Counter of str
        Number of calls of each module from another one.
    """

    checkout: Path
    functions: Counter[tuple[str, CodeType]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    _begun: set[FrameType] = field(default_factory=set)  # generators

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        module = self._module(frame)
        if event != "call" or not module or frame in self._begun:
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._begun.add(frame)
        self.functions[module, frame.f_code] += 1
        caller = frame.f_back
        while caller and not self._module(caller):
            caller = caller.f_back
        if caller and self._module(caller) != module:
            self.changes[module] += 1

    def _module(self, frame: FrameType) -> str:
        """Return the path of a frame's module in the checkout; "" outside these folders."""
        path = frame.f_code.co_filename.removeprefix(f"{self.checkout}{os.sep}")
        return path if path.partition(os.sep)[0] in FOLDERS else ""

    def rows(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Return (package, modules, functions, calls, module changes); the last row is the sum."""
        every = {module for module, _ in self.functions}
        for package in (*sorted({os.path.dirname(module) for module in every}), "all"):
            inside = {m for m in every if package in ("all", os.path.dirname(m))}
            calls = [n for (module, _), n in self.functions.items() if module in inside]
            changes = sum(self.changes[module] for module in inside)
            yield package, len(inside), len(calls), sum(calls), changes


def measured(checkout: Path) -> Calls:
    """Count the calls of round `MEASURED`; the process must not have imported any checkout yet."""
    sys.path.insert(0, str(checkout))
    os.environ["OMP_NUM_THREADS"] = "1"
    # Older engines time chunk sizes and keep the fastest, and a smaller chunk is more calls.
    time.perf_counter = itertools.count().__next__
    inline: Any = import_module("tests.inline")
    calls, record = Calls(checkout), inline.Run.round

    def committed(run: object, commit: Any) -> None:
        sys.setprofile(None)
        record(run, commit)
        if commit.ledger.round == MEASURED - 1:
            sys.setprofile(calls)

    inline.Run.round = committed  # the relay's recorder
    with tempfile.TemporaryDirectory() as directory:
        inline.run(RUN, Path(directory), nodes=2)
    return calls


def main() -> None:
    """Print the numbers, by package and in total."""
    here = Path(__file__).parents[1]
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else here).resolve()
    table = Table("package", "modules", "functions", "calls", "module changes")
    for row in measured(checkout).rows():
        table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    main()
