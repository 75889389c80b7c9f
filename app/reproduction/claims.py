"""Judge a paper's claims by the numbers of our runs.

A claim holds (true), is contradicted (false), or cannot be judged (null: not significant, a single
seed, a failed run). Differences between rows are judged by the paired test of
`coterie.app.experiments.paired` over seeds and peers, at its level; where a problem has no noise at
all (equal differences for every seed) their sign decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.app.config.schema import Scalar
from coterie.app.experiments.paired import LEVEL, p_value, seeds_needed
from coterie.app.experiments.table import Cell
from coterie.app.reproduction import formulas
from coterie.app.reproduction.figures import Claim, Figure, Size
from coterie.app.reproduction.results import Results, better_of, is_share, measure


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim, with the numbers that support it."""

    claim: str
    holds: bool | None  # True: it holds; False: it is contradicted; None: it cannot be judged
    evidence: str  # numbers
    note: str = ""  # explanation in the paper's file
    seeds: int | None = None
    """Number of seeds that would judge it, see `coterie.app.experiments.paired.seeds_needed`."""


class _Part(NamedTuple):
    """Verdict on one comparison of a claim.

    `favours` is the direction of a difference that is not significant, `seeds` the number of seeds
    that would judge it.
    """

    holds: bool | None
    text: str
    favours: bool = True
    seeds: int | None = None


def judge(figure: Figure, size: Size, results: Results) -> list[Verdict]:
    """Judge every claim of a figure."""
    return [_judged(claim, figure, size, results) for claim in figure.claims]


def together(parts: Iterable[bool | None]) -> bool | None:
    """Combine verdicts on parts of a claim: all must hold, one contradiction is enough."""
    seen = list(parts)
    if any(part is False for part in seen):
        return False
    return None if not seen or any(part is None for part in seen) else True


def _judged(claim: Claim, figure: Figure, size: Size, results: Results) -> Verdict:
    panels = [
        panel.label
        for panel in figure.panels
        if panel.preset(size) and (not claim.panels or panel.label in claim.panels)
    ]
    judged = [_KINDS[claim.kind](claim, figure, size, results, panel) for panel in panels]
    texts = [", ".join(part.text for part in of_panel) for of_panel in judged]
    evidence = "; ".join(
        f"{panel}: {text}" if panel else text for panel, text in zip(panels, texts, strict=True)
    )
    parts = [part for of_panel in judged for part in of_panel]
    holds = together(part.holds for part in parts)
    seeds = _seeds(parts) if holds is None else None
    return Verdict(claim.text, holds, evidence or "no run at this size", claim.note, seeds)


def _seeds(parts: Sequence[_Part]) -> int | None:
    """Return the number of seeds that would judge a claim: one contradiction, or every part."""
    open_ = [part for part in parts if part.holds is None]
    against = [part.seeds for part in open_ if not part.favours and part.seeds]
    if against:
        return min(against)
    wanted = [part.seeds for part in open_ if part.favours]
    known = [seeds for seeds in wanted if seeds]
    return max(known) if known and len(known) == len(open_) else None


def _order(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    pairs = zip(claim.rows[:-1], claim.rows[1:], strict=True)
    return [_is_better(results, panel, a, b, claim.column) for a, b in pairs]


def _beats(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    winner, *others = claim.rows
    others = others or [row.label for row in figure.rows if row.label != winner]
    return [_is_better(results, panel, winner, other, claim.column) for other in others]


def _is_better(results: Results, panel: str, a: str, b: str, column: str) -> _Part:
    """Judge whether row `a` is better than row `b`, by the paired test."""
    first, second = (results.repeats(Cell(row, panel), measure(column)) for row in (a, b))
    seeds = sorted(first.keys() & second.keys())
    sign = -1.0 if better_of(column) == "low" else 1.0
    differences = [sign * (first[seed] - second[seed]) for seed in seeds]
    means = np.array([np.nanmean(d) for d in differences if not np.isnan(d).all()])
    a_mean, b_mean = (
        float(np.mean([np.nanmean(v) for v in of.values()])) if of else np.nan
        for of in (first, second)
    )
    between = "<" if a_mean < b_mean else ">" if a_mean > b_mean else "and"
    text = f"{a} {_number(a_mean, column)} {between} {b} {_number(b_mean, column)}"
    if not len(means):
        return _Part(None, f"{text} (no numbers)")
    p = p_value(differences, results.shared)
    exact = len(means) > 1 and np.ptp(means) == 0 and all(np.ptp(d) == 0 for d in differences)
    favours = bool(means.mean() > 0)
    if not exact and p > LEVEL:
        why = "one seed allows no test" if len(means) == 1 else f"not significant, p = {p:.2f}"
        return _Part(None, f"{text} ({why})", favours, seeds_needed(differences, results.shared))
    shown = "p < 0.001" if exact or p < 0.0005 else f"p = {p:.3f}"
    return _Part(favours, f"{text} ({shown})")


def _near(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    """Judge whether every row lies within the tolerance of the last one."""
    *rows, reference = claim.rows
    values = {row: results.mean(Cell(row, panel), claim.column) for row in claim.rows}
    parts: list[_Part] = []
    for row in rows:
        away = abs(values[row] - values[reference])
        text = " and ".join(f"{each} {_number(values[each], claim.column)}"
                            for each in (row, reference))  # fmt: skip
        holds = None if np.isnan(away) else bool(away <= claim.within)
        parts.append(_Part(holds, f"{text}, within {_number(claim.within, claim.column)}"))
    return parts


def _ratio(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    a, b = (results.mean(Cell(row, panel), claim.column) for row in claim.rows)
    if np.isnan(a / b):
        return [_Part(None, "no numbers")]
    first, second = (
        f"{row} {_number(value, claim.column)}"
        for row, value in zip(claim.rows, (a, b), strict=True)
    )
    text = f"{first} / {second} = {a / b:.3g}{_bounds(claim)}"
    return [_Part(bool(claim.low <= a / b <= claim.high), text)]


def _slope(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    """Judge the slope of log(measure) over log(x) by least squares over the swept values."""
    parts: list[_Part] = []
    for row in claim.rows:
        points = [point.x for point in figure.sweep(size)]
        x = np.array([float(each or 0) for each in points])
        y = np.array([results.mean(Cell(row, panel, each), claim.column) for each in points])
        there = np.isfinite(y) & (y > 0)
        if there.sum() < 2:
            parts.append(_Part(None, f"{row}: fewer than two values"))
            continue
        slope = float(np.polyfit(np.log(x[there]), np.log(y[there]), 1)[0])
        inside = bool(claim.low <= slope <= claim.high)
        parts.append(_Part(inside, f"{row}: slope {slope:.2f}{_bounds(claim)}"))
    return parts


def _formula(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    """Judge whether each point of the rows lies at its closed form, or below it ("bound")."""
    parts: list[_Part] = []
    for row in figure.rows:
        if row.label not in claim.rows or not row.formula:
            continue
        points: list[Scalar | None] = [point.x for point in figure.sweep(size)]
        for x in points or [None]:
            cell = Cell(row.label, panel, x)
            value = results.mean(cell, claim.column)
            runs = list(results.results.get(cell, {}).values())
            if not runs or np.isnan(value):
                parts.append(_Part(None, f"{row.label}: no numbers"))
                continue
            wanted = formulas.PREDICTIONS[row.formula](runs[0].config)
            off = value / wanted - 1
            at = "" if x is None else f" at {figure.x} {x}"
            name = "bound" if claim.kind == "bound" else "closed form"
            text = f"{row.label}{at}: {value:.3g}, {name} {wanted:.3g} ({off:+.1%})"
            inside = off <= 0 if claim.kind == "bound" else abs(off) <= claim.within
            parts.append(_Part(bool(inside), text))
    return parts


def _range(claim: Claim, figure: Figure, size: Size, results: Results, panel: str) -> list[_Part]:
    parts: list[_Part] = []
    for row in claim.rows:
        value = results.mean(Cell(row, panel), claim.column)
        inside = None if np.isnan(value) else bool(claim.low <= value <= claim.high)
        text = f"{row} {_number(value, claim.column)}{_bounds(claim, claim.column)}"
        parts.append(_Part(inside, text))
    return parts


_KINDS: dict[str, Callable[[Claim, Figure, Size, Results, str], list[_Part]]] = {
    "order": _order,
    "beats": _beats,
    "near": _near,
    "ratio": _ratio,
    "slope": _slope,
    "formula": _formula,
    "bound": _formula,
    "range": _range,
}


def _number(value: float, column: str) -> str:
    if np.isinf(value):
        return "never"
    return f"{100 * value:.2f}" if column and is_share(column) else f"{value:.4g}"


def _bounds(claim: Claim, column: str = "") -> str:
    low, high = (_number(value, column) for value in (claim.low, claim.high))
    if np.isinf(claim.low):
        return f" (claimed: at most {high})"
    if np.isinf(claim.high):
        return f" (claimed: at least {low})"
    return f" (claimed: {low})" if low == high else f" (claimed: {low} to {high})"
