"""Measures of the papers' figures, beside those of comparisons; see `experiments.measures`.

Shapes: n peers, R evaluated rounds, C recorded graphs, K components of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from safetensors.numpy import load_file

from coterie.app.experiments import measures
from coterie.app.experiments.measures import Better, Column, SameTrial
from coterie.app.runs import graph
from coterie.app.runs.graph import GraphScores, learnt_edges, score
from coterie.app.runs.rundir import Floats, Ints, Run

SHARES = {"asymmetry", "symmetry", "one_way", "sparsity", "to_attackers"}
"""Measures of the graph of a round, see `graph_measure`."""


def graph_measure(run: Run, name: str, at: int = -1) -> float:
    """Return a measure of the recorded graph number `at`; NaN without links."""
    # Also: asymmetry = 1 - symmetry; one_way, the share of pairs with a link in one direction only.
    if not -len(run.weights) <= at < len(run.weights):
        return np.nan
    if name == "one_way":
        edges_nn = learnt_edges(run.weights[at])
        return float((edges_nn ^ edges_nn.T).sum() / (run.peers * (run.peers - 1)))
    if name == "asymmetry":
        return 1 - graph_measure(run, "symmetry", at)
    value = graph.measured(run.weights[at], run).get(name)
    return np.nan if value is None else float(value)


def _first_graph(run: Run, name: str) -> float:
    """Return a measure of the initial graph: that of the first round after round 0."""
    later = np.flatnonzero(run.weight_rounds > 0)
    return graph_measure(run, name, int(later[0])) if len(later) else np.nan


def _rise(run: Run, name: str) -> float:
    return graph_measure(run, name) - _first_graph(run, name)


def _before_averaging(run: Run, _: SameTrial) -> Floats:
    if "best_before_averaging_test_accuracy" in run.metrics:
        return run.last("best_before_averaging_test_accuracy")
    return measures.best(run, by_accuracy=False)


def _until_graph(run: Run, test: Callable[[GraphScores], bool]) -> float:
    if run.clusters is None:
        return np.nan
    passed = [test(score(weights, run.clusters)) for weights in run.weights]
    if not any(passed):
        return np.inf
    return float(run.weight_rounds[passed.index(True)] / run.settings.num_server_rounds)


def _components(run: Run) -> float:
    if not len(run.weights):
        return np.nan
    edges_nn = learnt_edges(run.weights[-1])
    return float(graph.components(edges_nn | edges_nn.T).max() + 1)


def _consensus(run: Run, clusters_n: Ints) -> float:
    x_nd = np.stack(
        [
            np.concatenate([np.ravel(part) for _, part in sorted(load_file(file).items())])
            for file in sorted((run.directory / "models").glob("peer-*.safetensors"))
        ]
    ).astype(np.float64)
    apart_nn = np.square(x_nd[:, None] - x_nd).mean(axis=-1)
    return float(apart_nn[clusters_n[:, None] == clusters_n].mean())


def _gradient_norm(run: Run) -> float:
    curvature = float(run.settings.dataset_options["user-curvature"])
    return float(2 * curvature * np.nanmean(run.metric("test_loss")[:-1]))


def _rounds_to_best(run: Run, same_trial: SameTrial) -> float:
    if same_trial.best is None:
        return np.nan
    target = measures.SHARE_OF_BEST * same_trial.best.course()[-1]
    return measures.cost_to(run.course(), target, run.rounds.astype(np.float64))


def _losses(run: Run) -> Floats:
    """Return the mean test loss over peers, (R,)."""
    return np.asarray(np.nanmean(run.metric("test_loss"), axis=1), dtype=np.float64)


def _weighted(run: Run, field: str) -> float:
    """Return the mean of a field's last values, weighted by training examples."""
    weights_n = np.ones(run.peers) if run.samples is None else run.samples
    return float(np.average(run.last(field), weights=weights_n))


def _log_loss(run: Run, part: str) -> float:
    return float(np.log10(_weighted(run, f"{part}_loss")))


def _variance(run: Run) -> float:
    best_n = measures.best(run)
    return np.nan if np.isnan(best_n).all() else float(np.nanvar(100 * best_n))


def _smallest_cluster(run: Run, _: SameTrial) -> Floats:
    """Return the final accuracy (n,) of the peers of the smallest true cluster; NaN: others."""
    if run.clusters is None:
        return np.full(run.peers, np.nan)
    of_n, sizes = np.unique(run.clusters, return_inverse=True, return_counts=True)[1:]
    return np.where(of_n == sizes.argmin(), run.last(), np.nan)


def _cluster_gap(run: Run, clusters_n: Ints) -> float:
    accuracy_n = run.last()
    means = [np.nanmean(accuracy_n[clusters_n == c]) for c in np.unique(clusters_n)]
    return float(np.ptp(means))


def _components_used(run: Run) -> float:
    final_kn = components(run)[-1]
    return float(len(set(final_kn.argmax(axis=0)))) if len(final_kn) else np.nan


def components(run: Run) -> Floats:
    """Return the mixture weights of a run's components over rounds, (R, K, n); K = 0 without."""
    names = sorted(name for name in run.metrics if name.startswith("component_"))
    shape = (len(run.rounds), 0, run.peers)
    return np.stack([run.metric(name) for name in names], axis=1) if names else np.empty(shape)


_column = partial(Column, group="Figures", show="{:.4g}".format)


def _figure(
    key: str, title: str, better: Better, of: Callable[[Run], float], about: str = ""
) -> Column:
    """Return a measure of a run alone."""
    return _column(key, title, better, about=about, of_run=lambda run, _: of(run))


def _of_clusters(
    key: str, title: str, better: Better, of: Callable[[Run, Ints], float], about: str
) -> Column:
    """Return a measure of a run and its true clusters, (n,); NaN without clusters."""
    return _figure(
        key, title, better,
        lambda run: np.nan if run.clusters is None else of(run, run.clusters), about,
    )  # fmt: skip


_GRAPHS = ("sparsity", "symmetry", "one_way", "to_attackers")
_FIGURES = (
    *(_figure(f"{when}_{name}", f"{word} {name.replace('_', ' ')} %", "", partial(of, name=name))
      for when, word, of in (("first", "initial", _first_graph), ("last", "final", graph_measure))
      for name in _GRAPHS),
    _figure("sparsity_rise", "final minus initial sparsity %", "high",
            partial(_rise, name="sparsity")),
    _figure("one_way_rise", "final minus initial one-way pairs %", "low",
            partial(_rise, name="one_way")),
    _figure("variance", "variance over peers", "low", _variance,
            "Variance over peers of the best-on-validation test accuracy, in squared points."),
    _column("before_averaging", "lowest validation loss, before averaging %", "high",
            about="Mean test accuracy in the round with the lowest validation loss of each peer; "
            "of a method that records its models before averaging (DPFL), of these.",
            of_peers=_before_averaging),
    *(_figure(key, f"share of the rounds until the {graph} %", "low",
              partial(_until_graph, test=test),
              f"Share of all rounds until a recorded graph {what} the true clusters.")
      for key, graph, what, test in (
          ("recovered", "true graph", "equals", lambda scores: scores.exact),
          ("similar", "graph's F1 is 0.9", "has an F1 of 0.9 to",
           lambda scores: (scores.f1 or 0.0) >= 0.9))),
    _figure("components", "clusters of the final graph", "", _components,
            "Number of connected components of the final graph."),
    _figure("first_peer", "accuracy of client 1 %", "high", lambda run: float(run.last()[0]),
            "Final test accuracy of peer 0."),
    _figure("first_choice", "peer with the largest weight of client 1", "",
            lambda run: float(run.weights[-1][0, 1:].argmax() + 1) if len(run.weights) else np.nan,
            "Number of the peer to which peer 0 gives its largest final weight."),
    _figure("perplexity", "perplexity", "low",
            lambda run: float(np.nanmean(np.exp(run.last("test_loss")))),
            "Mean over peers of exp(test loss)."),
    _of_clusters("consensus", "squared distance in a cluster, per dimension", "low", _consensus,
                 "Mean of |x_i - x_j|^2 / d over ordered pairs of a true cluster, final models."),
    _figure("gradient_norm", "squared gradient norm, mean over rounds, per dimension", "low",
            _gradient_norm,
            "Mean over users and recorded rounds of |grad f|^2 / d on noisy quadratics: "
            "a/2 |x - c|^2 has |grad f|^2 = 2 a f."),
    _column("rounds_to_best", "rounds to 90 % of the best", "low",
            about="First round with 90 % of the best final accuracy of the panel.",
            of_run=_rounds_to_best),
    _figure("stationary_loss", "stationary loss", "low",
            lambda run: float(np.nanmean(run.metric("test_loss")[2 * len(run.rounds) // 5 :])),
            "Mean test loss over peers and the last three fifths of the recorded rounds."),
    _figure("rounds_to_1e-4", "rounds to 1e-4", "low",
            lambda run: measures.cost_to(-_losses(run), -1e-4, run.rounds.astype(np.float64)),
            "First recorded round with a mean test loss of at most 1e-4."),
    _figure("weighted_train", "weighted train %", "", partial(_weighted, field="train_accuracy"),
            "Final accuracy on training data, peers weighted by their training examples."),
    _figure("train_gap", "train minus test %", "high",
            lambda run: _weighted(run, "train_accuracy") - _weighted(run, "test_accuracy"),
            "Weighted train accuracy minus weighted test accuracy."),
    *(_figure(f"log_{part}_loss", f"log10 of {part} loss", "low",
              partial(_log_loss, part=part), "Decimal logarithm of the final weighted loss.")
      for part in ("train", "test")),
    _figure("rise", "largest loss / first loss", "low",
            lambda run: float(_losses(run).max() / _losses(run)[0]),
            "Largest mean test loss over peers relative to that of the first recorded round."),
    _figure("course", "mean over rounds %", "high",
            lambda run: float(np.nanmean(run.metric("test_accuracy"))),
            "Mean test accuracy over peers and recorded rounds: high where it rises early."),
    _figure("largest_weight", "largest weight, mean over rounds", "high",
            lambda run: float(run.weights[run.weight_rounds > 0].max(axis=2).mean()),
            "Mean over peers and recorded rounds of a peer's largest weight; 1: one-hot."),
    _of_clusters("outside_weight", "weight of other clusters", "low",
                 lambda run, c_n: float((run.weights[-1] * (c_n[:, None] != c_n)).sum(1).mean()),
                 "Mean over peers of the final weight that goes to peers of other clusters."),
    _column("smallest_cluster", "smallest cluster %", "high",
            about="Mean final accuracy of the peers of the smallest true cluster.",
            of_peers=_smallest_cluster),
    _of_clusters("cluster_gap", "gap between clusters %", "low", _cluster_gap,
                 "Largest difference of the mean final accuracy between two true clusters."),
    _figure("weight_change", "change of weights per recorded round", "high",
            lambda run: float(
                np.abs(np.diff(run.weights[run.weight_rounds > 0], axis=0)).sum(axis=2).mean() / 2),
            "Mean over rounds and peers of sum_j |w_ij(t) - w_ij(t - 1)| / 2."),
    _figure("components_used", "components that lead for a client", "high", _components_used,
            "Number of FedEM's components that have the largest weight at some peer."),
)  # fmt: skip
MEASURES: dict[str, Column] = {**measures.MEASURES, **{column.key: column for column in _FIGURES}}
"""Key -> measure: the columns of a comparison, and those of figures."""
