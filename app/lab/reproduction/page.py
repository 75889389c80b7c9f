"""Write a figure: results.csv, figure.svg, and a page beside the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Drawing

from coterie.app.experiments.table import Cell, Table, Trial
from coterie.app.lab.reproduction import formulas
from coterie.app.lab.reproduction.claims import counted
from coterie.app.lab.reproduction.figures import Figure, Row, Size, data_name, ours_of
from coterie.app.lab.reproduction.measures import components
from coterie.app.lab.reproduction.results import (
    Numbers,
    SeedNumbers,
    course,
    is_share,
    title_of,
)
from coterie.app.report import html
from coterie.app.report.figures import COLOURS, content, legend
from coterie.app.runs import atomic, units
from coterie.app.runs.rundir import Bools, Floats, Ints, Run

if TYPE_CHECKING:
    from coterie.app.lab.reproduction.reproduce import Reproduction

_TEMPLATES = html.environment(Path(__file__).parent / "templates")
_LINKS = ("white", "#a9c6e0", "#1f5f8b", "#c44e52")
"""Colours of `links`."""
_TABLES = ("table", "scatter", "maps")
"""Forms that show the numbers of their columns, too."""


def write(made: Reproduction) -> None:
    """Write every file of a figure but claims.json."""
    atomic.write(made.directory / "results.csv", as_csv(made.figure, made.numbers))
    atomic.write(made.directory / "seeds.csv", made.numbers.as_csv())
    drawing = drawn(made)
    svg = "" if drawing is None else content(drawing, "svg").decode()
    if svg:
        atomic.write(made.directory / "figure.svg", svg)
    atomic.write(made.directory / "page.html", render(made, svg))


def render(made: Reproduction, svg: str) -> str:
    """Return the page as one HTML file that opens offline."""
    figure = made.figure
    return _TEMPLATES.get_template("reproduction.html.j2").render(
        title=f"{made.paper.short}, {heading_of(figure)}",
        facts=[figure.where, f"size {made.size}", seeds(made.results)],
        notice="",
        outcome=f"{counted(made.verdicts) or 'No claims'}.",
        reference=made.paper.reference,
        svg=Markup(svg[svg.find("<svg") :]) if svg else "",
        panels=[ours_of(panel, made.size) for panel in figure.panels if panel.preset(made.size)],
        columns=[(column, heading(column)) for column in figure.columns],
        rows=table(figure, made.size, made.numbers) if figure.form in _TABLES else {},
        number=shown,
        verdicts=made.verdicts,
        differs=figure.differs,
        command=f"coterie reproduce {made.paper.name}/{figure.name} --size {made.size}",
        data={},
    )


def heading_of(figure: Figure) -> str:
    """Return "Table 2, cross-silo: ..." of a figure table-2-cross-silo."""
    match = re.fullmatch(r"([a-z]+)-([a-z]?\d*[a-z]?)(?:-(.*))?", figure.name)
    if match is None:
        name = figure.name.replace("-", " ").capitalize()
    else:
        kind, number, part = match.groups()
        name = f"{kind.capitalize()} {number if number[0].isdigit() else number.upper()}"
        name += f", {data_name(part)}" if part else ""
    return f"{name}: {figure.title}"


def table(figure: Figure, size: Size, numbers: Numbers) -> dict[str, list[SeedNumbers]]:
    """Return the numbers of each row, panel by panel and column by column."""
    panels = [panel.label for panel in figure.panels if panel.preset(size)]
    return {
        row.label: [
            numbers.at(panel, row.label, column) for panel in panels for column in figure.columns
        ]
        for row in figure.rows
    }


def as_csv(figure: Figure, numbers: Numbers) -> str:
    """Return a line for each panel, row, swept value and column."""
    lines: list[tuple[object, ...]] = [
        ("panel", "row", "x", "column", "mean", "std", "seeds", "published", "never")
    ]
    for place, of in numbers.places.items():
        if place.column in figure.shown:
            mean, spread, published = (
                "" if x is None or np.isnan(x) else repr(x)
                for x in (of.mean, of.deviation, of.published)
            )
            never = int(np.isinf(of.known).sum())
            lines.append((*place[:3], place.column, mean, spread, len(of.known), published, never))
    return atomic.as_csv(lines)


def drawn(made: Reproduction) -> Drawing | None:
    """Draw a figure in the paper's form; None for a table."""
    figure, size = made.figure, made.size
    if figure.form == "table":
        return None
    if figure.form == "drawn":
        return formulas.DRAWINGS[figure.drawn]()
    if figure.form in ("maps", "weights"):
        return (_maps if figure.form == "maps" else _weights)(made)
    panels = [panel for panel in figure.panels if panel.preset(size)]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    drawing = Drawing(figsize=(5.6 * columns, 3.6 * lines), layout="constrained")
    every = drawing.subplots(lines, columns, squeeze=False).ravel()
    for axes, panel in zip(every, panels, strict=False):
        for row, colour in zip(figure.rows, COLOURS * 3, strict=False):
            _DRAW[figure.form](axes, made, Cell(row.label, panel.label), row, colour)
        axes.set_title(ours_of(panel, size), fontsize="medium")
        axes.set_xscale("log" if "x" in figure.log else "linear")
        axes.set_yscale("log" if "y" in figure.log else "linear")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    if figure.form != "scatter":
        legend(drawing, every[0])
    return drawing


def _curve(axes: Axes, made: Reproduction, cell: Cell, row: Row, colour: str) -> None:
    """Draw the mean over peers over rounds, each seed thin and their mean bold."""
    figure, runs = made.figure, [*made.results.results[cell].values()]
    steps, courses = map(list, zip(*(course(run, figure.y) for run in runs), strict=True))
    for x_r, y_r in zip(steps, courses, strict=True):
        axes.plot(x_r, y_r, color=colour, alpha=0.25, linewidth=0.8)
    length = min(len(y_r) for y_r in courses)
    mean = np.mean([y_r[:length] for y_r in courses], axis=0)
    axes.plot(steps[0][:length], mean, color=colour, label=row.label)
    name = title_of(figure.y) if figure.y != "test_accuracy" else "accuracy"
    axes.set(xlabel="round", ylabel=name)


def _swept(axes: Axes, made: Reproduction, cell: Cell, row: Row, colour: str) -> None:
    """Draw a measure over the swept key, and the closed form where the row has one."""
    figure, values = made.figure, [point.x for point in made.figure.sweep(made.size)]
    numbers = [made.numbers.at(cell.panel, cell.row, figure.y, x) for x in values]
    means = [number.mean for number in numbers]
    bars = [number.deviation or 0.0 for number in numbers]
    at = np.array(values, dtype=np.float64)
    axes.errorbar(at, means, yerr=bars, color=colour, marker="o", label=row.label)
    if row.formula:
        wanted, name = [number.closed_form for number in numbers], f"{row.label}, closed form"
        axes.plot(at, wanted, color=colour, linestyle="--", label=name)
    axes.set(xlabel=figure.x, ylabel=title_of(figure.y))


def _scattered(axes: Axes, made: Reproduction, cell: Cell, row: Row, colour: str) -> None:
    """Draw the mean of the second column over that of the first, with the row's label beside it."""
    columns = made.figure.columns[:2]
    axes.set(**{f"{axis}label": heading(each) for axis, each in zip("xy", columns, strict=True)})
    x, y = (
        made.numbers.at(cell.panel, cell.row, each).mean * (100 if is_share(each) else 1)
        for each in columns
    )
    axes.scatter(x, y, color=colour, s=18)
    axes.annotate(row.label, (x, y), (4, 2), textcoords="offset points", fontsize="x-small",
                  color=colour)  # fmt: skip


def _maps(made: Reproduction) -> Drawing:
    """Draw collaboration graphs of the first seed, and of the one with the lowest F1, by row."""
    figure, results = made.figure, made.results
    runs = [each for cell in results.results if cell.x is None
            for each in _mapped(made, cell)]  # fmt: skip
    rounds = figure.shown_rounds(made.size)
    columns = max(1, len(rounds))
    drawing = Drawing(figsize=(2.2 * columns + 1, 2.2 * len(runs)), layout="constrained")
    every = drawing.subplots(len(runs), columns, squeeze=False)
    for line, (cell, trial, run) in zip(every, runs, strict=True):
        for axes, round_ in zip(line, rounds or (int(run.rounds[-1]),), strict=True):
            axes.set(xticks=[], yticks=[])
            if not len(run.weight_rounds):
                axes.set_axis_off()
                continue
            nearest = int(np.abs(run.weight_rounds - round_).argmin())
            if figure.initial:
                first = int(np.abs(run.weight_rounds - figure.initial).argmin())
                marks = links(run.weights[nearest], run.weights[first], run.attackers)
                axes.imshow(marks, cmap=ListedColormap(_LINKS), vmin=0, vmax=len(_LINKS) - 1)
            else:
                weights = np.where(np.eye(run.peers) > 0, np.nan, run.weights[nearest])
                axes.imshow(weights, cmap="Blues", vmin=0, vmax=float(np.nanmax(weights)) or 1.0)
            axes.set_title(f"round {run.weight_rounds[nearest]}", fontsize="small")
            if axes is line[0] and not run.names[0].startswith("peer "):
                axes.set_yticks(range(run.peers), run.names, fontsize="x-small")
                axes.set_xticks(range(run.peers), run.names, fontsize="x-small", rotation=90)
        label = f"{cell.panel}, {cell.row}" if cell.panel else cell.row
        line[0].set_ylabel(f"{label}\nseed {trial.seed}", fontsize="small")
    return drawing


def _mapped(made: Reproduction, cell: Cell) -> list[tuple[Cell, Trial, Run]]:
    """Return the runs of a cell that are drawn, with their trials."""
    of = made.results.results[cell]
    trials = [next(iter(of))]
    if "f1" in made.figure.columns:
        scores = made.numbers.at(cell.panel, cell.row, "f1").values
        worst = min(of, key=lambda trial: scores[str(trial.split)])
        trials += [worst] if scores[str(worst.split)] < scores[str(trials[0].split)] else []
    return [(cell, trial, of[trial]) for trial in trials]


def links(shown_nn: Floats, initial_nn: Floats, attackers_n: Bools) -> Ints:
    """Return each link's kind, (n, n)."""
    # 0: none, or to itself; 1: of the initial graph and not used; 2: used; 3: used, to an attacker.
    off = ~np.eye(len(shown_nn), dtype=np.bool_)
    used, known = (shown_nn > 0) & off, (initial_nn > 0) & off
    marks = np.where(used, np.where(attackers_n, 3, 2), np.where(known, 1, 0))
    order = np.argsort(attackers_n, kind="stable")
    return np.asarray(marks[np.ix_(order, order)], dtype=np.int64)


def _weights(made: Reproduction) -> Drawing:
    """Draw each client's weights over rounds: a line of plots for each row, of its first seed."""
    # Curves are shifted by a little, so that equal ones stay visible.
    lines = [(cell, *next(iter(of.items()))) for cell, of in made.results.results.items()]
    clients = made.figure.clients or tuple(range(lines[0][2].peers))
    width = max(4.6, 1.6 * len(clients) + 0.6)
    drawing = Drawing(figsize=(width, 1.5 * len(lines) + 0.4), layout="constrained")
    every = drawing.subplots(len(lines), len(clients), squeeze=False, sharex=True, sharey=True)
    noun = "of group"
    for line, (cell, trial, run) in zip(every, lines, strict=True):
        mixture_rkn = components(run)
        groups = np.arange(run.peers) if run.clusters is None else run.clusters
        for axes, client in zip(line, clients, strict=True):
            if mixture_rkn.shape[1]:
                rounds, weights_rk = run.rounds, mixture_rkn[:, :, client]
                colours, noun = np.arange(weights_rk.shape[1]), "component"
            else:
                kept = run.weight_rounds > 0
                rounds, weights_rk = run.weight_rounds[kept], run.weights[kept, client]
                colours = groups
            for k, (weight_r, colour) in enumerate(zip(weights_rk.T, colours, strict=True)):
                shown_r = weight_r + 0.012 * (k - (len(colours) - 1) / 2)
                axes.plot(rounds, shown_r, color=COLOURS[colour % len(COLOURS)], linewidth=0.9,
                          label=f"{noun} {colour}")  # fmt: skip
            axes.set_title(f"client {client}, group {groups[client]}", fontsize="x-small")
            axes.set_ylim(-0.08, 1.08)
            axes.tick_params(labelsize="x-small")
        name = cell.row.replace(", ", "\n")
        line[0].set_ylabel(f"{name}\nseed {trial.seed}\nweight", fontsize="x-small")
    for axes in every[-1]:
        axes.set_xlabel("round", fontsize="x-small")
    legend(drawing, every[-1, -1])
    return drawing


_DRAW: dict[str, Callable[..., None]] = {"curves": _curve, "sweep": _swept, "scatter": _scattered}


def shown(value: float, column: str) -> str:
    """Write a number for people."""
    if np.isnan(value):
        return units.NONE
    return f"{100 * value:.2f}" if is_share(column) else f"{value:.4g}"


def heading(column: str) -> str:
    """Return the heading of a column, with its unit."""
    title = title_of(column)
    return f"{title} %" if is_share(column) and not title.endswith("%") else title


def seeds(results: Table) -> str:
    """Return the seeds of the runs, for people."""
    trials = {trial for of in results.results.values() for trial in of}
    if not trials:
        return "no runs"
    seeds = sorted({trial.seed for trial in trials})
    splits = sorted({trial.split for trial in trials})
    listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return listed if splits == seeds else f"{listed}, each with {len(splits)} splits"
