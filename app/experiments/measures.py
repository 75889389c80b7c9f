"""Measures of a run: quality, gain over Local, recovery of clusters, cost; columns of comparisons.

A measure turns the result of a run, and the results of the other rows of the same trial, into a
number of the run or one per peer: None if it does not exist, infinite if the event would come after
the end of the run. The paired test compares numbers per peer peer by peer; a table shows their
mean, without peers that have none (NaN).

Shapes: n peers, R evaluated rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from coterie.app.config.schema import Scalar
from coterie.app.experiments.methods import learns_graph, reference
from coterie.app.runs import files, units
from coterie.app.runs.diagnostics import MAX_PEERS, card
from coterie.app.runs.files import ResultsError
from coterie.app.runs.graph import GraphScores, score
from coterie.app.runs.rundir import Floats, Ints, Run
from coterie.app.runs.settings import RunSettings
from coterie.app.runs.summary import accuracy_statistics, mean


class Result(Protocol):
    """Result in a table: a run, or what the league keeps of one."""

    @property
    def settings(self) -> RunSettings: ...
    @property
    def peers(self) -> int: ...
    @property
    def has_accuracy(self) -> bool: ...
    def last(self, name: str = "test_accuracy") -> Floats: ...
    def course(self, name: str = "test_accuracy") -> Floats: ...


@dataclass(frozen=True)
class SameTrial:
    """Results with the same seed and data as the measured one, by row; `local`: peers alone."""

    # `final`: mean over seeds of a row's final accuracy, or of minus its final loss.

    rows: Mapping[str, Any] = field(default_factory=dict)
    local: Any = None
    final: Callable[[str], float] = lambda row: 0.0

    @cached_property
    def best(self) -> Any:
        """Result of the ranked row with the best mean over seeds; None before all have ended."""
        ranked = {row: of for row, of in self.rows.items() if not reference(of.settings)}
        if not ranked or not all(len(each.rounds) for each in ranked.values()):
            return None
        if any(each.progress.get("status") == "running" for each in self.rows.values()):
            return None
        return ranked[max(ranked, key=self.final)]


Measure = Callable[[Any, SameTrial], float | None]
PeerMeasure = Callable[[Any, SameTrial], Floats | None]
Show = Callable[[float], str]
Better = Literal["high", "low", ""]
SHARE_OF_BEST = 0.9
"""Share of the best result that counts as reached."""
COST = "Cost"
"""Group of the columns of a run's costs."""


@dataclass(frozen=True)
class Column:
    """One measure, of one panel of a table: of the peers, or else of the run."""

    key: str  # name in files
    title: str  # heading of the column; that of a share ends in " %"
    better: Better  # "" for costs, which are not ranked
    group: str  # heading above the column
    show: Show
    about: str = ""  # one-sentence definition
    of_peers: PeerMeasure | None = None
    """Values of the peers, (n,), which the test compares; None: it compares the number."""
    of_run: Measure | None = None
    """Number of a result; None: the mean of `of_peers`."""
    deviation: Show | None = None  # format of the deviation over seeds; None: `show`
    panel: str = ""
    x: Scalar | None = None  # position on the panel's axis

    def of(self, run: Any, same_trial: SameTrial) -> float | None:
        if self.of_run is not None:
            return self.of_run(run, same_trial)
        values = self.of_peers and self.of_peers(run, same_trial)
        return None if values is None else mean(values)


def deviation(trials: Sequence[float] | Floats) -> float:
    """Return the sample standard deviation over trials; 0 for one, or if one is infinite."""
    spreads = len(trials) > 1 and np.isfinite(trials).all()
    return float(np.std(trials, ddof=1)) if spreads else 0.0


def reached(trials: Sequence[float]) -> str:
    """Write in how many trials an event came, if it did not come in all; else ""."""
    count = int(np.isfinite(trials).sum())
    if count == len(trials):
        return ""
    return f"{count} of {len(trials)} seeds" if count else "never"


def known_mean(values: Sequence[float] | Floats, otherwise: float = np.nan) -> float:
    """Return the mean of the values that are not NaN; `otherwise` if all are."""
    known = np.asarray(values)[~np.isnan(values)]
    return float(known.mean()) if len(known) else otherwise


def gains(run: Result, local: Result) -> Floats:
    """Return the gain of each peer over Local, (n,): in accuracy, without it in minus the loss."""
    if local.has_accuracy:
        return run.last() - local.last()
    with np.errstate(invalid="ignore"):  # both diverged
        return local.last("test_loss") - run.last("test_loss")


def last(name: str = "test_accuracy") -> PeerMeasure:
    """Return the measure of a field's last values by peer."""
    return lambda run, _: run.last(name)


def _diagnosed(name: str) -> PeerMeasure:
    """Return the measure of a diagnostic of the models of two classes, (n,)."""

    def measure(run: Run, _: SameTrial) -> Floats:
        of = [run.diagnostics[p].measures if p in run.diagnostics else {} for p in range(run.peers)]
        return np.array([measures.get(name, (np.nan,))[0] for measures in of])

    return measure


def best(run: Run, *, by_accuracy: bool = True) -> Floats:
    """Return the test accuracies, (n,), in the peers' best rounds on their validation data."""
    row = run.best_row(by_accuracy=by_accuracy)
    return np.full(run.peers, np.nan) if row is None else run.at("test_accuracy", row)


def _weighted(run: Run, _: SameTrial) -> Floats:
    """Return test accuracies, (n,), scaled to have the mean weighted by training examples."""
    accuracy_n, samples_n = run.last(), run.samples
    if samples_n is None:
        return np.full(run.peers, np.nan)
    mean_samples = samples_n[~np.isnan(accuracy_n)].mean()
    return np.asarray(accuracy_n * samples_n / mean_samples, dtype=np.float64)


def _statistic(name: str) -> Measure:
    return lambda run, _: accuracy_statistics(run.last(), run.samples)[name]


def _gain(*, accuracy: bool) -> PeerMeasure:
    def gain(run: Result, same_trial: SameTrial) -> Floats | None:
        local = same_trial.local
        is_measured = local is not None and local.has_accuracy is accuracy
        return gains(run, local) if is_measured else None

    return gain


def _share(sign: float) -> PeerMeasure:
    """Return the measure of which peers have a gain of this sign, (n,): 1 or 0."""

    def share(run: Result, same_trial: SameTrial) -> Floats | None:
        if same_trial.local is None:
            return None
        gain_n = sign * gains(run, same_trial.local)
        return np.where(np.isnan(gain_n), np.nan, gain_n > 0)

    return share


def _newcomers(run: Run, _: SameTrial) -> float | None:
    late = _late(run)
    return mean(run.last()[list(late.peers)]) if late else None


def _fine_tuned(run: Run, _: SameTrial) -> float | None:
    late = _late(run)
    return mean(np.array(late.fine_tuned_test_accuracy, dtype=np.float64)) if late else None


def _late(run: Run) -> files.Newcomers | None:
    late: files.Newcomers | None = files.json_of(run.directory, files.NEWCOMERS, files.Newcomers)
    if late is not None and not all(0 <= peer < run.peers for peer in late.peers):
        raise ResultsError(f"{run.directory / files.NEWCOMERS}: peers are 0 to {run.peers - 1}")
    return late


def _lowest(run: Run, _: SameTrial) -> float | None:
    accuracy_n = run.last()
    return None if np.isnan(accuracy_n).all() else float(np.nanmin(accuracy_n))


def _recovery(of: Callable[[GraphScores], float | None]) -> Measure:
    def scored(run: Run, _: SameTrial) -> float | None:
        known = run.clusters is not None and learns_graph(run.settings)
        if not known or not run.weights_between().any():
            return None
        assert run.clusters is not None
        return of(score(run.weights[-1], run.clusters))

    return scored


def _progress(name: str) -> Measure:
    def of(run: Run, _: SameTrial) -> float | None:
        value = run.progress.get(name)
        return None if value is None else float(value)

    return of


def gain_course(run: Result, local: Result) -> Floats:
    """Return the gain of the mean of the latest reports over Local's final mean, (R,)."""
    name, sign = ("test_accuracy", 1.0) if local.has_accuracy else ("test_loss", -1.0)
    gain_r: Floats = sign * (run.course(name) - local.course(name)[-1])
    return gain_r


def cost_to(values_r: Floats, target: float, cost_r: Floats) -> float:
    """Return the cost (R,) in the first round that reaches the target; infinite if none does."""
    reached = np.flatnonzero(values_r >= target)
    return float(cost_r[reached[0]]) if len(reached) else np.inf


def _bytes_to_best(run: Run, same_trial: SameTrial) -> float | None:
    """Return the bytes in the first round with 90 % of the best final gain; None without gains."""
    local, bytes_r = same_trial.local, run.course("bytes_sent")
    if local is None or np.isnan(bytes_r).any() or same_trial.best is None:
        return None
    best = float(gain_course(same_trial.best, local)[-1])
    return cost_to(gain_course(run, local), SHARE_OF_BEST * best, bytes_r) if best > 0 else None


def confusion_by_cluster(run: Run) -> dict[int, Ints] | None:
    """Return cluster -> confusion matrix (k, k) on test data; None if one is unknown."""
    honest_n = ~run.attackers
    if run.clusters is None or run.peers > MAX_PEERS:
        return None
    result: dict[int, Ints] = {}
    for peer in np.flatnonzero(honest_n).tolist():
        try:
            counts_kk = np.array(card(run, peer).curves["confusion"], dtype=np.int64)
            cluster = int(run.clusters[peer])
            result[cluster] = result.get(cluster, np.zeros_like(counts_kk)) + counts_kk
        except (KeyError, TypeError, ValueError):
            return None
    return result


def parity_gap(counts_ckk: Ints) -> float:
    """Return the mean over classes y of the largest difference of P(prediction = y) by cluster."""
    # Demographic parity; `counts_ckk`: confusion matrices, rows are true classes.
    predicted_ck = counts_ckk.sum(axis=1)
    return float(np.ptp(predicted_ck / predicted_ck.sum(axis=1, keepdims=True), axis=0).mean())


def odds_gap(counts_ckk: Ints) -> float | None:
    """Return the gap in equalised odds between clusters; None if every class is missing in one."""
    # Mean over classes y of the largest differences between two clusters of P(prediction = y) given
    # true class y and given another true class, added; classes that a cluster lacks are left out.
    true_ck, hit_ck = counts_ckk.sum(axis=2), np.diagonal(counts_ckk, axis1=1, axis2=2)
    other_ck = true_ck.sum(axis=1, keepdims=True) - true_ck
    false_ck = counts_ckk.sum(axis=1) - hit_ck
    common_k = (true_ck > 0).all(axis=0) & (other_ck > 0).all(axis=0)
    if not common_k.any():
        return None
    shares = (hit_ck, true_ck), (false_ck, other_ck)
    gaps = (np.ptp(part[:, common_k] / of[:, common_k], axis=0) for part, of in shares)
    return float(sum(gaps).mean())


def _between_clusters(of: Callable[[Ints], float | None]) -> Measure:
    def gap(run: Run, _: SameTrial) -> float | None:
        counts = confusion_by_cluster(run) or {}
        return of(np.stack([*counts.values()])) if len(counts) > 1 else None

    return gap


def _time_to_best(run: Run, same_trial: SameTrial) -> float | None:
    """Return the virtual seconds to 90 % of the best accuracy, or of the way to the best loss."""
    runs = same_trial.rows.values()
    if any(np.isnan(each.metric("virtual_seconds")).all() for each in runs):
        return None
    if same_trial.best is None:
        return None
    is_accuracy = all(each.has_accuracy for each in runs)
    name, sign = ("test_accuracy", 1.0) if is_accuracy else ("test_loss", -1.0)
    course_r, end = sign * run.course(name), sign * same_trial.best.course(name)[-1]
    start = 0.0 if is_accuracy else course_r[0]
    seconds_r = np.fmax.reduce(run.metric("virtual_seconds"), axis=1)
    return cost_to(course_r, start + SHARE_OF_BEST * (end - start), seconds_r)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


_whole, _points = (lambda x: f"{100 * x:.0f}"), (lambda x: units.signed(100 * x, ".2f"))
_two, _three, _plain = "{:.2f}".format, "{:.3f}".format, "{:.4g}".format
_short, _count = "{:.2g}".format, "{:,.0f}".format
_MODELS, _LOSS, _GAIN = "Personal models", "Loss", "Against local"
_TRAIN, _GRAPH, _CLUSTERS = "Training data", "Learnt graph", "Between clusters"
_LETTERS = "What letters tell"

COLUMNS = (
    Column("accuracy", "accuracy %", "high", _MODELS, _percent,
           "Mean test accuracy of the final personal models.",
           of_peers=last()),
    Column("weighted", "weighted %", "high", _MODELS, _percent,
           "Mean test accuracy of the final personal models, weighted by training examples.",
           of_peers=_weighted, of_run=_statistic("weighted_mean_test_accuracy")),
    Column("spread", "spread", "", _MODELS, _percent,
           "Standard deviation of the test accuracy over the peers of a run, in points.",
           of_run=_statistic("std_test_accuracy")),
    Column("worst", "worst peer %", "high", _MODELS, _percent,
           "Lowest test accuracy of a peer.",
           of_run=_lowest),
    Column("worst_decile", "worst 10 %", "high", _MODELS, _percent,
           "Mean test accuracy of the lowest 10 % of the peers (at least one peer).",
           of_run=_statistic("worst_decile_test_accuracy")),
    Column("balanced_accuracy", "balanced %", "high", _MODELS, _percent,
           "Mean balanced accuracy over peers: mean recall of the classes.",
           of_peers=last("balanced_accuracy")),
    Column("auroc", "AUROC", "high", _MODELS, _three,
           "Mean area under the ROC curve over peers; with more than two classes, one against "
           "rest.",
           of_peers=last("auroc")),
    Column("auprc", "AUPRC", "high", _MODELS, _three,
           "Mean area under the precision-recall curve over peers; guessing has the share of the "
           "positives.",
           of_peers=_diagnosed("auprc")),
    Column("c_index", "C-index", "high", _MODELS, _three,
           "Mean concordance index over peers (Harrell): survival.",
           of_peers=last("c_index")),
    Column("calibration_error", "calibration error", "low", _MODELS, _three,
           "Mean expected calibration error over peers.",
           of_peers=last("expected_calibration_error")),
    Column("best_accuracy", "best on val. %", "high", _MODELS, _percent,
           "Mean test accuracy in each peer's best round on its validation data: highest "
           "accuracy, of equals the lowest loss.",
           of_peers=lambda run, _: best(run)),
    Column("global_accuracy", "global model %", "high", "Shared", _percent,
           "Mean test accuracy of the shared model that the method also trains.",
           of_peers=last("global_test_accuracy")),
    Column("gain", "gain", "high", _GAIN, _points,
           "Mean over peers of the test accuracy minus Local's, in points.",
           of_peers=_gain(accuracy=True)),
    Column("loss_gain", "loss gain", "high", _GAIN, lambda x: units.signed(x, ".4g"),
           "Mean over peers of Local's test loss minus the method's.",
           of_peers=_gain(accuracy=False), deviation=_short),
    Column("improved", "improved %", "high", _GAIN, _whole,
           "Share of the peers that end better than with Local.",
           of_peers=_share(1)),
    Column("harmed", "harmed %", "low", _GAIN, _whole,
           "Share of the peers that end worse than with Local.",
           of_peers=_share(-1)),
    Column("parity_gap", "parity gap %", "low", _CLUSTERS, _percent,
           "Demographic parity: largest difference between two true clusters in the share of test"
           " examples that are predicted as a class, mean over classes.",
           of_run=_between_clusters(parity_gap)),
    Column("odds_gap", "odds gap %", "low", _CLUSTERS, _percent,
           "Equalised odds: largest differences between two true clusters in a class's true and "
           "false positive rates, added; mean over the classes that every cluster has.",
           of_run=_between_clusters(odds_gap)),
    Column("newcomers", "newcomers %", "high", "Newcomers", _percent,
           "Mean final test accuracy of the peers that join for the last fifth of the rounds.",
           of_run=_newcomers),
    Column("fine_tuned", "fine-tuned %", "high", "Newcomers", _percent,
           "Baseline: mean of the other peers' models, fine-tuned by each newcomer for as long.",
           of_run=_fine_tuned),
    Column("loss", "test loss", "low", _LOSS, _plain,
           "Mean test loss of the final personal models.",
           of_peers=last("test_loss"), deviation=_short),
    Column("train_accuracy", "train %", "", _TRAIN, _percent,
           "Mean accuracy of the final personal models on their peers' training examples.",
           of_peers=last("train_accuracy")),
    Column("train_loss", "train loss", "", _TRAIN, _plain,
           "Mean loss of the final personal models on their peers' training examples.",
           of_peers=last("train_loss"), deviation=_short),
    Column("rmse", "RMSE", "low", _LOSS, _plain,
           "Mean root mean squared error over peers (regression).",
           of_peers=last("rmse")),
    Column("r2", "R2", "high", _LOSS, _three,
           "Mean coefficient of determination over peers (regression).",
           of_peers=last("r2")),
    Column("diverged", "diverged", "", _LOSS, "{:.3g}".format,
           "Number of peers whose final loss is not finite.",
           of_run=lambda run, _: float(run.diverged.sum())),
    Column("f1", "graph F1", "high", _GRAPH, _two,
           "F1 of the final learnt edges against the true clusters.",
           of_run=_recovery(lambda scores: scores.f1)),
    Column("own_cluster", "own cluster %", "high", _GRAPH, _percent,
           "Share of the peers whose largest weight goes to their true cluster.",
           of_run=_recovery(lambda scores: scores.largest_weight_on_own_cluster)),
    Column("letter_auc", "letter AUC", "low", _LETTERS, _three,
           "Area under the ROC curve of the stronger of two attacks on membership by the last "
           "letter, mean over peers (`clearance`); 0.5: a coin.",
           of_peers=last("letter_auc")),
    Column("letter_tpr", "found at 1 % FPR", "low", _LETTERS, _three,
           "Share of the training examples that this attack finds while it takes 1 % of the "
           "others for some, mean over peers with 100 held-out examples.",
           of_peers=last("letter_tpr")),
    Column("letter_fewest", "fewest behind", "high", _LETTERS, _plain,
           "Minimum number of training examples (groups) behind a leaf of a tree, a column of a "
           "curvature or a class's mean, mean over peers.",
           of_peers=last("letter_fewest")),
    Column("letter_readable", "readable", "low", _LETTERS, _plain,
           "Number of training examples (groups) that can be read off a gradient, mean over "
           "peers.",
           of_peers=last("letter_readable")),
    Column("bytes", "sent / peer", "", COST, units.size,
           "Payload bytes sent per peer, mean over peers.",
           of_peers=last("bytes_sent")),
    Column("bytes_received", "received / peer", "", COST, units.size,
           "Payload bytes received per peer, mean over peers.",
           of_peers=last("bytes_received")),
    Column("gradients", "gradients / peer", "", COST, _count,
           "Sample gradients evaluated per peer, mean over peers.",
           of_peers=last("gradient_evaluations")),
    Column("seconds", "seconds", "", COST, "{:.1f}".format,
           "Wall time of a run; parallel runs share the machine.",
           of_run=_progress("seconds")),
    Column("bytes_to_best", "sent to 90 % of best gain", "", COST, units.size,
           "Payload bytes sent per peer until the mean over peers has 90 % of the final gain over"
           " Local of the ranked method with the best mean over seeds.",
           of_run=_bytes_to_best),
    Column("time_to_best", "time to 90 % of the best", "", COST, units.duration,
           "Virtual time until the mean over peers reaches 90 % of the final mean of the ranked "
           "method that is best over all seeds.",
           of_run=_time_to_best),
)  # fmt: skip
MEASURES: dict[str, Column] = {column.key: column for column in COLUMNS}
