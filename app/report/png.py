"""Still pictures of the report: curves.png and collaboration.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from coterie.app.report.run_data import CROWD, display_blocks, has_own_weights
from coterie.app.report.thinning import block_means, finite, thin
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Floats, Ints, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLUSTER_COLOURS = (
    "#3f7fb5", "#d9822b", "#4a9a5b", "#c44e52", "#8566b0",
    "#8c6d5a", "#d178b0", "#6f7680", "#b5a12e", "#3aa6a6",
)  # fmt: skip
INK = "#22252a"
BAND = "#1f5f8b"


def draw(run: Run) -> list[Path]:
    """Write the pictures for which the run has data; return their paths."""
    drawn = []
    if len(run.rounds):
        drawn.append(_save(_curves(run), run.directory / "curves.png"))
    if run.weights_between().any():
        drawn.append(_save(_collaboration(run), run.directory / "collaboration.png"))
    return drawn


def _curves(run: Run) -> Figure:
    has_accuracy = not np.isnan(run.metric("test_accuracy")).all()
    figure = Figure(figsize=(9.6 if has_accuracy else 5.2, 3.4), layout="constrained")
    axes = figure.subplots(1, 2 if has_accuracy else 1, squeeze=False)[0]
    if has_accuracy:
        _plot(axes[0], run, run.metric("test_accuracy"), "Test accuracy")
        axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    loss = run.metric("test_loss")
    _plot(axes[-1], run, loss, "Test loss")
    seen = loss[np.isfinite(loss)]
    if len(seen) and seen.min() > 0 and seen.max() > 50 * seen.min():
        axes[-1].set_yscale("log")
    return figure


def _plot(axes: Axes, run: Run, values: Floats, title: str) -> None:
    values = np.where(np.isfinite(values), values, np.nan)
    marker = "o" if len(run.rounds) == 1 else ""
    if run.peers > CROWD:
        _bands(axes, run.rounds, values)
    else:
        _lines(axes, run, values, marker)
    counted = (~np.isnan(values)).sum(axis=1)
    mean = np.nansum(values, axis=1) / np.where(counted, counted, np.nan)
    axes.plot(run.rounds, mean, color=INK, lw=2, label="mean", marker=marker)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("round")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.legend(frameon=False, fontsize=8)


def _lines(axes: Axes, run: Run, values: Floats, marker: str) -> None:
    clusters = run.clusters
    for peer in range(run.peers):
        colour = "#8a9099"
        if clusters is not None:
            colour = CLUSTER_COLOURS[int(clusters[peer]) % len(CLUSTER_COLOURS)]
        axes.plot(run.rounds, values[:, peer], color=colour, lw=0.8, alpha=0.55, marker=marker)


def _bands(axes: Axes, rounds: Ints, values: Floats) -> None:
    measured = ~np.isnan(values).all(axis=1)
    rounds = rounds[measured]
    cuts = np.nanquantile(values[measured], [0, 0.05, 0.25, 0.75, 0.95, 1], axis=1)
    for low, high, alpha, name in (
        (cuts[1], cuts[4], 0.16, "5th to 95th percentile"),
        (cuts[2], cuts[3], 0.26, "25th to 75th percentile"),
    ):
        axes.fill_between(rounds, low, high, color=BAND, alpha=alpha, lw=0, label=name)
    axes.plot(rounds, cuts[[0, 5]].T, color="#8a9099", lw=0.6, label=["min and max", "_"])


def _collaboration(run: Run) -> Figure:
    keep, (order, blocks) = thin(len(run.weights), 4), display_blocks(run)
    shown = [block_means(finite(run.weights[each]), order, blocks) for each in keep]
    is_blank = np.diag(np.diff(blocks, append=run.peers) == 1)  # own weights that a method may lack
    top = max(float(each[~is_blank].max()) for each in shown)
    figure = Figure(figsize=(2.9 * len(keep) + 0.6, 3.2), layout="constrained")
    panels = figure.subplots(1, len(keep), squeeze=False)[0]
    for axes, frame, means in zip(panels, keep, shown, strict=True):
        if not has_own_weights(run):
            means[is_blank] = np.nan
        axes.imshow(means, vmin=0, vmax=top, cmap="Blues", interpolation="nearest")
        axes.set_title(f"round {run.weight_rounds[frame]}", loc="left", fontsize=10)
        axes.set(xticks=[], yticks=[], facecolor="#e3e0da")
        axes.spines[:].set_color("#c9ccd1")
    image = panels[-1].images[0]
    figure.colorbar(image, ax=panels, shrink=0.75, label="weight of the column for the row")
    return figure


def _save(figure: Figure, path: Path) -> Path:
    with atomic.replacing(path) as draft:
        FigureCanvasAgg(figure).print_figure(draft, dpi=150, format="png")
    return path
