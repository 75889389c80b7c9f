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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.app.experiments import effects
from coterie.app.experiments.measures import gains, known_mean
from coterie.app.experiments.paired import LEVEL, MIN_SEEDS, POWER, interval, split_ratio
from coterie.app.experiments.table import Row
from coterie.app.report import advice, diagnostics
from coterie.app.report.advice import ADVICE, RELEVANT, UNKNOWN, Evidence
from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Section
from coterie.app.report.words import listed
from coterie.app.runs import atomic, quality, units
from coterie.app.runs.diagnostics import Diagnostics
from coterie.app.runs.quality import PARTS
from coterie.app.runs.rundir import Run
from coterie.clients.diagnostics import Estimate, wilson

FILE = "decision.csv"
LINES = 20
"""Number of institutions that the terminal lists."""
_CLASSES = 5
"""Number of classes up to which rows are counted by class."""
_PURPOSE = {"train": "for training", "validation": "for validation", "test": "for testing"}
_NORMAL = 1.959963984540054
"""97.5th percentile of the normal distribution."""
_OF_PROBABILITIES = (
    "AUROC: probability that the model ranks a positive row above a negative one; 0.5 is guessing. "
    "O/E: observed positives over the sum of their predicted probabilities; 1 is calibrated."
)


class Decision(NamedTuple):
    """Decision of one institution; `advice` is a key of `ADVICE`, or "" if nothing is advised."""

    # `gain` and `ranking` are UNKNOWN, and `numbers`, which says what decided, is "" where the
    # institution cannot be judged.

    institution: str
    advice: str
    method: str
    rows: int
    groups: int  # of the rows; 0 if they have none
    sentences: list[str]
    reason: str = ""
    gain: Estimate = UNKNOWN
    ranking: Estimate = UNKNOWN
    numbers: str = ""
    text: str = ""  # advice in words


@dataclass(frozen=True)
class Decisions(Section):
    """Decisions of all institutions, the consortium's paragraph, and notes."""

    institutions: list[Decision]
    consortium: list[str]
    notes: list[str]
    is_compared: bool

    template = "decisions.html.j2"
    shown = 100

    @property
    def rules(self) -> dict[str, str]:
        """Rules of the given advice, by mark, in the order of the institutions."""
        given = dict.fromkeys(each.advice for each in self.institutions if each.advice)
        return {str(k): ADVICE[key].rule for k, key in enumerate(given, 1)}

    def mark(self, decision: Decision) -> str:
        """Return the mark of the footnote with the rule of a decision; "" without."""
        rule = ADVICE[decision.advice].rule if decision.advice else None
        return next((mark for mark, text in self.rules.items() if text == rule), "")

    def lines(self) -> list[str]:
        """Return a line per institution, and one of the consortium."""
        lines = [_line(each) for each in self.institutions[:LINES]]
        more = len(self.institutions) - LINES
        lines += [f"{more} more in {FILE}"] * (more > 0)
        return [*lines, f"Consortium: {' '.join(self.consortium)}"]

    def files(self) -> dict[str, str]:
        """Return a line per institution in full precision; undefined numbers are empty."""
        if not self.is_compared:
            return {}
        import pandas as pd

        frame = pd.DataFrame(
            [(d.institution, d.advice, d.method, *d.gain, *d.ranking, d.rows, d.reason, d.groups)
             for d in self.institutions],
            columns=["institution", "advice", "method", "gain", "low", "high", "auroc_gain",
                     "auroc_low", "auroc_high", "rows", "reason", "groups"],
        )  # fmt: skip
        return {FILE: atomic.csv_of(frame if frame["groups"].any() else frame.iloc[:, :-1])}


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


def compared(comparison: Comparison) -> Decisions | None:
    """Return the decisions of a comparison; None without institutions, Local and other methods."""
    rows = comparison.table.rows
    local = next((row for row in rows if row.is_local), None)
    if local is None or any(row.swept for row in rows) or not all(map(_can_decide, local.runs)):
        return None
    own = _places(local)
    choice = _chosen(comparison, local, own)
    if choice is None:
        return None
    places = _places(choice.method)
    tests, chosen = choice.tests, choice.method.name
    judged = [name for name in own if name in places and _can_judge(own[name])]
    estimates = _estimates([places[name] for name in judged], tests)
    of = dict(zip(judged, estimates, strict=True))
    decided = [
        _decided(name, own[name], places[name], choice, *of[name])
        if name in of
        else _unjudged(name, chosen, own[name])
        for name in own
        if name in places
    ]
    corrected = f", corrected for the choice among {tests} methods (Holm)" if tests > 1 else ""
    notes = [
        f"{chosen} is judged everywhere, because a consortium runs one method: {choice.merit}.",
        f"Interval: {100 * (1 - LEVEL / tests):.4g} %{corrected}, of the method minus the "
        "institution’s own model (local): random effects of all judged institutions, from the "
        "means over seeds, with Nadeau and Bengio’s correction where each seed divides the same "
        f"rows again. Where the test rows stay the same, or with fewer than {MIN_SEEDS} seeds, it "
        "is at least as wide as the intervals of both models on these rows (a loss has none).",
    ]
    if any(not np.isnan(run.metric("sensitivity")).all() for run in local.runs):
        notes.append(_OF_PROBABILITIES)
    return Decisions(decided, _consortium(decided, choice, places), notes, is_compared=True)


def of_run(run: Run) -> Decisions | None:
    """Return advice for institutions that no comparison can judge; None without institutions."""
    if not _can_decide(run):
        return None
    cards, decided = run.diagnostics, []
    for peer, name in enumerate(run.names):
        card = cards.get(peer)
        here = [_Place(run, run, peer, card, card)]
        if not _can_judge(here):
            decided.append(_unjudged(name, run.label, here))
            continue
        reason = "One run cannot say whether this is better than a model of its own rows."
        text = [_rows(here), *_probabilities(run.label, here), reason]
        decided.append(Decision(name, "", run.label, _total(here), _groups(here), text))
    rest = sum(not each.advice for each in decided)
    preset = shlex.quote(str(run.directory / "config.toml"))
    methods = f"local,{run.label}" if run.label != "local" else "local,fedavg"
    consortium = (
        f"{_count(rest, len(decided))} can be judged by a comparison with models of their own "
        f"rows: coterie compare {preset} --methods {methods}"
    )
    return Decisions(decided, [consortium], [_OF_PROBABILITIES] if cards else [], False)


def _can_decide(run: Run) -> bool:
    has_rows = run.sizes("test") is not None and len(run.rounds) > 0
    return has_rows and quality.is_of_institutions(run)


def _chosen(
    comparison: Comparison, local: Row, own: Mapping[str, Sequence[_Place]]
) -> _Choice | None:
    """Choose the judged method; `own` are the places of each institution in Local's runs."""
    columns = {column.key: column for column in comparison.table.shown()}
    main = columns.get("accuracy") or columns.get("loss")
    if main is None:
        return None
    among = [
        row for row in comparison.table.candidates(main) if not row.is_local and any(row.local)
    ]
    if len(among) < 2:
        return _Choice(among[0], 1, "it is the only one besides local") if among else None
    kind = "accuracy" if local.runs[0].has_accuracy else "loss"
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
            np.nanmean(gains(run, alone)[[name in names for name in run.names]])
            for run, alone in _pairs(row)
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


def _pairs(row: Row) -> list[tuple[Run, Run]]:
    return [(run, local) for run, local in zip(row.runs, row.local, strict=True) if local]


def _places(row: Row) -> dict[str, list[_Place]]:
    """Return the places of each institution, by name; an institution may lack a seed."""
    places: dict[str, list[_Place]] = {}
    for run, local in _pairs(row):
        for peer, name in enumerate(run.names):
            place = _Place(run, local, peer, run.diagnostics.get(peer), local.diagnostics.get(peer))
            places.setdefault(name, []).append(place)
    return places


def _decided(
    name: str, own: Sequence[_Place], here: Sequence[_Place], choice: _Choice, gain: Estimate,
    ranking: Estimate,
) -> Decision:  # fmt: skip
    """Judge the chosen method at one institution; `own` are its places in Local's runs."""
    chosen, accuracy, relevant = choice.method.name, own[0].run.has_accuracy, _relevant([here])
    labels = own[0].run.labels("test")
    has_threshold = labels is not None and labels.shape[1] == 2
    key = advice.advise(Evidence(True, has_threshold, gain, ranking, relevant))
    of_ranking = f"{_ranking_name(here)} {_ranked(ranking)}"
    reason = _reason(key, gain, of_ranking) or _power(here, gain, choice.tests, relevant)
    change = _change(gain, accuracy=accuracy)
    is_ranked = advice.gains(ranking) or advice.loses(ranking)
    known = [f"gain of {chosen} {change}"] * (not np.isnan(gain[0])) + [of_ranking] * is_ranked
    sentences = [
        _rows(own),
        _gain_sentence(chosen, here, change),
        *_probabilities(chosen, here, ranking),
        reason,
    ]
    text = ADVICE[key].text.format(method=chosen, limit=_amount(gain[2], accuracy=accuracy))
    return Decision(
        name, key, chosen, _total(own), _groups(own), sentences, reason, gain, ranking,
        ", ".join(known), text,
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


def _estimates(
    institutions: Sequence[Sequence[_Place]], tests: int
) -> list[tuple[Estimate, Estimate]]:
    """Return the gains over the own models, and those in AUROC or C-index, with intervals."""
    if not institutions:
        return []
    name = "c_index" if _ranking_name(institutions[0]) == "C-index" else "auroc"

    def ranking(place: _Place) -> float:
        return float(place.run.last(name)[place.peer] - place.local.last(name)[place.peer])

    def reach(place: _Place) -> float:
        cards = [card.measures.get(name) for card in (place.card, place.own_card) if card]
        ends = [(each[2] - each[1]) / 2 for each in cards if each is not None]
        return math.hypot(*ends) if len(ends) == 2 else float("nan")

    scale = _relevant(institutions)
    gain = _shrunk(institutions, _gain_at, _gain_reach, _tested, scale, tests)
    return [*zip(gain, _shrunk(institutions, ranking, reach, _rarer, RELEVANT, tests), strict=True)]


def _shrunk(
    institutions: Sequence[Sequence[_Place]], value: Callable[[_Place], float],
    reach: Callable[[_Place], float], rows: Callable[[_Place], int], scale: float, tests: int,
) -> list[Estimate]:  # fmt: skip
    """Estimate a difference at all institutions together; `rows` are those behind each value."""
    # Where the seeds do not divide the rows of an institution again, or are too few for a test,
    # its variance is at least that of `reach`, half the 95 % interval on the test rows.
    ratio_n = np.array([split_ratio(at[0].local, [at[0].peer]) for at in institutions])
    rows_n = np.array([max(1.0, np.mean([*map(rows, at)])) for at in institutions])
    values = [np.array([*map(value, at)]) for at in institutions]
    mean_n, variance_n = effects.sampled(values, ratio_n, rows_n, tests)
    reach_n = np.array([known_mean([*map(reach, at)]) for at in institutions]) / _NORMAL
    is_open_n = np.isnan(variance_n) | (ratio_n == 0)
    variance_n = np.where(is_open_n, np.fmax(variance_n, reach_n**2), variance_n)
    return [(*ends,) for ends in effects.shrunk(mean_n, variance_n, scale, tests).tolist()]


def _relevant(institutions: Sequence[Sequence[_Place]]) -> float:
    """Return the gain that matters, in accuracy or as a share of the own models' loss."""
    places = [place for at in institutions for place in at]
    if not places or places[0].local.has_accuracy:
        return RELEVANT
    return RELEVANT * known_mean([abs(p.local.last("test_loss")[p.peer]) for p in places])


def _mean_gain(institutions: Sequence[Sequence[_Place]], tests: int) -> Estimate:
    """Return the mean gain over the own models at some institutions with its interval."""
    differences: dict[Path, list[float]] = {}
    for place in chain(*institutions):
        differences.setdefault(place.run.directory, []).append(_gain_at(place))
    local, peers = institutions[0][0].local, [places[0].peer for places in institutions]
    ratio = split_ratio(local, peers)
    mean, low, high = interval([*map(np.array, differences.values())], ratio, tests)
    half = (high - low) / 2
    if np.isnan(half) or not all(split_ratio(local, [peer]) for peer in peers):
        reaches = [known_mean([*map(_gain_reach, places)]) for places in institutions]
        reach = math.hypot(*reaches) / len(reaches) / _NORMAL
        half = float(np.fmax(half, reach * _critical(tests)))
    return mean, mean - half, mean + half


def _gain_at(place: _Place) -> float:
    return float(gains(place.run, place.local)[place.peer])


def _gain_reach(place: _Place) -> float:
    """Return half the interval of a gain in accuracy on the test rows; NaN without accuracies."""
    reach = []
    for run in (place.run, place.local):
        sizes_n, accuracy = run.sizes("test", in_groups=True), run.last()[place.peer]
        if sizes_n is None or np.isnan(accuracy):
            return float("nan")
        size = sizes_n[place.peer]
        _, low, high = wilson(np.arange(size) < round(accuracy * size))
        reach.append((high - low) / 2)
    return math.hypot(*reach)


def _ranking_name(places: Sequence[_Place]) -> str:
    return "AUROC" if np.isnan(places[0].local.last("c_index")).all() else "C-index"


def _critical(tests: int) -> float:
    from scipy.special import ndtri

    return float(ndtri(1 - LEVEL / tests / 2))


def _mean_of(cards: Sequence[Diagnostics | None], *names: str) -> Estimate:
    """Return the mean of the first of these measures that the cards have."""
    for name in names:
        known = diagnostics.mean_estimate([card.measures.get(name) for card in cards if card])
        if known is not None:
            return known
    return UNKNOWN


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
    """Write the number of rows of each part and class."""
    texts = []
    for part, purpose in _PURPOSE.items():
        size, of_class = _size(places, part), ""
        labels = [l_nk[p.peer] for p in places if (l_nk := p.run.labels(part)) is not None]
        if labels and size and len(labels[0]) <= _CLASSES:
            names = places[0].run.classes or [f"class {k}" for k in range(len(labels[0]))]
            pairs = zip(np.mean(labels, axis=0), names, strict=True)
            of_class = f" ({', '.join(f'{count:.0f} {name}' for count, name in pairs)})"
        texts.append(f"{size:,} {purpose}{of_class}")
    of_groups = f" of {groups:,} groups" if (groups := _groups(places)) else ""
    return f"{_total(places):,} rows{of_groups}: {', '.join(texts)}."


def _gain_sentence(method: str, places: Sequence[_Place], change: str) -> str:
    accuracy = places[0].local.has_accuracy
    field = "test_accuracy" if accuracy else "test_loss"
    with_ = float(np.mean([p.run.last(field)[p.peer] for p in places]))
    alone = float(np.mean([p.local.last(field)[p.peer] for p in places]))
    if accuracy:
        return (
            f"{method} decides {100 * with_:.1f} % of the test rows correctly, your own model "
            f"{100 * alone:.1f} %; estimated with all institutions, the gain is {change}."
        )
    return (
        f"The test loss of {method} is {with_:.3g}, that of your own model {alone:.3g}; "
        f"estimated with all institutions, it is {change}."
    )


def _change(gain: Estimate, *, accuracy: bool) -> str:
    scale, form, unit = (100, "+.1f", " points") if accuracy else (1, "+.3g", " lower")
    value, low, high = (f"{scale * x:{form}}" for x in gain)
    ends = "no interval" if np.isnan(gain[1]) else f"{low} to {high}"
    return f"{value}{unit} ({ends})"


def _ranked(ranking: Estimate) -> str:
    return f"{ranking[0]:+.3f} ({ranking[1]:+.3f} to {ranking[2]:+.3f})"


def _probabilities(
    name: str, places: Sequence[_Place], ranking: Estimate | None = None
) -> list[str]:
    """Write AUROC or C-index, and O/E, of a model; with `ranking`, its gain, beside the own one."""
    cards, own_cards = [place.card for place in places], [place.own_card for place in places]
    is_survival = any(card and "c_index" in card.measures for card in cards)
    sentences = []
    for keys, title in (
        (("auroc", "c_index"), "C-index" if is_survival else "AUROC"),
        (("observed_expected",), "O/E"),
    ):
        value, low, high = _mean_of(cards, *keys)
        text = f"{title} {value:.2f}"
        if ranking is None:
            text += "" if np.isnan(low) else f" (95 % interval {low:.2f} to {high:.2f})"
        else:
            text += f" with {name}, {_mean_of(own_cards, *keys)[0]:.2f} with your own model"
            if title != "O/E" and not np.isnan(ranking[1]):
                text += f": {_ranked(ranking)}"
        sentences += [] if np.isnan(value) else [f"{text}."]
    return sentences


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


def _power(places: Sequence[_Place], gain: Estimate, tests: int, relevant: float) -> str:
    """Say how often a gain that matters would have been found, and what would find it."""
    from scipy.special import ndtr, ndtri

    critical, seeds = _critical(tests), len(places)
    error = (gain[2] - gain[1]) / 2 / critical
    if np.isnan(error):
        return f"No test is possible with {units.plural(seeds, 'seed')}: {MIN_SEEDS} are needed."
    power = float(ndtr(relevant / error - critical)) if error else 1.0
    of = _amount(relevant, accuracy=places[0].run.has_accuracy)
    count = 100 * min(power, 0.99)
    text = f"A gain of {of} would have been found in {count:.0f} of 100 such comparisons"
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


def _amount(gain: float, *, accuracy: bool) -> str:
    return f"{100 * gain:.1f} points" if accuracy else f"{gain:.3g} (loss)"


def _consortium(
    decided: Sequence[Decision], choice: _Choice, places: Mapping[str, Sequence[_Place]]
) -> list[str]:
    """Write the paragraph of the consortium; `places` are those of the chosen method."""
    counts = Counter(each.advice for each in decided)
    answers = "; ".join(f"{text}: {count}" for text, count in counts.most_common())
    sentences = [f"{_count(len(decided), len(decided))}: {answers}."]
    usable = [each for each in decided if not np.isnan(each.gain[0])]
    if len(usable) > 1:
        kept = [places[each.institution] for each in usable]
        change = _change(_mean_gain(kept, choice.tests), accuracy=kept[0][0].local.has_accuracy)
        sentences.append(
            f"Over the institutions with enough test rows, {choice.method.name} gains {change} on "
            "average."
        )
    winners = sum(each.advice in (advice.USE, advice.USE_AFTER_THRESHOLD) for each in usable)
    if usable and not winners:
        sentences.append("None of these is shown to gain by collaborating.")
    return sentences


def _count(number: int, total: int) -> str:
    word = units.plural(total, "institution")
    return word if number == total else f"{number} of {word}"


def _line(decision: Decision) -> str:
    if not decision.advice:
        return f"{decision.institution}: {' '.join(decision.sentences[:-1])}"
    why = decision.numbers or f"{decision.reason[0].lower()}{decision.reason[1:]}".rstrip(".")
    return f"{decision.institution}: {decision.text}; {why}"
