"""Results of a figure's runs: one number, or one number per peer, by panel, row, x and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from coterie.app.config.keys import ConfigError, nearest
from coterie.app.config.schema import Scalar
from coterie.app.report import measures
from coterie.app.report.measures import COLUMNS, Beside, Better, Column, Measure, last
from coterie.app.runs import graph
from coterie.app.runs.graph_scores import learnt_edges, score
from coterie.app.runs.rundir import Floats, Run

MEASURES: dict[str, Column] = {column.key: column for column in COLUMNS}
"""Measures of figures: the columns of a comparison, and those below."""
SHARES = {"asymmetry", "symmetry", "one_way", "sparsity", "to_attackers"}
"""Measures of the graph of a round, see `graph_measure`."""


def measure(key: str, title: str, better: Better = "") -> Callable[..., Callable[[Run], float]]:
    """Add a measure of figures, by decorator. A title that ends in " %" belongs to a share."""

    def add(function: Callable[[Run], float]) -> Callable[[Run], float]:
        _add(key, title, lambda run, _: function(run), better)
        return function

    return add


def _add(
    key: str,
    title: str,
    of: Measure,
    better: Better,
    of_peers: Callable[[Run], Floats] | None = None,
) -> None:
    form = "{:.4g}".format
    MEASURES[key] = Column(key, title, of, form, better, "Figures", "", of_peers=of_peers)


def course(run: Run, name: str) -> tuple[Floats, Floats]:
    """Return (R,) rounds and (R,) a field's mean over peers, or a measure of the graph."""
    if name not in SHARES:
        return run.rounds.astype(np.float64), np.nanmean(run.metric(name), axis=1)
    values = [graph_measure(run, at, name) for at in range(len(run.weights))]
    return run.weight_rounds.astype(np.float64), np.array(values)


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


@measure("recovered", "share of the rounds until the true graph %", "low")
def recovered(run: Run) -> float:
    """Return the share of all rounds until a recorded graph equals the true clusters."""
    if run.clusters_to_recover is None:
        return np.nan
    exact = [score(weights, run.clusters_to_recover).exact for weights in run.weights]
    if not any(exact):
        return np.inf
    return float(run.weight_rounds[exact.index(True)] / run.config["num-server-rounds"])


@measure("components", "clusters of the final graph")
def final_components(run: Run) -> float:
    """Return the number of connected components of the final graph."""
    if not len(run.weights):
        return np.nan
    return float(connected_components(csr_array(learnt_edges(run.weights[-1])))[0])


@measure("first_peer", "accuracy of client 1 %", "high")
def first_peer(run: Run) -> float:
    """Return the final test accuracy of peer 0."""
    return float(last(run)[0])


@measure("first_choice", "peer with the largest weight of client 1")
def first_choice(run: Run) -> float:
    """Return the number of the peer to which peer 0 gives its largest final weight."""
    return float(run.weights[-1][0, 1:].argmax() + 1) if len(run.weights) else np.nan


@measure("perplexity", "perplexity", "low")
def perplexity(run: Run) -> float:
    """Return the mean over peers of exp(test loss)."""
    return float(np.nanmean(np.exp(last(run, "test_loss"))))


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


def rounds_to_best(run: Run, beside: Beside) -> float:
    """Return the first round whose mean accuracy is 90 % of the best beside; infinite: never."""
    best = max(float(np.nanmax(measures.course(each, "test_accuracy"))) for each in beside.values())
    reached = np.flatnonzero(measures.course(run, "test_accuracy") >= 0.9 * best)
    return float(run.rounds[reached[0]]) if len(reached) else np.inf


_add("rounds_to_best", "rounds to 90 % of the best", rounds_to_best, "low")


@measure("stationary_loss", "stationary loss", "low")
def stationary_loss(run: Run) -> float:
    """Return the mean test loss over peers and the last three fifths of the recorded rounds."""
    loss_rn = run.metric("test_loss")
    return float(np.nanmean(loss_rn[2 * len(loss_rn) // 5 :]))


@measure("rounds_to_1e-4", "rounds to 1e-4", "low")
def rounds_to(run: Run) -> float:
    """Return the first recorded round with a mean test loss below 1e-4; twice the last if none."""
    below = np.flatnonzero(np.nanmean(run.metric("test_loss"), axis=1) < 1e-4)
    return float(run.rounds[below[0]] if len(below) else 2 * run.rounds[-1])


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
    values_n = last(run, field)
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
    return np.where(of_n == sizes.argmin(), last(run), np.nan)


_add("smallest_cluster", "smallest cluster %", lambda run, _: float(np.nanmean(
    smallest_cluster(run))), "high", smallest_cluster)  # fmt: skip


@measure("cluster_gap", "gap between clusters %", "low")
def cluster_gap(run: Run) -> float:
    """Return the largest difference of the mean final accuracy between two true clusters."""
    if run.clusters is None:
        return np.nan
    accuracy_n = last(run)
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


class Place(NamedTuple):
    """Place of a run in a figure: panel and row by label, and the swept value or None."""

    panel: str
    row: str
    x: Scalar | None


class Trial(NamedTuple):
    """A repetition: the seed that divided the data, and that of all else."""

    split: int
    seed: int


@dataclass(frozen=True)
class Results:
    """The finished runs of a figure.

    Attributes
    ----------
    runs : Mapping of Place to Mapping of Trial to Run
        Runs by place and trial.
    """

    runs: Mapping[Place, Mapping[Trial, Run]]

    def of_peers(self, place: Place, column: str) -> dict[int, Floats]:
        """Return the measure of each peer, (n,), by division of the data: the mean over its seeds.

        (1,) for a measure of the run.
        """
        of_split: dict[int, list[Floats]] = {}
        for trial in self.runs.get(place, {}):
            of_split.setdefault(trial.split, []).append(self._peers(place, trial, column))
        return {split: np.mean(values, axis=0) for split, values in of_split.items()}

    def of_trials(self, place: Place, column: str) -> Floats:
        """Return the measure of each trial, (T,), the mean over peers."""
        values = [self._peers(place, trial, column) for trial in self.runs.get(place, {})]
        return np.array([np.nanmean(v) if not np.isnan(v).all() else np.nan for v in values])

    def mean(self, place: Place, column: str) -> float:
        """Return the mean over trials; NaN without trials."""
        values = self.of_trials(place, column)
        return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else np.nan

    def _peers(self, place: Place, trial: Trial, column: str) -> Floats:
        run = self.runs[place][trial]
        if column not in MEASURES:
            raise ConfigError(f'unknown column "{column}"{nearest(column, MEASURES)}')
        known = MEASURES[column]
        if known.of_peers is None or column in ("gain", "loss_gain"):
            value = known.of(run, self._beside(place, trial))
            return np.array([np.nan if value is None else value])
        return known.of_peers(run)

    def _beside(self, place: Place, trial: Trial) -> dict[str, Run]:
        """Return the runs of the same panel, x and trial, by row and by method or recipe."""
        rows = {
            other.row: of[trial]
            for other, of in self.runs.items()
            if (other.panel, other.x) == (place.panel, place.x) and trial in of
        }
        methods = {run.label: run for run in rows.values()}
        return {f"row {label}": run for label, run in rows.items()} | methods


def title_of(column: str) -> str:
    """Return the title of a measure, or of a field of metrics.jsonl."""
    return _title(column).removesuffix(" %")


def _title(column: str) -> str:
    return MEASURES[column].title if column in MEASURES else column.replace("_", " ")


def better_of(column: str) -> str:
    """Return which end of a column is better: "high", "low" or ""."""
    return "low" if column.endswith("_loss") else MEASURES[column].better


def is_share(column: str) -> bool:
    """Return whether a column is a share, shown in per cent."""
    return column.endswith("_accuracy") or column == "gain" or _title(column).endswith("%")
