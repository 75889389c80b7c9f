"""The methods: who talks to whom (a strategy) and what a peer computes (a rule), by name."""

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
from strategies.brokering import Brokering
from strategies.everyone import Everyone
from strategies.pairs import Pairs
from strategies.protocol import METRICS
from strategies.silent import Silent
from strategies.wanted import Wanted, WantedAnswers, WantedHelp


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes
    ----------
    rule : what a peer computes.
    options : dataclass of the method's options, the table named after the method.
    strategy : which edges a round has.
    summary : one line for people.
    strategy_options : fields of `options` that the strategy takes, too.
    exposes : why differential privacy does not cover the method: what depends on private examples
        by another way than gradients. "": nothing does.
    learns_graph : whether the weights between peers come out of what the models do on the data.
    """

    rule: type[Rule[Any]]
    options: type
    strategy: type[Brokering]
    summary: str
    strategy_options: tuple[str, ...] = ()
    learns_graph: bool = False
    exposes: str = ""

    def brokering(self, options: object, **run: Any) -> Brokering:
        """Make the strategy of a run; `run` are the fields of `Brokering`."""
        own = {name: getattr(options, name) for name in self.strategy_options}
        return self.strategy(metrics=METRICS.union(self.rule.reported), **run, **own)

    @property
    def validates(self) -> bool:
        """Whether peers judge models by validation data; its options say so."""
        return getattr(self.options, "validates", False)


_LOSSES = "losses on private examples choose its weights"
_CHOICE = "losses on private examples choose its models"
_MEMORY = "it predicts from a memory of private examples"
_TUNED = "each evaluation trains on private examples again"

METHODS: dict[str, Method] = {
    "local": Method(local.Local, local.Options, Silent, "every peer trains alone"),
    "fedavg": Method(fedavg.FedAvg, fedavg.Options, Everyone, "one model, averaged over all"),
    "oracle": Method(oracle.Oracle, oracle.Options, Wanted, "FedAvg inside the true cluster"),
    "cobo": Method(
        cobo.CoBo,
        cobo.Options,
        Pairs,
        "pairs whose gradients align at their midpoint attract",
        strategy_options=("sampling", "probability"),
        learns_graph=True,
    ),
    "wga": Method(wga.Wga, wga.Options, WantedHelp, "own gradient averaged with the helpers'"),
    "bias-correction": Method(
        bias_correction.BiasCorrection,
        bias_correction.Options,
        WantedHelp,
        "WGA less the helpers' bias, which it learns",
    ),
    "all-for-one": Method(
        all_for_one.AllForOne,
        all_for_one.Options,
        WantedHelp,
        "averages, at the own model, the gradients that resemble the own one",
        learns_graph=True,
    ),
    "federico": Method(
        federico.FedeRiCo,
        federico.Options,
        WantedAnswers,
        "trains the models that explain its data and predicts with their mixture",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "dpfl": Method(
        dpfl.DPFL,
        dpfl.Options,
        Wanted,
        "averages with those who lower its validation loss",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "random-graph": Method(
        random_graph.RandomGraph,
        random_graph.Options,
        Wanted,
        "DPFL with random neighbours",
        exposes=_CHOICE,
    ),
    "fedavg-ft": Method(
        fine_tuning.FineTuned,
        fine_tuning.Options,
        Everyone,
        "FedAvg, fine-tuned by each peer",
        exposes=_CHOICE,
    ),
    "fedprox": Method(
        fedprox.FedProx, fedprox.Options, Everyone, "FedAvg with a proximal term in local training"
    ),
    "fedprox-ft": Method(
        fine_tuning.FineTunedProx,
        fine_tuning.ProxOptions,
        Everyone,
        "FedProx, fine-tuned by each peer",
        exposes=_CHOICE,
    ),
    "ditto": Method(
        ditto.Ditto, ditto.Options, Everyone, "an own model each, pulled towards FedAvg's"
    ),
    "apfl": Method(apfl.APFL, apfl.Options, Everyone, "a mixture of an own and FedAvg's model"),
    "perfedavg": Method(
        perfedavg.PerFedAvg,
        perfedavg.Options,
        Everyone,
        "one model that is good after an own step",
        exposes=_TUNED,
    ),
    "fedrep": Method(fedrep.FedRep, fedrep.Options, Everyone, "a shared body, a head of one's own"),
    "knn-per": Method(
        knn_per.KNNPer,
        knn_per.Options,
        Everyone,
        "FedAvg's model and the nearest own examples",
        exposes=_MEMORY,
    ),
    "pfedgraph": Method(
        pfedgraph.PFedGraph,
        pfedgraph.Options,
        Everyone,
        "averages with those who moved alike",
        learns_graph=True,
    ),
    "fedfomo": Method(
        fedfomo.FedFomo,
        fedfomo.Options,
        Wanted,
        "adds what lowers the loss on held-out data",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "ifca": Method(
        ifca.Ifca,
        ifca.Options,
        Everyone,
        "K models, each trained by those whom it fits best",
        learns_graph=True,
        exposes=_LOSSES,
    ),
    "federated-clustering": Method(
        federated_clustering.FederatedClustering,
        federated_clustering.Options,
        WantedHelp,
        "a mean of gradients that is clipped around the own one",
        learns_graph=True,
    ),
    "clustered-fl": Method(
        clustered_fl.ClusteredFL,
        clustered_fl.Options,
        Wanted,
        "FedAvg in clusters that split",
        learns_graph=True,
    ),
    "fedem": Method(
        fedem.FedEM,
        fedem.Options,
        Everyone,
        "data as a mixture of K distributions, learnt by all",
        learns_graph=True,
        exposes=_LOSSES,
    ),
}
"""Name -> method."""
