"""Closed forms of the papers: predictions of rows, and figures that are calculated, not trained.

`PREDICTIONS` maps a name to a function of a run's configuration (tables nested, as config.toml has
them); `DRAWINGS` maps a name to a function that draws a figure. Each names its equation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from coterie.app.runs.rundir import Floats

Prediction = Callable[[Mapping[str, Any]], float]
PREDICTIONS: dict[str, Prediction] = {}
DRAWINGS: dict[str, Callable[[], Figure]] = {}
PEERS, THRESHOLD = 20, 0.1
DEVIATIONS = (1e-3, 1e-2, 1e-1, 1.0)
DRAWS = 200


def prediction(function: Prediction) -> Prediction:
    """Add a closed form under its function's name."""
    PREDICTIONS[function.__name__.replace("_", "-")] = function
    return function


def drawing(function: Callable[[], Figure]) -> Callable[[], Figure]:
    """Add a calculated figure under its function's name."""
    DRAWINGS[function.__name__.replace("_", "-")] = function
    return function


def sufficient_sizes(optima_nd: Floats, excess_e: Floats, threshold: float = THRESHOLD) -> Floats:
    """Return the mean size of the sufficient cluster at each excess loss.

    All-for-one, definition 2, for losses |x - optimum|^2. Peer k is in peer i's cluster if
    1 - b_ik^2 / (2 mu excess) - c_ik is at least the threshold of the binary criterion. For these
    losses mu = 2, c = 0 and b_ik = 2 |x_i* - x_k*|, exactly: property 1 of the paper lacks this
    factor 2, and its sqrt(2) is for curvatures that differ; b is squared in definition 2, as in
    assumption 3.

    Parameters
    ----------
    optima_nd : (n, d)
        Optimum of each peer.
    excess_e : (E,)
        Excess losses.
    threshold : float
        Threshold of the criterion.
    """
    apart_nn = np.square(optima_nd[:, None] - optima_nd).sum(axis=-1)
    ratio_enn = 1 - 4 * apart_nn / (4 * excess_e[:, None, None])
    sizes: Floats = (ratio_enn >= threshold).sum(axis=2).mean(axis=1)
    return sizes


def speed_up(helpers: Floats, bias: Floats) -> Floats:
    """Return the speed-up of WGA over training alone at its best weight alpha, 1 / (1 - alpha).

    Parameters
    ----------
    helpers : float or array
        Number of helpers N.
    bias : float or array
        mu T zeta^2 / (L sigma^2), the cumulative bias relative to the noise.
    """
    alpha = 1 / (1 + 1 / helpers + bias)
    result: Floats = 1 / (1 - alpha)
    return result


@drawing
def sufficient_clusters() -> Figure:
    """Draw figure 1 of All-for-one."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    excess_e = np.geomspace(1e-8, 1e2, 200)
    g = np.random.default_rng(0)
    for v, colour in zip(DEVIATIONS, ("#3f7fb5", "#c44e52", "#d9822b", "#4a9a5b"), strict=True):
        drawn = [sufficient_sizes(v * g.normal(size=(PEERS, 2)), excess_e) for _ in range(DRAWS)]
        axes.semilogx(excess_e, np.mean(drawn, axis=0), color=colour, label=f"v = {v:g}")
    axes.invert_xaxis()
    axes.set(xlabel="excess loss", ylabel="peers in the sufficient cluster", ylim=(0, PEERS + 1))
    axes.set_yticks(range(0, PEERS + 1, 5))
    axes.legend(frameon=False)
    return figure


@drawing
def wga_speed_up() -> Figure:
    """Draw figure 1 of WGA."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    bias, helpers = np.geomspace(1e-3, 10, 120), np.arange(1.0, 51.0)
    faster = speed_up(helpers[:, None], bias)
    drawn = axes.pcolormesh(bias, helpers, faster, norm=LogNorm(1, 51), rasterized=True)
    lines = axes.contour(bias, helpers, faster, levels=(1.5, 2, 5, 10, 20), colors="white")
    axes.set(xscale="log", xlabel="cumulative bias relative to noise", ylabel="helpers")
    ticks = [1, 1.5, 2, 5, 10, 20, 50]
    bar = figure.colorbar(drawn, ax=axes, label="speed-up", ticks=ticks, format="%g")
    bar.add_lines(lines)
    return figure
