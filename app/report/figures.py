"""Figures of runs and comparisons for papers of two columns: PDF, SVG, PNG.

Names say what is drawn, as in accuracy-rounds.pdf. Fonts are embedded, or text is text; the colours
are those of Okabe and Ito, and lines also differ in dashes and markers, for print in grey.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter

from coterie.app.experiments.measures import MEASURES, deviation, gains
from coterie.app.experiments.methods import learns_graph
from coterie.app.report import coefficients, decisions
from coterie.app.report.comparison import Comparison, in_paper, slug
from coterie.app.report.comparison_figures import over_seeds, risks, union
from coterie.app.report.forest import Forest
from coterie.app.report.run_data import CROWD, display_blocks, peer_order
from coterie.app.report.thinning import block_means, finite, thin
from coterie.app.runs import atomic
from coterie.app.runs.files import ResultsError
from coterie.app.runs.graph import learnt_edges, row_scales
from coterie.app.runs.rundir import Floats, Run

Drawn = Iterable[tuple[str, Figure | str]]
"""Names of figures, each with its figure or the reason why there is none."""
_WIDTH = 3.3
"""Inches of a column."""
_LINE = 0.17
"""Inches of a row of a figure, or of its legend."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = "osD^vPX*<"
_NAMED = 12
"""Number of peers up to which a map has their names, if they have some."""
_GREY = "#8a9099"
_STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "legend.handlelength": 2.6,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.2, "lines.markersize": 3.2, "grid.linewidth": 0.4, "grid.alpha": 0.5,
}  # fmt: skip
_FILES: dict[Any, Any] = {
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "coterie", "savefig.dpi": 300,
    "path.simplify_threshold": 0.5,
}  # fmt: skip
_UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
_ZEROS = re.compile(r"\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)")
_PATH, _FRACTION = re.compile(r'\bd="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")
_CURVES = {
    "accuracy": ("test_accuracy", "test accuracy", PercentFormatter(1.0, decimals=0)),
    "loss": ("test_loss", "test loss", None),
}
"""Measure -> field of metrics.jsonl, label and format."""
_AXES: Mapping[str, tuple[str, str, Formatter | None]] = {
    "rounds": ("", "round", None),
    "bytes": ("bytes_sent", "bytes sent per peer", EngFormatter("B")),
    "time": ("virtual_seconds", "virtual time", EngFormatter("s")),
}


def of(directory: Path) -> Drawn:
    """Draw the figures of the run or the comparison in a directory; ResultsError if it is none."""
    if (directory / "config.toml").is_file():
        return of_run(Run.read(directory))
    return of_comparison(Comparison.read(directory))


def of_run(run: Run) -> Drawn:
    """Draw learning curves, collaboration weights, the learnt graph, and coefficients."""
    if not len(run.rounds):
        raise ResultsError(f"{run.directory}: no round has been evaluated yet: nothing to draw")
    yield from _each_curve([run], partial(_peers, run=run))
    yield "collaboration", collaboration(run)
    yield "graph", _graph(run)
    section = coefficients.of_run(run)
    for plot in section.plots if section else ():
        yield f"coefficient-{slug(plot.title.partition(' (')[0])}", _forest(plot)


def of_comparison(compared: Comparison) -> Drawn:
    """Draw learning curves, gains, measures, collaboration weights, and forest plots by method."""
    table = compared.table
    yield from ((name, f"failed: {why}") for name, why in compared.failed.items())
    yield from _each_curve(compared.runs, partial(_methods, compared=compared))
    yield "gains", _gains(compared)
    yield "gain-risk", _risk(compared)
    for column in in_paper(table):
        rows = {row.name: np.array(row.numbers(column), dtype=np.float64) for row in table.rows}
        yield f"{column.key.replace('_', '-')}-methods", _dots(rows, column.title, column.show)
    mapped = [
        (row.name, row.runs[0], -1) for row in table.rows if row.runs[0].weights_between().any()
    ]
    yield "collaboration", _maps(mapped) if mapped else "no peer gave weight to another"
    decided = decisions.compared(compared)
    if decided is None:
        yield "forest", "needs institutions' own rows, and runs of local and another method"
    for plot in decided.forests if decided else ():
        yield f"forest-{slug(plot.title.partition(' (')[0])}", _forest(plot)


def write(drawn: Drawn, directory: Path, form: str) -> tuple[list[Path], dict[str, list[str]]]:
    """Write "pdf", "svg" or "png"; return the paths, and by reason the names of missing figures."""
    paths, missing = list[Path](), dict[str, list[str]]()
    with mpl.rc_context(_STYLE):
        for name, figure in drawn:
            if isinstance(figure, str):
                missing.setdefault(figure, []).append(name)
                continue
            directory.mkdir(parents=True, exist_ok=True)
            paths.append(directory / f"{name}.{form}")
            atomic.write(paths[-1], content(figure, form))
    return paths, missing


def content(figure: Figure, form: str) -> bytes:
    """Return the file of a figure: the same bytes for the same numbers, text as text."""
    file = io.BytesIO()
    with mpl.rc_context(_FILES):
        figure.savefig(file, format=form, metadata=_UNDATED.get(form))
    if form != "svg":
        return file.getvalue()
    return _PATH.sub(_rounded, file.getvalue().decode()).encode()


def _rounded(path: re.Match[str]) -> str:
    """Write the coordinates of a path in hundredths of a point, on one line."""
    return " ".join(_FRACTION.sub(lambda number: f"{float(number[0]):.2f}", path[0]).split())


def pictures(run: Run) -> Drawn:
    """Draw the pictures beside a report: curves over rounds, and collaboration weights."""
    known = [measure for measure in _CURVES if _has([run], _CURVES[measure][0])]
    if known:  # institutions may report nothing
        yield "curves", _curves(known, "rounds", partial(_peers, run=run))
    yield "collaboration", collaboration(run)


def _has(runs: Sequence[Run], field: str, above: float = -np.inf) -> bool:
    return any((run.metric(field) > above).any() for run in runs)


def _each_curve(runs: Sequence[Run], draw: Callable[[Axes, str, str], None]) -> Drawn:
    """Draw each measure over each axis; `draw` adds the lines of a field over another."""
    for measure, (field, label, _) in _CURVES.items():
        if not _has(runs, field):
            yield measure, f"no record of {label}"
            continue
        for axis, (cost, what, _) in _AXES.items():
            known = not cost or _has(runs, cost, 0.0)
            figure = _curves([measure], axis, draw) if known else f"no record of {what}"
            yield f"{measure}-{axis}", figure


def _curves(measures: Sequence[str], axis: str, draw: Callable[[Axes, str, str], None]) -> Figure:
    """Draw measures side by side over an axis."""
    figure, panels = _panels(2.0, len(measures), width=_WIDTH * len(measures))
    cost, what, form = _AXES[axis]
    for axes, measure in zip(panels, measures, strict=True):
        field, label, form_y = _CURVES[measure]
        draw(axes, field, cost)
        axes.set(xlabel=what, ylabel=label)
        axes.grid(axis="y")
        axes.locator_params(axis="x", nbins=6)
        if form:
            axes.xaxis.set_major_formatter(form)
        if form_y:
            axes.yaxis.set_major_formatter(form_y)
        seen = np.concatenate([np.asarray(line.get_ydata()) for line in axes.lines])
        if measure == "loss" and len(seen) and 0 < 50 * seen.min() < seen.max():
            axes.set_yscale("log")
    legend(figure, panels[0])
    return figure


def _panels(
    height: float, columns: int = 1, rows: int = 1, width: float = _WIDTH
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False).ravel()]


def legend(figure: Figure, axes: Axes) -> None:
    """Write the legend of some axes below the figure, which grows by it."""
    lines = {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = 3 if max(map(len, lines)) < 14 else 2
    figure.set_figheight(figure.get_figheight() - len(lines) // -columns * _LINE)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, frameon=False)


def _peers(axes: Axes, field: str, cost: str, run: Run) -> None:
    """Draw the mean over the peers of a run, quantiles, and a line per peer if they are few."""
    values_rn = np.where(np.isfinite(run.metric(field)), run.metric(field), np.nan)
    is_seen_r = ~np.isnan(values_rn).all(axis=1)
    values_rn, x_r = values_rn[is_seen_r], run.rounds[is_seen_r]
    if cost:
        x_r = np.nanmean(run.metric(cost)[is_seen_r], axis=1)
    marker = "o" if len(x_r) == 1 else ""
    if run.peers <= CROWD:
        lines = axes.plot(x_r, values_rn, color=_GREY, lw=0.5, alpha=0.6, marker=marker)
        lines[0].set_label("peers")
    for least, alpha, name in ((5, 0.16, "5 % to 95 %"), (25, 0.28, "middle half")):
        if least == 25 or run.peers > CROWD:
            ends_r = np.nanpercentile(values_rn, [least, 100 - least], axis=1)
            axes.fill_between(x_r, *ends_r, color=COLOURS[0], alpha=alpha, lw=0, label=name)
    mean_r = np.nanmean(values_rn, axis=1)
    axes.plot(x_r, mean_r, color="#000000", lw=1.4, marker=marker, label="mean")


def _methods(axes: Axes, field: str, cost: str, compared: Comparison) -> None:
    """Draw the mean over seeds of each row, and one deviation around it; see `over_seeds`."""
    rounds_r = union(run.rounds for run in compared.runs)
    for k, row in enumerate(compared.table.rows):
        mean_r, deviation_r = over_seeds(row.runs, field, rounds_r)
        x_r = over_seeds(row.runs, cost, rounds_r)[0] if cost else rounds_r
        kept_r = np.isfinite(mean_r) & np.isfinite(x_r)
        if not kept_r.any():
            continue
        look: dict[str, Any] = {"color": COLOURS[k % len(COLOURS)], "ls": _DASHES[k % len(_DASHES)]}
        x_r, mean_r, deviation_r = x_r[kept_r], mean_r[kept_r], deviation_r[kept_r]
        if cost and not x_r.any():
            axes.axhline(mean_r[-1], label=f"{row.name} (0)", **look)
            continue
        every = max(1, len(x_r) // 6)
        axes.plot(x_r, mean_r, label=row.name, marker=_MARKERS[k % len(_MARKERS)],
                  markevery=(k % every, every), **look)  # fmt: skip
        ends_r = mean_r - deviation_r, mean_r + deviation_r
        axes.fill_between(x_r, *ends_r, color=look["color"], alpha=0.16, lw=0)


def collaboration(run: Run) -> Figure | str:
    """Draw the weights between the peers of a run in up to four rounds."""
    if not run.weights_between().any():
        return "no peer gave weight to another"
    return _maps([(f"round {run.weight_rounds[k]}", run, k) for k in thin(len(run.weights), 4)])


def _maps(shown: Sequence[tuple[str, Run, int]]) -> Figure:
    """Draw weights as shares of `row_scales`: by title, run, and number of the recorded graph."""
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure, panels = _panels(0.5 + rows * (0.2 + 3.1 / columns), columns, rows)
    for axes, (title, run, at) in zip(panels, shown, strict=False):
        (order, blocks), weights_nn = display_blocks(run), finite(run.weights[at])
        scale_n = row_scales(weights_nn)
        share_nn = weights_nn / np.where(scale_n > 0, scale_n, 1.0)[:, None]
        means_bb = block_means(share_nn, order, blocks)
        means_bb[np.diag(np.diff(blocks, append=run.peers) == 1)] = np.nan  # own weights
        image = axes.imshow(means_bb, vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
        axes.set_title(title, fontsize="x-small")
        axes.set(xticks=[], yticks=[], facecolor="#e3e0da")
        axes.spines[:].set(visible=True, color="#c9ccd1")
    if run.peers <= _NAMED and not run.names[0].startswith("peer "):
        panels[0].set_yticks(range(run.peers), _literal(np.take(run.names, order)))
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.colorbar(
        image, ax=panels, location="bottom", aspect=30, label="share of the row’s largest weight"
    )
    return figure


def _graph(run: Run) -> Figure | str:
    """Draw the learnt edges after the last round: half of a line per direction, thick if strong."""
    if not run.weights_between().any() or not learns_graph(run.settings):
        return f"{run.label} learns no graph"
    if run.peers > CROWD:
        return f"more than {CROWD} peers; collaboration has them in blocks"
    order_n, weights_nn = peer_order(run), finite(run.weights[-1])
    angle_n = 2 * np.pi * np.argsort(order_n) / run.peers
    place_n2 = np.stack([np.sin(angle_n), np.cos(angle_n)], axis=1)
    i_e, j_e = np.nonzero(learnt_edges(weights_nn))
    share_e = weights_nn[i_e, j_e] / row_scales(weights_nn)[i_e]
    halves_e22 = np.stack([place_n2[i_e], (place_n2[i_e] + place_n2[j_e]) / 2], axis=1)
    figure, (axes,) = _panels(_WIDTH)
    axes.add_collection(LineCollection([*halves_e22], linewidths=1.6 * share_e, colors=_GREY))
    cluster_n = np.zeros(run.peers, dtype=np.int64) if run.clusters is None else run.clusters
    for k in np.unique(cluster_n).tolist():
        x_p, y_p = place_n2[cluster_n == k].T
        axes.plot(x_p, y_p, _MARKERS[k % len(_MARKERS)], ms=6, color=COLOURS[k % len(COLOURS)])
    for name, (x, y) in zip(_literal(run.names), place_n2.tolist(), strict=True):
        side = "center" if abs(x) < 0.3 else "left" if x > 0 else "right"
        text = name.removeprefix("peer ")
        axes.text(1.1 * x, 1.1 * y, text, ha=side, va="center", fontsize="x-small")
    axes.set(aspect="equal", xlim=(-1.4, 1.4), ylim=(-1.25, 1.25))
    axes.set_axis_off()
    return figure


def _gains(compared: Comparison) -> Figure | str:
    gains_by_method = {
        row.name: np.concatenate([gains(*pair) for pair in row.pairs])
        for row in compared.table.rows
        if row.pairs and not row.is_local
    }
    if not gains_by_method or not compared.table.has_same_data:
        return "needs runs of local with the same data"
    has_accuracy = all(run.has_accuracy for run in compared.runs)
    label = "gain over local, points" if has_accuracy else "reduction of local’s test loss"
    show = MEASURES["gain" if has_accuracy else "loss_gain"].show
    return _dots(gains_by_method, label, show, has_bars=False)


def _risk(compared: Comparison) -> Figure | str:
    """Draw what each method gains against what its letters tell."""
    part = risks(compared)
    if part is None:
        return "compare --clearance measures letters"
    figure, (axes,) = _panels(2.2)
    for k, (name, x, y) in enumerate(part.drawn["risks"]["points"]):
        axes.plot(x, y, _MARKERS[k % len(_MARKERS)], color=COLOURS[k % len(COLOURS)], ms=5)
        axes.annotate(name, (x, y), (5, -2), textcoords="offset points", fontsize="small")
    axes.set(xlabel="letter AUC (0.5: nothing)", ylabel=part.drawn["risks"]["title"])
    return figure


def _dots(
    rows: Mapping[str, Floats], label: str, show: Callable[[float], str], *, has_bars: bool = True
) -> Figure:
    """Draw the values of each row as dots, their mean, and one deviation around it."""
    figure, (axes,) = _panels(0.5 + _LINE * len(rows))
    for k, values in enumerate(rows.values()):
        known = np.sort(values[np.isfinite(values)])
        if len(known):
            shift = 0.6 * (0.618 * np.arange(len(known)) % 1 - 0.5)  # beside, not on each other
            axes.plot(known, k + shift, "o", ms=2.6, mew=0, alpha=0.5, color=COLOURS[0])
            spread = deviation(known) * has_bars
            axes.errorbar(known.mean(), k, xerr=spread, fmt="|", ms=9, mew=1.4, color="#000000")
    _rows(axes, [*rows], label, show)
    return figure


def _forest(plot: Forest) -> Figure:
    """Draw estimates with intervals; diamonds: means, rings: estimates from own rows alone."""
    figure, (axes,) = _panels(0.5 + _LINE * len(plot.lines))
    for k, line in enumerate(plot.lines):
        value, low, high = line.estimate
        axes.plot([low, high], [k, k], color="#000000", lw=0.9)
        axes.plot(value, k, "D" if line.is_mean else "s", color=COLOURS[0], ms=4)
        axes.plot(line.own, k, "o", mfc="none", color="#000000", ms=4)
        if np.isnan(value):
            axes.text(0, k, " not judged", va="center", color=_GREY, fontsize="x-small")
    _rows(axes, [line.name for line in plot.lines], plot.title, plot.show)
    axes.set_xlim(*plot.ends)
    return figure


def _literal(names: Iterable[str]) -> list[str]:
    """Return texts without formulas, which matplotlib reads between dollar signs."""
    return [name.replace("$", r"\$") for name in names]


def _rows(axes: Axes, names: Sequence[str], label: str, show: Callable[[float], str]) -> None:
    """Name the rows of a figure, the first one on top, and its axis."""
    axes.set_yticks(range(len(names)), _literal(names))
    axes.set(ylim=(len(names) - 0.4, -0.6), xlabel=_literal([label])[0])
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: _ZEROS.sub(r"\1", show(value)))
    axes.grid(axis="x")
    if axes.dataLim.xmin < 0 < axes.dataLim.xmax:
        axes.axvline(0, color=_GREY, lw=0.8)
