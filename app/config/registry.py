"""Table of the methods, and plugins by name.

A row of `METHODS` combines a strategy (edges of a round) and a rule (computation of a peer). The
tables of the other parts: `coterie.clients.models.options.MODELS`,
`coterie.datasets.table.DATASETS`,
`coterie.datasets.partition.kinds.KINDS`, `coterie.strategies.topology.TOPOLOGIES`,
`coterie.strategies.schedule.SCHEDULES`, `coterie.clients.attack.ATTACKS`,
`coterie.clients.defence.RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from coterie.clients.methods import (
    all_for_one,
    apfl,
    bias_correction,
    clustered_fl,
    cobo,
    dac,
    dispfl,
    ditto,
    dpfl,
    facade,
    fedamp,
    fedavg,
    fedem,
    federated_clustering,
    federico,
    fedfomo,
    fedpac,
    fedproto,
    fedprox,
    fedrep,
    fine_tuning,
    ifca,
    knn_per,
    l2c,
    local,
    oracle,
    pens,
    perfedavg,
    pfedgraph,
    pooled,
    random_graph,
    trust,
    wga,
    yardsticks,
)
from coterie.clients.rule import Rule
from coterie.datasets import plugins
from coterie.strategies.brokering import Brokering
from coterie.strategies.everyone import Everyone, EveryoneAfterWarmup
from coterie.strategies.pairs import Pairs
from coterie.strategies.protocol import METRICS
from coterie.strategies.schedule import SCHEDULES, ScheduleKind
from coterie.strategies.silent import Silent
from coterie.strategies.topology import TOPOLOGIES, Topology
from coterie.strategies.wanted import Wanted, WantedAnswers, WantedHelp

__all__ = [
    "GROUPS",
    "METHODS",
    "YARDSTICKS",
    "Group",
    "Method",
    "method_of",
    "schedule_of",
    "topology_of",
]


Group = Literal["unknown", "groups", "personal", "helpers", "alike", "references"]
GROUPS: Mapping[Group, str] = {
    "unknown": "Unknown similarity of peers",
    "groups": "A few groups of similar peers",
    "personal": "A shared model with personal parts or copies",
    "helpers": "A few peers that want help",
    "alike": "Similar peers",
    "references": "References, to run beside the others",
}
"""Group of methods -> the situation in which to choose one of them, in the order of lists."""


@dataclass(frozen=True)
class Method:
    """Method: a strategy, a rule and an options dataclass.

    Attributes
    ----------
    strategy : type[Brokering]
        Strategy, which selects the edges of a round.
    rule : type[Rule]
        Rule, which defines the computation of a peer.
    options : type
        Frozen dataclass of the method's options: the table named after the method, or
        [method-options] for a plugin.
    summary : str
        Description in one line.
    group : {"unknown", "groups", "personal", "helpers", "alike", "references"} or None
        Situation in which to choose the method, see `GROUPS`; None for plugins.
    strategy_options : tuple of str
        Fields of `options` that the strategy also takes.
    learns_graph : bool
        True if the method learns the weights between peers from models and data.
    told_truth : bool or Mapping of str to str
        True if the method is given the true clusters, which other methods must learn; or the
        option keys and values with which it is.
    reference : str
        Reason why the method is not ranked, as "NAME ..."; empty: it is, unless it is told the
        truth.
    exposes : str
        Reason why differential privacy does not cover the method: a dependence on private examples
        other than gradients. Empty: covered.
    """

    strategy: type[Brokering]
    rule: type[Rule[Any]]
    options: type
    summary: str = "plugin"
    group: Group | None = None
    strategy_options: tuple[str, ...] = ()
    learns_graph: bool = False
    told_truth: bool | Mapping[str, str] = False
    reference: str = ""
    exposes: str = ""

    def brokering(self, options: object, **run: Any) -> Brokering:
        """Return the strategy of a run; `run` has the fields of `Brokering`."""
        values = {name: getattr(options, name) for name in self.strategy_options}
        return self.strategy(metrics=METRICS.union(self.rule.reported), **run, **values)

    @property
    def validates(self) -> bool:
        """True if the method needs validation data."""
        return getattr(self.options, "validates", False)

    def is_told(self, options: Mapping[str, Any]) -> bool:
        """Return whether the method is given the true clusters.

        Parameters
        ----------
        options : Mapping
            Keys and values of the method's table.
        """
        if isinstance(self.told_truth, bool):
            return self.told_truth
        return any(options.get(key) == value for key, value in self.told_truth.items())

    def unranked(self, options: Mapping[str, Any]) -> str:
        """Return why the method with these options is a reference; empty if it is ranked."""
        return self.reference or self.is_told(options) * "is given the true clusters"


_LOSSES = "losses on private examples choose its weights"
_CHOICE = "losses on private examples choose its models"
_MEMORY = "it predicts from a memory of private examples"
_FEATURES = "its letters hold mean features of private examples"
_POOLED = "it trains on the private examples of all peers"
_TUNED = "each evaluation trains on private examples again"

METHODS: dict[str, Method] = {
    "local": Method(
        Silent,
        local.Local,
        local.Options,
        "every peer trains alone",
        group="references",
    ),
    "fedavg": Method(
        Everyone,
        fedavg.FedAvg,
        fedavg.Options,
        "one model, averaged over all",
        group="alike",
    ),
    "oracle": Method(
        Wanted,
        oracle.Oracle,
        oracle.Options,
        "FedAvg inside the true cluster",
        group="references",
        told_truth=True,
    ),
    "pooled": Method(
        Silent,
        pooled.Pooled,
        pooled.Options,
        "one model, trained on the data of all peers",
        group="references",
        reference="is trained on the data of all peers",
        exposes=_POOLED,
    ),
    "cobo": Method(
        Pairs,
        cobo.CoBo,
        cobo.Options,
        "pairs whose gradients align at their midpoint attract",
        group="unknown",
        strategy_options=("sampling", "probability"),
        learns_graph=True,
    ),
    "wga": Method(
        WantedHelp,
        wga.Wga,
        wga.Options,
        "averages its gradient with the helpers'",
        group="helpers",
        told_truth={"helpers": "cluster"},
    ),
    "bias-correction": Method(
        WantedHelp,
        bias_correction.BiasCorrection,
        bias_correction.Options,
        "WGA less the helpers' bias, which it learns",
        group="helpers",
        told_truth={"helpers": "cluster", "bias": "oracle"},
    ),
    "all-for-one": Method(
        WantedHelp,
        all_for_one.AllForOne,
        all_for_one.Options,
        "averages the gradients at its model that resemble its own",
        group="unknown",
        learns_graph=True,
        told_truth={"criterion": "oracle"},
    ),
    "federico": Method(
        WantedAnswers,
        federico.FedeRiCo,
        federico.Options,
        "trains the models that explain its data and predicts with their mixture",
        group="unknown",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "dpfl": Method(
        Wanted,
        dpfl.DPFL,
        dpfl.Options,
        "averages with peers that lower its validation loss",
        group="unknown",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "random-graph": Method(
        Wanted,
        random_graph.RandomGraph,
        random_graph.Options,
        "DPFL with random neighbours",
        group="references",
        exposes=_CHOICE,
    ),
    "fedavg-ft": Method(
        Everyone,
        fine_tuning.FineTuned,
        fine_tuning.Options,
        "FedAvg, fine-tuned by each peer",
        group="personal",
        exposes=_CHOICE,
    ),
    "fedprox": Method(
        Everyone,
        fedprox.FedProx,
        fedprox.Options,
        "FedAvg with a proximal term in local training",
        group="alike",
    ),
    "fedprox-ft": Method(
        Everyone,
        fine_tuning.FineTunedProx,
        fine_tuning.ProxOptions,
        "FedProx, fine-tuned by each peer",
        group="personal",
        exposes=_CHOICE,
    ),
    "ditto": Method(
        Everyone,
        ditto.Ditto,
        ditto.Options,
        "a personal model per peer, pulled towards FedAvg's",
        group="personal",
    ),
    "apfl": Method(
        Everyone,
        apfl.APFL,
        apfl.Options,
        "a mixture of a personal model and FedAvg's",
        group="personal",
    ),
    "perfedavg": Method(
        Everyone,
        perfedavg.PerFedAvg,
        perfedavg.Options,
        "one model that is good after a local step",
        group="personal",
        exposes=_TUNED,
    ),
    "fedrep": Method(
        Everyone,
        fedrep.FedRep,
        fedrep.Options,
        "a shared body, and a personal head",
        group="personal",
    ),
    "dispfl": Method(
        Everyone,
        dispfl.DisPFL,
        dispfl.Options,
        "sparse models with personal masks, averaged entry by entry",
        group="personal",
    ),
    "fedpac": Method(
        Everyone,
        fedpac.FedPAC,
        fedpac.Options,
        "a shared body with aligned features, and heads mixed among similar peers",
        group="personal",
        learns_graph=True,
        exposes=_FEATURES,
    ),
    "fedproto": Method(
        Everyone,
        fedproto.FedProto,
        fedproto.Options,
        "personal models, whose features of a class are pulled towards the mean over all",
        group="personal",
        exposes=_FEATURES,
    ),
    "knn-per": Method(
        Everyone,
        knn_per.KNNPer,
        knn_per.Options,
        "FedAvg's model and the nearest local examples",
        group="personal",
        exposes=_MEMORY,
    ),
    "pfedgraph": Method(
        Everyone,
        pfedgraph.PFedGraph,
        pfedgraph.Options,
        "averages with peers that moved alike",
        group="unknown",
        learns_graph=True,
    ),
    "fedamp": Method(
        Everyone,
        fedamp.FedAMP,
        fedamp.Options,
        "trains towards a mean of the models that are near its own",
        group="unknown",
        learns_graph=True,
    ),
    "fedfomo": Method(
        Wanted,
        fedfomo.FedFomo,
        fedfomo.Options,
        "adds models that lower the loss on held-out data",
        group="unknown",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "dac": Method(
        Wanted,
        dac.DAC,
        dac.Options,
        "averages with peers drawn by the losses of their models",
        group="unknown",
        learns_graph=True,
        exposes=_CHOICE,
    ),
    "pens": Method(
        Wanted,
        pens.PENS,
        pens.Options,
        "neighbours are peers whose models often had the smallest losses",
        group="unknown",
        learns_graph=True,
        exposes=_CHOICE,
    ),
    "trust": Method(
        EveryoneAfterWarmup,
        trust.Trust,
        trust.Options,
        "averages all models by their similarity on its validation data",
        group="unknown",
        strategy_options=("warmup",),
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "l2c": Method(
        Wanted,
        l2c.L2C,
        l2c.Options,
        "learns the weights of an average on held-out data",
        group="unknown",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "ifca": Method(
        Everyone,
        ifca.Ifca,
        ifca.Options,
        "K models, each trained by the peers that it fits best",
        group="groups",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "facade": Method(
        Everyone,
        facade.Facade,
        facade.Options,
        "one core, and K heads, each trained by the peers that it fits best",
        group="groups",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "federated-clustering": Method(
        WantedHelp,
        federated_clustering.FederatedClustering,
        federated_clustering.Options,
        "a mean of gradients, clipped around the peer's own",
        group="unknown",
        learns_graph=True,
        told_truth={"radius": "truth"},
    ),
    "clustered-fl": Method(
        Wanted,
        clustered_fl.ClusteredFL,
        clustered_fl.Options,
        "FedAvg in clusters that split",
        group="groups",
        learns_graph=True,
    ),
    "fedem": Method(
        Everyone,
        fedem.FedEM,
        fedem.Options,
        "data as a mixture of K distributions, learnt by all",
        group="groups",
        learns_graph=True,
        exposes=_LOSSES,
    ),
}
"""Name -> method."""


_HELD = "it is a reference without privacy"

YARDSTICKS: dict[str, Method] = {
    name: Method(
        Silent,
        rule,
        local.Options,
        f"scikit-learn's {what}",
        group="references",
        reference="is scikit-learn's",
        exposes=_HELD,
    )
    for name, rule, what in (
        ("logistic", yardsticks.Linear, "logistic regression, by each peer alone"),
        ("logistic-pooled", yardsticks.PooledLinear, "logistic regression on all peers' data"),
        ("ridge", yardsticks.Linear, "ridge regression, by each peer alone"),
        ("ridge-pooled", yardsticks.PooledLinear, "ridge regression on all peers' data"),
        ("forest", yardsticks.Forest, "random forest, by each peer alone"),
        ("forest-pooled", yardsticks.PooledForest, "random forest on all peers' data"),
    )
}
"""Name -> yardstick, a row that comparisons of tables add."""


def method_of(name: str) -> Method:
    """Return a built-in method or a plugin by name.

    Raises
    ------
    PluginError
        If there is no such plugin, or it is not a method.
    """
    method = plugins.row("method", name, METHODS | YARDSTICKS, Method)
    plugins.checked_options(method.options, name)
    return method


topology_of = partial(plugins.row, "topology", built_in=TOPOLOGIES, wanted=Topology)
"""Topology by name, built in or of a plugin."""

schedule_of = partial(plugins.row, "schedule", built_in=SCHEDULES, wanted=ScheduleKind)
"""Kind of schedule by name, built in or of a plugin."""
