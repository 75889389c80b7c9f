"""The report's still pictures: curves.png and collaboration.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from app.report.run_data import has_own_weights, peer_order, thin, weights_between
from app.runs.rundir import Floats, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLUSTER_COLOURS = (
    "#3f7fb5", "#d9822b", "#4a9a5b", "#c44e52", "#8566b0",
    "#8c6d5a", "#d178b0", "#6f7680", "#b5a12e", "#3aa6a6",
)  # fmt: skip
INK = "#22252a"


def draw(run: Run) -> list[Path]:
    """Write the pictures that the run has numbers for; return their paths."""
    drawn = []
    if len(run.rounds):
        drawn.append(_save(_curves(run), run.directory / "curves.png"))
    if weights_between(run).any():
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
    clusters = run.clusters
    for peer in range(run.peers):
        colour = "#8a9099"
        if clusters is not None:
            colour = CLUSTER_COLOURS[int(clusters[peer]) % len(CLUSTER_COLOURS)]
        axes.plot(run.rounds, values[:, peer], color=colour, lw=0.8, alpha=0.55, marker=marker)
    counted = (~np.isnan(values)).sum(axis=1)
    mean = np.nansum(values, axis=1) / np.where(counted, counted, np.nan)
    axes.plot(run.rounds, mean, color=INK, lw=2, label="mean", marker=marker)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("round")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.legend(frameon=False, fontsize=8)


def _collaboration(run: Run) -> Figure:
    keep, order = thin(len(run.weights), 4), peer_order(run)
    top = float(weights_between(run).max())
    figure = Figure(figsize=(2.9 * len(keep) + 0.6, 3.2), layout="constrained")
    image = None
    panels = figure.subplots(1, len(keep), squeeze=False)[0]
    for axes, frame in zip(panels, keep, strict=True):
        shown = run.weights[frame][np.ix_(order, order)]
        if not has_own_weights(run):
            np.fill_diagonal(shown, np.nan)
        image = axes.imshow(shown, vmin=0, vmax=top, cmap="Blues", interpolation="nearest")
        axes.set_title(f"round {run.weight_rounds[frame]}", loc="left", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("#c9ccd1")
        axes.set_facecolor("#e3e0da")
        _outline_clusters(axes, run)
    if image is not None:
        figure.colorbar(image, ax=panels, shrink=0.75, label="weight row gives column")
    return figure


def _outline_clusters(axes: Axes, run: Run) -> None:
    if run.clusters is None:
        return
    edge = -0.5
    for size in np.unique(run.clusters, return_counts=True)[1]:
        box = [edge, edge + size, edge + size, edge, edge]
        axes.plot(box, [edge, edge, edge + size, edge + size, edge], color="#d9822b", lw=1)
        edge += size


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure).print_figure(path, dpi=150)
    return path
