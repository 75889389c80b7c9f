"""Recipes: each equals a plain loop of its paper's algorithm."""

from __future__ import annotations

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.preflight import problem_of
from coterie.app.config.recipes import recipes
from coterie.app.config.registry import METHODS
from coterie.app.config.settings import keys
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose
from coterie.clients.models.build import build
from tests.inline import Floats, run
from tests.problems import write_quadratic

N, D, ROUNDS, RATE = 6, 3, 7, 0.2
LINE = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [1, 4], [1, 5]]
"""Degrees 1, 4, 2, 2, 3, 2."""


def quadratic(directory: Path, method: str, **more: Any) -> tuple[dict[str, Any], Any]:
    """Return the keys of a run on quadratics with uneven samples and degrees, and its arrays."""
    g = np.random.default_rng(1)
    a, c, start = g.uniform(0.3, 1.2, (N, D)), g.normal(size=(N, D)), g.normal(size=(N, D))
    flat: dict[str, Any] = write_quadratic(
        directory / "problem.json", a, c, start, samples=[5, 1, 3, 8, 2, 40]
    )
    (directory / "graph.json").write_text(str(LINE))
    flat |= {
        "method": method, "num-server-rounds": ROUNDS, "learning-rate": RATE, "momentum": 0.7,
        "topology": "file", "topology-file": str(directory / "graph.json"),
    }  # fmt: skip
    return flat | more, (a, c, start)


def metropolis() -> Floats:
    """Return W entry by entry: 1 / (1 + max(deg(i), deg(j))) on edges, the rest on the diagonal."""
    degree = [sum(i in edge for edge in LINE) for i in range(N)]
    w = np.zeros((N, N))
    for i, j in LINE:
        w[i, j] = w[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return w + np.diag(1 - w.sum(axis=1))


def test_the_matrix_of_the_loops_is_doubly_stochastic() -> None:
    w = metropolis()
    assert (w >= 0).all()
    assert np.abs([w.sum(axis=0), w.sum(axis=1), 0 * w[0] + 1]).max() < 1 + 1e-15


@pytest.mark.parametrize("nodes", [1, 3])
def test_d_psgd_is_a_step_and_an_average(tmp_path: Path, nodes: int) -> None:
    """Lian et al., algorithm 1, with the update before the average: x <- W (x - eta grad f(x))."""
    flat, (a, c, x) = quadratic(tmp_path, "d-psgd")
    w = metropolis()
    for _ in range(ROUNDS):
        x = w @ (x - RATE * a * (x - c))
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-15


@pytest.mark.parametrize("nodes", [1, 3])
def test_dfedavgm_begins_each_round_without_momentum(tmp_path: Path, nodes: int) -> None:
    """Sun et al., algorithm 1: y_{k+1} = y_k - eta g(y_k) + theta (y_k - y_{k-1}), y_{-1} = y_0."""
    flat, (a, c, x) = quadratic(tmp_path, "dfedavgm", **{"local-steps": 4})
    for _ in range(ROUNDS):
        before = y = x
        for _ in range(4):
            before, y = y, y - RATE * a * (y - c) + 0.9 * (y - before)
        x = metropolis() @ y
    assert np.abs(run(flat, tmp_path, nodes).theta() - x).max() < 1e-12


@pytest.mark.parametrize("nodes", [1, 3])
def test_sgp_is_push_sum_with_steps_between(tmp_path: Path, nodes: int) -> None:
    """Assran et al., algorithm 1, in its variables: x, w, z = x / w; peer i sends to i + 2^k."""
    flat, (a, c, x) = quadratic(tmp_path, "sgp", momentum=0.0)
    w = np.ones(N)
    for t in range(ROUNDS):
        z = x / w[:, None]
        x = x - RATE * a * (z - c)
        push = np.eye(N) / 2
        for j in range(N):
            push[(j + [1, 2, 4][t % 3]) % N, j] += 1 / 2
        x, w = push @ x, push @ w
    assert np.abs(run(flat, tmp_path, nodes).theta() - x / w[:, None]).max() < 1e-12


def digits(method: str, **more: Any) -> dict[str, Any]:
    """Return the keys of a run on digits with uneven samples, in float64."""
    return {
        "method": method, "peers": 4, "num-server-rounds": 3, "evaluate-every": 3,
        "local-steps": 2, "batch-size": 50, "momentum": 0.5, "dtype": "float64", "topology": "ring",
        "model": "tests.kit:normed", "device": "cpu",
        "partition.kind": "dirichlet", "partition.alpha": 0.5, "partition.samples-per-peer": 0,
        **more,
    }  # fmt: skip


BODY = ["1.weight", "1.bias", "2.weight", "2.bias"]
HEAD = ["4.weight", "4.bias"]


def twin(
    flat: dict[str, Any], phases: list[tuple[list[str], int]], shared: list[str], *, uniform: bool
) -> list[nn.Module]:
    """Run torch modules and optimizers, one per phase, and average the shared parameters.

    Parameters
    ----------
    phases : names of the parameters that train, the others frozen, and the number of epochs; 0:
        the local steps of a round.
    uniform : the average ignores the numbers of examples.
    """
    config = Config.from_flat(flat)
    problem = problem_of(config)
    engine = Engine(
        problem, config.model, None, range(4), config.training, device="cpu", dtype="float64",
        adaptation=config.adaptation if config.adaptation.lora_rank else None,
    )  # fmt: skip
    x_pd, _ = engine.initial()
    shape = problem.inputs.shape[1:]
    if config.adaptation.lora_rank:
        modules = [copy.deepcopy(engine.network.module).double().train() for _ in range(4)]
    else:
        modules = [build(config.model, None, "classification", shape, 10).double() for _ in "1234"]
    optimizers = []
    for p, module in enumerate(modules):
        named = dict(module.named_parameters())
        sent_names = engine.network.names
        nn.utils.vector_to_parameters(x_pd[p].clone(), [named[name] for name in sent_names])
        optimizers.append(
            [
                torch.optim.SGD(
                    [named[k] for k in names],
                    config.training.learning_rate,
                    config.training.momentum,
                )
                for names, _ in phases
            ]
        )
    links, weight = config.strategy().links, np.ones(4)
    near = config.graph() | np.eye(4, dtype=bool)
    for t in range(1, config.num_server_rounds + 1):
        starts = [{k: v.detach().clone() for k, v in m.named_parameters()} for m in modules]
        for number, (_, epochs) in enumerate(phases):
            purpose = Purpose.EXTRA if len(phases) > 1 and number == 0 else Purpose.TRAIN
            for batch in engine.batches(t, purpose, epochs=epochs or None):
                for p, module in enumerate(modules):
                    if not batch.counts_e[p]:
                        continue
                    drawn = batch.part(np.array([p]))
                    x, y = engine.data.examples("train", drawn.peers_e, drawn.rows_eb)
                    many = int(batch.counts_e[p])
                    module.zero_grad()
                    F.cross_entropy(module(x[0, :many]), y[0, :many]).backward()
                    optimizers[p][number].step()
        w_nn = near * (np.ones(4) if uniform else problem.samples)
        w_nn, before = w_nn / w_nn.sum(axis=1, keepdims=True), np.ones(4)
        if links is not None:  # push-sum: u = w z + step, u <- A u, w <- A w, z = u / w
            w_nn, before = (links(t) | np.eye(4, dtype=bool)).T.astype(float), weight
            w_nn /= w_nn.sum(axis=0)
            weight = w_nn @ before
        with torch.no_grad():
            for name in shared:
                now = [dict(module.named_parameters())[name] for module in modules]
                sent = [before[j] * starts[j][name] + (now[j] - starts[j][name]) for j in range(4)]
                for i in range(4):
                    total = torch.stack([w_nn[i, j] * sent[j] for j in range(4)]).sum(dim=0)
                    now[i].copy_(total / weight[i])
    return modules


EXACT: dict[str, tuple[list[tuple[list[str], int]], list[str], bool]] = {
    "fedper": ([(BODY + HEAD, 0)], BODY, False),
    "lg-fedavg": ([(BODY + HEAD, 0)], HEAD, False),
    "fedbn": ([(BODY + HEAD, 0)], [*BODY[:2], *HEAD], False),
    "fedavg-own-intercept": (
        [(BODY + HEAD, 0)], [key for key in BODY + HEAD if key.endswith("weight")], False,
    ),
    "deprl": ([(HEAD, 3), (BODY, 1)], BODY, True),
    "dfedpgp": ([(HEAD, 2), (BODY, 0)], BODY, False),
}  # fmt: skip
"""Recipe -> its phases, what it averages, and whether uniformly."""


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", EXACT)
def test_a_recipe_of_layers_equals_a_plain_loop(tmp_path: Path, name: str, nodes: int) -> None:
    """All parameters train jointly, or head and body in turn; only the shared ones are averaged.

    DFedPGP: the body is averaged by push-sum, each peer sending to another random one per round.
    """
    flat = digits(name) | {"fedrep.head-epochs": 2, "topology-degree": 1}
    assert len(set(problem_of(Config.from_flat(flat)).samples.tolist())) > 1
    phases, shared, uniform = EXACT[name]
    modules = twin(flat, phases, shared, uniform=uniform)
    models = run(flat, tmp_path, nodes).models()
    for model, module in zip(models, modules, strict=True):
        for key, value in chain(module.named_parameters(), module.named_buffers()):
            if not key.endswith("num_batches_tracked"):
                assert (model[key] - value).abs().max() < 1e-10, key


A = ["1.A", "4.A"]
B = ["1.B", "4.B"]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("name", "trained", "shared"), [("fedsa-lora", A + B, A), ("ffa-lora", B, B)]
)
def test_a_recipe_of_adapters_equals_a_plain_loop(
    tmp_path: Path, name: str, trained: list[str], shared: list[str], nodes: int
) -> None:
    """FedSA-LoRA trains both factors and averages A; FFA-LoRA trains and averages B alone."""
    flat = digits(name) | {"model.lora-rank": 2, "topology": "full"}
    modules = twin(flat, [(trained, 0)], shared, uniform=False)
    models = run(flat, tmp_path, nodes).models()
    for model, module in zip(models, modules, strict=True):
        assert {*A, *B} & model.keys() == {*trained}
        for key in trained:
            assert (model[key] - dict(module.named_parameters())[key]).abs().max() < 1e-10, key
    for key in trained:
        assert torch.equal(models[0][key], models[1][key]) == (key in shared), key


@pytest.mark.parametrize("name", ["fedsa-lora", "ffa-lora"])
def test_a_recipe_of_adapters_needs_a_rank(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"set model\.lora-rank"):
        run({"method": name, "device": "cpu"}, tmp_path)


def test_every_recipe_has_a_test_a_reference_and_known_keys() -> None:
    tested = {*EXACT, "fedsa-lora", "ffa-lora", "d-psgd", "dfedavgm", "sgp"}
    runnable = {name for name, recipe in recipes().items() if not recipe.missing}
    assert runnable == tested
    for name, recipe in recipes().items():
        assert recipe.title
        assert recipe.reference
        assert name not in METHODS
        for key, value in recipe.keys.items():
            assert keys()[key][1].take(value) == value


def test_a_recipe_is_its_keys_and_keeps_its_name() -> None:
    config = Config.from_flat({"method": "deprl"})
    assert (config.method, config.label, config.mixing) == ("fedrep", "deprl", "uniform")
    assert Config.from_flat(config.flat()) == config
    same = Config.from_flat({**config.flat(), "recipe": ""})
    assert same.flat() == {**config.flat(), "recipe": ""}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["method=d-psgd", "local-steps=5"], "the recipe d-psgd has local-steps = 1; leave"),
        (["method=fedper", "model.personal=1"], 'has model.personal = "head"'),
        (["method=swift"], "SWIFT cannot be run exactly: peers that average every s steps"),
        (["recipe=d-psgd"], 'the recipe d-psgd has method = "fedavg"'),
        (["recipe=d-psgdd"], 'unknown recipe "d-psgdd", did you mean "d-psgd"'),
        (["method=d-psgdd"], 'unknown method "d-psgdd", did you mean "d-psgd"'),
    ],
)
def test_a_contradiction_is_refused(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat(read_items(items)[1])


def test_a_recipe_overrides_a_preset() -> None:
    flat = read_items(["dpfl/digits-flips", "method=d-psgd", "topology=ring"])[1]
    config = Config.from_flat(flat)
    assert (config.local_steps, config.training.local_epochs, config.mixing) == (1, 0, "metropolis")
