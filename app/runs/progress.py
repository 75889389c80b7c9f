"""Show how a run gets on, from the progress.json that the relay rewrites every round."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.runs import units

_PLAIN_SECONDS = 10.0


def read(run_dir: Path) -> dict[str, Any]:
    """progress.json; empty while there is none."""
    try:
        progress: dict[str, Any] = json.loads((run_dir / "progress.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return progress


class Display:
    """A live line on a terminal, else a plain line now and then. A context manager."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, state="starting Flower")
        self._spoken = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, progress: Mapping[str, Any]) -> None:
        """Bring the display up to date."""
        if not progress:
            return
        state = describe(progress)
        self._bar.update(self._task, completed=progress["round"], state=state)
        if not self._console.is_terminal and time.monotonic() - self._spoken > _PLAIN_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"round {progress['round']}/{progress['rounds']}  {state}")


def describe(progress: Mapping[str, Any]) -> str:
    """Mean accuracy (or loss) with its spread, and the bytes so far."""
    accuracy, spread = progress.get("mean_test_accuracy"), progress.get("std_test_accuracy")
    loss = progress.get("mean_test_loss")
    parts = []
    if accuracy is not None:
        parts.append(f"accuracy {accuracy:.3f}" + ("" if spread is None else f" ± {spread:.3f}"))
    elif loss is not None:
        parts.append(f"loss {loss:.4g}")
    parts.append(units.size(progress.get("bytes") or 0))
    return "  ".join(parts)
