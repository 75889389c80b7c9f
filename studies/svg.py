"""Write a figure as SVG."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write a reproducible SVG with text as text."""
    with mpl.rc_context({"svg.hashsalt": "coterie", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
