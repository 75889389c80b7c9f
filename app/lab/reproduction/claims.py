"""Judge claims by the numbers of our runs.

A claim is one statistic per seed and an interval in which its mean over seeds should lie:

| kind | statistic of a seed | interval |
|---|---|---|
| order, beats | difference of two rows | above `margin` (below -`margin` where low is better) |
| near | difference to the last row | -`within` to `within` |
| ratio, slope, range | first row / second; of the logarithms over x; value | `low` to `high` |
| formula, bound | value / closed form - 1 | -`within` to `within`; at most 0 |

One end: a paired t-test over seeds of the mean against the end, two-sided at `paired.LEVEL`. Two
ends: the claim holds by two one-sided tests (TOST, Schuirmann 1987), each at the level, and does
not hold if a t-test rejects the nearer end. A statistic that is the same with every seed needs no
test. Fewer than `paired.MIN_SEEDS` seeds, or a seed in which an event never comes, judge nothing.
"beats" and claims on several panels are several comparisons: all must hold (an intersection-union
test, which needs no correction), and one that does not is enough; its p-value is therefore Holm's
over the comparisons of the claim. "only": each other row is below the last one in its worst panel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from coterie.app.experiments import paired
from coterie.app.lab.reproduction.figures import Claim, Figure, Row, Size, ours_of
from coterie.app.lab.reproduction.results import Numbers, SeedNumbers, better_of, is_share
from coterie.app.runs import units
from coterie.app.runs.rundir import Floats

Word = Literal["holds here", "does not hold here", "cannot be judged", "undefined in the paper"]
UNDEFINED: Word = "undefined in the paper"
WORDS: Mapping[bool | None, Word] = {
    True: "holds here",
    False: "does not hold here",
    None: "cannot be judged",
}
NO_NUMBERS, NO_RUN = "no numbers", "no run at this size"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: `ours`, `paper` and `p` of the weakest comparison, `evidence` of all."""

    claim: str
    quote: str  # the paper's words; empty: the claim is ours
    verdict: Word
    holds: bool | None  # None: it cannot be judged, or is undefined in the paper
    paper: str
    ours: str = ""
    p: str = ""
    why: str = ""  # reason why it cannot be judged, and the note of the paper's file
    evidence: str = ""
    seeds: int | None = None
    """Number of seeds that would judge it, see `coterie.app.experiments.paired.seeds_needed`."""


class Comparison(NamedTuple):
    """Verdict on one comparison of a claim."""

    name: str
    ours: str
    paper: str
    holds: bool | None
    p: str = ""
    why: str = ""  # reason why it cannot be judged
    slack: float = -np.inf  # distance of the mean from the nearer end; negative outside
    seeds: int | None = None  # number of seeds that would judge it
    against: float | None = (
        None  # p-value against the claim, 1 if the mean is inside; None: no test
    )

    @property
    def text(self) -> str:
        """Name, numbers, and p-value or reason."""
        beside = ", ".join(filter(None, (self.p and f"p {self.p}", self.why)))
        paper = f"; paper {self.paper}" if self.paper else ""
        return f"{self.name}: {self.ours or NO_NUMBERS}{f' ({beside})' if beside else ''}{paper}"


def judge(figure: Figure, size: Size, numbers: Numbers) -> list[Verdict]:
    """Judge every claim of a figure."""
    return [judged(claim, comparisons(claim, figure, size, numbers)) for claim in figure.claims]


def corrected(of: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons with Holm's p-values against their claim: one of them contradicts it."""
    result = list(of)
    tested = [k for k, each in enumerate(of) if each.against is not None]
    for k, p in zip(tested, paired.holm([of[k].against or 0.0 for k in tested]), strict=True):
        each = of[k]
        if each.slack < 0 and each.p:
            why = "" if p <= paired.LEVEL else "not significant"
            result[k] = each._replace(p=_p(p), holds=None if why else False, why=why)
    return result


def judged(claim: Claim, uncorrected: Sequence[Comparison]) -> Verdict:
    """Return the verdict on a claim."""
    of = corrected(uncorrected)
    unjudged = Verdict(claim.text, claim.quote, WORDS[None], None, claim.paper)
    if claim.kind == "undefined":
        return replace(unjudged, verdict=UNDEFINED, why=claim.note)
    evidence = "; ".join(each.text for each in of) or NO_RUN
    if not of:
        return replace(unjudged, why=_sentences(NO_RUN, claim.note), evidence=evidence)
    holds = together(each.holds for each in of)
    weakest = min((each for each in of if each.holds is holds), key=lambda each: each.slack)
    seeds = _seeds(of) if holds is None else None
    power = f"about {seeds} seeds would judge it" if seeds else ""
    reasons = ", ".join(filter(None, (weakest.why, power)))
    return Verdict(
        claim.text, claim.quote, WORDS[holds], holds, weakest.paper,
        f"{weakest.name}: {weakest.ours}" if weakest.ours else "", weakest.p,
        _sentences(reasons, claim.note), evidence, seeds,
    )  # fmt: skip


def _sentences(*texts: str) -> str:
    return ". ".join(filter(None, texts))


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return the numbers of verdicts, the paper's claims apart from ours, in a sentence."""
    sentences = []
    for of, are_ours in (("claims of the paper", False), ("claims of ours", True)):
        words = Counter(each.verdict for each in verdicts if bool(each.quote) is not are_ours)
        listed = ", ".join(f"{words[word]} {word}" for word in (*WORDS.values(), UNDEFINED)
                           if words[word])  # fmt: skip
        sentences += [f"{of}: {listed}"] if listed else []
    text = "; ".join(sentences)
    return text[:1].upper() + text[1:]


def together(parts: Iterable[bool | None]) -> bool | None:
    """Combine verdicts on parts of a claim: all must hold, one contradiction is enough."""
    seen = list(parts)
    if any(part is False for part in seen):
        return False
    return None if not seen or any(part is None for part in seen) else True


def _seeds(of: Sequence[Comparison]) -> int | None:
    """Return the number of seeds that would judge a claim: one contradiction, or every part."""
    open_ = [each for each in of if each.holds is None]
    against = [each.seeds for each in open_ if each.slack < 0 and each.seeds]
    if against:
        return min(against)
    known = [each.seeds for each in open_ if each.slack > 0 and each.seeds]
    return max(known) if known and len(known) == len(open_) else None


def comparisons(claim: Claim, figure: Figure, size: Size, numbers: Numbers) -> list[Comparison]:
    """Return the comparisons of a claim, panel by panel."""
    if claim.kind == "undefined":
        return []
    rows = {row.label: row for row in figure.rows}
    made: list[tuple[str, str, _Statistic]] = []  # panel, where, statistic
    for panel in figure.panels:
        if not panel.preset(size) or (claim.panels and panel.label not in claim.panels):
            continue
        of = _Of(claim, figure, size, numbers, panel.label)
        where = ours_of(panel, size).removesuffix(" (ours)") if panel.label else ""
        made += [(panel.label, where, statistic) for statistic in _KINDS[claim.kind](of)]
    tests = len({each.name for _, _, each in made}) if claim.kind == "only" else len(made)
    worst: dict[tuple[str, str], Comparison] = {}
    for label, where, statistic in made:
        name = ", ".join(filter(None, (where, statistic.name)))
        each = _compared(claim, statistic._replace(name=name), rows, label, tests)
        key = ("" if claim.kind == "only" else label, statistic.name)
        worst[key] = max(worst.get(key, each), each, key=lambda one: one.slack)
    return [*worst.values()]


@dataclass(frozen=True)
class _Of:
    """A claim, and the numbers of one panel."""

    claim: Claim
    figure: Figure
    size: Size
    numbers: Numbers
    panel: str

    def at(self, row: str, x: object = "") -> SeedNumbers:
        return self.numbers.at(self.panel, row, self.claim.column, x)


class _Statistic(NamedTuple):
    """One number per seed, and the interval of their mean."""

    name: str
    values: Mapping[str, float]
    low: float
    high: float
    ratio: float = 0.0
    rows: tuple[str, ...] = ()  # rows whose printed numbers make the paper's value
    unit: Literal["", "difference", "relative", "ratio", "slope"] = ""


def _differences(of: _Of) -> Iterator[_Statistic]:
    """Yield the differences of two rows that "order", "beats", "only" and "near" are about."""
    first, last, rows = of.claim.rows[0], of.claim.rows[-1], of.claim.rows
    pairs: Iterable[tuple[str, str]] = pairwise(rows)
    if of.claim.kind == "beats":
        others = rows[1:] or [row.label for row in of.figure.rows if row.label != first]
        pairs = ((first, other) for other in others)
    elif of.claim.kind != "order":
        pairs = ((last, row) if of.claim.kind == "only" else (row, last) for row in rows[:-1])
    for pair in pairs:
        difference = _difference(of, *pair)
        if of.claim.kind == "near":
            difference = difference._replace(low=-of.claim.within, high=of.claim.within)
        yield difference


def _difference(of: _Of, a: str, b: str) -> _Statistic:
    """Return a - b, which should be better than the margin; equal is not better."""
    first, second = of.at(a), of.at(b)
    with np.errstate(invalid="ignore"):
        values = {
            seed: float(np.subtract(first.values[seed], second.values[seed]))
            for seed in first.values
            if seed in second.values
        }
    end = float(np.nextafter(of.claim.margin, np.inf))
    low, high = (-np.inf, -end) if better_of(of.claim.column) == "low" else (end, np.inf)
    return _Statistic(f"{a} − {b}", values, low, high, first.ratio, (a, b), "difference")


def _ratio(of: _Of) -> Iterator[_Statistic]:
    a, b = of.claim.rows
    first, second = of.at(a), of.at(b)
    values = {
        # 5 rounds / never is no ratio
        seed: first.values[seed] / second.values[seed]
        if np.isfinite(second.values[seed])
        else np.inf
        for seed in first.values
        if second.values.get(seed)
    }
    claim = of.claim
    yield _Statistic(f"{a} / {b}", values, claim.low, claim.high, first.ratio, (a, b), "ratio")


def _slope(of: _Of) -> Iterator[_Statistic]:
    """Yield the slope of log(measure) over log(x) by least squares over the swept values."""
    points = [point.x for point in of.figure.sweep(of.size)]
    log_x = np.log([float(x or np.nan) for x in points])
    for row in of.claim.rows:
        at = [of.at(row, x) for x in points]
        values = {}
        for seed in at[0].values if at else ():
            y = np.array([each.values.get(seed, np.nan) for each in at])
            if (np.isfinite(y) & (y > 0)).all() and len(y) > 1:
                values[seed] = float(np.polyfit(log_x, np.log(y), 1)[0])
        yield _Statistic(f"{row}, slope", values, of.claim.low, of.claim.high, unit="slope")


def _formula(of: _Of) -> Iterator[_Statistic]:
    """Yield value / closed form - 1 of each point of the rows."""
    points = [point.x for point in of.figure.sweep(of.size)] or [""]
    within = of.claim.within
    low, high = (-np.inf, 0.0) if of.claim.kind == "bound" else (-within, within)
    for row in of.claim.rows:
        for x in points:
            numbers = of.at(row, x)
            closed = numbers.closed_form
            values = {seed: each / closed - 1 for seed, each in numbers.values.items()}
            if np.isnan(closed):
                values = {}
            name = f"{row} at {of.figure.x} {x}" if x != "" else row
            yield _Statistic(name, values, low, high, numbers.ratio, unit="relative")


def _range(of: _Of) -> Iterator[_Statistic]:
    for row in of.claim.rows:
        numbers = of.at(row)
        low, high = of.claim.low, of.claim.high
        yield _Statistic(row, numbers.values, low, high, numbers.ratio, (row,))


_KINDS: dict[str, Callable[[_Of], Iterator[_Statistic]]] = {
    **dict.fromkeys(("order", "beats", "only", "near"), _differences),
    **dict.fromkeys(("formula", "bound"), _formula),
    "ratio": _ratio,
    "slope": _slope,
    "range": _range,
}


def _compared(
    claim: Claim, statistic: _Statistic, rows: Mapping[str, Row], panel: str, tests: int
) -> Comparison:
    name, values, low, high, ratio, *_ = statistic
    paper = claim.paper or _printed(claim, statistic, rows, panel)
    known_s = np.array([value for value in values.values() if not np.isnan(value)])
    never = int(np.isinf(known_s).sum())
    if never or not len(known_s):
        why = f"never reached with {never} of {units.plural(len(known_s), 'seed')}"
        return Comparison(name, "", paper, None, why=why if never else NO_NUMBERS)
    mean = float(known_s.mean())
    slack = float(min(mean - low, high - mean))
    shown = partial(_shown, column=claim.column, unit=statistic.unit)
    plain = Comparison(name, shown(mean), paper, None, slack=slack)
    if len(known_s) < paired.MIN_SEEDS:
        return plain._replace(why=f"{units.plural(len(known_s), 'seed')}, no test")
    if np.ptp(known_s) == 0:
        why = f"the same with all {len(known_s)} seeds"
        return plain._replace(holds=slack >= 0, why=why, against=float(slack >= 0))
    holds, p = tested(known_s, low, high, ratio)
    _, start, end = paired.interval([np.array([value]) for value in known_s], ratio)
    why, seeds = "", None
    if holds is None:
        why = "not significant"
        if np.isinf(low) or np.isinf(high):
            finite = high if np.isinf(low) else low
            apart = [np.array([value - finite]) for value in known_s]
            seeds = paired.seeds_needed(apart, ratio, tests if slack < 0 else 1)
    return plain._replace(
        ours=f"{plain.ours} [{shown(start)} to {shown(end)}]", holds=holds, p=_p(p), why=why,
        seeds=seeds, against=p if slack < 0 else 1.0,
    )  # fmt: skip


def _p(p: float) -> str:
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def tested(values_s: Floats, low: float, high: float, ratio: float) -> tuple[bool | None, float]:
    """Return whether the mean of (S,) values lies from `low` to `high` (None: open), and p."""
    is_inside = bool(low <= values_s.mean() <= high)
    near = low if values_s.mean() < low else high if values_s.mean() > high else None
    ends = {end for end in (low, high) if np.isfinite(end) and near in (None, end)}
    of_ends = (
        paired.p_value([np.array([value - end]) for value in values_s], ratio) for end in ends
    )
    p = max(of_ends, default=0.0) / max(1, len(ends))  # two ends: half of it, one-sided
    return (is_inside if p <= paired.LEVEL else None), p


def _printed(claim: Claim, statistic: _Statistic, rows: Mapping[str, Row], panel: str) -> str:
    """Return the statistic of the paper's printed numbers, or the claimed interval."""
    printed = [rows[row].printed(panel, claim.column) for row in statistic.rows]
    numbers = [number for number in printed if number is not None]
    if numbers and len(numbers) == len(printed):
        value = numbers[0]
        if statistic.unit == "difference":
            value = numbers[0] - numbers[1]
        if statistic.unit == "ratio":
            value = numbers[0] / numbers[1]
        return _shown(value, claim.column, statistic.unit)
    if claim.kind in ("order", "beats") and not claim.margin:
        return ""
    low, high = (_shown(end, claim.column, statistic.unit) for end in statistic[2:4])
    if np.isinf(statistic.low):
        return f"≤ {high}"
    if np.isinf(statistic.high):
        return f"≥ {low}"
    return low if low == high else f"{low} to {high}"


def _shown(value: float, column: str, unit: str) -> str:
    """Write a statistic: shares and relative differences in per cent, others with four digits."""
    if unit == "relative":
        return f"{100 * value:+.3g} %"
    if unit in ("ratio", "slope"):
        return f"{value:.3g}"
    sign = "+" if unit == "difference" else ""
    if is_share(column):
        return f"{100 * value:{sign}.2f}"
    return f"{value:{sign}.4g}"
