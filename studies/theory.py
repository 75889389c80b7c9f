"""Figures that papers calculate: `python -m studies.theory [FOLDER]`, docs/images by default.

Figure 1 of All-for-one is the size of the sufficient cluster of its definition 2, for quadratics
around optima that differ; figure 1 of WGA the speed-up of its theorem 1. No training is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from studies.svg import save

Floats = npt.NDArray[np.float64]
PEERS, THRESHOLD = 20, 0.1
DEVIATIONS = (1e-3, 1e-2, 1e-1, 1.0)
DRAWS = 200


def sufficient_sizes(optima_nd: Floats, excess_e: Floats, threshold: float = THRESHOLD) -> Floats:
    """Mean size of the sufficient cluster for losses |x - optimum|^2, at each excess loss.

    Peer k is in peer i's if 1 - b_ik^2 / (2 mu excess) - c_ik is at least the threshold of the
    binary criterion. Of these losses mu = 2, c = 0 and b_ik = 2 |x_i* - x_k*|, exactly: property 1
    of the paper lacks this factor 2, and its sqrt(2) is for curvatures that differ; b is squared in
    definition 2, as in assumption 3.
    """
    apart_nn = np.square(optima_nd[:, None] - optima_nd).sum(axis=-1)
    ratio_enn = 1 - 4 * apart_nn / (4 * excess_e[:, None, None])
    sizes: Floats = (ratio_enn >= threshold).sum(axis=2).mean(axis=1)
    return sizes


def speed_up(helpers: Floats, bias: Floats) -> Floats:
    """WGA against training alone, by its best weight alpha: 1 / (1 - alpha).

    Parameters
    ----------
    bias : mu T zeta^2 / (L sigma^2), the cumulative bias against the noise.
    """
    alpha = 1 / (1 + 1 / helpers + bias)
    found: Floats = 1 / (1 - alpha)
    return found


def clusters_figure() -> Figure:
    """Figure 1 of All-for-one."""
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


def speed_up_figure() -> Figure:
    """Figure 1 of WGA."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    bias, helpers = np.geomspace(1e-3, 10, 120), np.arange(1.0, 51.0)
    faster = speed_up(helpers[:, None], bias)
    drawn = axes.pcolormesh(bias, helpers, faster, norm=LogNorm(1, 51), rasterized=True)
    lines = axes.contour(bias, helpers, faster, levels=(1.5, 2, 5, 10, 20), colors="white")
    axes.set(xscale="log", xlabel="cumulative bias against noise", ylabel="helpers")
    ticks = [1, 1.5, 2, 5, 10, 20, 50]
    bar = figure.colorbar(drawn, ax=axes, label="speed-up", ticks=ticks, format="%g")
    bar.add_lines(lines)
    return figure


def main() -> None:
    """Draw both."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    save(clusters_figure(), folder / "sufficient-cluster.svg")
    save(speed_up_figure(), folder / "wga-speed-up.svg")


if __name__ == "__main__":
    main()
