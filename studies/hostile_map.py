"""Table of `studies.hostile` as heat maps: `python -m studies.hostile_map [FIGURE.svg]`.

One map for each setting, without a defence and with the best rule: methods down, attacks across,
the honest peers' accuracy in the cells. Blue is above training alone in the same world, red below.
The same numbers, and the attackers' share of the weight, are printed as Markdown.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from studies.hostile import ATTACKS, METHODS, OUT, SETTINGS
from studies.svg import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

Floats = npt.NDArray[np.float64]
COLUMNS = {"undefended": "no defence", "defended": "best rule"}
FIXED = ("local", "fedavg", "ditto", "wga", "bias-correction")  # methods with fixed weights
FAR = 20.0  # points from training alone, where the colours end


def accuracies(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], Floats]:
    """Return by (setting, column) the accuracies (methods, attacks) in percent; nan if missing."""
    keys = [(setting, column) for setting in SETTINGS for column in COLUMNS]
    result = {key: np.full((len(METHODS), len(ATTACKS)), np.nan) for key in keys}
    for row in rows:
        at = METHODS.index(row["method"]), ATTACKS.index(row["attack"])
        for column in COLUMNS:
            result[row["setting"], column][at] = 100 * float(row[column])
    return result


def draw(maps: dict[tuple[str, str], Floats]) -> Figure:
    """Draw a map for each setting and column, with one scale."""
    figure = Figure(figsize=(9, 7.6), layout="constrained")
    grid = figure.subplots(len(SETTINGS), len(COLUMNS), sharex=True, sharey=True)
    for axes, ((setting, column), accuracy) in zip(grid.flat, maps.items(), strict=True):
        shown = _map(axes, accuracy)
        axes.set_title(f"{setting}, {COLUMNS[column]}", loc="left", fontsize=10)
    figure.colorbar(shown, ax=grid, label="points above training alone", shrink=0.5)
    return figure


def _map(axes: Axes, accuracy: Floats) -> AxesImage:
    above = accuracy - accuracy[METHODS.index("local")]
    shown = axes.imshow(above, cmap="RdBu", vmin=-FAR, vmax=FAR, aspect="auto")
    for (row, column), value in np.ndenumerate(accuracy):
        dark = abs(above[row, column]) > 0.7 * FAR
        colour = "white" if dark else "black"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(ATTACKS)), ATTACKS, rotation=35, ha="right")
    axes.set_yticks(range(len(METHODS)), METHODS)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return shown


def markdown(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the table: accuracy without and with the best rule, and the attackers' share."""
    cells = {(row["setting"], row["method"], row["attack"]): _cell(row) for row in rows}
    lines = []
    for setting in SETTINGS:
        lines += ["", f"| {setting} | {' | '.join(ATTACKS)} |", "|---" * (1 + len(ATTACKS)) + "|"]
        for method in METHODS:
            of_method = (cells.get((setting, method, attack), "") for attack in ATTACKS)
            lines.append(f"| {method} | {' | '.join(of_method)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, str]) -> str:
    plain, best = (f"{100 * float(row[column]):.1f}" for column in COLUMNS)
    text = plain if row["method"] == "local" else f"{plain} → {best}"
    shares = [f"{float(row[key]):.2f}" for key in ("halfway", "to_attackers") if row[key]]
    return f"{text} ({', '.join(shares)})" if shares and row["method"] not in FIXED else text


def main() -> None:
    """Draw and print the table."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/hostile.svg")
    with (OUT / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    save(draw(accuracies(rows)), path)
    print(markdown(rows))


if __name__ == "__main__":
    main()
