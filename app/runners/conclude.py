"""End of a run: write summary and report, and print the summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.app.runs import limited, state, summary, units
from coterie.app.runs.rundir import Run


def conclude(run_dir: Path, console: Console) -> None:
    """Write summary and report of a run directory, and print the summary."""
    # matplotlib and scipy: half a second, not at the start of a run
    from coterie.app.experiments import methods
    from coterie.app.report import run_page

    numbers = summary.finish(run_dir)
    page = run_page.write(run_dir)
    run = Run.read(run_dir)
    for line in limited.sentences(run):
        console.print(line, soft_wrap=True, markup=False)
    page.show(console)
    console.print(digest(numbers, methods.all_to_all(numbers)))
    console.print(f"run directory: {run_dir}", soft_wrap=True)
    console.print(f"report: {run_dir / page.file}", soft_wrap=True)


def digest(summary: Mapping[str, Any], all_to_all: str = "") -> Table:
    """Return the short table at the end of a run; `all_to_all` explains the number of bytes."""
    table = Table(show_header=False, box=None)
    diverged = summary.get("diverged_peers")
    is_lost = bool(diverged) and diverged == summary["peers"]  # accuracies of untrained models
    accuracy, spread = (summary.get(f"{kind}_test_accuracy") for kind in ("mean", "std"))
    if accuracy is not None and not is_lost:
        table.add_row("test accuracy", f"{accuracy:.4f} ± {spread or 0:.4f} over peers")
    worst = summary.get("worst_decile_test_accuracy")
    if worst is not None and not is_lost:
        table.add_row("worst tenth of peers", f"{worst:.4f}")
    c_index = summary.get("measures", {}).get("c_index")
    if c_index is not None and not is_lost:
        table.add_row("C-index", f"{c_index:.4f}, mean over peers")
    if summary.get("mean_test_loss") is not None:
        table.add_row("test loss", f"{summary['mean_test_loss']:.6g}")
    if diverged:
        peers = units.plural(summary["peers"], "peer")
        table.add_row("diverged", f"{diverged} of {peers}: the loss or the model is not finite")
    if idle := summary.get("untrained_peers"):
        peers = units.plural(summary["peers"], "peer")
        why = "the privacy budget was used up before, or the node was away"
        table.add_row("not trained", f"{idle} of {peers}: {why}")
    for line in state.attendance(summary.get("took_part", {}), summary.get("rounds", 0)):
        table.add_row("took part", line)
    for line in summary.get("breaks", ()):
        table.add_row("no continuation", line)
    caption = f" ({all_to_all})" if all_to_all else ""
    table.add_row("between peers", units.size(summary.get("total_bytes") or 0) + caption)
    table.add_row("time", units.duration(summary.get("wall_seconds")))
    return table
