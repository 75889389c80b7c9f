"""Decisions: for each institution, what a comparison means for it and what to do, in sentences.

The consortium runs one method, so one method is judged at every institution: the best on the
validation rows of all institutions or, without these, on the test rows of those that can be judged.
If test rows took part in the choice, its intervals have the level of Holm's correction for the
choice among the compared methods. The gains of all institutions that can be judged are estimated
together (`coterie.app.experiments.effects`). The rules are in `coterie.app.report.advice`.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType

from coterie.app.experiments import effects
from coterie.app.experiments.measures import known_mean
from coterie.app.experiments.paired import (
    LEVEL,
    MIN_SEEDS,
    POWER,
    TABLE_SEEDS,
    interval,
    split_ratio,
)
from coterie.app.experiments.table import Row, Table
from coterie.app.report import advice
from coterie.app.report.advice import ADVICE, RELEVANT, UNKNOWN, USE, USE_AFTER_THRESHOLD, Evidence
from coterie.app.report.comparison import Comparison, escaped, latex
from coterie.app.report.forest import Forest, Line
from coterie.app.report.section import Section
from coterie.app.report.words import rare_class
from coterie.app.runs import atomic, quality, units
from coterie.app.runs.diagnostics import Diagnostics
from coterie.app.runs.quality import PARTS
from coterie.app.runs.rundir import Floats, Run
from coterie.clients.diagnostics import Estimate, wilson
from coterie.datasets.own.institutions import listed

FILE = "decision.csv"
LATEX = "decision.tex"
LINES = 20
"""Number of institutions that the terminal lists."""
_PURPOSE = {"train": "training", "validation": "validation", "test": "testing"}


class Decision(NamedTuple):
    """Decision of one institution; `advice` is a key of `ADVICE`, or "" if nothing is advised."""

    # `gain` and `ranking` are UNKNOWN where the institution cannot be judged.

    institution: str
    advice: str
    method: str
    rows: int
    groups: int  # of the rows; 0 if they have none
    sentences: list[str]
    reason: str = ""
    gain: Estimate = UNKNOWN
    ranking: Estimate = UNKNOWN
    text: str = ""  # advice in words

    @property
    def size(self) -> str:
        return units.plural(self.groups, "group") if self.groups else f"{self.rows:,}"


@dataclass(frozen=True)
class Decisions(Section):
    """Decisions of all institutions, their sum in a sentence, notes and forest plots."""

    institutions: list[Decision]
    consortium: str
    notes: list[str]
    forests: list[Forest]  # empty without a comparison
    about: str = ""  # what the headline means where one class is rare

    template = "decisions.html.j2"
    shown, rules = 100, ADVICE

    def lines(self) -> list[RenderableType]:
        """Return the sum and the forest plots, or a line per institution."""
        plots: list[RenderableType] = [each.as_rich(LINES) for each in self.forests]
        plots = plots or [
            f"{each.institution}: {each.text}; {each.reason[0].lower()}{each.reason[1:]}"
            for each in self.institutions[:LINES]
        ]
        more = len(self.institutions) - LINES
        plots += [f"{units.plural(more, 'more institution')} on the page"] * (more > 0)
        return [self.consortium, *plots]

    def files(self) -> dict[str, str]:
        """Return a line per institution in full precision, and the plots' numbers for LaTeX."""
        if not self.forests:
            return {}
        import pandas as pd

        frame = pd.DataFrame(
            [(d.institution, d.advice, d.method, *d.gain, *d.ranking, d.rows, d.reason, d.groups)
             for d in self.institutions],
            columns=["institution", "advice", "method", "gain", "low", "high", "auroc_gain",
                     "auroc_low", "auroc_high", "rows", "reason", "groups"],
        )  # fmt: skip
        frame = frame if frame["groups"].any() else frame.iloc[:, :-1]
        first, count = self.forests[0].lines, len(self.forests)
        texts = {
            "institution": [line.name for line in first],
            "rows": [line.rows for line in first],
            **{each.title: [line.number for line in each.lines] for each in self.forests},
            "answer": [line.answer for line in first],
        }
        safe = {escaped(title): [*map(escaped, of)] for title, of in texts.items()}
        caption = " ".join([self.consortium, *self.notes])
        table = latex(safe, f"lr{'r' * count}l", caption, "institutions")
        return {FILE: atomic.csv_of(frame), LATEX: table}


class _Choice(NamedTuple):
    """Judged method, the number of tests that its intervals allow for, and its merit."""

    method: Row
    tests: int
    merit: str


class _Place(NamedTuple):
    """One institution in a run and in Local's run with the same seed, with its model cards."""

    run: Run
    local: Run
    peer: int
    card: Diagnostics | None
    own_card: Diagnostics | None


@dataclass(frozen=True)
class _Measure:
    """Measure of models, whose gain over the own model is judged."""

    field: str  # of the metrics
    title: str
    sign: float = 1.0  # -1: lower is better
    factor: float = 1.0
    form: str = ".3f"
    unit: str = ""

    def of(self, run: Run) -> Floats:
        """Return the measure of each peer, (n,); NaN if its model diverged."""
        value_n = run.last(self.field)
        return np.where(np.isfinite(value_n), value_n, np.nan)

    def gains(self, run: Run, local: Run) -> Floats:
        """Return the gain of each peer over Local, (n,)."""
        return self.sign * (self.of(run) - self.of(local))

    def gain(self, place: _Place) -> float:
        """Return the gain over the own model at one institution with one seed."""
        return float(self.gains(place.run, place.local)[place.peer])

    def reach(self, place: _Place) -> float:
        """Return half the 95 % interval of a gain on the test rows; NaN without one."""
        halves = []
        for run, card in ((place.run, place.card), (place.local, place.own_card)):
            ends = card.measures.get(self.field, UNKNOWN) if card else UNKNOWN
            sizes_n = run.sizes("test", in_groups=True)
            if self.field == "test_accuracy" and sizes_n is not None:
                size, accuracy = sizes_n[place.peer], self.of(run)[place.peer]
                right = 0 if np.isnan(accuracy) else round(accuracy * size)
                ends = UNKNOWN if np.isnan(accuracy) else wilson(np.arange(size) < right)
            halves.append((ends[2] - ends[1]) / 2)
        return math.hypot(*halves)

    def rows(self, place: _Place) -> int:
        """Return the number of rows behind a value."""
        return (_rarer if self.field in ("auroc", "c_index") else _tested)(place)

    def relevant(self, places: Sequence[_Place]) -> float:
        """Return the gain that matters: `RELEVANT`, or this share of the own models' error."""
        own = [abs(self.of(place.local)[place.peer]) for place in places]
        return RELEVANT * (known_mean(own) if self.sign < 0 else 1.0)

    def write(self, gain: float) -> str:
        return units.signed(self.factor * gain, self.form)

    def amount(self, gain: float) -> str:
        """Write a gain without sign, with its unit."""
        return f"{self.factor * gain:{self.form}} {self.unit}".rstrip()

    def change(self, gain: Estimate) -> str:
        value, low, high = map(self.write, gain)
        return f"{value} ({'no interval' if np.isnan(gain[1]) else f'{low} to {high}'})"


_ACCURACY = _Measure("test_accuracy", "accuracy", factor=100, form=".1f", unit="points")
_RANKINGS = _Measure("auroc", "AUROC"), _Measure("c_index", "C-index")


def _measures(table: Table, local: Run) -> tuple[_Measure, _Measure]:
    """Return the measure of the headline, and that of the ranking of rows."""
    ranking = _RANKINGS[not np.isnan(local.metric("c_index")).all()]
    if table.main is None or table.main.key in ("accuracy", "auroc"):
        return (ranking if table.main and table.main.key == "auroc" else _ACCURACY), ranking
    if table.main.key == "loss":
        return _Measure("test_loss", "test loss", -1.0, form=".3g"), ranking
    label = local.settings.dataset_options.get("label")
    unit = f"units of {label}" if label else ""
    return _Measure("rmse", "RMSE", -1.0, form=".3g", unit=unit), ranking


def compared(comparison: Comparison) -> Decisions | None:
    """Return the decisions of a comparison; None without institutions, Local and other methods."""
    rows = comparison.table.rows
    local = next((row for row in rows if row.is_local), None)
    if local is None or any(row.swept for row in rows) or not all(map(_can_decide, local.runs)):
        return None
    own = _places(local)
    main, ranking = _measures(comparison.table, local.runs[0])
    choice = _chosen(comparison, local, own, main)
    if choice is None:
        return None
    places = _places(choice.method)
    tests, chosen = choice.tests, choice.method.name
    judged = {name: places[name] for name in own if name in places and _can_judge(own[name])}
    of = {measure: _shrunk([*judged.values()], measure, tests) for measure in (main, ranking)}
    at = {name: (of[main][k], of[ranking][k]) for k, name in enumerate(judged)}
    decided = [
        _decided(name, own[name], places[name], choice, main, ranking, *at[name])
        if name in at
        else _unjudged(name, chosen, own[name])
        for name in own
        if name in places
    ]
    numbers = {main: [each.gain for each in decided], ranking: [each.ranking for each in decided]}
    forests = [
        _forest(measure, decided, of_measure, _mean_gain([*judged.values()], measure, tests),
                has_answers=measure == main)
        for measure, of_measure in numbers.items()
        if measure == main or not np.isnan(of_measure).all()
    ]  # fmt: skip
    corrected = f", corrected for the choice among {tests} methods (Holm)" if tests > 1 else ""
    joint = " by random effects of all judged institutions" * (len(judged) >= effects.MIN_SHRUNK)
    notes = [
        f"{chosen} is judged everywhere, because a consortium runs one method: {choice.merit}.",
        f"Interval: {100 * (1 - LEVEL / tests):.4g} %{corrected}, of the method minus the "
        f"institution’s own model (local), from the means over seeds{joint}, with Nadeau and "
        "Bengio’s correction where each seed divides the same rows again; that of the mean is the "
        "paired test’s, over seeds and institutions. Where the test rows stay the same, or with "
        f"fewer than {MIN_SEEDS} seeds, each is at least as wide as the intervals of both models "
        "on these rows (a loss has none).",
    ]
    return Decisions(
        decided, _consortium(decided, chosen, forests[0]), notes, forests,
        rare_class(comparison.runs[0]),
    )  # fmt: skip


def _forest(
    measure: _Measure, decided: Sequence[Decision], gains: Sequence[Estimate], mean: Estimate, *,
    has_answers: bool,
) -> Forest:  # fmt: skip

    def line(name: str, rows: str, gain: Estimate, answer: str = "") -> Line:
        number = units.NONE if np.isnan(gain[0]) else measure.change(gain)
        return Line(name, rows, gain, number, answer * has_answers, is_mean=not rows)

    lines = [
        line(each.institution, each.size, gain, each.advice)
        for each, gain in zip(decided, gains, strict=True)
    ]
    what = "Gain in" if measure.sign > 0 else "Reduction of"
    unit = f" ({measure.unit})" if measure.unit else ""
    return Forest(
        f"{what} {measure.title}{unit}", lambda x: measure.write(x) if x else "0",
        [*lines, line("mean", "", mean)],
    )  # fmt: skip


def of_run(run: Run) -> Decisions | None:
    """Return what a comparison would judge, and why not all; None without institutions."""
    if not _can_decide(run):
        return None
    places = {
        name: [_Place(run, run, peer, None, None)] * TABLE_SEEDS
        for peer, name in enumerate(run.names)
    }
    decided = [_unjudged(name, run.label, at) for name, at in places.items() if not _can_judge(at)]
    rest = run.peers - len(decided)
    preset = shlex.quote(str(run.directory / "config.toml"))
    methods = f"local,{run.label}" if run.label != "local" else "local,fedavg"
    consortium = (
        f"{rest or 'None'} of {units.plural(run.peers, 'institution')} can be judged by a "
        "comparison with models of their own rows"
    )
    command = f": coterie compare {preset} --methods {methods}"
    return Decisions(decided, consortium + (command if rest else "."), [], [])


def _can_decide(run: Run) -> bool:
    has_rows = run.sizes("test") is not None and len(run.rounds) > 0
    return has_rows and quality.is_of_institutions(run)


def _chosen(
    comparison: Comparison, local: Row, own: Mapping[str, Sequence[_Place]], measure: _Measure
) -> _Choice | None:
    """Choose the judged method; `own` are the places of each institution in Local's runs."""
    main = comparison.table.main
    if main is None:
        return None
    among = [
        row for row in comparison.table.candidates(main) if not row.is_local and any(row.local)
    ]
    if len(among) < 2:
        return _Choice(among[0], 1, "it is the only one besides local") if among else None
    kind = "accuracy" if measure == _ACCURACY else "loss"
    sign = 1.0 if kind == "accuracy" else -1.0
    on_validation = [_validated(row, f"validation_{kind}") for row in among]
    if not np.isnan(on_validation).any():
        best = among[int(np.argmax(sign * np.array(on_validation)))]
        merit = "the best mean of the validation rows of all institutions"
        if len(local.runs) > 1 and split_ratio(local.runs[0]):
            return _Choice(best, len(among), f"{merit}, which other seeds test on")
        return _Choice(best, 1, f"{merit}; no test row took part in the choice")
    names = [name for name, places in own.items() if _can_judge(places)] or [*own]
    means = [
        np.mean([
            known_mean(measure.gains(run, alone)[[name in names for name in run.names]])
            for run, alone in row.pairs
        ])
        for row in among
    ]  # fmt: skip
    best = among[int(np.argmax(np.nan_to_num(means, nan=-np.inf)))]
    merit = f"the best mean gain over local on the test rows of {listed(names)}"
    return _Choice(best, len(among), merit)


def _validated(row: Row, field: str) -> float:
    """Return the mean of a field over all validation rows; NaN with fewer than `MIN_ROWS`."""
    means = []
    for run in row.runs:
        sizes_n, value_n = run.sizes("validation"), run.last(field)
        counts_n = run.sizes("validation", in_groups=True)
        if sizes_n is None or counts_n is None or counts_n.sum() < quality.MIN_ROWS:
            return float("nan")
        has_n = sizes_n > 0
        means.append(float(np.average(value_n[has_n], weights=sizes_n[has_n])))
    return float(np.mean(means))


def _places(row: Row) -> dict[str, list[_Place]]:
    """Return the places of each institution, by name; an institution may lack a seed."""
    places: dict[str, list[_Place]] = {}
    for run, local in row.pairs:
        for peer, name in enumerate(run.names):
            place = _Place(run, local, peer, run.diagnostics.get(peer), local.diagnostics.get(peer))
            places.setdefault(name, []).append(place)
    return places


def _decided(
    name: str, own: Sequence[_Place], here: Sequence[_Place], choice: _Choice, main: _Measure,
    by_rank: _Measure, gain: Estimate, ranking: Estimate,
) -> Decision:  # fmt: skip
    """Judge the chosen method at one institution; `own` are its places in Local's runs."""
    chosen, relevant, labels = choice.method.name, main.relevant(here), own[0].run.labels("test")
    has_threshold = labels is not None and labels.shape[1] == 2
    key = advice.advise(Evidence(has_threshold, gain, ranking, relevant))
    of_ranking = f"{by_rank.title} {by_rank.change(ranking)}"
    reason = _reason(key, gain, of_ranking) or _power(here, gain, choice.tests, main)
    with_, alone = (
        main.write(known_mean([main.of(run)[place.peer] for place, run in of]))
        for of in ([(p, p.run) for p in here], [(p, p.local) for p in here])
    )
    levels = (
        f"{main.title[0].upper()}{main.title[1:]} {with_[1:]} with {chosen}, {alone[1:]} with your "
        f"own model; the estimated gain is {main.change(gain)}."
    )
    text = ADVICE[key].text.format(method=chosen, limit=main.amount(gain[2]))
    return Decision(
        name, key, chosen, _total(own), _groups(own), [_rows(own), levels, reason], reason, gain,
        ranking, text,
    )  # fmt: skip


def _can_judge(own: Sequence[_Place]) -> bool:
    return not _one_class(own) and _seen(own)[0] >= quality.MIN_ROWS


def _one_class(own: Sequence[_Place]) -> str:
    return quality.one_class(own[0].run).get(own[0].peer, "")  # in all parts, so with each seed


def _unjudged(name: str, method: str, own: Sequence[_Place]) -> Decision:
    """Return the decision of an institution that cannot be judged, without numbers of models."""
    groups, finding, (seen, there) = _groups(own), _one_class(own), map(round, _seen(own))
    what = " of the rarer class" if own[0].run.labels("test") is not None else ""
    reason = (
        f"{finding[:1].upper()}{finding[1:]}; rows of another class would decide."
        if finding
        else f"Only {seen} of its {there} {'groups' if groups else 'rows'}{what} are tested in "
        f"some seed; {quality.MIN_ROWS} would decide."
    )
    key, sentences = advice.NOT_KNOWN, [_rows(own), reason]
    return Decision(name, key, method, _total(own), groups, sentences, reason, text=key)


def _seen(own: Sequence[_Place]) -> tuple[float, float]:
    """Return how many rows without the most frequent class are tested in some seed, and exist."""
    # Expected numbers: each seed draws a share of the rows for testing, or all the same.
    tested, rows = np.mean([*map(_rarer, own)]), [_size(own, p, in_groups=True) for p in PARTS]
    share = rows[-1] / max(1, sum(rows))
    seeds = len(own) if split_ratio(own[0].local, [own[0].peer]) else 1
    there = float(tested / share) if share else 0.0
    return there * (1 - (1 - share) ** seeds), there


def _shrunk(
    institutions: Sequence[Sequence[_Place]], measure: _Measure, tests: int
) -> list[Estimate]:
    """Estimate the gains over the own models at all institutions together."""
    # Where the seeds do not divide the rows of an institution again, or are too few for a test,
    # its variance is at least that of `reach`, half the 95 % interval on the test rows.
    if not institutions:
        return []
    ratio_n = np.array([split_ratio(at[0].local, [at[0].peer]) for at in institutions])
    rows_n = np.array([max(1.0, np.mean([*map(measure.rows, at)])) for at in institutions])
    values = [np.array([*map(measure.gain, at)]) for at in institutions]
    mean_n, variance_n = effects.sampled(values, ratio_n, rows_n, tests)
    reach_n = np.array([known_mean([*map(measure.reach, at)]) for at in institutions]) / _critical()
    is_open_n = np.isnan(variance_n) | (ratio_n == 0)
    variance_n = np.where(is_open_n, np.fmax(variance_n, reach_n**2), variance_n)
    scale = measure.relevant([place for at in institutions for place in at])
    return [(*ends,) for ends in effects.shrunk(mean_n, variance_n, scale, tests).tolist()]


def _mean_gain(institutions: Sequence[Sequence[_Place]], measure: _Measure, tests: int) -> Estimate:
    """Return the mean gain over the own models at some institutions with its interval."""
    if not institutions:
        return UNKNOWN
    differences: dict[Path, list[float]] = {}
    for place in chain(*institutions):
        differences.setdefault(place.run.directory, []).append(measure.gain(place))
    local, peers = institutions[0][0].local, [places[0].peer for places in institutions]
    ratio = split_ratio(local, peers)
    mean, low, high = interval([*map(np.array, differences.values())], ratio, tests)
    half = (high - low) / 2
    if np.isnan(half) or not all(split_ratio(local, [peer]) for peer in peers):
        reaches = [known_mean([*map(measure.reach, places)]) for places in institutions]
        reach = math.hypot(*reaches) / len(reaches) / _critical()
        half = float(np.fmax(half, reach * _critical(tests)))
    return mean, mean - half, mean + half


def _critical(tests: int = 1) -> float:
    from scipy.special import ndtri

    return float(ndtri(1 - LEVEL / tests / 2))


def _rarer(place: _Place) -> int:
    """Return the number of test rows (groups) without the most frequent class, or with an event."""
    labels, most = place.run.labels("test", in_groups=True), _tested(place)
    if labels is not None:
        return min(most, int(labels[place.peer].sum() - labels[place.peer].max()))
    return most if place.card is None else min(most, place.card.positives)


def _tested(place: _Place) -> int:
    """Return the number of test rows; those of a group count once."""
    sizes_n = place.run.sizes("test", in_groups=True)
    return 0 if sizes_n is None else int(sizes_n[place.peer])


def _total(places: Sequence[_Place]) -> int:
    return sum(_size(places, part) for part in PARTS)


def _groups(places: Sequence[_Place]) -> int:
    """Return the number of groups of all rows; 0 if they have none."""
    is_grouped = places[0].run.is_grouped
    return sum(_size(places, part, in_groups=True) for part in PARTS) if is_grouped else 0


def _size(places: Sequence[_Place], part: str, *, in_groups: bool = False) -> int:
    """Return the number of rows, or groups, of a part, the rounded mean over seeds."""
    counts = (place.run.sizes(part, in_groups=in_groups) for place in places)
    sizes = [s_n[p.peer] for p, s_n in zip(places, counts, strict=True) if s_n is not None]
    return round(float(np.mean(sizes))) if sizes else 0


def _rows(places: Sequence[_Place]) -> str:
    parts = ", ".join(f"{_size(places, part):,} for {use}" for part, use in _PURPOSE.items())
    of_groups = f" of {groups:,} groups" if (groups := _groups(places)) else ""
    return f"{_total(places):,} rows{of_groups}: {parts}."


def _reason(key: str, gain: Estimate, of_ranking: str) -> str:
    """Write why the rule of an advice holds; "" where what a model gains or loses may be chance."""
    decides = "decides worse" if advice.loses(gain) else "does not decide better"
    reasons = {
        advice.USE: "It gains even at the lower end of the interval."
        if advice.gains(gain)
        else f"It ranks the rows better: {of_ranking}.",
        advice.USE_AFTER_THRESHOLD: f"It ranks the rows better ({of_ranking}), but {decides} at "
        "probability 0.5: choose the threshold on your own rows first.",
        advice.DO_NOT_USE: "It is worse than your own model even at the better end of the interval."
        if advice.loses(gain)
        else f"It ranks the rows worse than your own model: {of_ranking}.",
    }
    return reasons.get(key, "")


def _power(places: Sequence[_Place], gain: Estimate, tests: int, measure: _Measure) -> str:
    """Say how often a gain that matters would have been found, and what would find it."""
    from scipy.special import ndtr, ndtri

    critical, seeds = _critical(tests), int(np.isfinite([*map(measure.gain, places)]).sum())
    error = (gain[2] - gain[1]) / 2 / critical
    if np.isnan(error):
        return f"No test is possible with {units.plural(seeds, 'seed')}: {MIN_SEEDS} are needed."
    relevant = measure.relevant(places)
    power = float(ndtr(relevant / error - critical)) if error else 1.0
    text = (
        f"A gain of {measure.amount(relevant)} would have been found in "
        f"{100 * np.clip(power, 0.01, 0.99):.0f} of 100 such comparisons"
    )
    if power >= POWER:
        return f"{text}."
    share = (relevant / error / (critical + ndtri(POWER))) ** 2  # of today's variance
    ratio = split_ratio(places[0].local, [places[0].peer])
    rest = share * (1 / seeds + ratio) - ratio if ratio else 0.0
    groups = _groups(places)
    remedy = f"{(groups or _total(places)) / share:,.0f} {'groups' if groups else 'rows'} here"
    if (ratio and seeds < MIN_SEEDS) or rest > 0.01:
        remedy = f"{math.ceil(1 / rest) if seeds >= MIN_SEEDS else MIN_SEEDS} seeds"
    return f"{text}; about {remedy} would find it in {100 * POWER:.0f}."


def _consortium(decided: Sequence[Decision], method: str, plot: Forest) -> str:
    """Return the first sentence of a page: where the method helps, and its mean gain."""
    counts = Counter(each.advice for each in decided)
    others = ", ".join(f"{key} at {counts[key]}" for key in ADVICE if key != USE and counts[key])
    helps = counts[USE] + counts[USE_AFTER_THRESHOLD] or "none"
    first = f"{method} is shown to help at {helps} of {units.plural(len(decided), 'institution')}"
    title, mean = plot.title[0].lower() + plot.title[1:], plot.lines[-1]
    number = "" if np.isnan(mean.estimate[0]) else f"; mean {title}: {mean.number}"
    return first + f" ({others})" * bool(others) + f"{number}."
