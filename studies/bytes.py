"""Accuracy and bytes under `letters.scheme = "increments"`: `python -m studies.bytes`.

Every method that offers models, on four problems of the league with the settings that it chose. The
results with full letters are those of the league. Finished runs are kept in `runs/bytes`, so an
interrupted command continues. Writes `table.csv` there, and the tables and the figure of
docs/results/bytes.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.items import read_pair
from coterie.app.config.registry import METHODS
from coterie.app.lab.league import configurations
from coterie.app.lab.pages import league
from coterie.app.runs import atomic
from studies.kept import kept
from studies.svg import save
from studies.tables import fill

OUT = Path("runs/bytes")
PAGE = Path("docs/results/bytes.md")
FIGURE = Path("docs/images/bytes.svg")
PROBLEMS = ("flipped-labels", "three-classes", "label-groups", "permuted-labels")
SEEDS = 3
_INCREMENTS = "letters.scheme=increments"
LETTERS: Mapping[str, Sequence[str]] = {
    "int4": [_INCREMENTS, "letters.operator=int4", "payload=int8"],
    "sign": [_INCREMENTS, "letters.operator=sign", "payload=int8"],
    "sign, damped": [
        *(_INCREMENTS, "letters.operator=sign", "letters.damping=0.5", "payload=int8"),
    ],
    "sign, int4": [_INCREMENTS, "letters.operator=sign", "payload=int4"],
    "top-k": [
        *(_INCREMENTS, "letters.operator=top-k", "letters.ratio=0.05"),
        *("letters.damping=0.5", "payload=int8"),
    ],
    "damped": [
        _INCREMENTS, "letters.operator=top-k", "letters.ratio=1.0", "letters.damping=0.5",
    ],
}  # fmt: skip
"""Letters that are compared; "damped" are full letters with the same damping."""
EVERY = "int4", "sign", "sign, damped"
"""Letters that are measured with every method."""
SHOWN = ("fedavg", "ditto", "pfedgraph", "cobo", "dpfl", "fedfomo")
"""Methods that are measured with all letters."""
_COLOURS = {"whole": "black", "int4": "#0072b2", "sign": "#d55e00", "sign, damped": "#009e73"}
"""Colours of the letters of the figure (Okabe and Ito)."""
_SHOWN = 25
"""Points of accuracy below the best that the figure shows."""
ANSWERING = ("cobo", "wga", "bias-correction", "all-for-one", "federico", "federated-clustering")
"""Methods whose answers are as large as offers: also "sign, int4"."""


@dataclass(frozen=True)
class Outcome:
    """Result of a method with some letters, over seeds.

    Attributes
    ----------
    accuracy : float
        Mean test accuracy over peers in percent.
    change, deviation : float
        Difference to the accuracy with full letters, and its standard deviation over seeds.
    megabytes : float
        MB that a peer sent, on average.
    fraction : float
        Bytes as a fraction of those of full letters.
    """

    problem: str
    method: str
    letters: str
    accuracy: float
    change: float
    deviation: float
    megabytes: float
    fraction: float


def outcome(problem: str, method: str, letters: str) -> Outcome:
    """Return the results of a method with some letters; carry out the runs that are missing."""
    measured = league.read(problem, league.PUBLISHED)
    course, cell = measured[method, "course"], measured[method, "accuracy"]
    full = 100 * np.array([np.mean(values) for values in cell.values[:SEEDS]])
    whole = np.array([sent[-1] for sent, _ in course.values[:SEEDS]])
    configs = configurations(
        league.problem(problem, league.PUBLISHED), "plain", method, cell.choice.settings
    )
    changed = dict(map(read_pair, LETTERS[letters]))
    runs = [
        kept(Config.from_flat({**config.flat(), **changed, "device": "cpu"}), OUT)
        for config in configs[:SEEDS]
    ]
    accuracy = 100 * np.array([run.metric("test_accuracy")[-1].mean() for run in runs])
    sent = np.array([run.metric("bytes_sent")[-1].mean() for run in runs])
    change = accuracy - full
    return Outcome(
        problem, method, letters, float(accuracy.mean()), float(change.mean()),
        float(change.std(ddof=1)), float(sent.mean() / 1e6), float(sent.sum() / whole.sum()),
    )  # fmt: skip


def plan() -> dict[str, Sequence[str]]:
    """Return the letters of each method whose offers are models."""
    offering = [name for name, row in METHODS.items() if row.offers_model]
    few = {name: (*EVERY, "sign, int4") if name in ANSWERING else EVERY for name in offering}
    return few | dict.fromkeys(SHOWN, tuple(LETTERS))


def tables(rows: Sequence[Outcome]) -> dict[str, list[str]]:
    """Return the page's tables: methods by problems, one for each kind of letters.

    Bold: at most a tenth of the bytes, and at most one point lost.
    """
    at = {(row.letters, row.method, row.problem): row for row in rows}
    titles = [league.problem(name, league.PUBLISHED).title for name in PROBLEMS]

    def cell(row: Outcome | None) -> str:
        if row is None:
            return "–"
        text = f"{row.change:+.1f} ± {row.deviation:.1f}, {100 * row.fraction:.1f} %"
        return f"**{text}**" if row.change >= -1 and row.fraction <= 0.1 else text

    made = {}
    for letters in LETTERS:
        methods = dict.fromkeys(row.method for row in rows if row.letters == letters)
        lines = [[m, *(cell(at.get((letters, m, p))) for p in PROBLEMS)] for m in methods]
        head = ["method", *titles]
        every = head, ["---"] * len(head), *lines
        made[letters.replace(",", "")] = ["| " + " | ".join(line) + " |" for line in every]
    return made


def draw(rows: Sequence[Outcome], path: Path) -> None:
    """Draw accuracy over bytes: a panel per problem, a point per method and kind of letters.

    Named: the best method of each kind. Points more than `_SHOWN` points below the best lie on the
    lower edge.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    for axes, problem in zip(figure.subplots(2, 2).flat, PROBLEMS, strict=True):
        points: dict[str, list[tuple[float, float, str]]] = {name: [] for name in _COLOURS}
        for row in rows:
            if row.problem == problem and row.letters in points and row.method != "oracle":
                points[row.letters].append((row.megabytes, row.accuracy, row.method))
                if row.letters == "int4":
                    whole = row.megabytes / row.fraction, row.accuracy - row.change, row.method
                    points["whole"].append(whole)
        low = max(y for of in points.values() for _, y, _ in of) - _SHOWN
        for name, of in points.items():
            x, y = zip(*((x, max(y, low)) for x, y, _ in of), strict=True)
            axes.scatter(x, y, s=14, color=_COLOURS[name], label=name, alpha=0.8)
            best = max(of, key=lambda point: point[1])
            offset = 0, -11 if "damped" in name else 5
            axes.annotate(best[2], best[:2], fontsize=7, xytext=offset, ha="center",
                          textcoords="offset points", color=_COLOURS[name])  # fmt: skip
        axes.set_ylim(low - 1, low + _SHOWN + 3)
        axes.set_xscale("log")
        axes.set_title(league.problem(problem, league.PUBLISHED).title, fontsize=9)
        axes.grid(alpha=0.25)
    figure.supxlabel("MB that a peer sent", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    save(figure, path)


def main() -> None:
    """Run the study."""
    rows: list[Outcome] = []
    for problem in PROBLEMS:
        measured = league.read(problem, league.PUBLISHED)
        for method, of_method in plan().items():
            if (method, "accuracy") in measured:
                for letters in of_method:
                    rows.append(outcome(problem, method, letters))
                    print(rows[-1], flush=True)
    lines = [list(asdict(rows[0])), *(list(asdict(row).values()) for row in rows)]
    OUT.mkdir(parents=True, exist_ok=True)
    atomic.write(OUT / "table.csv", atomic.as_csv(lines))
    fill(PAGE, tables(rows))
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
