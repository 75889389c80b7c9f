"""Write a figure: results.csv, figure.svg, and a page beside the paper's numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Drawing

from coterie.app.config.schema import Scalar
from coterie.app.experiments.measures import components, reached
from coterie.app.experiments.table import Cell
from coterie.app.report import html
from coterie.app.reproduction import formulas
from coterie.app.reproduction.figures import Figure, Row, Size
from coterie.app.reproduction.results import (
    Results,
    course,
    is_share,
    title_of,
)
from coterie.app.runs import atomic, cells, units
from coterie.app.runs.rundir import Bools, Floats, Ints

if TYPE_CHECKING:
    from coterie.app.reproduction.reproduce import Reproduction

_TEMPLATES = html.environment(Path(__file__).parent / "templates")
_COLOURS = (
    *("#3f7fb5", "#c44e52", "#4a9a5b", "#d9822b", "#8064a2", "#5f6b7a"),
    *("#b5a13f", "#3fb5a8", "#a0527f", "#7a5f3f"),
)
_LINKS = ("white", "#a9c6e0", "#1f5f8b", "#c44e52")
"""Colours of `links`."""
_TABLES = ("table", "scatter", "maps")
"""Forms that show the numbers of their columns, too."""
_PATH = re.compile(r'\bd="[^"]*"')
_FRACTION = re.compile(r"-?\d+\.\d{3,}")
_NAMES = {
    "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "cross-device": "cross-device",
    "cross-silo": "cross-silo",
    "femnist": "FEMNIST",
    "ixi": "IXI",
    "miniimagenet": "MiniImageNet",
    "office-home": "Office-Home",
}
"""Part of a figure's name -> the same for people."""
_LISTED = 6
"""Maximum number of seeds that are listed one by one."""
HOLDS = {True: "holds", False: "does not hold", None: "cannot be judged"}


class Entry(NamedTuple):
    """Measured number and the paper's; None if there is none.

    `reached`: in how many seeds an event came, if not in all; the mean is then infinite.
    """

    mean: float | None
    deviation: float | None
    published: float | None
    reached: str = ""


def write(made: Reproduction) -> None:
    """Write every file of a figure but claims.json."""
    atomic.write(made.directory / "results.csv", as_csv(made.figure, made.results))
    drawing = drawn(made.figure, made.size, made.results)
    svg = "" if drawing is None else as_svg(drawing)
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
        outcome=outcome(made),
        reference=made.paper.reference,
        svg=Markup(svg[svg.find("<svg") :]) if svg else "",
        panels=[panel.label for panel in figure.panels if panel.preset(made.size)],
        columns=[(column, heading(column)) for column in figure.columns],
        rows=table(figure, made.size, made.results) if figure.form in _TABLES else {},
        number=shown,
        verdicts=made.verdicts,
        holds=HOLDS,
        differs=figure.differs,
        command=f"coterie reproduce {made.paper.name}/{figure.name} --size {made.size}",
        data={},
    )


def heading_of(figure: Figure) -> str:
    """Return "Table 2, cross-silo: ..." of a figure table-2-cross-silo."""
    kind, _, rest = figure.name.partition("-")
    number, _, part = rest.partition("-")
    name = f"{kind} {number}".capitalize() if number else kind.capitalize()
    if not any(sign.isdigit() for sign in number):
        name = f"{kind} {number.upper()}" if len(number) == 1 else figure.name.replace("-", " ")
        name = name[0].upper() + name[1:]
    elif not number[0].isdigit():
        name = f"{kind.capitalize()} {number.upper()}"
    elif part:
        name += f", {_NAMES.get(part, part.replace('-', ' '))}"
    return f"{name}: {figure.title}"


def outcome(made: Reproduction) -> str:
    """Return the number of claims that hold, in a sentence."""
    if not made.verdicts:
        return "The paper claims nothing about it that numbers could judge."
    held, against = (sum(v.holds is key for v in made.verdicts) for key in (True, False))
    claims = units.plural(len(made.verdicts), "claim")
    open_ = len(made.verdicts) - held - against
    return f"{claims}: {held} held, {against} contradicted, {open_} that cannot be judged here."


def table(figure: Figure, size: Size, results: Results) -> dict[str, list[Entry]]:
    """Return the cells of each row, panel by panel and column by column."""
    cells: dict[str, list[Entry]] = {}
    for row in figure.rows:
        cells[row.label] = [
            _cell(row, panel.label, column, results)
            for panel in figure.panels
            if panel.preset(size)
            for column in figure.columns
        ]
    return cells


def _cell(row: Row, panel: str, column: str, results: Results) -> Entry:
    mean, deviation, known = _summary(results, Cell(row.label, panel), column)
    return Entry(mean, deviation, row.printed(panel, column), reached(known))


def _summary(
    results: Results, cell: Cell, column: str
) -> tuple[float | None, float | None, list[float]]:
    """Return mean and deviation over trials, None where there is none, and the numbers.

    The mean is infinite if a trial is: it is not that of the trials in which an event came.
    """
    values = results.of_trials(cell, column)
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) else None
    spreads = len(known) > 1 and np.isfinite(known).all()
    return mean, float(known.std(ddof=1)) if spreads else None, known.tolist()


def as_csv(figure: Figure, results: Results) -> str:
    """Return a line for each panel, row, swept value and column."""
    lines: list[tuple[object, ...]] = [
        ("panel", "row", "x", "column", "mean", "std", "seeds", "published", "never")
    ]
    for cell in results.results:
        (row,) = (row for row in figure.rows if row.label == cell.row)
        columns = figure.columns if figure.form != "sweep" else (figure.y,)
        for column in columns:
            mean, deviation, known = _summary(results, cell, column)
            numbers = ("" if number is None else repr(number) for number in (mean, deviation))
            never = int(np.isinf(known).sum())
            printed = row.printed(cell.panel, column)
            beside = "" if printed is None else repr(printed)
            x = "" if cell.x is None else cell.x
            lines.append((cell.panel, cell.row, x, column, *numbers, len(known), beside, never))
    return cells.as_csv(lines)


def as_svg(drawing: Drawing) -> str:
    """Return a drawing as SVG: the same bytes for the same numbers, text as text."""
    file = io.StringIO()
    with mpl.rc_context(
        {"svg.hashsalt": "coterie", "svg.fonttype": "none", "path.simplify_threshold": 0.5}
    ):
        drawing.savefig(file, format="svg", metadata={"Date": None})
    return _PATH.sub(_rounded, file.getvalue())


def _rounded(path: re.Match[str]) -> str:
    """Write the coordinates of a path in hundredths of a point, on one line."""
    return " ".join(_FRACTION.sub(lambda number: f"{float(number[0]):.2f}", path[0]).split())


def drawn(figure: Figure, size: Size, results: Results) -> Drawing | None:
    """Draw a figure in the paper's form; None for a table."""
    if figure.form == "table":
        return None
    if figure.form == "drawn":
        return formulas.DRAWINGS[figure.drawn]()
    if figure.form == "maps":
        return _maps(figure, size, results)
    if figure.form == "weights":
        return _weights(figure, results)
    labels = [panel.label for panel in figure.panels if panel.preset(size)]
    drawing = Drawing(figsize=(1.5 + 4.5 * len(labels), 3.6), layout="constrained")
    draw = _DRAW[figure.form]
    every = drawing.subplots(1, len(labels), squeeze=False)[0]
    for axes, label in zip(every, labels, strict=True):
        for row, colour in zip(figure.rows, _COLOURS * 3, strict=False):
            draw(axes, figure, size, results, Cell(row.label, label), row, colour)
        axes.set_title(label)
        axes.set_xscale("log" if "x" in figure.log else "linear")
        axes.set_yscale("log" if "y" in figure.log else "linear")
        axes.spines[["top", "right"]].set_visible(False)
    every[-1].legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return drawing


def _curve(
    axes: Axes, figure: Figure, size: Size, results: Results, cell: Cell, row: Row, colour: str
) -> None:
    """Draw the mean over peers over rounds or bytes, each seed thin and their mean bold."""
    runs = list(results.results[cell].values())
    steps, courses = map(list, zip(*(course(run, figure.y) for run in runs), strict=True))
    if figure.x == "bytes":
        steps = [course(run, "bytes_sent")[1] / 1e6 for run in runs]
    for x_r, y_r in zip(steps, courses, strict=True):
        axes.plot(x_r, y_r, color=colour, alpha=0.25, linewidth=0.8)
    length = min(len(y_r) for y_r in courses)
    mean = np.mean([y_r[:length] for y_r in courses], axis=0)
    axes.plot(steps[0][:length], mean, color=colour, label=row.label)
    axes.set(xlabel="MB sent per peer" if figure.x == "bytes" else "round",
             ylabel=title_of(figure.y) if figure.y != "test_accuracy" else "accuracy")  # fmt: skip


def _swept(
    axes: Axes, figure: Figure, size: Size, results: Results, cell: Cell, row: Row, colour: str
) -> None:
    """Draw a measure over the swept key, and the closed form where the row has one."""
    values = [point.x for point in figure.sweep(size)]
    cells_x = [cell._replace(x=x) for x in values]
    positions = (
        [float(x or 0) for x in values] if _are_numbers(values) else list(range(len(values)))
    )
    means = [results.mean(at, figure.y) for at in cells_x]
    spreads = [results.of_trials(at, figure.y) for at in cells_x]
    bars = [float(np.nanstd(of, ddof=1)) if len(of) > 1 else 0.0 for of in spreads]
    axes.errorbar(positions, means, yerr=bars, color=colour, marker="o", label=row.label)
    if row.formula:
        runs = [next(iter(results.results[at].values())) for at in cells_x]
        wanted = [formulas.PREDICTIONS[row.formula](run.config) for run in runs]
        name = f"{row.label}, closed form"
        axes.plot(positions, wanted, color=colour, linestyle="--", label=name)
    if not _are_numbers(values):
        axes.set_xticks(positions, [str(x) for x in values])
    axes.set(xlabel=figure.x, ylabel=title_of(figure.y))


def _scattered(
    axes: Axes, figure: Figure, size: Size, results: Results, cell: Cell, row: Row, colour: str
) -> None:
    """Draw the second column over the first: each seed faint, and their mean."""
    for axis, column in zip((axes.xaxis, axes.yaxis), figure.columns, strict=False):
        axis.set_label_text(heading(column))
    x, y = (results.of_trials(cell, column) * (100 if is_share(column) else 1)
            for column in figure.columns[:2])  # fmt: skip
    marker = "os^"[figure.rows.index(row) // len(_COLOURS) % 3]
    axes.scatter(x, y, color=colour, marker=marker, alpha=0.3, s=12)
    axes.scatter(x.mean(), y.mean(), color=colour, marker=marker, label=row.label)


def _maps(figure: Figure, size: Size, results: Results) -> Drawing:
    """Draw collaboration graphs: a line of maps for each row, one for each of the rounds."""
    cells_x = [cell for cell in results.results if cell.x is None]
    rounds = figure.shown_rounds(size)
    columns = max(1, len(rounds))
    drawing = Drawing(figsize=(2.2 * columns + 1, 2.2 * len(cells_x)), layout="constrained")
    every = drawing.subplots(len(cells_x), columns, squeeze=False)
    for line, cell in zip(every, cells_x, strict=True):
        run = next(iter(results.results[cell].values()))
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
                weights = _without_diagonal(run.weights[nearest])
                axes.imshow(weights, cmap="Blues", vmin=0, vmax=float(np.nanmax(weights)) or 1.0)
            axes.set_title(f"round {run.weight_rounds[nearest]}", fontsize="small")
        label = f"{cell.panel}, {cell.row}" if cell.panel else cell.row
        line[0].set_ylabel(label)
    return drawing


def links(shown_nn: Floats, initial_nn: Floats, attackers_n: Bools) -> Ints:
    """Return the kind of each link, (n, n).

    0: no link; 1: of the initial graph and not used; 2: used; 3: used, to an attacker. A peer's
    link to itself counts as none.
    """
    off = ~np.eye(len(shown_nn), dtype=np.bool_)
    used, known = (shown_nn > 0) & off, (initial_nn > 0) & off
    marks = np.where(used, np.where(attackers_n, 3, 2), np.where(known, 1, 0))
    order = np.argsort(attackers_n, kind="stable")
    return np.asarray(marks[np.ix_(order, order)], dtype=np.int64)


def _weights(figure: Figure, results: Results) -> Drawing:
    """Draw each client's weights over rounds: a line of plots for each row, of its first seed.

    A curve is the weight of a peer, coloured by its true cluster, or of a component of a mixture.
    """
    lines = [(cell, next(iter(of.values()))) for cell, of in results.results.items()]
    clients = figure.clients or tuple(range(lines[0][1].peers))
    drawing = Drawing(figsize=(1.6 * len(clients) + 0.6, 1.5 * len(lines)), layout="constrained")
    every = drawing.subplots(len(lines), len(clients), squeeze=False, sharex=True, sharey=True)
    for line, (cell, run) in zip(every, lines, strict=True):
        mixture_rkn = components(run)
        groups = np.arange(run.peers) if run.clusters is None else run.clusters
        for axes, client in zip(line, clients, strict=True):
            if mixture_rkn.shape[1]:
                rounds, weights_rk = run.rounds, mixture_rkn[:, :, client]
                colours = np.arange(weights_rk.shape[1])
            else:
                kept = run.weight_rounds > 0
                rounds, weights_rk = run.weight_rounds[kept], run.weights[kept, client]
                colours = groups
            for weight_r, colour in zip(weights_rk.T, colours, strict=True):
                axes.plot(rounds, weight_r, color=_COLOURS[colour % len(_COLOURS)], linewidth=0.9)
            axes.set_title(f"client {client}, group {groups[client]}", fontsize="x-small")
            axes.set_ylim(-0.05, 1.05)
            axes.tick_params(labelsize="x-small")
        line[0].set_ylabel(cell.row.replace(", ", "\n"), fontsize="x-small")
    return drawing


def _without_diagonal(weights: Floats) -> Floats:
    off = weights.copy()
    np.fill_diagonal(off, np.nan)
    return off


def _are_numbers(values: Sequence[Scalar | None]) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


_DRAW: dict[str, Callable[..., None]] = {
    "curves": _curve,
    "sweep": _swept,
    "scatter": _scattered,
}


def shown(value: float | None, column: str) -> str:
    """Write a number for people."""
    if value is None:
        return units.NONE
    return f"{100 * value:.2f}" if is_share(column) else f"{value:.4g}"


def heading(column: str) -> str:
    """Return the heading of a column, with its unit."""
    title = title_of(column)
    return f"{title} %" if is_share(column) and not title.endswith("%") else title


def seeds(results: Results) -> str:
    """Return the seeds of the runs, for people."""
    trials = {trial for of in results.results.values() for trial in of}
    if not trials:
        return "no runs"
    seeds = sorted({trial.seed for trial in trials})
    splits = sorted({trial.split for trial in trials})
    listed = f"seeds {', '.join(map(str, seeds))}"
    if len(seeds) > _LISTED:
        listed = f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]}"
    return listed if splits == seeds else f"{listed}, each with {len(splits)} splits"
