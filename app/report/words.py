"""Sentences and headline numbers of a run's page, as plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from coterie.app.experiments.methods import learns_graph
from coterie.app.report.panel import Cell
from coterie.app.report.section import Section
from coterie.app.runs import quality
from coterie.app.runs.graph import rounds_measured, weight_to
from coterie.app.runs.rundir import Floats, Run
from coterie.app.runs.settings import RunSettings
from coterie.app.runs.summary import mean
from coterie.app.runs.units import NONE, count, duration, number, percent, plural, size
from coterie.datasets.own.institutions import listed
from coterie.datasets.table import DATASETS
from coterie.strategies.names import display


class Tile(NamedTuple):
    """Headline number: name, value with unit, and a note."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Headline(Section):
    """Head of a page, which also ends a run in a terminal: sentences and headline numbers."""

    notice: str
    outcome: str
    tiles: list[Tile]
    attendance: list[str]

    template = ""  # the head of the page shows it

    def lines(self) -> list[RenderableType]:
        table = Table(show_header=False, box=None)
        for tile in self.tiles:
            table.add_row(*tile)
        for line in self.attendance:
            table.add_row("Took part", "", line)
        return [*filter(None, (self.notice, self.outcome)), table]


def title(settings: RunSettings) -> str:
    """Return the key `title`, else "cobo on digits" with display names."""
    return settings.title or f"{display(settings.label)} on {data_name(settings)}"


def data_name(settings: RunSettings) -> str:
    """Return the display name of a run's data; of institutions' own data, their folder's name."""
    row, folder = DATASETS.get(settings.dataset), Path(settings.data_dir).name
    is_own = row is not None and row.deployed is not None
    return folder if is_own and folder not in ("", "data") else display(settings.dataset)


def tiles(run: Run, summary: Mapping[str, Any]) -> list[Tile]:
    """Return the headline numbers of a run."""
    sent, gradients = summary["total_bytes"], summary["gradient_evaluations"]
    messages, result = summary["messages"], _Result(run, summary)
    key, name = ("auroc", "AUROC") if quality.rare_class(run) else ("c_index", "C-index")
    ranking = result.mean(key)
    return [
        *([] if ranking is None else [Tile(name, number(ranking), "mean over peers")]),
        *_quality_tiles(result, summary),
        *_recovery_tile(summary["recovery"] if _has_learnt(run) else None),
        Tile("Sent per peer", size(_per_peer(sent, run)), f"{size(sent)} in total"),
        Tile(
            "Gradients per peer",
            count(_per_peer(gradients, run)),
            f"{count(gradients)} sample gradients in total",
        ),
        Tile(
            "Wall time",
            duration(summary["wall_seconds"]),
            NONE if messages is None else plural(messages, "message"),
        ),
    ]


def outcome(run: Run, summary: Mapping[str, Any]) -> str:
    """Describe the result of a run in a few sentences, with the peers of the tiles."""
    if not len(run.rounds):
        return "No round has been evaluated yet."
    after = f"After {plural(summary['rounds'], 'round')}" if summary["rounds"] else "At the start"
    diverged, result = summary["diverged_peers"], _Result(run, summary)
    what = f"{'its' if diverged == 1 else 'their'} loss or model is not finite"
    lost = f"{diverged} of {plural(run.peers, 'peer')} diverged: {what}"
    if diverged and not result.is_accuracy:
        text = f"{after}, {lost}"
    elif not len(result.last):
        text = f"{after}, no peer has a test loss"
    else:
        worst = "10 % of the peers reach" if len(result.worst) > 1 else "peer reaches"
        rare, auroc = rare_class(run), result.mean("auroc")
        lead = f"an AUROC of {number(auroc)} and " if rare and auroc is not None else ""
        what = f"{lead}a {result.name} of {result.show(result.last)}"
        text = f"{after}, the personal models reach {what}"
        if run.peers > 1:
            worst = f"the {result.worst_word} {worst} {result.show(result.worst)}"
            text += f" on average; {worst}"
        text += f". {rare}" * bool(rare)
        if without := unjudged(run):
            is_everybody = len(quality.too_few_rows(run)) == run.peers
            text += f". {'No peer can be judged' if is_everybody else 'Not counted'}: {without}"
        if diverged:
            text += f". {lost}; the last finite model counts"
    if idle := summary.get("untrained_peers"):
        text += f". {idle} of {plural(run.peers, 'peer')} computed no gradient: the privacy budget "
        text += "was used up before, or the node was away"
    if _has_learnt(run):
        text += _recovery_text(summary["recovery"])
    text += "." + _attackers_text(run)
    return text.replace(" %", "\u00a0%")


def date(runs: Iterable[Run]) -> str:
    """Return the time at which the newest of the runs was last written."""
    written = []
    for run in runs:
        files = [run.directory / name for name in ("metrics.jsonl", "config.toml")]
        written.append(next(path.stat().st_mtime for path in files if path.exists()))
    moment = datetime.fromtimestamp(max(written)).astimezone()
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def peers(run: Run) -> str:
    """Return the number of peers, and of true clusters if they are known."""
    text = plural(run.peers, "peer")
    if run.clusters is not None:
        text += f" in {plural(len(set(run.clusters.tolist())), 'true cluster')}"
    return text


def partition(run: Run) -> list[str]:
    """Return the kind of the partition, if the run has one."""
    kind = run.settings.partition_kind
    return [f"{kind} split"] if kind else []


def protection(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return the robust rule of a run and the largest epsilon of its peers, if it has them."""
    text = []
    rule = run.settings.defence_rule
    if rule != "none":
        text.append(f"defence {rule}")
    if "epsilon" in summary:
        epsilon, delta = summary["epsilon"], summary["delta"]
        text.append("ε unknown" if epsilon is None else f"ε ≤ {epsilon:.3g} at δ = {delta:g}")
    return text


def costs(run: Run) -> list[tuple[str, list[Cell]]]:
    """Return the cost table: name; total, mean, min, max per peer, and mean per peer and round."""
    last_n = run.last_row()
    rounds = int(run.rounds[-1]) if len(run.rounds) else 0
    rows = []
    for field, name, write in (
        ("bytes_sent", "Bytes sent", size),
        ("bytes_received", "Bytes received", size),
        ("gradient_evaluations", "Sample gradients", count),
    ):
        values = run.at(field, last_n)
        values = values[np.isfinite(values)]
        if len(values):
            mean = float(values.mean())
            per_round = mean / rounds if rounds else None
            per_peer = mean, float(values.min()), float(values.max()), per_round
            written = map(write, (float(values.sum()), *per_peer))
            rows.append((name, [*map(Cell, written)]))
    return rows


def rare_class(run: Run) -> str:
    """Say what accuracy and AUPRC mean where one class is rare; "" elsewhere."""
    if (rare := quality.rare_class(run)) is None:
        return ""
    (rarer, share), names = rare, run.classes or ("0", "1")
    digits = max(1, 1 - math.floor(math.log10(100 * share)))  # at least two significant ones
    of_rarer, of_other = (f"{100 * each:.{digits}f}\u00a0%" for each in (share, 1 - share))
    return (
        f"{of_rarer} of the test rows are “{names[rarer]}”: always predicting “{names[1 - rarer]}” "
        f"has accuracy {of_other}; guessing has AUROC 0.5 and AUPRC "
        f"{share if rarer else 1 - share:.{digits + 2}f}"
    )


def unjudged(run: Run) -> str:
    """Name the institutions that cannot be judged, as in "A and B (one class only)"; or ""."""
    why = quality.too_few_rows(run)
    return " and ".join(
        f"{listed([run.names[peer] for peer in why if why[peer] == reason])} ({reason})"
        for reason in dict.fromkeys(why.values())
    )


class _Result:
    """Final results of the peers that can be judged, or of all if none can."""

    # Accuracies if there are some and not every peer diverged, else losses.

    def __init__(self, run: Run, summary: Mapping[str, Any]) -> None:
        is_lost = summary["diverged_peers"] == run.peers
        self.is_accuracy = summary["mean_test_accuracy"] is not None and not is_lost
        self.name = "test accuracy" if self.is_accuracy else "test loss"
        self.worst_word = "lowest" if self.is_accuracy else "highest"
        field, enough_n = self.name.replace(" ", "_"), quality.enough_rows(run)
        self._run, self._judged_n = run, enough_n | ~enough_n.any()
        last_n, best_row_n = run.last(field), run.best_row()
        kept_n = np.isfinite(last_n) & self._judged_n
        self.last = last_n[kept_n]
        self.samples = None if run.samples is None else run.samples[kept_n]
        self.best = np.empty(0) if best_row_n is None else run.at(field, best_row_n)[kept_n]

    def mean(self, name: str) -> float | None:
        """Return the mean of another field; None without numbers."""
        return mean(self._run.last(name)[self._judged_n])

    @property
    def worst(self) -> Floats:
        """The worst 10 % of the peers, at least one."""
        ranked = np.sort(self.last)[:: 1 if self.is_accuracy else -1]
        return ranked[: max(1, len(ranked) // 10)]

    def show(self, values: Floats | float, unit: str = " %") -> str:
        """Write a result, or the mean of some."""
        value = mean(np.atleast_1d(values))
        return percent(value, unit) if self.is_accuracy else number(value)


def _quality_tiles(result: _Result, summary: Mapping[str, Any]) -> list[Tile]:
    diverged, among = summary["diverged_peers"], plural(summary["peers"], "peer")
    if diverged and not result.is_accuracy:
        return [Tile("Mean test loss", "diverged", f"{diverged} of {among}")]
    if not len(result.last):
        return [Tile(f"Mean {result.name}", NONE, f"no {result.name}")]
    note, peers = "last round", plural(len(result.last), "peer")
    if result.samples is not None and result.samples.sum() > 0:
        weighted = np.average(result.last, weights=result.samples)
        note = f"{result.show(weighted)} weighted by training examples"
    spread, worst = f"± {result.show(result.last.std(), ' points')}", result.show(result.worst)
    ends = f"from {result.show(result.last.min())} to {result.show(result.last.max())}"
    among, name = f"{result.worst_word} of {peers}", "Worst peer"
    if len(result.worst) > 1:
        among, name = f"mean of the {len(result.worst)} {among}", "Worst decile"
    best = "mean at each peer’s best round" if len(result.best) else "no validation data"
    return [
        Tile(f"Mean {result.name}", result.show(result.last), note),
        Tile("Spread over peers", spread, ends),
        Tile(name, worst, among),
        Tile("Best on validation", result.show(result.best), best),
    ]


def _recovery_tile(recovery: Mapping[str, Any] | None) -> list[Tile]:
    """Return the recovery of the true clusters, if they are known and the method learns a graph."""
    if recovery is None:
        return []
    first, best = recovery["rounds_to_recovery"], recovery["best"]
    value = "exact" if recovery["exact"] else f"F1 {_two(recovery['f1'])}"
    note = f"best F1 {_two(best['f1'])} in round {best['round']:,}"
    if first is not None:
        note = f"first exact in round {first:,}"
    return [Tile("Graph recovery", value, note)]


def _has_learnt(run: Run) -> bool:
    return learns_graph(run.settings) and bool(run.weights_between().any())


def _recovery_text(recovery: Mapping[str, Any] | None) -> str:
    if recovery is None:
        return ""
    first = recovery["rounds_to_recovery"]
    if recovery["exact"]:
        return f". The learnt graph equals the true clusters, first in round {first:,}"
    if first is not None:
        return (
            f". The learnt graph equalled the true clusters in round {first:,}; "
            f"its final F1 is {_two(recovery['f1'])}"
        )
    return f". F1 of the learnt graph against the true clusters: {_two(recovery['f1'])}"


def _attackers_text(run: Run) -> str:
    """Describe the attackers and the weight that honest peers give them."""
    if not run.attackers.any():
        return ""
    text = f" {count(int(run.attackers.sum()))} of {plural(run.peers, 'peer')} attack"
    shares = [weight_to(run.attackers, run.weights[c]) for c in rounds_measured(len(run.weights))]
    known = [share for share in shares if share is not None]
    if known:
        text += f"; they get {percent(known[-1])} of the weight that honest peers give to others"
        text += f" (maximum over the rounds: {percent(max(known))})"
    return text + "."


def _per_peer(total: float | None, run: Run) -> float | None:
    return None if total is None else total / run.peers


def _two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
