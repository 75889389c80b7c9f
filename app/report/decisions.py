"""Decisions: for each institution, what a comparison means for it and what to do, in sentences.

The consortium runs one method, so one method is judged at every institution: the best on the
validation rows of all institutions or, without these, on the test rows; then its intervals have the
level of Holm's correction for the choice among the compared methods. The rules are in
`coterie.app.report.advice`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coterie.app.config.keys import flatten
from coterie.app.report import advice, comparison, diagnostics
from coterie.app.report.advice import ADVICE, UNKNOWN, Evidence
from coterie.app.report.comparison import Row
from coterie.app.report.measures import gains, has_accuracy, last
from coterie.app.report.paired_test import LEVEL, interval, redivision, seeds_needed
from coterie.app.runs import cells, judged, units
from coterie.app.runs.diagnostics import Diagnostics
from coterie.app.runs.diagnostics import read as read_diagnostics
from coterie.app.runs.rundir import PARTS, Floats, Run
from coterie.clients.diagnostics import Estimate, wilson

FILE = "decision.csv"
LINES = 20
"""Number of institutions that the terminal lists."""
_CLASSES = 5
"""Number of classes up to which rows are counted by class."""
_HEAD = (
    "institution", "advice", "method", "gain", "low", "high", "auroc_gain", "rows", "reason",
)  # fmt: skip
_PARTS = {"train": "for training", "validation": "for validation", "test": "for testing"}
_OF_PROBABILITIES = (
    "AUROC: probability that the model ranks a positive row above a negative one; 0.5 is guessing. "
    "O/E: observed positives over the sum of their predicted probabilities; 1 is calibrated."
)


class Decision(NamedTuple):
    """Decision of one institution; `advice` is a key of `ADVICE`, or "" if nothing is advised.

    `gain` and `ranking` are UNKNOWN where the institution cannot be judged.
    """

    institution: str
    advice: str
    method: str
    gain: Estimate
    ranking: Estimate
    rows: int
    sentences: list[str]
    reason: str

    @property
    def text(self) -> str:
        """Advice in words."""
        return ADVICE[self.advice].text.format(method=self.method) if self.advice else ""


class Decisions(NamedTuple):
    """Decisions of all institutions, the consortium's paragraph, rules by mark, and notes."""

    institutions: list[Decision]
    consortium: list[str]
    rules: dict[str, str]
    notes: list[str]
    is_accuracy: bool

    def mark(self, decision: Decision) -> str:
        """Return the mark of the footnote with the rule of a decision; "" without."""
        rule = ADVICE[decision.advice].rule if decision.advice else None
        return next((mark for mark, text in self.rules.items() if text == rule), "")

    def lines(self) -> list[str]:
        """Return a line per institution for a terminal."""
        lines = [_line(each, is_accuracy=self.is_accuracy) for each in self.institutions[:LINES]]
        more = len(self.institutions) - LINES
        return [*lines, *([f"{more} more in {FILE}"] if more > 0 else [])]

    def as_csv(self) -> str:
        """Write a line per institution in full precision; undefined numbers are empty."""
        lines: list[list[object]] = [[*_HEAD]]
        for each in self.institutions:
            numbers = ["" if np.isnan(x) else repr(float(x)) for x in (*each.gain, each.ranking[0])]
            lines.append(
                [cells.safe(each.institution), each.advice, each.method, *numbers, each.rows,
                 cells.safe(each.reason)]
            )  # fmt: skip
        return cells.as_csv(lines)


class _Place(NamedTuple):
    """One institution in a run and in Local's run with the same seed, with its model cards."""

    run: Run
    local: Run
    peer: int
    card: Diagnostics | None
    own_card: Diagnostics | None


def compared(rows: Sequence[Row]) -> Decisions | None:
    """Return the decisions of a comparison; None without institutions, Local and other methods."""
    local = next((row for row in rows if row.is_local), None)
    if local is None or any(row.swept for row in rows) or not _can_decide(local.runs):
        return None
    choice = _chosen(rows, local)
    if choice is None:
        return None
    chosen, tests, candidates = choice
    redivided = redivision(flatten(local.runs[0].config))
    places = {row.method: _places(row, cards=row is chosen) for row in candidates}
    decided = [
        _decided(name, own, chosen, tests, candidates, places, redivided)
        for name, own in _places(local, cards=True).items()
    ]
    how = (
        "the best mean of the validation rows of all institutions; its intervals need no "
        "correction, because no test row took part in the choice"
        if tests == 1
        else f"the best mean of the test rows; its intervals have level 1 - {LEVEL:g}/{tests}, "
        f"because these rows chose it among {units.plural(tests, 'method')} (Holm)"
        if len(candidates) > 1
        else "it is the only one besides local"
    )
    consortium = _consortium(decided, chosen, tests, redivided)
    notes = [
        f"{chosen.name} is judged everywhere, because a consortium runs one method: {how}.",
        "Interval: 95 %, paired over seeds, of the method minus the institution’s own model "
        "(local), with Nadeau and Bengio’s correction where each seed divides the same rows again; "
        "else at least as wide as the intervals on the test rows of the two models allow.",
        *([_OF_PROBABILITIES] if _has_probabilities(local.runs) else []),
    ]
    return Decisions(decided, consortium, _rules(decided), notes, has_accuracy(local.runs[0]))


def of_run(run: Run) -> Decisions | None:
    """Return what a single run tells each institution; None without institutions.

    Only institutions that no comparison can judge get an advice.
    """
    if not _can_decide([run]):
        return None
    found, cards = judged.one_class(run), read_diagnostics(run)
    decided = []
    for peer, name in enumerate(run.names):
        card = cards.get(peer)
        here = [_Place(run, run, peer, card, card)]
        evidence = Evidence(peer in found, _rarer(here[0]))
        key = advice.advise(evidence)
        if key in (advice.COLLECT, advice.TOO_FEW):
            decided.append(_unjudged(name, run.label, key, evidence, found.get(peer, ""), here))
        else:
            reason = "One run cannot say whether this is better than a model of its own rows."
            text = [_rows(here), *_probabilities(run.label, here), reason]
            decided.append(Decision(name, "", run.label, UNKNOWN, UNKNOWN, _total(here), text, ""))
    rest = sum(not each.advice for each in decided)
    consortium = (
        f"{_count(rest, len(decided))} can be judged by a comparison with models of their own "
        f"rows: coterie compare config.toml --methods local,{run.label}."
    )
    notes = [_OF_PROBABILITIES] if cards else []
    return Decisions(decided, [consortium], _rules(decided), notes, has_accuracy(run))


def _rules(decided: Sequence[Decision]) -> dict[str, str]:
    """Return the rules of the given advice, by mark, in the order of the institutions."""
    given = dict.fromkeys(each.advice for each in decided if each.advice)
    return {str(k): ADVICE[key].rule for k, key in enumerate(given, 1)}


def _can_decide(runs: Sequence[Run]) -> bool:
    return all(
        judged.is_of_institutions(run) and run.sizes("test") is not None and len(run.rounds)
        for run in runs
    )


def _chosen(rows: Sequence[Row], local: Row) -> tuple[Row, int, list[Row]] | None:
    """Return the judged method, the number of methods that test rows chose it from, and all."""
    columns = {column.key: column for column in comparison.shown(rows)}
    main = columns.get("accuracy") or columns.get("loss")
    if main is None:
        return None
    candidates = [
        row
        for row in comparison.candidates(rows, main)
        if not row.is_local and any(each is not None for each in row.local)
    ]
    if not candidates:
        return None
    kind = "accuracy" if has_accuracy(local.runs[0]) else "loss"
    sign = 1.0 if kind == "accuracy" else -1.0
    on_validation = [_validated(row, f"validation_{kind}") for row in candidates]
    if not np.isnan(on_validation).any():
        best = int(np.argmax(sign * np.array(on_validation)))
        return candidates[best], 1, candidates
    means = [
        np.mean([np.nanmean(_judged(gains(run, own), own)) for run, own in _pairs(row)])
        for row in candidates
    ]
    if np.isnan(means).all():
        return candidates[0], len(candidates), candidates
    return candidates[int(np.nanargmax(means))], len(candidates), candidates


def _validated(row: Row, field: str) -> float:
    """Return the mean of a field over all validation rows; NaN with fewer than `MIN_ROWS`."""
    means = []
    for run in row.runs:
        sizes_n, value_n = run.sizes("validation"), last(run, field)
        if sizes_n is None or sizes_n.sum() < judged.MIN_ROWS:
            return float("nan")
        has_n = sizes_n > 0
        means.append(float(np.average(value_n[has_n], weights=sizes_n[has_n])))
    return float(np.mean(means))


def _pairs(row: Row) -> list[tuple[Run, Run]]:
    pairs = zip(row.runs, row.local, strict=True)
    return [(run, local) for run, local in pairs if local is not None]


def _judged(value_n: Floats, run: Run) -> Floats:
    """Return the values of the institutions that can be judged; all of them if none can."""
    judged_n = judged.judged(run)
    return np.where(judged_n, value_n, np.nan) if judged_n.any() else value_n


def _places(row: Row, *, cards: bool) -> dict[str, list[_Place]]:
    """Return the places of each institution, by name; an institution may lack a seed."""
    places: dict[str, list[_Place]] = {}
    for run, local in _pairs(row):
        of_run, of_local = (read_diagnostics(each) if cards else {} for each in (run, local))
        for peer, name in enumerate(run.names):
            place = _Place(run, local, peer, of_run.get(peer), of_local.get(peer))
            places.setdefault(name, []).append(place)
    return places


def _decided(
    name: str,
    own: Sequence[_Place],
    chosen: Row,
    tests: int,
    candidates: Sequence[Row],
    places: Mapping[str, Mapping[str, Sequence[_Place]]],
    redivided: float,
) -> Decision:
    """Judge the chosen method at one institution; `own` are its places in Local's runs."""
    found = [judged.one_class(place.run).get(place.peer, "") for place in own]
    evidence = Evidence(all(found), min(map(_rarer, own)))
    here = places[chosen.method].get(name, [])
    key = advice.advise(evidence)
    if key in (advice.COLLECT, advice.TOO_FEW) or not here:
        return _unjudged(name, chosen.name, key, evidence, found[0], own)
    evidence = replace(
        evidence,
        gain=_gain(here, redivided, tests),
        ranking=_ranking(here, redivided, tests),
        own_ranking=_mean_of([place.own_card for place in here], "auroc", "c_index"),
    )
    key = advice.advise(evidence)
    reason = _reason(key, evidence, "", here, redivided)
    sentences = [
        _rows(own),
        _gain_sentence(chosen, here, evidence.gain),
        *_probabilities(chosen.name, here, evidence.ranking),
    ]
    gain_of = {
        row.method: _gain(places[row.method].get(name, []), redivided, len(candidates))
        for row in candidates
    }
    best = max(candidates, key=lambda row: np.nan_to_num(gain_of[row.method][0], nan=-np.inf))
    if best is not chosen:
        change = _change(gain_of[best.method], accuracy=has_accuracy(own[0].run))
        sentences.append(
            f"Best here on the test rows: {best.name}, {change}, the interval corrected for "
            f"choosing the best of {units.plural(len(candidates), 'method')}."
        )
    return Decision(
        name, key, chosen.name, evidence.gain, evidence.ranking, _total(own),
        [*sentences, reason], reason,
    )  # fmt: skip


def _unjudged(
    name: str, method: str, key: str, evidence: Evidence, found: str, own: Sequence[_Place]
) -> Decision:
    """Return the decision of an institution that cannot be judged, without numbers of models."""
    reason = _reason(key, evidence, found, own)
    text = [_rows(own), reason]
    return Decision(name, key, method, UNKNOWN, UNKNOWN, _total(own), text, reason)


def _gain(places: Sequence[_Place], redivided: float, tests: int) -> Estimate:
    """Return the gain over the own model at one institution with its interval."""
    reach = [
        math.hypot(_reach(p.run, p.peer), _reach(p.local, p.peer))
        for p in places
        if has_accuracy(p.local)
    ]
    return _estimate(places, gains, reach, redivided, tests)


def _ranking(places: Sequence[_Place], redivided: float, tests: int) -> Estimate:
    """Return the gain in AUROC or C-index over the own model with its interval."""
    name = "auroc" if np.isnan(last(places[0].local, "c_index")).all() else "c_index"
    reach = []
    for place in places:
        ends = [
            card.measures[name][1:]
            for card in (place.card, place.own_card)
            if card and name in card.measures
        ]
        if len(ends) == 2:
            reach.append(math.hypot(*((high - low) / 2 for low, high in ends)))
    return _estimate(
        places, lambda run, local: last(run, name) - last(local, name), reach, redivided, tests
    )


def _estimate(
    places: Sequence[_Place],
    of: Callable[[Run, Run], Floats],
    reach: Sequence[float],
    redivided: float,
    tests: int,
) -> Estimate:
    """Return mean and interval of a difference.

    Where the seeds do not divide the rows again, or are too few for a test, half the interval is at
    least the mean of `reach`, that of the test rows with each seed.
    """
    from scipy.special import ndtri

    mean, low, high = interval([of(p.run, p.local)[[p.peer]] for p in places], redivided, tests)
    half = (high - low) / 2
    if reach and (not redivided or np.isnan(half)):
        widened = ndtri(1 - LEVEL / tests / 2) / ndtri(1 - LEVEL / 2)
        half = float(np.fmax(half, widened * np.mean(reach)))
    return mean, mean - half, mean + half


def _reach(run: Run, peer: int) -> float:
    """Return half the width of the interval of an accuracy on the test rows."""
    sizes_n, accuracy = run.sizes("test"), last(run)[peer]
    if sizes_n is None or np.isnan(accuracy):
        return float("nan")
    _, low, high = wilson(np.arange(sizes_n[peer]) < round(accuracy * sizes_n[peer]))
    return (high - low) / 2


def _mean_of(cards: Sequence[Diagnostics | None], *names: str) -> Estimate:
    """Return the mean of the first of these measures that the cards have."""
    for name in names:
        known = diagnostics.mean_estimate([card.measures.get(name) for card in cards if card])
        if known is not None:
            return known
    return UNKNOWN


def _has_probabilities(runs: Sequence[Run]) -> bool:
    return any(not np.isnan(run.metric("sensitivity")).all() for run in runs)


def _rarer(place: _Place) -> int:
    """Return the number of test rows without the most frequent class; see `Evidence.rarer`."""
    labels, sizes = place.run.labels("test"), place.run.sizes("test")
    if labels is not None:
        return int(labels[place.peer].sum() - labels[place.peer].max())
    if place.card is not None:
        return place.card.positives
    return 0 if sizes is None else int(sizes[place.peer])


def _total(places: Sequence[_Place]) -> int:
    return sum(_size(places, part) for part in PARTS)


def _size(places: Sequence[_Place], part: str) -> int:
    """Return the number of rows of a part, the rounded mean over seeds."""
    sizes = [s_n[p.peer] for p in places if (s_n := p.run.sizes(part)) is not None]
    return round(float(np.mean(sizes))) if sizes else 0


def _rows(places: Sequence[_Place]) -> str:
    """Write the number of rows of each part and class."""
    texts = []
    for part, purpose in _PARTS.items():
        size, of_class = _size(places, part), ""
        labels = [l_nk[p.peer] for p in places if (l_nk := p.run.labels(part)) is not None]
        if labels and size and len(labels[0]) <= _CLASSES:
            names = places[0].run.classes or [f"class {k}" for k in range(len(labels[0]))]
            pairs = zip(np.mean(labels, axis=0), names, strict=True)
            of_class = f" ({', '.join(f'{count:.0f} {name}' for count, name in pairs)})"
        texts.append(f"{size:,} {purpose}{of_class}")
    return f"{_total(places):,} rows: {', '.join(texts)}."


def _gain_sentence(chosen: Row, places: Sequence[_Place], gain: Estimate) -> str:
    accuracy = has_accuracy(places[0].local)
    field = "test_accuracy" if accuracy else "test_loss"
    with_ = float(np.mean([last(p.run, field)[p.peer] for p in places]))
    alone = float(np.mean([last(p.local, field)[p.peer] for p in places]))
    change = _change(gain, accuracy=accuracy)
    if accuracy:
        return (
            f"{chosen.name} decides {100 * with_:.1f} % of the test rows correctly, your own model "
            f"{100 * alone:.1f} %: {change}."
        )
    return (
        f"The test loss of {chosen.name} is {with_:.3g}, that of your own model {alone:.3g}: "
        f"{change}."
    )


def _change(gain: Estimate, *, accuracy: bool) -> str:
    """Write a gain with its interval."""
    scale, form, unit = (100, "+.1f", " points") if accuracy else (1, "+.3g", " lower")
    value, low, high = (f"{scale * x:{form}}" for x in gain)
    ends = "no interval" if np.isnan(gain[1]) else f"{low} to {high}"
    return f"{value}{unit} ({ends})"


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
                text += f": {ranking[0]:+.3f} ({ranking[1]:+.3f} to {ranking[2]:+.3f})"
        sentences += [] if np.isnan(value) else [f"{text}."]
    return sentences


def _reason(
    key: str,
    evidence: Evidence,
    one_class: str,
    places: Sequence[_Place],
    redivided: float = 0.0,
) -> str:
    """Write why the rule of an advice holds."""
    match key:
        case advice.COLLECT if evidence.one_class:
            return (
                f"{one_class[0].upper()}{one_class[1:]}; no model can learn from it what differs."
            )
        case advice.COLLECT:
            return (
                "Its own model may rank no better than guessing, and collaborating does not help."
            )
        case advice.TOO_FEW:
            what = (
                "of the rarer class" if places[0].run.labels("test") is not None else "to judge by"
            )
            rows = units.plural(evidence.rarer, "test row")
            return f"Only {rows} {what}; {judged.MIN_ROWS} are needed."
        case advice.USE:
            return "It gains even at the lower end of the interval."
        case advice.USE_AFTER_THRESHOLD:
            return (
                "It ranks the rows better, but does not decide better at probability 0.5: choose "
                "the threshold on your own rows first."
            )
        case advice.DO_NOT_USE:
            return "It is worse than your own model even at the better end of the interval."
        case advice.STAY:
            needed = _seeds_needed(places, redivided)
            return f"What it gains or loses here may be chance{needed}."
    return ""


def _seeds_needed(places: Sequence[_Place], redivided: float) -> str:
    differences = [gains(p.run, p.local)[[p.peer]] for p in places]
    if np.isnan(interval(differences, redivided)[1]):
        return f"; no test is possible with {units.plural(len(places), 'seed')}"
    needed = seeds_needed(differences, redivided)
    return f"; about {needed} seeds would judge it" if needed and needed > len(places) else ""


def _consortium(
    decided: Sequence[Decision], chosen: Row, tests: int, redivided: float
) -> list[str]:
    """Write the paragraph of the consortium."""
    counts = Counter(each.text for each in decided)
    pairs = [(run, local) for run, local in _pairs(chosen)]
    usable = [d for d in decided if d.advice not in (advice.COLLECT, advice.TOO_FEW)]
    listed = "; ".join(f"{text}: {count}" for text, count in counts.most_common())
    sentences = [f"{_count(len(decided), len(decided))}: {listed}."]
    if len(usable) > 1:
        names = {each.institution for each in usable}
        differences = [gains(run, local)[[n in names for n in run.names]] for run, local in pairs]
        gain = interval(differences, redivided, tests)
        sentences.append(
            f"Over the institutions with enough test rows, {chosen.name} gains "
            f"{_change(gain, accuracy=has_accuracy(pairs[0][1]))} on average."
        )
    winners = sum(each.advice in (advice.USE, advice.USE_AFTER_THRESHOLD) for each in usable)
    if usable and not winners:
        sentences.append("None of these is shown to gain by collaborating.")
    return sentences


def _count(number: int, total: int) -> str:
    word = units.plural(total, "institution")
    return word if number == total else f"{number} of {word}"


def _line(decision: Decision, *, is_accuracy: bool) -> str:
    """Write a decision in a line."""
    if not decision.advice:
        return f"{decision.institution}: {' '.join(decision.sentences[:-1])}"
    why = decision.reason.rstrip(".")
    if not np.isnan(decision.gain[0]):
        why = f"gain of {decision.method} {_change(decision.gain, accuracy=is_accuracy)}"
    return f"{decision.institution}: {decision.text}; {why[0].lower()}{why[1:]}"
