"""Every backend against every other: networks, options, private gradients, errors, evaluation."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients import training as training_options
from coterie.clients.engine.backends.backend import Backend, Clipped, Examples
from coterie.clients.engine.backends.batched import Batched
from coterie.clients.engine.backends.choose import choose
from coterie.clients.engine.backends.sequential import Sequential, Vmapped
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.network import Network
from coterie.clients.engine.tasks import TASKS
from coterie.clients.models.adaptation import adapted
from coterie.clients.models.build import Theta, build
from coterie.clients.models.options import Adaptation, MlpOptions, TransformerOptions
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from coterie.datasets import plugins
from coterie.datasets.problem import Problem
from tests import marks
from tests.clients.methods.test_twins import CASES, case
from tests.kit import engine_of
from tests.problems import classification

BACKENDS: dict[str, Callable[..., Backend]] = {
    "sequential": Sequential, "batched": Batched, "vmapped": Vmapped,
}  # fmt: skip
TOLERANCE = 1e-12
"""Relative to the largest number. Reductions differ in order: sums of products inside matrix
products and convolutions."""
NORMED = 1e-9
"""Batch norm of few examples divides by small deviations, and layers multiply the difference."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"training": {"momentum": 0.9, "weight_decay": 0.1}},
    "adam": {"training": {"optimizer": "adam"}},
    "clipped": {"training": {"gradient_clip": 1.0}},
    "frozen": {"adaptation": "first"},
    "personal": {"adaptation": Adaptation(personal="head")},
    "lora": {"adaptation": Adaptation(lora_rank=2)},
    "private": {"privacy": Privacy("examples", clip=0.3, noise=1.0)},
}
WITHOUT = {
    ("linear", "frozen"), ("linear", "personal"),  # it is all head
    ("gpt2", "frozen"), ("gpt2", "lora"),  # has adapters
    ("unet2d", "lora"), ("unet3d", "lora"),  # no linear layers
    ("resnet9", "private"), ("unet2d", "private"), ("unet3d", "private"),  # batch norm
}  # fmt: skip
SLOW = ("resnet9", "resnet18")


def pairs() -> list[Any]:
    options = {name: ("plain",) if name in SLOW else tuple(OPTIONS) for name in CASES}
    cases = [(name, option) for name in CASES for option in options[name]]
    return [marks.case(*pair, is_long=pair[0] in SLOW) for pair in cases if pair not in WITHOUT]


def on(
    problem: Problem, model: str, options: Any, backend: str, *, training: Any = None, **more: Any
) -> Engine:
    setting = Training(batch_size=2, local_steps=2, learning_rate=0.01)
    training = replace(setting, **(training or {}))
    return engine_of(problem, model, options, training=training, backend=backend, **more)


def computed(of: Engine) -> dict[str, Tensor]:
    """Return models, buffers, gradients and scores after a few minibatches."""
    x, buffers = of.initial(common=False)
    steps = of.batches(1, steps=None, epochs=1)  # 5 and 4 examples: the last batches differ
    fit = of.fit(x, buffers, of.opt_state(x), steps)
    asked = np.array([1, 0, 0])
    asked_buffers = {name: value[asked] for name, value in fit.buffers.items()}
    batch = of.batches(2, peers=asked, partners=np.array([1, 2, 3]), steps=1)[0]
    gradients = of.gradients(fit.x[asked], asked_buffers, batch)
    scores = of.losses(fit.x[asked], asked_buffers, "test", asked)
    values = {"models": fit.x, "gradients": gradients.values, "losses": gradients.losses}
    values["scores"] = scores.losses
    if of.kind == "classification":
        values["embedded"] = of.embeddings(fit.x, fit.buffers, "test")
    return values | {f"buffers {name}": value.double() for name, value in fit.buffers.items()}


@pytest.mark.some(9)
@pytest.mark.parametrize(("name", "option"), pairs())
def test_backends_agree(name: str, option: str, tmp_path: Path) -> None:
    model, options, problem = case(name, tmp_path)
    keys = dict(OPTIONS[option])
    if option == "frozen":
        built = build(model, options, problem.task, problem.inputs.shape[1:], problem.outputs)
        keys["adaptation"] = Adaptation(frozen=next(iter(dict(built.named_parameters()))))
    results: dict[str, dict[str, Tensor]] = {}
    for backend in BACKENDS:
        if backend == "batched" and (name not in ("linear", "mlp") or option == "lora"):
            with pytest.raises(ValueError, match="has no batched kernel"):
                on(problem, model, options, backend, **keys)
            continue
        engine = on(problem, model, options, backend, **keys)
        assert engine.backend == backend
        results[backend] = computed(engine)
    expected = results.pop("sequential")
    bound = NORMED if any("running" in key for key in expected) else TOLERANCE
    for backend, values in results.items():
        for key, value in values.items():
            apart = (value - expected[key]).abs().max()
            assert apart <= bound * expected[key].abs().max().clamp_min(1.0), (backend, key)


def test_the_quadratic_problem_too() -> None:
    network, task = Network(_theta()), TASKS["quadratic"]
    g = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.rand(3, 4, 2, 5, generator=g, dtype=torch.float64), torch.zeros(3, 4),
        torch.rand(3, 4, generator=g, dtype=torch.float64), *torch.zeros(2, 3, dtype=torch.int64),
    )  # fmt: skip
    models = {"theta": torch.rand(3, 5, generator=g, dtype=torch.float64)}
    backends = [make(network, task) for make in BACKENDS.values()]
    one, *others = (backend.value_and_grad(models, {}, examples) for backend in backends)
    for other in others:
        torch.testing.assert_close(other.losses, one.losses, rtol=1e-14, atol=0)
        torch.testing.assert_close(other.gradients, one.gradients, rtol=1e-13, atol=0)
    expected, *norms = (backend.per_example(models, {}, examples).norms for backend in backends)
    for each in norms:
        torch.testing.assert_close(each, expected, rtol=1e-13, atol=0)


def _theta() -> nn.Module:
    return Theta(5).double()


# ---- layers in order --------------------------------------------------------------------------


def of_layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 7), nn.Tanh(), nn.Dropout(0.4),
        nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU()), nn.Identity(), nn.Linear(6, 3),
    )  # fmt: skip


def activated() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.GELU(),
        nn.Linear(4, 4), nn.GELU("tanh"), nn.LeakyReLU(), nn.ELU(), nn.SiLU(), nn.Flatten(),
        nn.Linear(4, 3, bias=False), nn.ReLU(),
    )  # fmt: skip


def shared() -> nn.Module:
    """A layer that is called twice, an activation in two places, and tied weights."""
    twice, tied, activation = nn.Linear(5, 5), nn.Linear(5, 5), nn.Tanh()
    tied.weight = twice.weight
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 5), activation, twice, activation, twice, tied, nn.Linear(5, 3)
    )


def overwriting() -> nn.Module:
    first = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    return nn.Sequential(first, nn.ReLU(inplace=True), nn.Linear(5, 3))


def partly_frozen() -> nn.Module:
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    )
    module[1].requires_grad_(False)
    module[3].weight.requires_grad_(False)
    return module


def of_rows() -> nn.Module:
    """A linear layer on the rows of an image: its gradient is a sum over the rows."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(
    "build", [of_layers, of_rows, activated, shared, overwriting, partly_frozen]
)
def test_layers_in_order_are_those_of_autograd(build: Callable[[], nn.Module], models: int) -> None:
    network, task = Network(build().double()), TASKS["classification"]
    g = torch.Generator().manual_seed(0)
    examples = examples_of(models, 6, g)
    stacks = {
        name: torch.randn(models, *network.module.get_parameter(name).shape, generator=g).double()
        for name in network.trained
    }
    before = {name: value.clone() for name, value in stacks.items()}, examples.inputs.clone()
    ours, theirs = (
        make(network, task).value_and_grad(stacks, {}, examples) for make in (Batched, Sequential)
    )
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours.gradients, theirs.gradients, rtol=1e-12, atol=1e-13)
    for name, value in stacks.items():
        assert torch.equal(value, before[0][name])
    assert torch.equal(examples.inputs, before[1])
    outputs = [
        make(network, task).outputs(stacks, {}, examples.inputs) for make in BACKENDS.values()
    ]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(outputs[0], outputs[2], rtol=1e-12, atol=1e-13)


def examples_of(models: int, width: int, g: torch.Generator) -> Examples:
    return Examples(
        torch.randn(models, width, 1, 4, 4, generator=g).double(),
        torch.randint(3, (models, width), generator=g),
        torch.rand(models, width, generator=g).double(),
        torch.arange(models) * 7919,
        torch.arange(models) * 3,
    )


class RemoteLetters(nn.ReLU):
    """A user's class, which may do anything."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def hooked() -> nn.Module:
    module = of_layers()
    module[1].register_forward_pre_hook(lambda layer, inputs: (3 * inputs[0],))
    return module


def doubled(layer: nn.Module, inputs: Any, outputs: Any) -> Any:
    return (2 * inputs[0],)


def hooked_on_the_way_back() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    module[3].register_full_backward_hook(doubled)
    return module


def replaced() -> nn.Module:
    module, layer = of_layers(), nn.Linear(16, 7)
    layer.forward = lambda x: F.linear(2 * x, layer.weight)  # type: ignore[method-assign,assignment]
    module[1] = layer
    return module


class Scaled(nn.Sequential):
    """Network with a parameter outside its layers."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 3))
        self.scale = nn.Parameter(torch.ones(()))


class Twice(nn.Sequential):
    """Network that calls a layer twice."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        flat, one, other = self
        outputs: Tensor = other(one(one(flat(x))))
        return outputs


@pytest.mark.parametrize(
    "build",
    [
        hooked, hooked_on_the_way_back, replaced, Scaled, Twice,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), RemoteLetters()),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.SiLU(inplace=True)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Softplus()),
    ],
)  # fmt: skip
def test_what_is_more_than_its_layers_is_not_batched(build: Callable[[], nn.Module]) -> None:
    network = Network(build().double())
    examples = examples_of(2, 2, torch.Generator().manual_seed(0))
    chosen = choose("auto", network, TASKS["classification"], examples, private=False)
    assert chosen.name == "vmapped"
    with pytest.raises(ValueError, match='"batched" cannot run the network'):
        choose("batched", network, TASKS["classification"], examples, private=False)


class Filled(nn.Sequential):
    """Network as a user would write it."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 3))


def test_a_class_that_only_fills_a_sequence_is_batched() -> None:
    examples = examples_of(2, 2, torch.Generator().manual_seed(0))
    network = Network(Filled().double())
    assert (
        choose("auto", network, TASKS["classification"], examples, private=False).name == "batched"
    )


@pytest.mark.parametrize(
    ("model", "private", "expected"),
    [
        ("mlp", False, "batched"), ("mlp", True, "batched"), ("lenet", False, "sequential"),
        ("lenet", True, "vmapped"), ("transformer", False, "vmapped"),
        ("tests.plugins:branching", False, "sequential"),
    ],
)  # fmt: skip
def test_the_choice_on_a_cpu_is_logged(
    model: str, private: bool, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if model in CASES:
        model, options, problem = case(model, tmp_path)
    else:
        options, problem = None, classification([4, 4])
    privacy = Privacy("examples") if private else None
    with caplog.at_level(logging.INFO, "coterie.engine"):
        assert on(problem, model, options, "auto", privacy=privacy).backend == expected
    (line,) = [text for text in caplog.messages if "backend" in text]
    assert f"backend={expected} reason=" in line


def test_a_network_that_vmap_cannot_batch_refuses_it() -> None:
    with pytest.raises(ValueError, match=r'"vmapped" cannot run the network: use torch.where'):
        on(classification([4, 4]), "tests.plugins:branching", None, "vmapped")
    assert set(get_args(training_options.BackendName)) == {"auto", *BACKENDS}


# ---- private gradients ------------------------------------------------------------------------


def one_by_one(inner: Backend, models: Any, examples: Examples, clip: float) -> dict[str, Tensor]:
    """The clipped sum of each model, from calls that see one model and one example."""
    count, width = examples.weights.shape
    sums = {name: torch.zeros_like(value) for name, value in models.items()}
    for e in range(count):
        model = {name: value[e : e + 1] for name, value in models.items()}
        for b in range(width):
            one = Examples(
                examples.inputs[e : e + 1, b : b + 1], examples.targets[e : e + 1, b : b + 1],
                torch.ones(1, 1).double(), examples.keys[e : e + 1], examples.first[e : e + 1] + b,
            )  # fmt: skip
            gradients = inner.value_and_grad(model, {}, one).gradients
            norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
            for name, gradient in gradients.items():
                scale = float(examples.weights[e, b]) * min(1.0, clip / max(norm, 1e-30))
                sums[name][e] += scale * gradient[0]
    return sums


@cache
def private_network(name: str) -> tuple[Network, tuple[int, ...], int]:
    """Embeddings with attention, adapters, layers that are shared, convolutions, plain layers."""
    torch.manual_seed(0)
    if name == "attention":
        options = TransformerOptions(1, 8, 2, dropout=0.2)
        return Network(build("transformer", options, "language", (5,), 7).double()), (5,), 7
    if name == "lora":
        plain = build("mlp", MlpOptions("5"), "classification", (1, 4, 4), 3)
        return Network(adapted(plain, Adaptation(lora_rank=2)).double()), (1, 4, 4), 3
    if name == "functional norm":
        return Network(_FunctionalNorm().double()), (1, 4, 4), 3
    layers = {"shared": shared, "rows": of_rows, "frozen": partly_frozen, "layers": of_layers}
    if name in layers:
        module = layers[name]()
    else:
        module = build("lenet", None, "classification", (1, 8, 8), 3)
    return Network(module.double()), (1, 8, 8) if name == "lenet" else (1, 4, 4), 3


class _FunctionalNorm(nn.Module):
    """Normalises over its batch without a batch norm layer that one could refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.flatten(1))
        outputs: Tensor = self.other((h - h.mean(0)) / (h.std(0, correction=0) + 0.1))
        return outputs


PRIVATE = (
    "attention", "lora", "shared", "rows", "frozen", "layers", "lenet", "functional norm",
)  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PRIVATE)
@given(
    st.floats(1e-3, 10.0), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**16),
)  # fmt: skip
def test_clipped_sums_are_those_of_one_example_at_a_time(
    name: str, backend: str, clip: float, models: int, width: int, seed: int
) -> None:
    """Dropout included: an example's mask follows from its place in the minibatch."""
    network, shape, classes = private_network(name)
    task = TASKS["language" if name == "attention" else "classification"]
    g = torch.Generator().manual_seed(seed)
    tokens = name == "attention"
    inputs = torch.randn(models, width, *shape, generator=g).double()
    if tokens:
        inputs = torch.randint(classes, inputs.shape, generator=g)
    target = inputs.shape if tokens else (models, width)
    examples = Examples(
        inputs, torch.randint(classes, target, generator=g),
        torch.rand(models, width, generator=g).double(), torch.arange(models) * 7919,
        torch.arange(models),
    )  # fmt: skip
    stacks = {
        name: value + 0.3 * torch.randn(value.shape, generator=g).double()
        for name, value in network.copies(models)[0].items()
    }
    try:
        inner = BACKENDS[backend](network, task)
        gradients = Clipped(inner, clip).value_and_grad(stacks, {}, examples).gradients
    except ValueError:
        assert backend == "batched"
        pytest.skip("the batched backend refuses it")
    expected = one_by_one(Sequential(network, task), stacks, examples, clip)
    for key, value in expected.items():
        torch.testing.assert_close(gradients[key], value, rtol=1e-10, atol=1e-12)
    total = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    assert (total <= clip * examples.weights.sum(dim=1) * (1 + 1e-9)).all()


@pytest.mark.parametrize("backend", [Batched, Vmapped, Sequential])
def test_an_example_whose_gradient_is_not_finite_is_left_out(backend: Any) -> None:
    """T8: a crafted weight makes the gradient of certain examples NaN; the sum must not show it."""
    network, task = Network(Filled()), TASKS["classification"]
    g = torch.Generator().manual_seed(0)
    examples = Examples(*(v.float() if v.is_floating_point() else v for v in examples_of(2, 3, g)))
    models = {name: value.clone() for name, value in network.copies(2)[0].items()}
    models["1.weight"][0] = 1e30
    examples.inputs[0, 1] = 1e30
    clipped = Clipped(backend(network, task), 1.0)
    gradients = clipped.value_and_grad(models, {}, examples).gradients
    weights = examples.weights.clone()
    weights[0, 1] = 0
    without = clipped.value_and_grad(models, {}, examples._replace(weights=weights)).gradients
    for name, value in gradients.items():
        assert value.isfinite().all()
        assert torch.equal(value, without[name])
    assert gradients["1.weight"][1].any()


@pytest.mark.parametrize("backend", [Batched, Vmapped, Sequential])
@pytest.mark.parametrize("size", [1e-30, 1e-24, 1e-15, 1e15, 1e24, 1e27])
def test_no_size_of_a_factor_leads_beyond_the_clip(backend: Any, size: float) -> None:
    """An input and an output gradient of far different size, whose squares leave float32."""
    network = Network(nn.Sequential(nn.Linear(9, 1, bias=False)))
    clip, slope = 1e-6, 1.0 / size
    task = replace(
        TASKS["regression"], slopes=None,
        losses=lambda outputs, targets: slope * outputs[..., 0],
    )  # fmt: skip
    for stretch in (1.0, 1e-3, 1e3, 1e9):
        examples = Examples(
            torch.full((1, 2, 9), size * stretch), torch.zeros(1, 2, 1), torch.ones(1, 2),
            *torch.zeros(2, 1, dtype=torch.int64),
        )  # fmt: skip
        models = {"0.weight": torch.zeros(1, 1, 9)}
        clipped = Clipped(backend(network, task), clip)
        sums = clipped.value_and_grad(models, {}, examples).gradients["0.weight"]
        norm = float(sums.double().norm())
        assert norm <= 2 * clip * (1 + 1e-5)
        if 1e-20 < size * stretch < 1e20:
            assert norm == pytest.approx(2 * clip, rel=1e-5), "a length that can be scaled"


@pytest.mark.parametrize("build", [shared, of_rows])
def test_private_products_that_may_cancel_are_not_batched(build: Callable[[], nn.Module]) -> None:
    """Their norm and their weighted sum are rounded apart: by more than a clip, if crafted."""
    network, task = Network(build()), TASKS["classification"]
    examples = examples_of(2, 3, torch.Generator().manual_seed(0))
    examples = Examples(*(v.float() if v.is_floating_point() else v for v in examples))
    assert choose("auto", network, task, examples, private=False).name == "batched"
    assert choose("auto", network, task, examples, private=True).name == "vmapped"
    with pytest.raises(ValueError, match="an example may use"):
        choose("batched", network, task, examples, private=True)


# ---- errors ----------------------------------------------------------------------------------


class Fragile(nn.Module):
    """Fails from its third call in training on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls > 5:
                raise KeyError("no such thing")
        return x * self.weight


def _fragile(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Sequential(Fragile()), nn.Linear(16, outputs))


def mean_of_rounds(engine: Engine, x: Tensor, buffers: Any) -> Tensor:
    rounds = [engine.gradients(x, buffers, engine.batches(t)[0]).values for t in range(1, 9)]
    return torch.stack(rounds).mean(dim=0)


@pytest.mark.parametrize("backend", ["sequential", "vmapped"])
def test_an_error_names_peer_round_and_layer(backend: str) -> None:
    model = plugins.register("model", "fragile", _fragile)
    engine = on(classification([4, 4]), model, None, backend)
    x, buffers = engine.initial()
    with pytest.raises(KeyError) as caught:
        mean_of_rounds(engine, x, buffers)
    (note,) = caught.value.__notes__
    peers = "peers 0 to 1" if backend == "vmapped" else "peer [01]"
    assert re.fullmatch(rf'layer "1.0" \(Fragile\), {peers}, round \d', note)


def test_batch_norm_of_one_example_is_named() -> None:
    model = plugins.register("model", "normed", lambda shape, outputs: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs)
    ))  # fmt: skip
    engine = on(classification([1, 4]), model, None, "auto")
    x, buffers = engine.initial()
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        engine.gradients(x, buffers, engine.batches(3)[0])
    (note,) = caught.value.__notes__
    assert note.startswith('layer "2" (BatchNorm1d), peer 0, round 3, batch norm needs two')


# ---- evaluation counts what is distinct --------------------------------------------------------


def passes(of: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the models and examples that go through the network in evaluation."""
    seen = Counter[str]()
    backend = of._execution.backend
    outputs = type(backend).outputs

    def counted(self: Backend, models: Any, buffers: Any, inputs: Tensor) -> Tensor:
        seen["examples"] += inputs.shape[0] * inputs.shape[1]
        return outputs(self, models, buffers, inputs)

    monkeypatch.setattr(type(backend), "outputs", counted)
    return seen


def iid(peers: int, tests: int) -> Problem:
    """Return peers with different training examples and a common test set."""
    problem = classification([4] * peers, tests=[tests] * peers)
    test = replace(
        problem.test,
        rows=(problem.test.rows[0],) * (peers - 1) + (problem.test.rows[0].copy(),),
        targets=(problem.test.targets[0],) * peers,
    )
    return replace(problem, test=test)


def test_equal_models_on_equal_data_are_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg: all peers have the average and the same test set."""
    problem = iid(5, 7)
    of = Engine(problem, "mlp", None, range(5), Training(batch_size=4), device="cpu")
    x, buffers = of.initial()
    seen = passes(of, monkeypatch)
    scores = of.losses(x, buffers, "test")
    assert seen["examples"] == 7
    assert (scores.losses == scores.losses[0]).all()
    of.losses(x, buffers, "train")
    assert seen["examples"] == 7 + 5 * 4  # data that differ


def test_what_differs_is_evaluated_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the columns that are compared first agree, and where only a buffer differs."""
    problem = iid(5, 7)
    of = Engine(problem, "mlp", None, range(5), Training(batch_size=4), device="cpu")
    x, buffers = of.initial()
    x[1, 1] += 1e-3  # not among the columns that are compared first
    x[2, 0] += 1e-3
    x[3] = x[2]
    alone = torch.cat([of.losses(x[p : p + 1], {}, "test", np.array([p])).losses for p in range(5)])
    seen = passes(of, monkeypatch)
    losses = of.losses(x, buffers, "test").losses
    assert seen["examples"] == 3 * 7
    assert torch.equal(losses, alone)


def test_models_with_other_statistics_are_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plugins.register("model", "with-norm", lambda shape, outputs: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs)
    ))  # fmt: skip
    of = Engine(iid(3, 7), model, None, range(3), Training(batch_size=4), device="cpu")
    x, buffers = of.initial()
    buffers["2.running_mean"][1] += 1
    seen = passes(of, monkeypatch)
    of.losses(x, buffers, "test")
    assert seen["examples"] == 2 * 7


def test_predictions_of_equal_models_are_recorded_once() -> None:
    of = Engine(iid(3, 7), "mlp", None, range(3), Training(batch_size=4), device="cpu")
    x, buffers = of.initial()
    x[1] += 0.1
    _, predicted, of_p = of.recorded(lambda: of.losses(x, buffers, "test"))
    assert predicted is not None
    assert predicted.shape == (2, 7, 3)
    assert of_p.tolist() == [0, 1, 0]
    assert not torch.equal(predicted[0], predicted[1])
    assert torch.allclose(predicted.sum(dim=2), torch.ones(2, 7).double())
