"""Measures of a run: quality, gain over Local, recovery of clusters, cost; one registry for all.

A measure turns the result of a run, and the results of the other rows with the same seed and data,
into a number: None if it does not exist, infinite if the event would come after the end of the run.
Most are the mean of a number per peer; these the paired test compares peer by peer.

Shapes: n peers, R evaluated rounds, C recorded graphs. Means leave out peers without test data
(NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from safetensors.numpy import load_file

from coterie.app.config.schema import Scalar
from coterie.app.experiments.methods import learns_graph, reference
from coterie.app.runs import files, graph, units
from coterie.app.runs.diagnostics import MAX_PEERS
from coterie.app.runs.files import ResultsError
from coterie.app.runs.graph_scores import GraphScores, learnt_edges, score
from coterie.app.runs.rundir import Floats, Ints, Run
from coterie.app.runs.summary import accuracy_statistics, mean


class Result(Protocol):
    """Result in a table: a run, or what the league keeps of one."""

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def peers(self) -> int: ...
    @property
    def has_accuracy(self) -> bool: ...
    def last(self, name: str = "test_accuracy") -> Floats: ...
    def course(self, name: str = "test_accuracy") -> Floats: ...


@dataclass(frozen=True)
class SameSeed:
    """Results with the same seed and data as the measured one, by row; `local`: peers alone.

    `final`: mean over seeds of a row's final accuracy, or of minus its final loss.
    """

    rows: Mapping[str, Any] = field(default_factory=dict)
    local: Any = None
    final: Callable[[str], float] = lambda row: 0.0

    @cached_property
    def best(self) -> Any:
        """Result of the ranked row with the best mean over seeds; None before all have ended.

        The best of a single seed would be there by chance, and a reference is not to be reached.
        """
        ranked = {row: of for row, of in self.rows.items() if not reference(of.config)}
        if not ranked or not all(len(each.rounds) for each in ranked.values()):
            return None
        if any(each.progress.get("status") == "running" for each in self.rows.values()):
            return None
        return ranked[max(ranked, key=self.final)]


Measure = Callable[[Any, SameSeed], float | None]
Show = Callable[[float], str]
Better = Literal["high", "low", ""]
SHARE_OF_BEST = 0.9
"""Share of the best result that counts as reached."""
COST = "Cost"
"""Group of the columns of a run's costs."""


@dataclass(frozen=True)
class Column:
    """One measure, of one panel of a table."""

    key: str  # name in files
    title: str  # heading of the column
    of: Measure  # function of a result and those beside it
    show: Show
    better: Better  # "" for costs, which are not ranked
    group: str  # heading above the column
    about: str  # one-sentence definition
    deviation: Show | None = None  # format of the deviation over seeds; None: `show`
    of_peers: Callable[[Any, SameSeed], Floats] | None = None
    """Values of the peers, (n,), which the test compares; their mean is the result of `of`. None: a
    measure of the run, of which the test compares the number."""
    panel: str = ""
    x: Scalar | None = None  # position on the panel's axis


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


def gains(run: Result, local: Result) -> Floats:
    """Return the gain of each peer over Local with the same seed and split, (n,).

    Test accuracy minus Local's; without accuracies, Local's test loss minus the peer's.
    """
    if local.has_accuracy:
        return run.last() - local.last()
    return local.last("test_loss") - run.last("test_loss")


def last(name: str = "test_accuracy") -> Callable[[Result, SameSeed], Floats]:
    """Return the function of a field's last values by peer."""
    return lambda run, _: run.last(name)


_accuracies = last()


def _shown(form: str, times: int = 1) -> Callable[[float], str]:
    return lambda value: f"{times * value:{form}}"


_percent, _points = _shown(".2f", 100), _shown("+.2f", 100)
_plain, _signed, _short = _shown(".4g"), _shown("+.4g"), _shown(".2g")


def _best(run: Run, _: SameSeed, *, by_accuracy: bool = True) -> Floats:
    best = run.best_row(by_accuracy=by_accuracy)
    return np.full(run.peers, np.nan) if best is None else run.at("test_accuracy", best)


def _before_averaging(run: Run, beside: SameSeed) -> Floats:
    if "best_before_averaging_test_accuracy" in run.metrics:
        return run.last("best_before_averaging_test_accuracy")
    return _best(run, beside, by_accuracy=False)


def _weighted(run: Run, _: SameSeed) -> Floats:
    """Return test accuracies, (n,), scaled to have the mean weighted by training examples."""
    accuracy_n, samples_n = run.last(), run.samples
    if samples_n is None:
        return np.full(run.peers, np.nan)
    mean_samples = samples_n[~np.isnan(accuracy_n)].mean()
    return np.asarray(accuracy_n * samples_n / mean_samples, dtype=np.float64)


def _statistic(name: str, of: Callable[[Run, SameSeed], Floats] = _accuracies) -> Measure:
    return lambda run, beside: accuracy_statistics(of(run, beside), run.samples)[name]


def _gain(*, accuracy: bool) -> Measure:
    def mean_gain(run: Run, beside: SameSeed) -> float | None:
        if beside.local is None or beside.local.has_accuracy is not accuracy:
            return None
        return mean(gains(run, beside.local))

    return mean_gain


def _gains(run: Result, beside: SameSeed) -> Floats:
    return gains(run, beside.local)


def _have(sign: float) -> Callable[[Result, SameSeed], Floats]:
    """Return the function of which peers have a gain of this sign, (n,): 1 or 0."""

    def have(run: Result, beside: SameSeed) -> Floats:
        gain_n = sign * gains(run, beside.local)
        return np.where(np.isnan(gain_n), np.nan, gain_n > 0)

    return have


def _share(sign: float) -> Measure:
    """Return the share of the peers whose gain has this sign."""
    have = _have(sign)
    return lambda run, beside: None if beside.local is None else mean(have(run, beside))


def _newcomers(run: Run, _: SameSeed) -> float | None:
    """Return the accuracy of the peers that joined late; see `coterie.app.runners.newcomers`."""
    held_out = _held_out(run)
    return mean(run.last()[held_out["peers"]]) if held_out else None


def _fine_tuned(run: Run, _: SameSeed) -> float | None:
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


def _gini(run: Run, _: SameSeed) -> float | None:
    """Return half the mean difference between two peers' accuracies, relative to the mean."""
    accuracy_n = run.last()
    accuracy_n = accuracy_n[~np.isnan(accuracy_n)]
    if not accuracy_n.any():
        return None
    n, rank_n = len(accuracy_n), np.arange(len(accuracy_n))
    differences = 2 * ((2 * rank_n - n + 1) * np.sort(accuracy_n)).sum()  # of all ordered pairs
    return float(differences / n**2 / (2 * accuracy_n.mean()))


def _lowest(values_n: Floats) -> float | None:
    return None if np.isnan(values_n).all() else float(np.nanmin(values_n))


def _field(name: str) -> Measure:
    return lambda run, _: mean(run.last(name))


def _recovery(of: Callable[[GraphScores], float | None]) -> Measure:
    def scored(run: Run, _: SameSeed) -> float | None:
        known = run.clusters_to_recover is not None and learns_graph(run.config)
        if not known or not run.weights_between().any():
            return None
        assert run.clusters_to_recover is not None
        return of(score(run.weights[-1], run.clusters_to_recover))

    return scored


def _progress(name: str) -> Measure:
    def of(run: Run, _: SameSeed) -> float | None:
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


def _bytes_to_best(run: Run, beside: SameSeed) -> float | None:
    """Return the bytes in the first round with 90 % of the best final gain; None without gains."""
    local, bytes_r = beside.local, run.course("bytes_sent")
    if local is None or np.isnan(bytes_r).any() or beside.best is None:
        return None
    best = float(gain_course(beside.best, local)[-1])
    return cost_to(gain_course(run, local), SHARE_OF_BEST * best, bytes_r) if best > 0 else None


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
    `counts_ckk` are their confusion matrices; rows: true class, columns: predicted class.
    """
    predicted_ck = counts_ckk.sum(axis=1)
    return float(np.ptp(predicted_ck / predicted_ck.sum(axis=1, keepdims=True), axis=0).mean())


def odds_gap(counts_ckk: Ints) -> float | None:
    """Return the gap in equalised odds between clusters.

    Mean over classes y of the largest differences between two clusters of P(prediction = y) given
    true class y and given another true class, added. `counts_ckk` as in `parity_gap`. Classes that
    a cluster lacks are left out; None if no class is left.
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
    def gap(run: Run, _: SameSeed) -> float | None:
        counts = confusion_by_cluster(run) or {}
        return of(np.stack([*counts.values()])) if len(counts) > 1 else None

    return gap


def _time_to_best(run: Run, beside: SameSeed) -> float | None:
    """Return the virtual seconds until the run reaches 90 % of the best final accuracy.

    For a loss: until it has covered 90 % of the distance from its start to the best final loss.
    """
    runs = beside.rows.values()
    if any(np.isnan(each.metric("virtual_seconds")).all() for each in runs):
        return None
    if beside.best is None:
        return None
    is_accuracy = all(each.has_accuracy for each in runs)
    name, sign = ("test_accuracy", 1.0) if is_accuracy else ("test_loss", -1.0)
    course_r, end = sign * run.course(name), sign * beside.best.course(name)[-1]
    start = 0.0 if is_accuracy else course_r[0]
    seconds_r = np.fmax.reduce(run.metric("virtual_seconds"), axis=1)
    return cost_to(course_r, start + SHARE_OF_BEST * (end - start), seconds_r)


COLUMNS = (
    Column(
        "accuracy", "accuracy %", _statistic("mean_test_accuracy"), _percent,
        "high", "Personal models",
        "Mean test accuracy of the final personal models.",
        of_peers=last(),
    ),
    Column(
        "weighted", "weighted %", _statistic("weighted_mean_test_accuracy"), _percent,
        "high", "Personal models",
        "Mean test accuracy of the final personal models, weighted by training examples.",
        of_peers=_weighted,
    ),
    Column(
        "spread", "spread", _statistic("std_test_accuracy"), _percent,
        "", "Personal models",
        "Standard deviation of the test accuracy over the peers of a run, in points.",
    ),
    Column(
        "worst", "worst peer %", lambda run, _: _lowest(run.last()), _percent,
        "high", "Personal models",
        "Lowest test accuracy of a peer.",
    ),
    Column(
        "worst_decile", "worst 10 %", _statistic("worst_decile_test_accuracy"), _percent,
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
        of_peers=last("balanced_accuracy"),
    ),
    Column(
        "auroc", "AUROC", _field("auroc"), _shown(".3f"),
        "high", "Personal models",
        "Mean area under the ROC curve over peers; with more than two classes, one against rest.",
        of_peers=last("auroc"),
    ),
    Column(
        "c_index", "C-index", _field("c_index"), _shown(".3f"),
        "high", "Personal models",
        "Mean concordance index over peers (Harrell): survival.",
        of_peers=last("c_index"),
    ),
    Column(
        "calibration_error", "calibration error", _field("expected_calibration_error"),
        _shown(".3f"), "low", "Personal models",
        "Mean expected calibration error over peers.",
        of_peers=last("expected_calibration_error"),
    ),
    Column(
        "best_accuracy", "best on val. %", _statistic("mean_test_accuracy", _best), _percent,
        "high", "Personal models",
        "Mean test accuracy in each peer's best round on its validation data: highest accuracy, of "
        "equals the lowest loss.",
        of_peers=_best,
    ),
    Column(
        "global_accuracy", "global model %", _field("global_test_accuracy"), _percent,
        "high", "Shared",
        "Mean test accuracy of the shared model that the method also trains.",
        of_peers=last("global_test_accuracy"),
    ),
    Column(
        "gain", "gain", _gain(accuracy=True), _points,
        "high", "Against local",
        "Mean over peers of the test accuracy minus Local's, in points.",
        of_peers=_gains,
    ),
    Column(
        "loss_gain", "loss gain", _gain(accuracy=False), _signed,
        "high", "Against local",
        "Mean over peers of Local's test loss minus the method's.",
        deviation=_short,
        of_peers=_gains,
    ),
    Column(
        "improved", "improved %", _share(1), _shown(".0f", 100),
        "high", "Against local",
        "Share of the peers that end better than with Local.",
        of_peers=_have(1),
    ),
    Column(
        "harmed", "harmed %", _share(-1), _shown(".0f", 100),
        "low", "Against local",
        "Share of the peers that end worse than with Local.",
        of_peers=_have(-1),
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
        of_peers=last("test_loss"),
    ),
    Column(
        "train_accuracy", "train %", _field("train_accuracy"), _percent,
        "", "Training data",
        "Mean accuracy of the final personal models on their peers' training examples.",
        of_peers=last("train_accuracy"),
    ),
    Column(
        "train_loss", "train loss", _field("train_loss"), _plain,
        "", "Training data",
        "Mean loss of the final personal models on their peers' training examples.",
        deviation=_short,
        of_peers=last("train_loss"),
    ),
    Column(
        "rmse", "RMSE", _field("rmse"), _plain,
        "low", "Loss",
        "Mean root mean squared error over peers (regression).",
        of_peers=last("rmse"),
    ),
    Column(
        "r2", "R2", _field("r2"), _shown(".3f"),
        "high", "Loss",
        "Mean coefficient of determination over peers (regression).",
        of_peers=last("r2"),
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
        units.size,
        "", COST,
        "Payload bytes sent per peer until the mean over peers has 90 % of the final gain over "
        "Local of the ranked method with the best mean over seeds.",
    ),
    Column(
        "time_to_best", "time to 90 % of the best", _time_to_best,
        units.duration,
        "", COST,
        "Virtual time until the mean over peers reaches 90 % of the final mean of the ranked "
        "method that is best over all seeds.",
    ),
)  # fmt: skip
MEASURES: dict[str, Column] = {column.key: column for column in COLUMNS}
"""Key -> measure: the columns of a comparison, and those of figures below."""
SHARES = {"asymmetry", "symmetry", "one_way", "sparsity", "to_attackers"}
"""Measures of the graph of a round, see `graph_measure`."""


def measure(
    key: str,
    title: str,
    better: Better = "",
    of_peers: Callable[[Any, SameSeed], Floats] | None = None,
) -> Callable[..., Callable[[Run], float]]:
    """Add a measure of figures, by decorator. A title that ends in " %" belongs to a share."""

    def add(function: Callable[[Run], float]) -> Callable[[Run], float]:
        _add(key, title, lambda run, _: function(run), better, of_peers)
        return function

    return add


def _add(
    key: str,
    title: str,
    of: Measure,
    better: Better,
    of_peers: Callable[[Any, SameSeed], Floats] | None = None,
) -> None:
    form = "{:.4g}".format
    MEASURES[key] = Column(key, title, of, form, better, "Figures", "", of_peers=of_peers)


def graph_measure(run: Run, at: int, name: str) -> float:
    """Return a measure of the recorded graph number `at`; NaN without links.

    Measures are those of `coterie.app.runs.graph.measures_csv`, asymmetry = 1 - symmetry, and
    one_way, the share of all pairs of peers that have a link in one direction only.
    """
    if not -len(run.weights) <= at < len(run.weights):
        return np.nan
    if name == "one_way":
        edges_nn = learnt_edges(run.weights[at])
        return float((edges_nn ^ edges_nn.T).sum() / (run.peers * (run.peers - 1)))
    measured = graph.measured(run.weights[at], run)
    if name == "asymmetry":
        value = measured["symmetry"]
        return np.nan if value is None else 1 - float(value)
    value = measured.get(name)
    return np.nan if value is None else float(value)


def _at_first(name: str) -> Callable[[Run], float]:
    """Return a measure of the initial graph: that of the first round after round 0."""

    def first(run: Run) -> float:
        later = np.flatnonzero(run.weight_rounds > 0)
        return graph_measure(run, int(later[0]), name) if len(later) else np.nan

    return first


for _name in ("sparsity", "symmetry", "one_way", "to_attackers"):
    measure(f"first_{_name}", f"initial {_name.replace('_', ' ')} %")(_at_first(_name))
    measure(f"last_{_name}", f"final {_name.replace('_', ' ')} %")(
        lambda run, name=_name: graph_measure(run, -1, name)
    )


def _rise(name: str) -> Callable[[Run], float]:
    """Return a measure of the final graph minus that of the initial one."""
    first = _at_first(name)
    return lambda run: graph_measure(run, -1, name) - first(run)


measure("sparsity_rise", "final minus initial sparsity %", "high")(_rise("sparsity"))
measure("symmetry_rise", "final minus initial symmetry %", "high")(_rise("symmetry"))
measure("one_way_rise", "final minus initial one-way pairs %", "low")(_rise("one_way"))


@measure("variance", "variance over peers", "low")
def variance(run: Run) -> float:
    """Return the variance over peers of the best-on-validation test accuracy, in squared points."""
    best = run.best_row()
    if best is None:
        return np.nan
    return float(np.nanvar(100 * run.at("test_accuracy", best)))


@measure(
    "before_averaging", "lowest validation loss, before averaging %", "high", _before_averaging
)
def before_averaging(run: Run) -> float | None:
    """Return the mean test accuracy in the round with the lowest validation loss of each peer.

    Of a method that records its models before averaging (DPFL), of these.
    """
    return mean(_before_averaging(run, SameSeed()))


@measure("recovered", "share of the rounds until the true graph %", "low")
def recovered(run: Run) -> float:
    """Return the share of all rounds until a recorded graph equals the true clusters."""
    return _until_graph(run, lambda scores: scores.exact)


@measure("similar", "share of the rounds until the graph's F1 is 0.9 %", "low")
def similar(run: Run) -> float:
    """Return the share of all rounds until a recorded graph has an F1 of 0.9 to the clusters."""
    return _until_graph(run, lambda scores: (scores.f1 or 0.0) >= 0.9)


def _until_graph(run: Run, test: Callable[[GraphScores], bool]) -> float:
    """Return the share of all rounds until a recorded graph passes a test; infinite: never."""
    if run.clusters_to_recover is None:
        return np.nan
    passed = [test(score(weights, run.clusters_to_recover)) for weights in run.weights]
    if not any(passed):
        return np.inf
    return float(run.weight_rounds[passed.index(True)] / run.config["num-server-rounds"])


@measure("components", "clusters of the final graph")
def final_components(run: Run) -> float:
    """Return the number of connected components of the final graph."""
    if not len(run.weights):
        return np.nan
    from scipy.sparse import csr_array  # a tenth of a run's start, for one measure
    from scipy.sparse.csgraph import connected_components

    return float(connected_components(csr_array(learnt_edges(run.weights[-1])))[0])


@measure("first_peer", "accuracy of client 1 %", "high")
def first_peer(run: Run) -> float:
    """Return the final test accuracy of peer 0."""
    return float(run.last()[0])


@measure("first_choice", "peer with the largest weight of client 1")
def first_choice(run: Run) -> float:
    """Return the number of the peer to which peer 0 gives its largest final weight."""
    return float(run.weights[-1][0, 1:].argmax() + 1) if len(run.weights) else np.nan


@measure("perplexity", "perplexity", "low")
def perplexity(run: Run) -> float:
    """Return the mean over peers of exp(test loss)."""
    return float(np.nanmean(np.exp(run.last("test_loss"))))


@measure("consensus", "squared distance in a cluster, per dimension", "low")
def consensus(run: Run) -> float:
    """Return the mean of |x_i - x_j|^2 / d over ordered pairs of a true cluster, final models."""
    if run.clusters is None:
        return np.nan
    models = run.directory / "models"
    x_nd = np.stack(
        [
            np.concatenate([np.ravel(part) for _, part in sorted(load_file(file).items())])
            for file in sorted(models.glob("peer-*.safetensors"))
        ]
    ).astype(np.float64)
    apart_nn = np.square(x_nd[:, None] - x_nd).mean(axis=-1)
    return float(apart_nn[run.clusters[:, None] == run.clusters].mean())


@measure("gradient_norm", "squared gradient norm, mean over rounds, per dimension", "low")
def gradient_norm(run: Run) -> float:
    """Return the mean over users and recorded rounds of |grad f|^2 / d on noisy quadratics.

    A quadratic a/2 |x - c|^2 has |grad f|^2 = 2 a f.
    """
    curvature = float(run.config["noisy-quadratic"]["user-curvature"])
    return float(2 * curvature * np.nanmean(run.metric("test_loss")[:-1]))


def rounds_to_best(run: Run, beside: SameSeed) -> float:
    """Return the first round with 90 % of the best final accuracy beside; infinite: never."""
    if beside.best is None:
        return np.nan
    target = SHARE_OF_BEST * beside.best.course()[-1]
    return cost_to(run.course(), target, run.rounds.astype(np.float64))


_add("rounds_to_best", "rounds to 90 % of the best", rounds_to_best, "low")


@measure("stationary_loss", "stationary loss", "low")
def stationary_loss(run: Run) -> float:
    """Return the mean test loss over peers and the last three fifths of the recorded rounds."""
    loss_rn = run.metric("test_loss")
    return float(np.nanmean(loss_rn[2 * len(loss_rn) // 5 :]))


@measure("rounds_to_1e-4", "rounds to 1e-4", "low")
def rounds_to(run: Run) -> float:
    """Return the first recorded round with a mean test loss below 1e-4; infinite: never."""
    below = np.flatnonzero(np.nanmean(run.metric("test_loss"), axis=1) < 1e-4)
    return float(run.rounds[below[0]]) if len(below) else np.inf


@measure("weighted_train", "weighted train %", "")
def weighted_train(run: Run) -> float:
    """Return the final accuracy on training data, peers weighted by their training examples."""
    return _weighted_mean(run, "train_accuracy")


@measure("train_gap", "train minus test %", "high")
def train_gap(run: Run) -> float:
    """Return the weighted train accuracy minus the weighted test accuracy."""
    return weighted_train(run) - _weighted_mean(run, "test_accuracy")


@measure("log_train_loss", "log10 of train loss", "low")
def log_train_loss(run: Run) -> float:
    """Return the decimal logarithm of the final weighted loss on training data."""
    return float(np.log10(_weighted_mean(run, "train_loss")))


@measure("log_test_loss", "log10 of test loss", "low")
def log_test_loss(run: Run) -> float:
    """Return the decimal logarithm of the final weighted loss on test data."""
    return float(np.log10(_weighted_mean(run, "test_loss")))


def _weighted_mean(run: Run, field: str) -> float:
    values_n = run.last(field)
    weights_n = np.ones(run.peers) if run.samples is None else run.samples
    return float(np.average(values_n, weights=weights_n))


@measure("rise", "largest loss / first loss", "low")
def rise(run: Run) -> float:
    """Return the largest mean test loss over peers relative to that of the first recorded round."""
    loss_r = np.nanmean(run.metric("test_loss"), axis=1)
    return float(loss_r.max() / loss_r[0])


@measure("course", "mean over rounds %", "high")
def mean_over_rounds(run: Run) -> float:
    """Return the mean test accuracy over peers and recorded rounds: high where it rises early."""
    return float(np.nanmean(run.metric("test_accuracy")))


@measure("largest_weight", "largest weight, mean over rounds", "high")
def largest_weight(run: Run) -> float:
    """Return the mean over peers and recorded rounds of a peer's largest weight; 1: one-hot."""
    return float(run.weights[run.weight_rounds > 0].max(axis=2).mean())


@measure("outside_weight", "weight of other clusters", "low")
def outside_weight(run: Run) -> float:
    """Return the mean over peers of the final weight that goes to peers of other clusters."""
    if run.clusters is None:
        return np.nan
    other_nn = run.clusters[:, None] != run.clusters
    return float((run.weights[-1] * other_nn).sum(axis=1).mean())


def smallest_cluster(run: Run) -> Floats:
    """Return the final accuracy (n,) of the peers of the smallest true cluster; NaN: others."""
    if run.clusters is None:
        return np.full(run.peers, np.nan)
    of_n, sizes = np.unique(run.clusters, return_inverse=True, return_counts=True)[1:]
    return np.where(of_n == sizes.argmin(), run.last(), np.nan)


@measure("smallest_cluster", "smallest cluster %", "high", lambda run, _: smallest_cluster(run))
def of_smallest_cluster(run: Run) -> float:
    """Return the mean final accuracy of the peers of the smallest true cluster."""
    return float(np.nanmean(smallest_cluster(run)))


@measure("cluster_gap", "gap between clusters %", "low")
def cluster_gap(run: Run) -> float:
    """Return the largest difference of the mean final accuracy between two true clusters."""
    if run.clusters is None:
        return np.nan
    accuracy_n = run.last()
    means = [np.nanmean(accuracy_n[run.clusters == c]) for c in np.unique(run.clusters)]
    return float(np.ptp(means))


@measure("weight_change", "change of weights per recorded round", "high")
def weight_change(run: Run) -> float:
    """Return the mean over rounds and peers of sum_j |w_ij(t) - w_ij(t - 1)| / 2."""
    return float(np.abs(np.diff(run.weights[run.weight_rounds > 0], axis=0)).sum(axis=2).mean() / 2)


@measure("components_used", "components that lead for a client", "high")
def components_used(run: Run) -> float:
    """Return the number of FedEM's components that have the largest weight at some peer."""
    final_kn = components(run)[-1]
    return float(len(set(final_kn.argmax(axis=0)))) if len(final_kn) else np.nan


def components(run: Run) -> Floats:
    """Return the mixture weights of a run's components over rounds, (R, K, n); K = 0 without."""
    names = sorted(name for name in run.metrics if name.startswith("component_"))
    shape = (len(run.rounds), 0, run.peers)
    return np.stack([run.metric(name) for name in names], axis=1) if names else np.empty(shape)
