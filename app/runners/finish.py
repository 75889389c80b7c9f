"""End of a run: write summary and report, and print what the report begins with."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from coterie.app.runs import summary


def finish(run_dir: Path, console: Console) -> None:
    """Write summary and report of a run directory, and print the lines of the report."""
    from coterie.app.report import run_page  # matplotlib: half a second, not at the start of a run

    summary.finish(run_dir)
    page = run_page.write(run_dir)
    page.show(console)
    console.print(f"run directory: {run_dir}", soft_wrap=True)
    console.print(f"report: {run_dir / page.file}", soft_wrap=True)
