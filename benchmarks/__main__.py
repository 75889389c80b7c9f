"""All benchmarks: tables on the terminal, numbers in benchmarks/results.json. `make bench`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import engine, path, relay, seals

RESULTS = Path(__file__).parent / "results.json"


def show(console: Console, title: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Print rows of one benchmark as they arrive; return them as dicts."""
    results: list[dict[str, Any]] = []
    with console.status(title):
        for row in rows:
            results.append(asdict(row))
            console.log(", ".join(f"{key} {value}" for key, value in results[-1].items()))
    table = Table(title=title, title_justify="left")
    for key in results[0]:
        table.add_column(key, justify="left" if isinstance(results[0][key], str) else "right")
    for line in results:
        table.add_row(*("" if value is None else str(value) for value in line.values()))
    console.print(table)
    return results


def main() -> None:
    """Run all benchmarks and write the results."""
    console = Console()
    machine = engine.machine()
    console.print(machine)
    results = {
        "machine": machine,
        "relay": show(console, "A round without the peers' own work", relay.rows()),
        "messages": show(console, "A message to a deployed peer", path.messages()),
        "letters": show(console, "A letter, written, handed over, read", path.letters()),
        "seals": show(console, "Sealing a letter, and opening it", seals.rows()),
        "engine": show(console, "SGD steps a second, of a loop too", engine.rows(engine.NETWORKS)),
        "load_1min_at_end": engine.machine()["load_1min"],
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"load at the end: {results['load_1min_at_end']}; numbers: {RESULTS}")


if __name__ == "__main__":
    main()
