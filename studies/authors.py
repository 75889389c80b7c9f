"""Comparison of rules with the code of their authors, on the same inputs.

    python -m studies.authors FOLDER [METHOD ...]

FOLDER has a clone per repository, FOLDER/<owner>/<name>; docs/methods/checked.md names commits.
Nothing of that code is in this project: the functions under comparison, and three cells of a
notebook, are taken from the clones and executed when the comparison runs. It prints a line per
comparison: the largest absolute difference between their numbers and ours, both from random models
of a small network (digits, five peers with different amounts of data) in float64. pFedGraph needs
the package cvxpy, WGA sympy.

The exit status is 1 if a gap is above the tolerance of its comparison, a clone has another commit
than the one that the page names, or a comparison cannot be made.
"""

from __future__ import annotations
import __future__ as future

import argparse
import ast
import contextlib
import copy
import io
import json
import logging
import math
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.clients.engine.engine import Engine
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Letters
from coterie.clients.methods.clustered_fl import bipartition
from coterie.clients.methods.dispfl import entries
from coterie.clients.methods.dpfl import choose
from coterie.clients.methods.knn_per import vote
from coterie.clients.methods.wga import best_alpha

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Gaps = Mapping[str, float]
N = 5


class MissingCodeError(Exception):
    """A clone, a file of it, or a package that it needs is missing."""


@dataclass(frozen=True)
class Code:
    """Clone of a repository."""

    folder: Path

    @property
    def commit(self) -> str:
        """The commit that is checked out; empty if the folder is no clone."""
        command = ["git", "-C", str(self.folder), "rev-parse", "--verify", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if (self.folder / ".git").exists() else ""

    def text(self, file: str) -> str:
        """Return the content of a file."""
        path = self.folder / file
        if not path.is_file():
            raise MissingCodeError(f"no file {path}")
        return path.read_text(encoding="utf-8")

    def take(self, file: str, *names: str, **known: Any) -> SimpleNamespace:
        """Define some functions and classes of a file, which see only the names in `known`."""
        tree = ast.parse(self.text(file))
        kinds = (ast.FunctionDef, ast.ClassDef)
        chosen = [node for node in tree.body if isinstance(node, kinds) and node.name in names]
        if missing := set(names) - {node.name for node in chosen}:
            raise MissingCodeError(f"{self.folder / file} does not define {min(missing)}")
        tree.body = list(chosen)
        flags = future.annotations.compiler_flag
        exec(compile(tree, file, "exec", flags, dont_inherit=True), known)
        return SimpleNamespace(**{name: known[name] for name in names})


@dataclass(frozen=True)
class Comparison:
    """Comparison with a repository."""

    method: str
    repository: str
    commit: str
    run: Callable[[Code], Gaps]
    within: float  # tolerance of each gap


class Outcome(NamedTuple):
    """Outcome of a comparison."""

    comparison: Comparison
    gaps: Gaps
    faults: tuple[str, ...]  # empty: all numbers agree, with the code of the named commit


COMPARISONS: list[Comparison] = []


def comparison(
    method: str, repository: str, commit: str, within: float = 1e-12
) -> Callable[[Callable[[Code], Gaps]], Callable[[Code], Gaps]]:
    """Add a comparison. Code that computes in float32 has a wider tolerance than the default."""

    def add(run: Callable[[Code], Gaps]) -> Callable[[Code], Gaps]:
        COMPARISONS.append(Comparison(method, repository, commit, run, within))
        return run

    return add


# Our side


class Peers:
    """Five peers with random models, under a rule."""

    def __init__(self, method: str, **keys: Any) -> None:
        flat = {
            "method": method, "peers": N, "dtype": "float64", "mlp.hidden": "6", "local-steps": 1,
            "batch-size": 1000, "learning-rate": 0.1, "momentum": 0.0,
            "partition.kind": "dirichlet", "partition.alpha": 1.0, "partition.validation": 0.3,
            **keys,
        }  # fmt: skip
        config = Config.from_flat(flat)
        self.engine = Engine(
            problem_of(config), config.network, config.model_options, range(config.peers),
            config.training, seed=config.seed, device="cpu", dtype=config.compute.dtype,
            topology=config.graph(),
        )  # fmt: skip
        self.rule: Any = config.options.bind(self.engine, config.num_server_rounds)
        self.strategy = config.strategy()
        self.cohort = HostedPeers(self.engine, self.rule, config.num_server_rounds)
        self.g = np.random.default_rng(0)
        start: Any = self.rule.init()
        noise = self.g.normal(size=(config.peers, self.engine.d)) * 0.3
        self.state = replace(start, x=start.x + self.engine.tensor(noise))

    @property
    def x(self) -> Tensor:
        return self.state.x  # type: ignore[no-any-return]

    def inbox(self, offers: Mapping[str, Tensor], heard: Bools | None = None) -> Inbox:
        """Return the inbox of round 1: the offers of all others, or of those in a mask (P, n)."""
        heard = ~np.eye(N, dtype=bool) if heard is None else heard
        recipients, senders = np.nonzero(heard)
        letters = Letters(senders, recipients, senders, np.arange(N), dict(offers))
        return self.rule.inbox(1, letters)  # type: ignore[no-any-return]

    def rounds(self, number: int) -> Iterator[Any]:
        """Run rounds with all letters; yield the state after each."""
        self.cohort.state = self.state
        self.cohort.begin(1)
        for this in self.strategy.each_round(1, number, self.cohort.wants):
            self.cohort.exchange(this)
            self.cohort.update(this.t, {})
            self.cohort.begin(this.t + 1)
            yield self.cohort.state

    def loss(self, model: Tensor, peer: int, split: Any = "train") -> float:
        """Return the loss of a model on a peer's data."""
        losses = self.engine.losses(model[None].clone(), {}, split, np.array([peer])).losses
        return float(losses[0])

    def gradients(self, x_ed: Tensor, peers: Sequence[int]) -> Tensor:
        """Return the gradients (E, d) of models on all training data of peers."""
        whole = self.engine.data.everything(np.array(peers))
        return self.engine.gradients(x_ed.clone(), {}, whole).values

    def data(self, peer: int, split: Any = "train") -> tuple[Tensor, Tensor]:
        """Return all inputs and classes of a peer."""
        length = int(self.engine.data.shards[split].lengths_p[peer])
        x, y = self.engine.data.examples(split, torch.tensor([peer]), torch.arange(length)[None])
        return x[0], y[0].long()


class Network(nn.Module):
    """Our network as a module."""

    def __init__(self, x_d: Tensor) -> None:
        super().__init__()
        layers = (nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
        self.layers = nn.Sequential(*layers).double()
        nn.utils.vector_to_parameters(x_d.clone(), self.layers.parameters())

    def forward(self, x: Tensor, targets: Tensor | None = None, **_: Any) -> Any:
        outputs = self.layers(x)
        if targets is None:
            return outputs
        return {"loss": nn.functional.cross_entropy(outputs, targets)}

    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters()).detach()


class Scripted:
    """NumPy, of which `random` returns given values one after another."""

    def __init__(self, **values: Iterator[Any]) -> None:
        draws = {name: lambda *_, of=of, **__: next(of) for name, of in values.items()}
        self.random = SimpleNamespace(**draws)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def gap(theirs: Any, ours: Any) -> float:
    """Return the largest absolute difference."""
    return float(np.abs(np.asarray(theirs, dtype=float) - np.asarray(ours, dtype=float)).max())


def vectors(models: Sequence[Network]) -> Floats:
    """Return the parameters of models, (E, d)."""
    return torch.stack([model.vector() for model in models]).numpy()


# Theirs


@comparison("pfedgraph", "MediaBrain-SJTU/pFedGraph", "4f5f17c", within=1e-6)
def pfedgraph(code: Code) -> Gaps:
    """Graph, average and direction of the penalty."""
    try:
        import cvxpy  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise MissingCodeError("the package cvxpy is not installed") from None
    names = ("cal_model_cosine_difference", "update_graph_matrix_neighbor",
             "optimizing_graph_matrix_neighbor", "weight_flatten_all",
             "aggregation_by_graph")  # fmt: skip
    file = "pytorch/pfedgraph_cosine/utils.py"
    theirs = code.take(file, *names, torch=torch, np=np, cp=cvxpy, copy=copy)
    peers = Peers("pfedgraph")
    ours = peers.rule.update(peers.state, peers.inbox({"x": peers.x}))
    models = {i: Network(peers.x[i]) for i in range(N)}
    origin = Network(peers.engine.origins(np.arange(N))[0]).state_dict()
    moved = {i: {name: torch.zeros(()) for name in origin} for i in range(N)}
    shares = dict(enumerate(peers.engine.samples / peers.engine.samples.sum()))
    graph = theirs.update_graph_matrix_neighbor(
        torch.zeros(N, N), models, origin, moved, shares, peers.rule.alpha, "all"
    )
    means = theirs.aggregation_by_graph(None, torch.tensor(ours.w), models, origin)
    return {
        "graph": gap(graph, ours.w),
        "average": gap(vectors([*models.values()]), ours.x),
        "direction of the penalty": gap(torch.stack([means[i] for i in range(N)]), ours.towards),
    }


def _dac_clients(peers: Peers, scores: Floats) -> list[SimpleNamespace]:
    """Return clients as the code of DAC and PENS expects them, which do not train."""

    def client(i: int) -> SimpleNamespace:
        return SimpleNamespace(
            train=lambda epochs: (None, 0.0, 0.0, 0.0),
            validate=lambda model, train_set: (peers.loss(model.vector(), i), 0.0),
            local_model=Network(peers.x[i]), train_set=range(int(peers.engine.samples[i])),
            train_loss_list=[1.0], priors=scores[i].copy(), priors_norm=np.zeros(N),
            n_sampled=np.zeros(N), n_selected=np.zeros(N), stopped_early=False,
        )  # fmt: skip

    return [client(i) for i in range(N)]


@comparison("dac", "edvinli/DAC", "45209fd", within=1e-6)
def dac(code: Code) -> Gaps:
    """Scores with gossip, probabilities of the next draw, average."""
    peers = Peers("dac", **{"dac.models": 2, "dac.tau": 5.0})
    # Scores of the past, lower than any that is measured: ours limits those taken over to these.
    scores = peers.g.uniform(0.01, 0.05, (N, N)) * (peers.g.random((N, N)) < 0.7)
    np.fill_diagonal(scores, 0.0)
    state = replace(peers.state, scores=scores)
    heard = peers.rule.wants(state, 1)
    _, offers = peers.rule.offer(state, 1)
    ours = peers.rule.update(state, peers.inbox({**offers, "x": peers.x}, heard))
    away = {"scores": 0.0, "probabilities": 0.0, "average": 0.0}
    for i in range(N):
        clients = _dac_clients(peers, scores)
        numpy = Scripted(choice=iter([[i], np.flatnonzero(heard[i])]))
        code.take("utils.py", "train_DAC", "FedAvg", "softmax_scale", "tau_function",
                  np=numpy, copy=copy).train_DAC(1, 1, clients, 1.0, 2, 5.0, True)  # fmt: skip
        odds = np.where(np.arange(N) == i, 0.0, np.exp(peers.rule.temperature(2) * ours.scores[i]))
        pairs = {"scores": (clients[i].priors, ours.scores[i]),
                 "probabilities": (clients[i].priors_norm, odds / odds.sum()),
                 "average": (clients[i].local_model.vector(), ours.x[i])}  # fmt: skip
        away = {name: max(away[name], gap(*pair)) for name, pair in pairs.items()}
    return away


@comparison("pens", "edvinli/DAC", "45209fd", within=1e-6)
def pens(code: Code) -> Gaps:
    """Selected peers and average."""
    peers = Peers("pens", **{"pens.models": 3, "pens.best": 2})
    heard = peers.rule.wants(peers.state, 1)
    ours = peers.rule.update(peers.state, peers.inbox({"x": peers.x}, heard))
    away = {"selected": 0.0, "average": 0.0}
    for i in range(N):
        clients = _dac_clients(peers, np.zeros((N, N)))
        numpy = Scripted(choice=iter([[i], np.flatnonzero(heard[i])]))
        theirs = code.take("utils.py", "train_pens", "FedAvg", np=numpy, copy=copy)
        theirs.train_pens(1, 1, clients, 1.0, 3, 2)
        pairs = {"selected": (clients[i].n_selected, ours.counts[i]),
                 "average": (clients[i].local_model.vector(), ours.x[i])}  # fmt: skip
        away = {name: max(away[name], gap(*pair)) for name, pair in pairs.items()}
    return away


@comparison("ifca", "jichan3751/ifca", "61e44b8")
def ifca(code: Code) -> Gaps:
    """Choice and training; their means are compared for peers with as many examples."""
    known = {"torch": torch, "np": np, "copy": copy}
    theirs = code.take("mnist/train_cluster_mnist.py", "TrainMNISTCluster", time=_clock(), **known)
    keys = {"partition.kind": "iid", "partition.samples-per-peer": 30, "ifca.clusters": 3}
    peers = Peers("ifca", **keys)
    centres = peers.state.centres + peers.engine.tensor(peers.g.normal(size=(1, 3, 1)) * 0.1)
    choice = _best(peers, centres)
    state = replace(peers.state, centres=centres, choice=choice, x=centres[range(N), choice])
    trained, offers = peers.rule.offer(state, 1)
    ours = peers.rule.update(trained, peers.inbox(offers))

    class Run(theirs.TrainMNISTCluster):  # type: ignore[misc, name-defined]
        def load_data(self, peer: int, train: bool = True) -> tuple[Tensor, Tensor]:
            return peers.data(peer)

    run = object.__new__(Run)  # their constructor wants p to divide m
    run.config = {"m": N, "p": 3, "tau": 1}
    run.dataset = {"train": {"cluster_assign": [0] * N}}
    run.criterion = nn.CrossEntropyLoss()
    run.models = [Network(centre) for centre in centres[0]]
    chosen = run.get_inference_stats()["cluster_assign"]
    run.train(chosen, lr=0.1)
    return {
        "choice": gap(chosen, choice),
        "models": gap(vectors(run.models), ours.centres[0]),
        "next choice": gap(run.get_inference_stats()["cluster_assign"], ours.choice),
    }


def _best(peers: Peers, centres_pkd: Tensor) -> npt.NDArray[np.int64]:
    losses = [[peers.loss(model, i) for model in centres_pkd[i]] for i in range(N)]
    best: npt.NDArray[np.int64] = np.argmin(losses, axis=1)
    return best


def _clock() -> SimpleNamespace:
    return SimpleNamespace(time=lambda: 0.0)


@comparison("dpfl", "salmakh1/DPFL", "000a968")
def dpfl(code: Code) -> Gaps:
    """Sets of the greedy choice, for 60 draws of models, order and coins."""
    average = code.take("src/utils/train_utils.py", "average_weights", torch=torch, copy=copy,
                        logging=logging).average_weights  # fmt: skip
    differing = 0
    peers = Peers("dpfl")
    for case in range(60):
        g = np.random.default_rng(case)
        i, budget = case % N, 2 + case % 4
        x = peers.x + peers.engine.tensor(g.normal(size=tuple(peers.x.shape)) * 0.3)
        order, coins = g.permutation([j for j in range(N) if j != i]), g.random(N - 1)

        def losses(x_ed: Tensor, p: Any, i: int = i) -> Floats:
            return np.array([peers.loss(model, i, "validation") for model in x_ed])

        def shuffle(given: list[int], order: Any = order) -> None:
            given[:] = order.tolist()

        def test(model: Network, *_: Any, i: int = i, **__: Any) -> dict[str, float]:
            return {"global_val_loss": peers.loss(model.vector(), i, "validation")}

        letters = Letters(order, np.full(N - 1, i), order, np.arange(N), {"x": x})
        ours = choose(losses, np.array([i]), letters, [(order, coins)], peers.engine.samples * 1.0,
                      max_peers=budget, strict=False)  # fmt: skip
        theirs = code.take(
            "selection/bandits.py", "optimized_rgl_p", "oracle", copy=copy, logging=logging,
            test=test, average_weights=average, OrderedSet=_OrderedSet,
            random=SimpleNamespace(shuffle=shuffle), np=Scripted(uniform=iter(coins)),
        )  # fmt: skip
        states = {j: Network(x[j]).state_dict() for j in range(N)}
        chosen, _ = theirs.optimized_rgl_p(
            Network(x[i]), states, [i, *(j for j in range(N) if j != i)], "cpu", None,
            agg_base=False, selected=defaultdict(int), cardinality=budget,
            data_weights=dict(enumerate(peers.engine.samples * 1.0)),
        )  # fmt: skip
        differing += set(chosen) != set(np.flatnonzero(ours.chosen_pn[0]).tolist())
    return {"sets that differ, of 60": differing}


class _OrderedSet(dict[Any, None]):
    """Set that keeps its order, for a package that their code imports."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None

    def __sub__(self, items: set[Any]) -> _OrderedSet:
        return _OrderedSet([item for item in self if item not in items])


@comparison("cobo", "epfml/CoBo", "c178fea", within=1e-7)
def cobo(code: Code) -> Gaps:
    """W from the gradients at midpoints; then their step with the new W, which is our order."""
    keys = {"cobo.sampling": "full", "cobo.gamma": 0.01, "cobo.rho": 0.05}
    peers = Peers("cobo", **keys)
    before = peers.g.uniform(0.2, 0.8, (N, N))
    before = np.triu(before, 1) + np.triu(before, 1).T
    gradients = peers.gradients(peers.x, range(N))
    peers.state = replace(peers.state, w=before)
    (ours,) = peers.rounds(1)

    def client(i: int) -> SimpleNamespace:
        model = Network(peers.x[i])
        parts = gradients[i].split([p.numel() for p in model.parameters()])
        steps = [part.view(p.shape) for part, p in zip(parts, model.parameters(), strict=True)]
        model.get_momentum = lambda: steps  # type: ignore[assignment]
        return SimpleNamespace(model=model, get_next_batch_train=lambda: iter([peers.data(i)]))

    from concurrent import futures

    folder, clients = "personalized-vision-models", [client(i) for i in range(N)]
    known = {"torch": torch, "copy": copy, "math": math, "np": Scripted(rand=iter([np.zeros(10)])),
             "concurrent": SimpleNamespace(futures=futures), "ResNet9": lambda: None}  # fmt: skip
    grouping = code.take(f"{folder}/grouping.py", "Grouping", **known).Grouping(
        N, 0.1, rho=0.05, w_adjacency=torch.tensor(before)
    )
    grouping.device = torch.device("cpu")
    layers = [1] * 4
    grouping.grad_based_update(grouping.mid_param_grad_inner_prod(clients, layers, sampling=True))
    w = grouping.w_adjacency.numpy()
    kind = code.take(f"{folder}/optim/cobo_optim.py", "CoboOptim", torch=torch, copy=copy,
                     optim=torch.optim, Optim=object).CoboOptim  # fmt: skip
    optimizer = object.__new__(kind)
    vars(optimizer).update(grouping=grouping, clients=clients, device="cpu")
    kind.step(optimizer, 0.1)
    return {"W": gap(w, ours.w), "x": gap(vectors([each.model for each in clients]), ours.x)}


@comparison("trust", "epfml/personalized-collaborative-llms", "007fefc", within=1e-6)
def trust(code: Code) -> Gaps:
    """Strategy 2, with the loss for the perplexity: weights and the average."""
    peers = Peers("trust")
    ours = peers.rule.update(peers.state, peers.inbox({"x": peers.x}))

    def evaluated(model: Any, peer: int, *_: Any, **__: Any) -> tuple[None, None, float]:
        return None, None, peers.loss(model.vector(), peer, "validation")

    names = ("__trust_weights_ref", "__weighted_average")
    theirs = vars(code.take("src/optim/strategies.py", *names, torch=torch, eval=evaluated))
    clients = [[Network(x), None, None] for x in peers.x]
    arguments = SimpleNamespace(device="cpu", wandb=False)
    scores = theirs[names[0]](clients, {"val": list(range(N))}, 1, 1, None, arguments)
    theirs[names[1]](clients, torch.tensor(ours.w), arguments)
    models = [client[0] for client in clients]
    average = gap(vectors(models), ours.x)  # type: ignore[arg-type]
    return {"weights": gap(scores.softmax(dim=1), ours.w), "average": average}


@comparison("all-for-one", "philipco/heterogeneity_quantification", "92705fc")
def all_for_one(code: Code) -> Gaps:
    """Similarity ratios and weights, both criteria (branch feautres/related_works)."""
    names = ("ratio", "compute_weight_based_on_ratio")
    theirs = code.take("src/optim/Algo.py", *names, torch=torch)
    away = {}
    for criterion in ("binary", "continuous"):
        peers = Peers("all-for-one", **{
            "all-for-one.estimator": "plain", "all-for-one.criterion": criterion,
            "all-for-one.similarity-batch-size": 1000,
        })  # fmt: skip
        (ours,) = peers.rounds(1)
        w = np.zeros((N, N))
        for i in range(N):
            at_i = peers.gradients(peers.x[i].repeat(N, 1), range(N))
            w[i] = theirs.compute_weight_based_on_ratio(
                [[g] for g in at_i], peers.engine.samples.tolist(), i, [[[] for _ in range(N)]] * N,
                [[] for _ in range(N)], continuous=criterion == "continuous",
            )[0]  # fmt: skip
        away[f"weights, {criterion}"] = gap(w, peers.rule.weights(ours))
    return away


@comparison("fedem", "omarfoq/FedEM", "996fadd")
def fedem(code: Code) -> Gaps:
    """E-step and mixture weights."""
    kind = code.take("client.py", "MixtureClient", Client=object, torch=torch, F=nn.functional)
    peers = Peers("fedem", **{"fedem.components": 3})
    pi = peers.g.dirichlet(np.ones(3), N)
    members = peers.state.members + peers.engine.tensor(peers.g.normal(size=(N, 3, 1)) * 0.1)
    ours, _ = peers.rule.offer(replace(peers.state, pi=pi, members=members), 1)
    theirs = np.zeros((N, 3))
    for i in range(N):
        x, y = peers.data(i)
        losses = torch.stack([
            nn.functional.cross_entropy(Network(model)(x), y, reduction="none").detach()
            for model in members[i]
        ])  # fmt: skip
        ensemble = SimpleNamespace(
            learners_weights=torch.tensor(pi[i]), gather_losses=lambda _, of=losses: of
        )
        client = object.__new__(kind.MixtureClient)
        vars(client).update(learners_ensemble=ensemble, val_iterator=None)
        client.update_sample_weights()
        client.update_learners_weights()
        theirs[i] = ensemble.learners_weights.numpy()
    return {"mixture weights": gap(theirs, ours.pi)}


@comparison("dispfl", "rong-dai/DisPFL", "e2f47d4")
def dispfl(code: Code) -> Gaps:
    """Numbers of entries; masks after dropping and growing; masked means."""
    folder = "fedml_api/standalone/DisPFL"
    arguments = SimpleNamespace(
        anneal_factor=0.5, comm_round=100, dis_gradient_check=False, erk_power_scale=1.0
    )
    known = {"torch": torch, "np": np, "copy": copy, "math": math}
    client = code.take(f"{folder}/client.py", "Client", **known)
    server = code.take(f"{folder}/dispfl_api.py", "dispflAPI", object=object, **known)
    trainer = code.take(f"{folder}/my_model_trainer.py", "MyModelTrainer", ModelTrainer=object,
                        **known)  # fmt: skip
    silent = SimpleNamespace(info=lambda *_: None)
    peers = Peers("dispfl", **{"dispfl.density": 0.3, "num-server-rounds": 100})
    state = peers.rule.init()
    state = replace(state, x=peers.x * state.mask)
    offers = {"values": state.x[state.mask > 0].view(N, -1)}
    _, bits = peers.rule.offer(peers.rule.init(), 1)
    ours = peers.rule.update(state, peers.inbox({**offers, "mask": bits["mask"]}))

    def named(x_d: Tensor) -> dict[str, Tensor]:
        return dict(Network(x_d).state_dict())

    erk = object.__new__(trainer.MyModelTrainer)
    vars(erk).update(args=arguments, logger=silent)
    sparse = erk.calculate_sparsities(dict(Network(state.x[0]).named_parameters()), sparse=0.3)
    number = [round((1 - sparse[k]) * v.numel()) for k, v in named(state.x[0]).items()]
    gradients = peers.engine.gradients(
        state.x.clone(), {}, peers.engine.data.everything()
    ).values  # batch-size: all examples
    masks, next_masks = [named(m) for m in state.mask], []
    for i in range(N):
        one = object.__new__(client.Client)
        vars(one).update(args=arguments, device="cpu")
        fired, removed = one.fire_mask(masks[i], named(state.x[i]), 0)
        next_masks.append(one.regrow_mask(fired, removed, named(gradients[i])))
    api = object.__new__(server.dispflAPI)
    api.logger = silent
    counted = [{k: v.numpy() for k, v in mask.items()} for mask in masks]
    means = [
        api._aggregate_func(
            i, N, N, range(N), [named(x) for x in state.x], next_masks, counted
        )[0]
        for i in range(N)
    ]  # fmt: skip

    def flat(tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([value.flatten() for value in tensors.values()])

    return {
        "entries per tensor": gap(number, entries(peers.engine.network.shapes, 0.3)),
        "entries of masks that differ": float(
            (torch.stack([flat(m) for m in next_masks]) != ours.mask).sum()
        ),
        "average": gap(torch.stack([flat(m) for m in means]), ours.x),
    }


@comparison("l2c", "aidecentralized/sonar", "3200465")
def l2c(code: Code) -> Gaps:
    """Weights after a step of Adam; a loop of theirs names its variable `i` and uses `id`."""
    now: list[int] = []

    class Updates(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(now[-1] if key is id else key)

    class Indices(dict[int, int]):
        def keys(self) -> Any:
            for key in super().keys():  # noqa: SIM118
                now.append(key)
                yield key

    kind = code.take("src/algos/L2C.py", "L2CClient", BaseFedAvgClient=object, torch=torch, id=id,
                     F=nn.functional, optim=torch.optim, defaultdict=defaultdict)  # fmt: skip
    peers = Peers("l2c", **{"l2c.rate": 0.1})
    logits = peers.g.normal(size=(N, N))
    state = replace(peers.state, logits=peers.engine.tensor(logits))
    updates = peers.engine.tensor(peers.g.normal(size=(N, peers.engine.d)) * 0.1)
    ours = peers.rule.update(state, peers.inbox({"update": updates}))
    theirs = np.zeros((N, N))
    for i in range(N):
        alpha = torch.tensor(logits[i], requires_grad=True)
        step = torch.optim.Adam([alpha], lr=0.1, weight_decay=0.01)
        client = object.__new__(kind.L2CClient)
        vars(client).update(
            model=Network(ours.x[i]), val_dloader=_Loader([peers.data(i, "validation")]),
            alpha=alpha, alpha_optim=step, collab_weights=alpha.softmax(dim=0), node_id=i,
            device="cpu",
            loss_fn=nn.CrossEntropyLoss(), sharing_mode="updates", model_keys_to_ignore=[],
            neighbors_id_to_idx=Indices({j: j for j in range(N)}),
        )  # fmt: skip
        named = {j: dict(Network(u).named_parameters()) for j, u in enumerate(updates)}
        client.learn_collab_weights(Updates(named))
        theirs[i] = alpha.detach().numpy()
    return {"logits": gap(theirs, ours.logits)}


class _Loader(list[Any]):
    dataset = range(1)


@comparison("wga", "elmahdichayti/LinSpeedUpCode", "a43973b")
def wga(code: Code) -> Gaps:
    """Speed-up of theorem 1 for m > 0, without bias at the optimum."""
    try:
        import sympy  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise MissingCodeError("the package sympy is not installed") from None
    known: dict[str, Any] = {"sp": sympy, "np": np}
    exec(_cell(code, 4), known)
    helpers, none = np.array([1.0, 4.0, 10.0, 64.0]), np.zeros(4)
    away = 0.0
    for m in (0.2, 0.5, 1.0):
        theirs = np.real(known["g"](helpers.astype(complex), m))
        alpha = best_alpha(helpers, none, m)
        ours = (1 - m * alpha**2) ** 2 / ((1 - alpha) ** 2 + alpha**2 / helpers)
        away = max(away, float(np.abs(theirs / ours - 1).max()))
    return {"speed-up, relative": away}


@comparison("bias-correction", "elmahdichayti/LinSpeedUpCode", "a43973b")
def bias_correction(code: Code) -> Gaps:
    """Losses of 300 steps without noise."""
    rounds, draws = 300, iter([0.3, np.zeros(300), np.zeros(300)])
    known: dict[str, Any] = {
        "np": Scripted(randn=draws), "sigma": 0.0, "K": 1, "T": rounds, "N": 4
    }  # fmt: skip
    exec(_cell(code, 9), known)
    exec(_cell(code, 17), known)
    problem = {"helpers": 4, "trials": 1, "noise": 0.0, "user-curvature": 1.0, "user-centre": 1.0,
               "helper-curvature": 2.0, "helper-centre": 5.0}  # fmt: skip
    peers = Peers("bias-correction", **{
        "dataset": "noisy-quadratic", "num-server-rounds": rounds, "partition.kind": "iid",
        "learning-rate": 1e-4, "bias-correction.beta": 1e-4, "bias-correction.targets": "0",
        **{f"noisy-quadratic.{key}": value for key, value in problem.items()},
    })  # fmt: skip
    peers.state = replace(peers.state, x=torch.full_like(peers.state.x, 0.3))
    ours = [0.5 * (float(s.x[0, 0]) - 1) ** 2 for s in peers.rounds(rounds - 1)]
    return {"losses": gap(known["Res"][1e-4]["loss"][1:], ours)}


def _cell(code: Code, number: int) -> str:
    """Return the source of a cell of the notebook."""
    cells = json.loads(code.text("LinSpeedupPersonaliztion.ipynb"))["cells"]
    return "".join(cells[number]["source"])


@comparison("fedamp", "TsingZ0/PFLlib", "d832e76", within=1e-6)
def fedamp(code: Code) -> Gaps:
    """Weights and means; the weights of the code sum to less than 1 here, as ours must."""
    kind = code.take("system/flcore/servers/serveramp.py", "FedAMP", Server=object, torch=torch,
                     copy=copy, time=SimpleNamespace(time=lambda: 0.0), math=math)  # fmt: skip
    peers = Peers("fedamp", **{"fedamp.alpha": 0.1, "fedamp.sigma": 50.0})
    ours = peers.rule.update(peers.state, peers.inbox({"x": peers.x}))
    models = [Network(x) for x in peers.x]
    means, kept = np.zeros((N, peers.engine.d)), np.zeros(N)

    def client(i: int) -> SimpleNamespace:
        def set_parameters(mean: Network, own: Tensor) -> None:
            means[i], kept[i] = mean.vector() + own * models[i].vector(), own

        times: dict[str, float] = defaultdict(float)
        return SimpleNamespace(id=i, model=models[i], send_slow=False, send_time_cost=times,
                               set_parameters=set_parameters)  # fmt: skip

    server = object.__new__(kind.FedAMP)
    vars(server).update(
        selected_clients=[client(i) for i in range(N)], uploaded_ids=list(range(N)),
        uploaded_models=models, global_model=Network(peers.x[0]), num_join_clients=N,
        alphaK=0.1 * 50.0, sigma=50.0,
    )  # fmt: skip
    server.send_models()
    return {"own weights": gap(kept, ours.w.diagonal()), "means": gap(means, ours.u)}


@comparison("fedfomo", "TsingZ0/PFLlib", "d832e76", within=1e-5)
def fedfomo(code: Code) -> Gaps:
    """Weights and step from the model before training; their distances have 1e-5 more."""
    kind = code.take("system/flcore/clients/clientfomo.py", "clientFomo", Client=object,
                     torch=torch, np=np, copy=copy)  # fmt: skip
    peers = Peers("fedfomo", **{"fedfomo.baseline": "previous", "fedfomo.models": 0})
    previous = peers.x + peers.engine.tensor(peers.g.normal(size=tuple(peers.x.shape)) * 0.1)
    state = replace(peers.state, previous=previous)
    ours = peers.rule.update(state, peers.inbox({"x": peers.x}))
    away = {"weights": 0.0, "step": 0.0}
    for i in range(N):
        client = object.__new__(kind.clientFomo)
        vars(client).update(
            model=Network(previous[i]), old_model=Network(previous[i]), num_clients=N,
            received_ids=list(range(N)), received_models=[Network(x) for x in peers.x],
            device="cpu", loss=nn.CrossEntropyLoss(),
        )  # fmt: skip
        validation = [peers.data(i, "validation")]
        weights = client.weight_scale(client.weight_cal(validation))
        client.aggregate_parameters(validation)
        # If no model is better, ours keeps its own, with weight 1.
        away["weights"] = max(away["weights"], gap(weights, ours.w[i]) if len(weights) else 0.0)
        away["step"] = max(away["step"], gap(client.model.vector(), ours.x[i]))
    return away


@comparison("perfedavg", "TsingZ0/PFLlib", "d832e76")
def perfedavg(code: Code) -> Gaps:
    """A local step; both of its minibatches are all of a peer's examples."""
    folder = "system/flcore"
    kind = code.take(f"{folder}/clients/clientperavg.py", "clientPerAvg", Client=object,
                     torch=torch, np=np, copy=copy, time=_clock())  # fmt: skip
    optimizer = code.take(f"{folder}/optimizers/fedoptimizer.py", "PerAvgOptimizer",
                          Optimizer=torch.optim.Optimizer, torch=torch)  # fmt: skip
    peers = Peers("perfedavg", **{"perfedavg.alpha": 0.1})
    trained, _ = peers.rule.offer(peers.state, 1)
    theirs = []
    for i in range(N):
        x, y = peers.data(i)
        model = Network(peers.x[i])
        client = object.__new__(kind.clientPerAvg)
        vars(client).update(
            model=model, beta=0.1, device="cpu", batch_size=len(y), local_epochs=1,
            loss=nn.CrossEntropyLoss(), train_slow=False, learning_rate_decay=False,
            optimizer=optimizer.PerAvgOptimizer(model.parameters(), lr=0.1),
            train_time_cost=defaultdict(float),
            load_train_data=lambda _, x=x, y=y: [(torch.cat([x, x]), torch.cat([y, y]))],
        )  # fmt: skip
        client.train()
        theirs.append(model)
    return {"step": gap(vectors(theirs), trained.x)}


@comparison("clustered-fl", "felisat/clustered-federated-learning", "23a1c38", within=1e-6)
def clustered_fl(code: Code) -> Gaps:
    """Cosines and norms of updates; cuts: the same of two groups, else never a worse one."""
    from sklearn.cluster import AgglomerativeClustering

    def clustering(affinity: str, linkage: str) -> Any:  # the name of the parameter has changed
        return AgglomerativeClustering(metric=affinity, linkage=linkage)

    names = ("Server", "flatten", "pairwise_angles", "FederatedTrainingDevice")
    file = code.take("fl_devices.py", *names, torch=torch, np=np,
                     AgglomerativeClustering=clustering)  # fmt: skip
    server = object.__new__(file.Server)
    g = np.random.default_rng(0)
    away = {"cosines": 0.0, "norms": 0.0, "other cuts of two groups": 0.0, "worse cuts": 0.0}
    for case in range(40):
        group = np.arange(8) % 2 if case % 2 else np.arange(8)
        updates = g.normal(size=(8, 30))[group] + 0.3 * g.normal(size=(8, 30))
        clients = [SimpleNamespace(dW={"w": torch.tensor(update)}) for update in updates]
        gram = updates @ updates.T
        lengths = np.sqrt(gram.diagonal())
        cosines = server.compute_pairwise_similarities(clients)
        away["cosines"] = max(away["cosines"], gap(cosines, gram / np.outer(lengths, lengths)))
        norms = server.compute_mean_update_norm(clients), server.compute_max_update_norm(clients)
        away["norms"] = max(away["norms"], gap(norms, (gram.mean() ** 0.5, lengths.max())))
        theirs = np.isin(np.arange(8), server.cluster_clients(cosines)[0])
        ours = bipartition(gram)
        across = [cosines[np.ix_(part, ~part)].max() for part in (ours, theirs)]
        away["worse cuts"] += across[0] > across[1] + 1e-6
        is_same = (theirs == ours).all() or (theirs == ~ours).all()
        away["other cuts of two groups"] += bool(case % 2) and not is_same
    return away


@comparison("fedproto", "yuetan031/FedProto", "97e42e2", within=1e-6)
def fedproto(code: Code) -> Gaps:
    """Means of prototypes; a step on the loss with the distance to them."""
    means = code.take("lib/utils.py", "proto_aggregation").proto_aggregation
    kind = code.take("lib/update.py", "LocalUpdate", torch=torch, nn=nn, copy=copy,
                     DatasetSplit=None, DataLoader=None, Dataset=object)  # fmt: skip
    keys = {"partition.kind": "iid", "partition.samples-per-peer": 40, "fedproto.lambda": 0.7}
    peers = Peers("fedproto", **keys)
    prototypes = peers.engine.tensor(peers.g.normal(size=(N, 10, 6)))
    letters = {"prototypes": prototypes, "shares": torch.full((N, 10), 0.1).double()}
    aligned = peers.rule.update(peers.state, peers.inbox(letters))
    ours, _ = peers.rule.offer(aligned, 2)
    theirs = means({i: dict(enumerate(prototypes[i])) for i in range(N)})
    mean = torch.stack([theirs[k][0] for k in range(10)])
    models = []
    for i in range(N):
        model = Network(peers.x[i])
        body, head = model.layers[:-1], model.layers[-1]

        class Both(nn.Module):
            def __init__(self, body: Any, head: Any) -> None:
                super().__init__()
                self.body, self.head = body, head

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                features = self.body(x)
                return self.head(features).log_softmax(dim=1), features

        arguments = SimpleNamespace(
            optimizer="sgd", lr=0.1, train_ep=1, num_classes=10, verbose=False, ld=0.7
        )
        update = object.__new__(kind.LocalUpdate)
        vars(update).update(
            args=arguments, device="cpu", criterion=nn.NLLLoss(), trainloader=[peers.data(i)]
        )
        update.update_weights_het(arguments, i, theirs, Both(body, head), 1)
        models.append(model)
    away = gap(mean.expand(N, 10, 6), aligned.prototypes)
    return {"prototypes": away, "step": gap(vectors(models), ours.x)}


@comparison("knn-per", "omarfoq/knn-per", "ee17520")
def knn_per(code: Code) -> Gaps:
    """Votes of the nearest examples; the search, faiss in the code, is an exact one in NumPy."""
    kind = code.take("client.py", "KNNPerClient", Client=object, np=np)
    g = np.random.default_rng(0)
    queries, keys, classes = g.normal(size=(9, 4)), g.normal(size=(30, 4)), g.integers(5, size=30)

    def search(features: Floats, k: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        squares = np.square(features[:, None] - keys).sum(axis=2)
        order = squares.argsort(axis=1)[:, :k]
        return np.take_along_axis(squares, order, axis=1), order

    client = object.__new__(kind.KNNPerClient)
    datastore = SimpleNamespace(index=SimpleNamespace(search=search), labels=classes)
    vars(client).update(
        features_flag=True, datastore_flag=True, test_features=queries, datastore=datastore,
        k=7, features_dimension=4, num_classes=5, _KNNPerClient__capacity=30,
        _KNNPerClient__k=7, _k=7,
    )  # fmt: skip
    client.gather_knn_outputs()
    labels = nn.functional.one_hot(torch.tensor(classes), 5).double()
    ours = vote(torch.tensor(queries)[None], torch.tensor(keys)[None], labels[None],
                torch.zeros(1, 30).double(), 7)  # fmt: skip
    return {"votes": gap(client.test_knn_outputs, ours[0])}


@comparison("fedpac", "JianXu95/FedPAC", "5770f4f", within=2e-3)
def fedpac(code: Code) -> Gaps:
    """Statistics of features; weights of heads, whose solver reaches about 1e-3."""
    try:
        import cvxpy  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise MissingCodeError("the package cvxpy is not installed") from None
    kind = code.take("methods/fedpac.py", "LocalUpdate_FedPAC", torch=torch)
    peers = Peers("fedpac")
    shares, heads, variances = [], [], []
    for i in range(N):
        x, y = peers.data(i)
        network = Network(peers.x[i])

        def features(inputs: Tensor, of: Network = network) -> tuple[Tensor, Tensor]:
            return of.layers[:-1](inputs), of(inputs)

        share = nn.functional.one_hot(y, 10).double().mean(dim=0)
        client = object.__new__(kind.LocalUpdate_FedPAC)
        features.state_dict = lambda of=network: of.state_dict()  # type: ignore[attr-defined]
        vars(client).update(
            local_model=features, w_local_keys=["layers.3.weight"], train_data=[(x, y)],
            device="cpu", probs_label=share, num_classes=10, datasize=torch.tensor(len(y)),
        )  # fmt: skip
        variance, head = client.statistics_extraction()
        shares.append(share)
        heads.append(head.double())
        variances.append(variance)
    _, offers = peers.rule.offer(peers.state, 1)
    weighted = offers["shares"][..., None] * offers["prototypes"]
    ours = peers.rule.update(peers.state, peers.inbox(offers))
    # An eigenvalue is only used if the matrix, a sum of squares, had a negative one.
    shim = SimpleNamespace(**{name: getattr(torch, name) for name in
                              ("tensor", "zeros", "mm", "trace", "diag")})  # fmt: skip
    shim.eig = lambda matrix, eigenvectors: (torch.zeros(N, 2), torch.eye(N))
    tools = code.take("tools.py", "get_head_agg_weight", "pairwise", torch=shim, np=np, cvx=cvxpy)
    theirs = tools.get_head_agg_weight(N, variances, heads)
    return {
        "statistics": gap(torch.stack(heads), weighted),
        "variances": gap(variances, offers["variance"][:, 0]),
        "weights of heads": gap(np.array(theirs), ours.w),
    }


@comparison("fedrep", "lgcollins/FedRep", "d82e629")
def fedrep(code: Code) -> Gaps:
    """A step of the head, then one of the body, without the weight decay of the code."""

    def descent(groups: Sequence[dict[str, Any]], **keys: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{**group, "weight_decay": 0.0} for group in groups], **keys)

    shim = SimpleNamespace(optim=SimpleNamespace(SGD=descent))
    kind = code.take("models/Update.py", "LocalUpdate", torch=shim, nn=nn, FedProx=None)
    peers = Peers("fedrep", **{"fedrep.head-epochs": 1})
    ours, _ = peers.rule.offer(peers.state, 1)
    arguments = SimpleNamespace(alg="fedrep", local_ep=2, local_rep_ep=1, dataset="digits",
                                device="cpu", local_updates=100, local_bs=1000)  # fmt: skip
    models = [Network(x) for x in peers.x]
    for i, model in enumerate(models):
        client = object.__new__(kind.LocalUpdate)
        vars(client).update(args=arguments, loss_func=nn.CrossEntropyLoss(), indd=None,
                            ldr_train=[peers.data(i)])  # fmt: skip
        client.train(model, ["layers.1.weight", "layers.1.bias"], lr=0.1)
    return {"steps": gap(vectors(models), ours.x)}


# Command


def compare(folder: Path, methods: Sequence[str]) -> Iterator[Outcome]:
    """Run the comparisons of some methods, of all without names."""
    random.seed(0)
    for each in COMPARISONS:
        if methods and each.method not in methods:
            continue
        code = Code(folder / each.repository)
        if not code.folder.is_dir():
            yield Outcome(each, {}, (f"not compared: no clone at {code.folder}",))
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                gaps = each.run(code)
        except MissingCodeError as error:
            yield Outcome(each, {}, (f"not compared: {error}",))
            continue
        faults = [
            f"{name} differs by {value:.1e}, more than {each.within:.0e}"
            for name, value in gaps.items()
            if not value <= each.within
        ]
        if not code.commit.startswith(each.commit):
            faults.append(f"the clone has {code.commit[:7] or 'no commit'}, not {each.commit}")
        yield Outcome(each, gaps, tuple(faults))


def main(arguments: Sequence[str]) -> int:
    """Print a line per comparison; return 1 if one has a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="clones, as <owner>/<name>")
    names = sorted({each.method for each in COMPARISONS})
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"{', '.join(names)}")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.methods) - set(names):
        parser.error(f"no comparison for {min(unknown)}; there are {', '.join(names)}")
    logging.disable(logging.INFO)
    outcomes = []
    for outcome in compare(chosen.folder, chosen.methods):
        outcomes.append(outcome)
        each, gaps, faults = outcome
        parts = [f"{name} {value:.1e}" for name, value in gaps.items()]
        parts += [f"FAULT: {fault}" for fault in faults]
        print(f"{each.method:16} {each.repository}@{each.commit}: {', '.join(parts)}", flush=True)
    agree = sum(not outcome.faults for outcome in outcomes)
    print(f"{agree} of {len(outcomes)} comparisons agree within their tolerances")
    return int(agree < len(outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
