"""`coterie reproduce`: make a table or figure of a paper and judge its claims."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.app.cli.named import add_workers
from coterie.app.config.keys import ConfigError
from coterie.app.lab.reproduction import figures
from coterie.app.lab.reproduction.figures import Figure, Size


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Make the named figures, or list all figures."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="PAPER/FIGURE",
        help="a figure, a paper (all its figures), or all",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the tables and figures of all papers, or of some"
    )
    parser.add_argument("--size", choices=get_args(Size), default="small", help="(small)")
    parser.add_argument("--seeds", type=int, help="number of seeds from 0 (the figure's seeds)")
    parser.add_argument(
        "--panel", action="append", default=[], metavar="LABEL",
        help="only this panel of the figure, as in \"Heart Disease\"; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", default="runs/reproduce", help="directory (runs/reproduce)")
    add_workers(parser)
    options = parser.parse_args(arguments)
    if options.list:
        console.print(listed(options.names or figures.names()))
        return
    if not options.names:
        raise ConfigError("name a figure, as in cobo/table-1; --list shows every one")
    from coterie.app.lab.reproduction.claims import Verdict, counted
    from coterie.app.lab.reproduction.reproduce import FigureRequest, reproduce

    verdicts: list[Verdict] = []
    for name in [*_chosen(options.names, options.size)]:
        request = FigureRequest(
            name, options.size, options.seeds, Path(options.out), options.workers,
            tuple(options.panel),
        )  # fmt: skip
        made = reproduce(request, console)
        verdicts += made.verdicts
        for verdict in made.verdicts:
            console.print(f"{verdict.verdict}: {verdict.claim}")
            if verdict.quote:
                console.print(f"  paper: “{verdict.quote}”")
            for line in filter(None, (verdict.evidence, verdict.why)):
                console.print(f"  {line}")
        console.print(f"{name}: {made.directory / 'page.html'}")
    console.print(counted(verdicts))


def _chosen(names: list[str], size: Size) -> Iterator[str]:
    """Yield the named figures; for a paper or all papers, those that have this size."""
    for name in names:
        for paper, figure in _figures(figures.names() if name == "all" else [name]):
            if "/" in name or figure.exists(size):
                yield f"{paper}/{figure.name}"


def listed(names: Iterable[str]) -> Table:
    """Return a table of tables and figures: minutes, title, and what size "paper" needs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("figure", "min", "title", "size paper"):
        table.add_column(head, no_wrap=head != "title")
    for paper, figure in _figures(names):
        title = Text(figure.title, no_wrap=True, overflow="ellipsis")
        table.add_row(f"{paper}/{figure.name}", _minutes(figure), title, _paper(figure))
    return table


def _figures(names: Iterable[str]) -> Iterator[tuple[str, Figure]]:
    for name in names:
        if "/" in name:
            paper, figure = figures.find(name)
            yield paper.name, figure
        else:
            yield from ((name, figure) for figure in figures.read(name).figures.values())


def _minutes(figure: Figure) -> str:
    if not figure.exists("small"):
        return "-"
    return f"{max(1, round(figure.minutes))}" if figure.minutes else "<1"


def _paper(figure: Figure) -> str:
    """Return what size "paper" needs: a GPU with hours, then data."""
    if figure.form == "drawn" or not figure.exists("paper"):
        return "-"
    data = [need for need in figure.required if not need.startswith("a GPU")]
    gpu = "GPU" if len(data) < len(figure.required) else ""
    time = f"{figure.hours:g} h" if figure.hours else ""
    return ", ".join(filter(None, (f"{gpu} {time}".strip(), *data))) or "CPU"
