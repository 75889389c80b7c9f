"""Registry of methods: name -> strategy (edges of a round) and rule (computation of a peer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clients.methods import (
    all_for_one,
    apfl,
    bias_correction,
    clustered_fl,
    cobo,
    ditto,
    dpfl,
    fedavg,
    fedem,
    federated_clustering,
    federico,
    fedfomo,
    fedprox,
    fedrep,
    fine_tuning,
    ifca,
    knn_per,
    local,
    oracle,
    perfedavg,
    pfedgraph,
    random_graph,
    wga,
)
from clients.rule import Rule
from datasets import plugins
from strategies.brokering import Brokering
from strategies.everyone import Everyone
from strategies.pairs import Pairs
from strategies.protocol import METRICS
from strategies.silent import Silent
from strategies.wanted import Wanted, WantedAnswers, WantedHelp

__all__ = ["METHODS", "Method", "method_of"]


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
    strategy_options : tuple[str, ...]
        Fields of `options` that the strategy also takes.
    learns_graph : bool
        Whether the method learns the weights between peers from models and data.
    exposes : str
        Reason why differential privacy does not cover the method: a dependence on private examples
        other than gradients. Empty: covered.
    """

    strategy: type[Brokering]
    rule: type[Rule[Any]]
    options: type
    summary: str = "of a plugin"
    strategy_options: tuple[str, ...] = ()
    learns_graph: bool = False
    exposes: str = ""

    def brokering(self, options: object, **run: Any) -> Brokering:
        """Return the strategy of a run; `run` has the fields of `Brokering`."""
        own = {name: getattr(options, name) for name in self.strategy_options}
        return self.strategy(metrics=METRICS.union(self.rule.reported), **run, **own)

    @property
    def validates(self) -> bool:
        """Return whether the method needs validation data."""
        return getattr(self.options, "validates", False)


_LOSSES = "losses on private examples choose its weights"
_CHOICE = "losses on private examples choose its models"
_MEMORY = "it predicts from a memory of private examples"
_TUNED = "each evaluation trains on private examples again"

METHODS: dict[str, Method] = {
    "local": Method(Silent, local.Local, local.Options, "every peer trains alone"),
    "fedavg": Method(Everyone, fedavg.FedAvg, fedavg.Options, "one model, averaged over all"),
    "oracle": Method(Wanted, oracle.Oracle, oracle.Options, "FedAvg inside the true cluster"),
    "cobo": Method(
        Pairs,
        cobo.CoBo,
        cobo.Options,
        "pairs whose gradients align at their midpoint attract",
        strategy_options=("sampling", "probability"),
        learns_graph=True,
    ),
    "wga": Method(WantedHelp, wga.Wga, wga.Options, "own gradient averaged with the helpers'"),
    "bias-correction": Method(
        WantedHelp,
        bias_correction.BiasCorrection,
        bias_correction.Options,
        "WGA less the helpers' bias, which it learns",
    ),
    "all-for-one": Method(
        WantedHelp,
        all_for_one.AllForOne,
        all_for_one.Options,
        "averages, at the own model, the gradients that resemble the own one",
        learns_graph=True,
    ),
    "federico": Method(
        WantedAnswers,
        federico.FedeRiCo,
        federico.Options,
        "trains the models that explain its data and predicts with their mixture",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "dpfl": Method(
        Wanted,
        dpfl.DPFL,
        dpfl.Options,
        "averages with those who lower its validation loss",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "random-graph": Method(
        Wanted,
        random_graph.RandomGraph,
        random_graph.Options,
        "DPFL with random neighbours",
        exposes=_CHOICE,
    ),
    "fedavg-ft": Method(
        Everyone,
        fine_tuning.FineTuned,
        fine_tuning.Options,
        "FedAvg, fine-tuned by each peer",
        exposes=_CHOICE,
    ),
    "fedprox": Method(
        Everyone, fedprox.FedProx, fedprox.Options, "FedAvg with a proximal term in local training"
    ),
    "fedprox-ft": Method(
        Everyone,
        fine_tuning.FineTunedProx,
        fine_tuning.ProxOptions,
        "FedProx, fine-tuned by each peer",
        exposes=_CHOICE,
    ),
    "ditto": Method(
        Everyone, ditto.Ditto, ditto.Options, "an own model each, pulled towards FedAvg's"
    ),
    "apfl": Method(Everyone, apfl.APFL, apfl.Options, "a mixture of an own and FedAvg's model"),
    "perfedavg": Method(
        Everyone,
        perfedavg.PerFedAvg,
        perfedavg.Options,
        "one model that is good after an own step",
        exposes=_TUNED,
    ),
    "fedrep": Method(Everyone, fedrep.FedRep, fedrep.Options, "a shared body, a head of one's own"),
    "knn-per": Method(
        Everyone,
        knn_per.KNNPer,
        knn_per.Options,
        "FedAvg's model and the nearest own examples",
        exposes=_MEMORY,
    ),
    "pfedgraph": Method(
        Everyone,
        pfedgraph.PFedGraph,
        pfedgraph.Options,
        "averages with those who moved alike",
        learns_graph=True,
    ),
    "fedfomo": Method(
        Wanted,
        fedfomo.FedFomo,
        fedfomo.Options,
        "adds what lowers the loss on held-out data",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "ifca": Method(
        Everyone,
        ifca.Ifca,
        ifca.Options,
        "K models, each trained by those whom it fits best",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "federated-clustering": Method(
        WantedHelp,
        federated_clustering.FederatedClustering,
        federated_clustering.Options,
        "a mean of gradients that is clipped around the own one",
        learns_graph=True,
    ),
    "clustered-fl": Method(
        Wanted,
        clustered_fl.ClusteredFL,
        clustered_fl.Options,
        "FedAvg in clusters that split",
        learns_graph=True,
    ),
    "fedem": Method(
        Everyone,
        fedem.FedEM,
        fedem.Options,
        "data as a mixture of K distributions, learnt by all",
        learns_graph=True,
        exposes=_LOSSES,
    ),
}
"""Name -> method."""


def method_of(name: str) -> Method:
    """Return a built-in method or a plugin by name.

    Raises
    ------
    PluginError
        If there is no such plugin, or it is not a method.
    """
    if name in METHODS:
        return METHODS[name]
    found = plugins.load("method", name)
    if not isinstance(found, Method):
        raise plugins.PluginError(
            f'method = "{name}" is a {type(found).__name__}: it must be a '
            "coterie.Method(strategy, rule, options)"
        )
    plugins.checked_options(found.options, name)
    return found
