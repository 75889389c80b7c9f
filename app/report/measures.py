"""Measures of a run in a comparison: quality, gain over Local, recovery of clusters, cost.

Shapes: n peers. Means leave out peers without test data (NaN). A measure that does not exist is
None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.app.report.methods import learns_graph, reference
from coterie.app.report.run_data import weights_between
from coterie.app.runs import files, units
from coterie.app.runs.diagnostics import MAX_PEERS
from coterie.app.runs.files import ResultsError
from coterie.app.runs.graph_scores import GraphScores, score
from coterie.app.runs.rundir import Floats, Ints, Run
from coterie.app.runs.summary import accuracy_statistics, mean

Beside = Mapping[str, Run]
"""Method -> its run of the same seed."""
Measure = Callable[[Run, Beside], float | None]
Better = Literal["high", "low", ""]
COST = "Cost"
"""Group of the columns of a run's costs."""


@dataclass(frozen=True)
class Column:
    """One measure of a run.

    Attributes
    ----------
    key : str
        Name in files.
    title : str
        Heading of the column.
    of : Measure
        Function of a run and the runs of all methods with the same seed; returns the number, or
        None. Infinite if the event would come after the end of the run.
    show : Callable[[float], str]
        Format of the number.
    better : {"high", "low", ""}
        Better direction; "" for costs, which are not ranked.
    group : str
        Heading above the column.
    about : str
        One-sentence definition.
    deviation : Callable[[float], str] or None
        Format of the deviation over seeds; None: `show`.
    of_peers : callable or None
        Function of a run that returns the values of the peers, (n,); their mean, or their mean
        minus Local's, is the result of `of`.
    """

    key: str
    title: str
    of: Measure
    show: Callable[[float], str]
    better: Better
    group: str
    about: str
    deviation: Callable[[float], str] | None = None
    of_peers: Callable[[Run], Floats] | None = None


def last(run: Run, name: str = "test_accuracy") -> Floats:
    """Return a field at each peer's last report, (n,)."""
    return run.at(name, run.last_row())


def has_accuracy(run: Run) -> bool:
    """Return whether the run has a test accuracy."""
    return not bool(np.isnan(run.metric("test_accuracy")).all())


def gains(run: Run, local: Run) -> Floats:
    """Return the gain of each peer over Local with the same seed and split, (n,).

    Test accuracy minus Local's; without accuracies, Local's test loss minus the peer's.
    """
    if has_accuracy(local):
        return last(run) - last(local)
    return last(local, "test_loss") - last(run, "test_loss")


def _shown(form: str, times: int = 1) -> Callable[[float], str]:
    return lambda value: f"{times * value:{form}}"


_percent, _points = _shown(".2f", 100), _shown("+.2f", 100)
_plain, _signed, _short = _shown(".4g"), _shown("+.4g"), _shown(".2g")


def _best(run: Run) -> Floats:
    best = run.best_row()
    return np.full(run.peers, np.nan) if best is None else run.at("test_accuracy", best)


def _weighted(run: Run) -> Floats:
    """Return test accuracies, (n,), scaled to have the mean weighted by training examples."""
    accuracy_n, samples_n = last(run), run.samples
    if samples_n is None:
        return np.full(run.peers, np.nan)
    mean_samples = samples_n[~np.isnan(accuracy_n)].mean()
    return np.asarray(accuracy_n * samples_n / mean_samples, dtype=np.float64)


def _statistic(name: str, of: Callable[[Run], Floats]) -> Measure:
    return lambda run, _: accuracy_statistics(of(run), run.samples)[name]


def _gain(*, accuracy: bool) -> Measure:
    def mean_gain(run: Run, beside: Beside) -> float | None:
        local = beside.get("local")
        if local is None or has_accuracy(local) is not accuracy:
            return None
        return mean(gains(run, local))

    return mean_gain


def _improved(run: Run, beside: Beside) -> float | None:
    if (local := beside.get("local")) is None:
        return None
    gain_n = gains(run, local)
    return mean((gain_n > 0).astype(np.float64)[~np.isnan(gain_n)])


def _newcomers(run: Run, _: Beside) -> float | None:
    """Return the accuracy of the peers that joined late; see `coterie.app.runners.newcomers`."""
    held_out = _held_out(run)
    return mean(last(run)[held_out["peers"]]) if held_out else None


def _fine_tuned(run: Run, _: Beside) -> float | None:
    held_out = _held_out(run)
    if not held_out:
        return None
    return mean(np.array(held_out["fine_tuned_test_accuracy"], dtype=np.float64))


def _held_out(run: Run) -> dict[str, Any]:
    if not run.config.get("hold-out"):
        return {}
    content: dict[str, Any] = files.json_of(run.directory, "newcomers.json", dict) or {}
    peers, accuracies = (content.get(key) or [] for key in ("peers", "fine_tuned_test_accuracy"))
    sound = isinstance(peers, list) and isinstance(accuracies, list)
    sound = sound and all(type(peer) is int and 0 <= peer < run.peers for peer in peers)
    if not sound or not all(isinstance(value, int | float | None) for value in accuracies):
        raise ResultsError(f"{run.directory / 'newcomers.json'}: not peers and their accuracies")
    return content


def _harmed(run: Run, beside: Beside) -> float | None:
    if (local := beside.get("local")) is None:
        return None
    gain_n = gains(run, local)
    return mean((gain_n < 0).astype(np.float64)[~np.isnan(gain_n)])


def _gini(run: Run, _: Beside) -> float | None:
    """Return half the mean difference between two peers' accuracies, relative to the mean."""
    accuracy_n = last(run)
    accuracy_n = accuracy_n[~np.isnan(accuracy_n)]
    if not accuracy_n.any():
        return None
    n, rank_n = len(accuracy_n), np.arange(len(accuracy_n))
    differences = 2 * ((2 * rank_n - n + 1) * np.sort(accuracy_n)).sum()  # of all ordered pairs
    return float(differences / n**2 / (2 * accuracy_n.mean()))


def _lowest(values_n: Floats) -> float | None:
    return None if np.isnan(values_n).all() else float(np.nanmin(values_n))


def _field(name: str) -> Measure:
    return lambda run, _: mean(last(run, name))


def _recovery(of: Callable[[GraphScores], float | None]) -> Measure:
    def scored(run: Run, _: Beside) -> float | None:
        known = run.clusters_to_recover is not None and learns_graph(run.config)
        if not known or not weights_between(run).any():
            return None
        assert run.clusters_to_recover is not None
        return of(score(run.weights[-1], run.clusters_to_recover))

    return scored


def _progress(name: str) -> Measure:
    def of(run: Run, _: Beside) -> float | None:
        value = run.progress.get(name)
        return None if value is None else float(value)

    return of


def course(run: Run, name: str) -> Floats:
    """Return the mean over peers of each peer's latest report, (R,); NaN if none has the field."""
    values_rn = run.metric(name).copy()
    for r in range(1, len(values_rn)):
        values_rn[r] = np.where(run.reported[r], values_rn[r], values_rn[r - 1])
    has_n = ~np.isnan(values_rn[:1]).all(axis=0)
    if not has_n.any():
        return np.full(len(values_rn), np.nan)
    return np.asarray(values_rn[:, has_n].mean(axis=1), dtype=np.float64)


def gain_course(run: Run, local: Run) -> Floats:
    """Return the gain of the mean of the latest reports over Local's final mean, (R,)."""
    name, sign = ("test_accuracy", 1.0) if has_accuracy(local) else ("test_loss", -1.0)
    gain_r: Floats = sign * (course(run, name) - course(local, name)[-1])
    return gain_r


def cost_to_best(gain_r: Floats, cost_r: Floats, best: float) -> float | None:
    """Return the cost in the first round with 90 % of the best gain; infinite if never reached.

    Parameters
    ----------
    gain_r, cost_r : ndarray, (R,)
        Gain over Local and cost so far, in each round.
    best : float
        Best gain of a comparison.

    Returns
    -------
    float or None
        None if no method of the comparison gains.
    """
    if not best > 0:
        return None
    reached = np.flatnonzero(gain_r >= 0.9 * best)
    return float(cost_r[reached[0]]) if len(reached) else np.inf


def _bytes_to_best(run: Run, beside: Beside) -> float | None:
    local, bytes_r = beside.get("local"), course(run, "bytes_sent")
    ranked = [each for each in beside.values() if not reference(each.config)]
    if local is None or np.isnan(bytes_r).any() or not all(len(each.rounds) for each in ranked):
        return None
    if any(each.progress.get("status") == "running" for each in beside.values()):
        return None  # the best final gain is not known yet
    best = max(float(gain_course(each, local)[-1]) for each in ranked)
    return cost_to_best(gain_course(run, local), bytes_r, best)


def confusion_by_cluster(run: Run) -> dict[int, Ints] | None:
    """Return true cluster -> confusion matrix (k, k) of its peers' final models on test data.

    None if clusters are unknown, or not all honest peers have a model card with a matrix.
    """
    honest_n = ~run.attackers
    if run.clusters is None or run.peers > MAX_PEERS:
        return None
    result: dict[int, Ints] = {}
    for peer in np.flatnonzero(honest_n).tolist():
        card = files.json_of(run.directory, f"models/peer-{peer:04d}.json", dict) or {}
        try:
            counts_kk = np.array(card["curves"]["confusion"], dtype=np.int64)
            cluster = int(run.clusters[peer])
            result[cluster] = result.get(cluster, np.zeros_like(counts_kk)) + counts_kk
        except (KeyError, TypeError, ValueError):
            return None
    return result


def parity_gap(counts_ckk: Ints) -> float:
    """Return the gap in demographic parity between clusters.

    Mean over classes y of the largest difference of P(prediction = y) between two clusters.

    Parameters
    ----------
    counts_ckk : ndarray of int, (clusters, k, k)
        Confusion matrices; rows: true class, columns: predicted class.
    """
    predicted_ck = counts_ckk.sum(axis=1)
    return float(np.ptp(predicted_ck / predicted_ck.sum(axis=1, keepdims=True), axis=0).mean())


def odds_gap(counts_ckk: Ints) -> float | None:
    """Return the gap in equalised odds between clusters.

    Mean over classes y of the largest differences between two clusters of P(prediction = y) given
    true class y and given another true class, added. Classes that a cluster lacks are left out;
    None if no class is left.

    Parameters
    ----------
    counts_ckk : ndarray of int, (clusters, k, k)
        Confusion matrices; rows: true class, columns: predicted class.
    """
    true_ck, hit_ck = counts_ckk.sum(axis=2), np.diagonal(counts_ckk, axis1=1, axis2=2)
    other_ck, false_ck = (
        true_ck.sum(axis=1, keepdims=True) - true_ck,
        counts_ckk.sum(axis=1) - hit_ck,
    )
    common_k = (true_ck > 0).all(axis=0) & (other_ck > 0).all(axis=0)
    if not common_k.any():
        return None
    rates = (
        hit_ck[:, common_k] / true_ck[:, common_k],
        false_ck[:, common_k] / other_ck[:, common_k],
    )
    return float(sum(np.ptp(rate_ck, axis=0) for rate_ck in rates).mean())


def _between_clusters(of: Callable[[Ints], float | None]) -> Measure:
    def gap(run: Run, _: Beside) -> float | None:
        counts = confusion_by_cluster(run) or {}
        return of(np.stack([*counts.values()])) if len(counts) > 1 else None

    return gap


def _time_to_best(run: Run, beside: Beside) -> float | None:
    """Return the virtual seconds until the run reaches 90 % of the best method's best mean.

    For a loss: until it has covered 90 % of the distance from its start to the lowest loss.
    """
    runs = beside.values()
    if any(np.isnan(each.metric("virtual_seconds")).all() for each in runs):
        return None
    is_accuracy = all(map(has_accuracy, runs))
    name, sign = ("test_accuracy", 1.0) if is_accuracy else ("test_loss", -1.0)
    best = max(float(np.fmax.reduce(sign * course(each, name))) for each in runs)
    course_r = sign * course(run, name)
    start = 0.0 if is_accuracy else course_r[0]
    reached = np.flatnonzero(course_r >= start + 0.9 * (best - start))
    seconds_r = np.fmax.reduce(run.metric("virtual_seconds"), axis=1)
    return float(seconds_r[reached[0]]) if len(reached) else np.inf


COLUMNS = (
    Column(
        "accuracy", "accuracy %", _statistic("mean_test_accuracy", last), _percent,
        "high", "Personal models",
        "Mean test accuracy of the final personal models.",
        of_peers=last,
    ),
    Column(
        "weighted", "weighted %", _statistic("weighted_mean_test_accuracy", last), _percent,
        "high", "Personal models",
        "Mean test accuracy of the final personal models, weighted by training examples.",
        of_peers=_weighted,
    ),
    Column(
        "spread", "spread", _statistic("std_test_accuracy", last), _percent,
        "", "Personal models",
        "Standard deviation of the test accuracy over the peers of a run, in points.",
    ),
    Column(
        "worst", "worst peer %", lambda run, _: _lowest(last(run)), _percent,
        "high", "Personal models",
        "Lowest test accuracy of a peer.",
    ),
    Column(
        "worst_decile", "worst 10 %", _statistic("worst_decile_test_accuracy", last), _percent,
        "high", "Personal models",
        "Mean test accuracy of the lowest 10 % of the peers (at least one peer).",
    ),
    Column(
        "gini", "Gini", _gini, _shown(".3f"),
        "low", "Personal models",
        "Gini coefficient of the test accuracy over the peers; 0: all peers equal.",
    ),
    Column(
        "balanced_accuracy", "balanced %", _field("balanced_accuracy"), _percent,
        "high", "Personal models",
        "Mean balanced accuracy over peers: mean recall of the classes.",
        of_peers=lambda run: last(run, "balanced_accuracy"),
    ),
    Column(
        "auroc", "AUROC", _field("auroc"), _shown(".3f"),
        "high", "Personal models",
        "Mean area under the ROC curve over peers; with more than two classes, one against rest.",
        of_peers=lambda run: last(run, "auroc"),
    ),
    Column(
        "c_index", "C-index", _field("c_index"), _shown(".3f"),
        "high", "Personal models",
        "Mean concordance index over peers (Harrell): survival.",
        of_peers=lambda run: last(run, "c_index"),
    ),
    Column(
        "calibration_error", "calibration error", _field("expected_calibration_error"),
        _shown(".3f"), "low", "Personal models",
        "Mean expected calibration error over peers.",
    ),
    Column(
        "best_accuracy", "best on val. %", _statistic("mean_test_accuracy", _best), _percent,
        "high", "Personal models",
        "Mean test accuracy in each peer's best round on its validation data.",
        of_peers=_best,
    ),
    Column(
        "global_accuracy", "global model %", _field("global_test_accuracy"), _percent,
        "high", "Shared",
        "Mean test accuracy of the shared model that the method also trains.",
    ),
    Column(
        "gain", "gain", _gain(accuracy=True), _points,
        "high", "Against local",
        "Mean over peers of the test accuracy minus Local's, in points.",
        of_peers=last,
    ),
    Column(
        "loss_gain", "loss gain", _gain(accuracy=False), _signed,
        "high", "Against local",
        "Mean over peers of Local's test loss minus the method's.",
        deviation=_short,
        of_peers=lambda run: -last(run, "test_loss"),
    ),
    Column(
        "improved", "improved %", _improved, _shown(".0f", 100),
        "high", "Against local",
        "Share of the peers that end better than with Local.",
    ),
    Column(
        "harmed", "harmed %", _harmed, _shown(".0f", 100),
        "low", "Against local",
        "Share of the peers that end worse than with Local.",
    ),
    Column(
        "parity_gap", "parity gap %", _between_clusters(parity_gap), _percent,
        "low", "Between clusters",
        "Demographic parity: largest difference between two true clusters in the share of test "
        "examples that are predicted as a class, mean over classes.",
    ),
    Column(
        "odds_gap", "odds gap %", _between_clusters(odds_gap), _percent,
        "low", "Between clusters",
        "Equalised odds: largest differences between two true clusters in a class's true and false "
        "positive rates, added; mean over the classes that every cluster has.",
    ),
    Column(
        "newcomers", "newcomers %", _newcomers, _percent,
        "high", "Newcomers",
        "Mean final test accuracy of the peers that join for the last fifth of the rounds.",
    ),
    Column(
        "fine_tuned", "fine-tuned %", _fine_tuned, _percent,
        "high", "Newcomers",
        "Baseline: mean of the other peers' models, fine-tuned by each newcomer for as long.",
    ),
    Column(
        "loss", "test loss", _field("test_loss"), _plain,
        "low", "Loss",
        "Mean test loss of the final personal models.",
        deviation=_short,
        of_peers=lambda run: last(run, "test_loss"),
    ),
    Column(
        "train_accuracy", "train %", _field("train_accuracy"), _percent,
        "", "Training data",
        "Mean accuracy of the final personal models on their peers' training examples.",
        of_peers=lambda run: last(run, "train_accuracy"),
    ),
    Column(
        "train_loss", "train loss", _field("train_loss"), _plain,
        "", "Training data",
        "Mean loss of the final personal models on their peers' training examples.",
        deviation=_short,
        of_peers=lambda run: last(run, "train_loss"),
    ),
    Column(
        "rmse", "RMSE", _field("rmse"), _plain,
        "low", "Loss",
        "Mean root mean squared error over peers (regression).",
    ),
    Column(
        "r2", "R2", _field("r2"), _shown(".3f"),
        "high", "Loss",
        "Mean coefficient of determination over peers (regression).",
    ),
    Column(
        "diverged", "diverged", lambda run, _: float(run.diverged.sum()), _shown(".3g"),
        "", "Loss",
        "Number of peers whose final loss is not finite.",
    ),
    Column(
        "f1", "graph F1", _recovery(lambda scores: scores.f1), _shown(".2f"),
        "high", "Learnt graph",
        "F1 of the final learnt edges against the true clusters.",
    ),
    Column(
        "own_cluster", "own cluster %",
        _recovery(lambda scores: scores.largest_weight_on_own_cluster), _percent,
        "high", "Learnt graph",
        "Share of the peers whose largest weight goes to their true cluster.",
    ),
    Column(
        "bytes", "sent / peer", _field("bytes_sent"), units.size,
        "", COST,
        "Payload bytes sent per peer, mean over peers.",
    ),
    Column(
        "bytes_received", "received / peer", _field("bytes_received"), units.size,
        "", COST,
        "Payload bytes received per peer, mean over peers.",
    ),
    Column(
        "gradients", "gradients / peer", _field("gradient_evaluations"), _shown(",.0f"),
        "", COST,
        "Sample gradients evaluated per peer, mean over peers.",
    ),
    Column(
        "seconds", "seconds", _progress("seconds"), _shown(".1f"),
        "", COST,
        "Wall time of a run; parallel runs share the machine.",
    ),
    Column(
        "joules", "joules", _progress("joules"), _shown(",.0f"),
        "", COST,
        "Energy of all processors of the machine during a run, if no other run shares it.",
    ),
    Column(
        "bytes_to_best", "sent to 90 % of best gain", _bytes_to_best,
        lambda size: units.size(size) if np.isfinite(size) else "never",
        "", COST,
        "Payload bytes sent per peer until the mean over peers has 90 % of the best final gain "
        "over Local of all ranked methods.",
    ),
    Column(
        "time_to_best", "time to 90 % of the best", _time_to_best,
        lambda seconds: units.duration(seconds) if np.isfinite(seconds) else "never",
        "", COST,
        "Virtual time until the mean over peers reaches 90 % of the best method's best mean.",
    ),
)  # fmt: skip
