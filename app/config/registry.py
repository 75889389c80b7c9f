"""Table of the methods (`coterie.clients.rule`), and plugins by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from coterie.clients.methods.all_for_one import AllForOne
from coterie.clients.methods.boosting import Boosting
from coterie.clients.methods.clustered_fl import ClusteredFL
from coterie.clients.methods.cobo import CoBo
from coterie.clients.methods.dac import DAC, PENS
from coterie.clients.methods.dispfl import DisPFL
from coterie.clients.methods.ditto import APFL, Ditto
from coterie.clients.methods.dpfl import DPFL, RandomGraph
from coterie.clients.methods.fedamp import FedAMP
from coterie.clients.methods.fedavg import FedAvg, FedProx, FineTuned, FineTunedProx, Oracle
from coterie.clients.methods.fedem import FedEM
from coterie.clients.methods.federated_clustering import FederatedClustering
from coterie.clients.methods.federico import FedeRiCo
from coterie.clients.methods.fedfomo import FedFomo
from coterie.clients.methods.fedproto import FedProto
from coterie.clients.methods.fedrep import FedPAC, FedRep
from coterie.clients.methods.ifca import Facade, Ifca
from coterie.clients.methods.knn_per import KNNPer
from coterie.clients.methods.l2c import L2C
from coterie.clients.methods.local import Local, Pooled
from coterie.clients.methods.mixture import Mixture, Selection, Stacking
from coterie.clients.methods.partial_pooling import PartialPooling
from coterie.clients.methods.perfedavg import PerFedAvg
from coterie.clients.methods.pfedgraph import PFedGraph
from coterie.clients.methods.trust import Trust
from coterie.clients.methods.wga import BiasCorrection, Wga
from coterie.clients.methods.yardsticks import Forest, Linear, Mixed, PooledForest, PooledLinear
from coterie.clients.rule import GROUPS, Rule
from coterie.datasets import plugins
from coterie.strategies.schedule import SCHEDULES, ScheduleKind
from coterie.strategies.topology import TOPOLOGIES, Topology

__all__ = ["GROUPS", "METHODS", "YARDSTICKS", "method_of", "schedule_of", "topology_of"]

METHODS: Mapping[str, type[Rule[Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "oracle": Oracle,
    "pooled": Pooled,
    "cobo": CoBo,
    "wga": Wga,
    "bias-correction": BiasCorrection,
    "all-for-one": AllForOne,
    "federico": FedeRiCo,
    "mixture": Mixture,
    "selection": Selection,
    "stacking": Stacking,
    "boosting": Boosting,
    "partial-pooling": PartialPooling,
    "dpfl": DPFL,
    "random-graph": RandomGraph,
    "fedavg-ft": FineTuned,
    "fedprox": FedProx,
    "fedprox-ft": FineTunedProx,
    "ditto": Ditto,
    "apfl": APFL,
    "perfedavg": PerFedAvg,
    "fedrep": FedRep,
    "dispfl": DisPFL,
    "fedpac": FedPAC,
    "fedproto": FedProto,
    "knn-per": KNNPer,
    "pfedgraph": PFedGraph,
    "fedamp": FedAMP,
    "fedfomo": FedFomo,
    "dac": DAC,
    "pens": PENS,
    "trust": Trust,
    "l2c": L2C,
    "ifca": Ifca,
    "facade": Facade,
    "federated-clustering": FederatedClustering,
    "clustered-fl": ClusteredFL,
    "fedem": FedEM,
}
"""Name -> method, in the order of lists."""

YARDSTICKS: Mapping[str, type[Rule[Any]]] = {
    "logistic": Linear,
    "logistic-pooled": PooledLinear,
    "ridge": Linear,
    "ridge-pooled": PooledLinear,
    "mixed": Mixed,
    "forest": Forest,
    "forest-pooled": PooledForest,
}
"""Name -> yardstick, a row that comparisons of tables add."""


def method_of(name: str) -> type[Rule[Any]]:
    """Return a built-in method or a plugin by name; PluginError: there is none."""
    built_in = METHODS.get(name) or YARDSTICKS.get(name)
    part = built_in or plugins.load("method", name)
    if isinstance(part, type) and issubclass(part, Rule):
        return part
    raise plugins.PluginError(
        f'method = "{name}" is a {type(part).__name__}: it must be a class that extends '
        "coterie.Rule"
    )


topology_of = partial(plugins.row, "topology", built_in=TOPOLOGIES, wanted=Topology)
"""Topology by name, built in or of a plugin."""

schedule_of = partial(plugins.row, "schedule", built_in=SCHEDULES, wanted=ScheduleKind)
"""Kind of schedule by name, built in or of a plugin."""
