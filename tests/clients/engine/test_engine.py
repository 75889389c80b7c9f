"""The stacked engine against a plain loop over peers: torch.nn modules and torch.optim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from coterie.clients.engine.data import Batch, SplitName
from coterie.clients.engine.engine import Engine, Fit, Gradients, device_of
from coterie.clients.engine.layers import Dropout
from coterie.clients.engine.network import LAYER_STEP, Buffers, ModelError
from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Part
from coterie.clients.mixture import Mixture
from coterie.clients.models.build import build
from coterie.clients.models.options import MODELS, Model
from coterie.clients.training import BackendName as Backend
from coterie.clients.training import Terms, Training
from coterie.datasets.problem import Problem
from tests.kit import engine_of
from tests.problems import classification

SIZES = (11, 5, 8, 11)  # batches of 4: last ones of 3, 1, 0 and 3; 3, 2, 2 and 3 steps an epoch
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
TRAININGS = {
    "sgd": Training(),
    "momentum": Training(momentum=0.9),
    "weight decay": Training(weight_decay=0.1),
    "both, decaying": Training(momentum=0.9, weight_decay=0.1, learning_rate_decay=0.5),
    "adam": Training(optimizer="adam", learning_rate=0.01),
    "adam, weight decay": Training(optimizer="adam", learning_rate=0.01, weight_decay=0.1),
    "adamw": Training(optimizer="adamw", learning_rate=0.01, weight_decay=0.1),
    "rmsprop": Training(optimizer="rmsprop", learning_rate=0.01),
    "clipped": Training(gradient_clip=0.7, weight_decay=0.1, learning_rate_schedule="cosine"),
}
Penalty = Callable[[Tensor], Tensor]


def module_of(engine: Engine, problem: Problem, model: str, x_d: Tensor) -> nn.Module:
    module = build(model, None, problem.task, problem.inputs.shape[1:], problem.outputs)
    module = module.to(engine.dtype)
    vector_to_parameters(x_d.clone(), module.parameters())
    return module


def examples(
    problem: Problem, split: SplitName, peer: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    part = getattr(problem, split)
    raw = torch.tensor(problem.inputs[part.rows[peer]], dtype=dtype)
    mean, std = (torch.tensor(v, dtype=dtype) for v in (problem.mean, problem.std))
    return (raw - mean) / std, torch.tensor(part.targets[peer])


def optimizer_of(training: Training, module: nn.Module) -> torch.optim.Optimizer:
    known: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), **known)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(module.parameters(), **known)
    if training.optimizer == "rmsprop":
        return torch.optim.RMSprop(module.parameters(), **known)
    return torch.optim.SGD(module.parameters(), momentum=training.momentum, **known)


def plain_loop(
    engine: Engine,
    problem: Problem,
    model: str,
    x_pd: Tensor,
    batches: Sequence[Batch],
    *,
    penalty: Callable[[int], Penalty] | None = None,
    drift: Callable[[int], Penalty] | None = None,
) -> tuple[Tensor, list[nn.Module]]:
    """Train the peers in order with plain PyTorch."""
    trained, modules = [], []
    for p, peer in enumerate(engine.peers.tolist()):
        module = module_of(engine, problem, model, x_pd[p])
        optimizer = optimizer_of(engine.training, module)
        inputs, targets = examples(problem, "train", peer, engine.dtype)
        module.train()
        for batch in batches:
            count = int(batch.counts_e[p])
            if count == 0:
                continue
            optimizer.param_groups[0]["lr"] = engine.training.rate(batch.round)
            dropouts = [m for m in module.modules() if isinstance(m, Dropout)]
            for number, dropout in enumerate(dropouts):
                dropout.get_buffer("dropout_key").copy_(batch.keys_e[p] + number * LAYER_STEP)
            rows = batch.rows_eb[p, :count]
            optimizer.zero_grad()
            F.cross_entropy(module(inputs[rows]), targets[rows]).backward()
            before = parameters_to_vector(module.parameters()).detach().clone()
            if penalty:
                penalty(p)(parameters_to_vector(module.parameters())).backward()
            if clip := engine.training.gradient_clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            if drift:
                after = parameters_to_vector(module.parameters()).detach()
                moved = after - engine.training.rate(batch.round) * drift(p)(before)
                vector_to_parameters(moved, module.parameters())
        trained.append(parameters_to_vector(module.parameters()).detach())
        modules.append(module)
    return torch.stack(trained), modules


def train(engine: Engine, batches: Sequence[Batch]) -> tuple[Tensor, Fit]:
    x_pd, buffers = engine.initial()
    return x_pd, engine.fit(x_pd, buffers, engine.opt_state(x_pd), batches)


def close(a: Tensor, b: Tensor, dtype: str = "float64") -> bool:
    return bool((a - b).abs().max() <= TOLERANCE[dtype] * b.abs().max().clamp_min(1.0))


@pytest.fixture
def normed(monkeypatch: pytest.MonkeyPatch) -> str:
    """A network with batch norm and dropout (ours: torch's masks cannot be reproduced)."""

    def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            Dropout(0.25), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(),
            Dropout(0.5), nn.Linear(8, outputs),
        )  # fmt: skip

    monkeypatch.setitem(MODELS, "normed", Model("of a test", network))
    return "normed"


def test_a_function_that_returns_one_network_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine empties the network that it keeps, so it cannot be the start as well."""
    again = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    monkeypatch.setitem(MODELS, "again", Model("of a test", lambda shape, outputs: again))
    problem = classification(SIZES, shape=(9,), classes=3)
    with pytest.raises(ModelError, match="build a new one per call"):
        engine_of(problem, "again").initial()


@pytest.mark.some(26)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("passes", [{"local_steps": 3}, {"local_epochs": 1}])
def test_training_equals_a_plain_loop(name: str, passes: dict[str, Any], dtype: str) -> None:
    problem = classification(SIZES)
    training = replace(TRAININGS[name], batch_size=4, **passes)
    engine = engine_of(problem, "linear", training=training, dtype=dtype)
    batches = [*engine.batches(1), *engine.batches(2)]
    x_pd, fit = train(engine, batches)
    expected, _ = plain_loop(engine, problem, "linear", x_pd, batches)
    assert fit.x.dtype == getattr(torch, dtype)
    assert close(fit.x, expected, dtype)
    assert not close(fit.x, x_pd, dtype)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_proximal_objective_and_a_drift_equal_a_plain_loop(name: str) -> None:
    """FedProx's mu/2 |x - anchor|^2 passes through the optimizer, a drift does not."""
    problem = classification(SIZES)
    engine = engine_of(problem, training=replace(TRAININGS[name], batch_size=4, local_epochs=1))
    batches = [*engine.batches(1), *engine.batches(2)]
    x_pd, buffers = engine.initial()
    anchor_pd, pull_pd = (torch.randn(x_pd.shape, dtype=x_pd.dtype) for _ in range(2))

    def objective(x_ed: Tensor, before: Buffers, batch: Batch) -> Gradients:
        gradients = engine.gradients(x_ed, before, batch)
        return gradients._replace(values=gradients.values + 0.3 * (x_ed - anchor_pd))

    def drift(x_ed: Tensor, at: Part) -> Tensor:
        return 0.2 * (x_ed - pull_pd[at])

    before = x_pd, buffers, engine.opt_state(x_pd)
    fit = engine.fit(*before, batches, gradient=objective, terms=Terms(drift))
    as_data = engine.fit(*before, batches, terms=Terms(drift, (0.3, anchor_pd)))
    assert close(as_data.x, fit.x)
    expected, _ = plain_loop(
        engine, problem, "linear", x_pd, batches,
        penalty=lambda p: lambda x_d: 0.15 * (x_d - anchor_pd[p]).square().sum(),
        drift=lambda p: lambda x_d: 0.2 * (x_d - pull_pd[p]),
    )  # fmt: skip
    assert close(fit.x, expected)


@pytest.mark.parametrize("backend", ["sequential", "batched", "vmapped"])
@pytest.mark.parametrize("trains_head", [True, False])
@pytest.mark.parametrize("name", TRAININGS)
def test_frozen_tensors_keep_their_values(name: str, trains_head: bool, backend: Backend) -> None:
    """Neither momentum nor weight decay moves them; the others descend the gradient of the whole.

    With a gradient function that computes all gradients, the steps are the same.
    """
    training = replace(TRAININGS[name], batch_size=4, local_epochs=1)
    engine = engine_of(classification(SIZES), "mlp", training=training, backend=backend)
    batches, (x_pd, buffers) = engine.batches(1), engine.initial()
    network = engine.network
    names = [each for each in network.names if (each in network.head) == trains_head]
    trains_d = network.columns(names)
    before, terms = (x_pd, buffers, engine.opt_state(x_pd[:, trains_d])), Terms(trained=names)
    fit = engine.fit(*before, batches, terms=terms)
    assert torch.equal(fit.x[:, ~trains_d], x_pd[:, ~trains_d])
    assert not close(fit.x, x_pd)
    assert close(fit.x, engine.fit(*before, batches, terms=terms, gradient=engine.gradients).x)


def test_a_mask_keeps_entries_at_zero() -> None:
    engine = engine_of(classification(SIZES), training=TRAININGS["momentum"])
    batches, (x_pd, buffers) = engine.batches(1), engine.initial()
    mask_pd = (torch.rand(x_pd.shape) < 0.5).to(x_pd)
    before = x_pd * mask_pd, buffers, engine.opt_state(x_pd)
    fit = engine.fit(*before, batches, terms=Terms(mask=mask_pd))
    assert torch.equal(fit.x * mask_pd, fit.x)
    assert not close(fit.x, before[0])


@pytest.mark.parametrize("passes", [{"local_steps": 3}, {"local_epochs": 2}])
def test_batch_norm_and_dropout_equal_a_plain_loop(normed: str, passes: dict[str, Any]) -> None:
    problem = classification((10, 6, 8, 10))  # last batches of 2, 2, 4 and 2
    engine = engine_of(problem, normed, training=Training(batch_size=4, momentum=0.9, **passes))
    batches = engine.batches(1)
    x_pd, fit = train(engine, batches)
    expected, modules = plain_loop(engine, problem, normed, x_pd, batches)
    assert close(fit.x, expected)
    for name, value in fit.buffers.items():
        twin = torch.stack([module.get_buffer(name) for module in modules])
        assert torch.allclose(value.double(), twin.double(), rtol=1e-12, atol=1e-15), name
    seen = [sum(int(batch.counts_e[p] > 0) for batch in batches) for p in range(4)]
    assert fit.buffers["1.num_batches_tracked"].tolist() == seen
    scores = engine.losses(fit.x, fit.buffers, "test")
    for p, module in enumerate(modules):
        inputs, targets = examples(problem, "test", p, engine.dtype)
        expected_loss = F.cross_entropy(module.eval()(inputs), targets)
        assert scores.losses[p].item() == pytest.approx(expected_loss.item(), rel=1e-12)


@pytest.mark.some(4)
@pytest.mark.parametrize("model", ["linear", "normed"])
@pytest.mark.parametrize("bounds", [{"chunk": 1}, {"chunk": 2}, {"chunk": 3}, {"memory": 1}])
def test_how_many_models_a_call_takes_changes_nothing(
    normed: str, model: str, bounds: dict[str, Any]
) -> None:
    problem = classification((10, 6, 8, 10))
    training = Training(batch_size=4, momentum=0.9, local_epochs=2)
    results = []
    for limits in ({"chunk": 4}, bounds):
        engine = engine_of(problem, model, training=training, **limits)
        _, fit = train(engine, engine.batches(1))
        every = np.repeat(np.arange(4), 3)
        batch = engine.batches(1, Purpose.ANSWER, peers=every, partners=np.tile([1, 2, 3], 4))[0]
        buffers = {name: value[every] for name, value in fit.buffers.items()}
        answers = engine.gradients(fit.x[every], buffers, batch)
        scores = engine.losses(fit.x[every], buffers, "test", every[::-1].copy())
        results.append([fit.x, answers.values, answers.losses, *scores, *fit.buffers.values()])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-12, atol=1e-12)


def test_a_peer_trains_the_same_in_any_company(normed: str) -> None:
    """Minibatches and dropout masks do not depend on the stacked peers."""
    problem = classification((10, 6, 8, 10))
    training = Training(batch_size=4, momentum=0.9, local_epochs=2)
    everyone = engine_of(problem, normed, training=training)
    _, together = train(everyone, everyone.batches(1))
    for peers in ([2], [0, 3], [1, 2, 3]):
        engine = engine_of(problem, normed, training=training, peers=peers)
        _, fit = train(engine, engine.batches(1))
        assert torch.allclose(fit.x, together.x[peers], rtol=0, atol=1e-12)


def test_a_common_start_or_one_each() -> None:
    problem = classification(SIZES)
    engine, other = engine_of(problem), engine_of(problem, peers=[2, 3])
    common, separate = engine.initial()[0], engine.initial(common=False)[0]
    assert (common == common[0]).all()
    assert len({tuple(row) for row in separate.tolist()}) == 4
    assert torch.equal(other.initial()[0], common[2:])
    assert torch.equal(other.initial(common=False)[0], separate[2:])


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_gradients_on_edges_equal_a_plain_loop(chunk: int) -> None:
    """Any model on any peer's minibatch, several at once."""
    problem = classification(SIZES)
    engine = engine_of(problem, chunk=chunk)
    x_pd, buffers = engine.initial(common=False)
    models, peers = np.array([0, 3, 2, 1, 3]), np.array([2, 0, 2, 3, 1])
    batch = engine.batches(7, Purpose.ANSWER, peers=peers, partners=models, steps=1)[0]
    result = engine.gradients(x_pd[models], buffers, batch)
    for e, (model, peer) in enumerate(zip(models, peers, strict=True)):
        module = module_of(engine, problem, "linear", x_pd[model])
        inputs, targets = examples(problem, "train", peer, engine.dtype)
        rows = batch.rows_eb[e, : batch.counts_e[e]]
        loss = F.cross_entropy(module(inputs[rows]), targets[rows])
        gradients = torch.autograd.grad(loss, tuple(module.parameters()))
        assert result.losses[e].item() == pytest.approx(loss.item(), rel=1e-12)
        assert close(result.values[e], torch.cat([g.flatten() for g in gradients]))


def test_a_gradient_leaves_its_arguments_alone(normed: str) -> None:
    engine = engine_of(classification((10, 6, 8, 10)), normed)
    x_pd, buffers = engine.initial(common=False)
    before = x_pd.clone(), {name: value.clone() for name, value in buffers.items()}
    batch = engine.batches(1, steps=1)[0]
    foreign = engine.gradients(x_pd[[1, 2, 3, 0]], buffers, batch)
    assert torch.equal(x_pd, before[0])
    assert all(torch.equal(buffers[name], before[1][name]) for name in buffers)
    assert not torch.equal(foreign.buffers["1.running_mean"], buffers["1.running_mean"])


def test_a_gradient_without_data_is_zero_and_its_buffers_stay(normed: str) -> None:
    engine = engine_of(classification((10, 6, 8, 10)), normed)
    x_pd, buffers = engine.initial()
    batch = engine.batches(1, epochs=1)[2]  # peers 1 and 2 have seen all their data
    assert batch.counts_e.tolist() == [2, 0, 0, 2]
    gradients = engine.gradients(x_pd, buffers, batch)
    assert not gradients.values[[1, 2]].any()
    assert gradients.values[[0, 3]].abs().amax(dim=1).gt(0).all()
    for name, value in buffers.items():
        assert torch.equal(gradients.buffers[name][[1, 2]], value[[1, 2]])


def test_the_bill_counts_every_example_once() -> None:
    engine = engine_of(classification(SIZES), training=Training(batch_size=4, local_epochs=3))
    train(engine, engine.batches(1))
    assert engine.n_gradients.tolist() == [3 * size for size in SIZES]
    peers = np.array([0, 2, 2, 1])
    x_pd, buffers = engine.initial()
    engine.gradients(x_pd[peers], buffers, engine.batches(2, peers=peers, steps=1)[0])
    engine.gradients(x_pd, buffers, engine.data.everything())
    engine.losses(x_pd, buffers, "train")
    expected = np.array([4, 4, 8, 0]) + np.array(SIZES) * 4
    assert engine.n_gradients.tolist() == expected.tolist()


@pytest.mark.parametrize("memory", [0, 1, 3_000])
def test_scores_equal_a_plain_loop(memory: int) -> None:
    problem = classification(SIZES, tests=(7, 0, 1, 12))
    engine = engine_of(problem, memory=memory)
    x_pd, buffers = engine.initial(common=False)
    models, peers = np.array([0, 3, 2, 1, 3, 0]), np.array([0, 0, 2, 3, 3, 1])
    scores = engine.losses(x_pd[models], buffers, "test", peers)
    for e, (model, peer) in enumerate(zip(models, peers, strict=True)):
        inputs, targets = examples(problem, "test", peer, engine.dtype)
        if not len(targets):
            assert scores.losses[e].isnan()
            assert scores.accuracies[e].isnan()
            continue
        outputs = module_of(engine, problem, "linear", x_pd[model])(inputs)
        loss = F.cross_entropy(outputs, targets).item()
        assert scores.losses[e].item() == pytest.approx(loss, rel=1e-12)
        right = (outputs.argmax(dim=1) == targets).double().mean().item()
        assert scores.accuracies[e].item() == right


@pytest.mark.parametrize("memory", [0, 1])
def test_a_mixture_averages_probabilities(memory: int) -> None:
    problem = classification(SIZES, tests=(7, 4, 1, 12))
    engine = engine_of(problem, memory=memory)
    x_pd, _ = engine.initial(common=False)
    weights_em = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8], [1, 0, 0]])
    weights_em = weights_em.double()
    members = np.array([[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]])
    scores = engine.mixture_losses(Mixture(weights_em, x_pd[members], {}), "test")
    for p in range(4):
        inputs, targets = examples(problem, "test", p, engine.dtype)
        shares = [
            weight * module_of(engine, problem, "linear", x_pd[member])(inputs).softmax(dim=1)
            for weight, member in zip(weights_em[p], members[p], strict=True)
        ]
        mixed = torch.stack(shares).sum(dim=0)
        loss = -mixed[torch.arange(len(targets)), targets].log().mean()
        right = (mixed.argmax(dim=1) == targets).double().mean()
        assert scores.losses[p].item() == pytest.approx(loss.item(), rel=1e-12)
        assert scores.accuracies[p].item() == right.item()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mixing_is_exact_and_does_not_depend_on_who_is_stacked(dtype: str) -> None:
    engine = engine_of(classification(SIZES), dtype=dtype)
    g = np.random.default_rng(0)
    whole = engine.tensor(g.integers(-8, 8, (5, 1000)))  # sums of few small integers are exact
    integers = g.integers(-3, 3, (4, 5)).astype(float)
    assert np.array_equal(engine.mix(integers, whole).numpy(), integers @ whole.numpy())
    x_sd, weights_ps = engine.tensor(g.normal(size=(5, 4810))), g.normal(size=(4, 5))
    together = engine.mix(weights_ps, x_sd)
    for p in range(4):
        senders = np.array(
            [0, 2, 3]
        )  # the others' weights are 0: whether they are there is no matter
        silent = weights_ps[p : p + 1].copy()
        silent[:, [1, 4]] = 0
        assert torch.equal(engine.mix(weights_ps[p : p + 1], x_sd)[0], together[p])
        assert torch.equal(engine.mix(silent, x_sd), engine.mix(silent[:, senders], x_sd[senders]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inner_products_do_not_depend_on_order_or_stacking(dtype: str) -> None:
    engine = engine_of(classification(SIZES), dtype=dtype)
    g = np.random.default_rng(0)
    a_ed, b_ed = (engine.tensor(g.normal(size=(6, 4810))) for _ in range(2))
    together = engine.inner(a_ed, b_ed)
    assert together.dtype == torch.float64
    assert np.allclose(together, (a_ed.double() * b_ed.double()).sum(dim=1), rtol=1e-12)
    for e in range(6):
        alone = engine.inner(b_ed[e : e + 1].clone(), a_ed[e : e + 1].clone())
        assert torch.equal(alone, together[e : e + 1])
    assert engine.inner(a_ed[:0], b_ed[:0]).shape == (0,)


def test_float32_sums_are_accumulated_in_float64() -> None:
    engine = engine_of(classification(SIZES), dtype="float32")
    large = engine.tensor([[2.0**24], [1.0], [-(2.0**24)]])
    assert engine.mix(np.ones((1, 3)), large).item() == 1.0
    assert engine.inner(large.T, engine.tensor(np.ones((1, 3)))).item() == 1.0


def test_one_step_down_given_gradients() -> None:
    engine = engine_of(classification(SIZES), training=TRAININGS["both, decaying"])
    x_pd, _ = engine.initial(common=False)
    opt_state, twin = engine.opt_state(x_pd), x_pd.clone().requires_grad_()
    optimizer = torch.optim.SGD([twin], lr=0.1, momentum=0.9, weight_decay=0.1)
    for seed in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5**seed
        twin.grad = torch.randn(x_pd.shape, dtype=x_pd.dtype, generator=torch.manual_seed(seed))
        x_pd, _, opt_state = engine.step(x_pd, twin.grad, opt_state, seed + 1)
        optimizer.step()
    assert torch.allclose(x_pd, twin, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "there", "gpu", "device"),
    [
        ("auto", 0, 3, "cpu"), ("cpu", 2, 1, "cpu"), ("auto", 1, 3, "cuda:0"),
        ("auto", 2, 3, "cuda:1"), ("cuda", 4, 2, "cuda:2"), ("cuda", 4, 4, "cuda:0"),
    ],
)  # fmt: skip
def test_nodes_are_dealt_to_the_gpus_that_there_are(
    monkeypatch: pytest.MonkeyPatch, name: str, there: int, gpu: int, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert device_of(name, gpu) == torch.device(device)


@pytest.mark.parametrize(("visible", "there", "warns"), [("", True, True), ("", False, False)])
def test_a_hidden_gpu_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, visible: str, there: bool,
    warns: bool,
) -> None:  # fmt: skip
    """Ray hides GPUs from actors that were given none: `flwr run` would use the CPU silently."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "exists", lambda self: there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_of("auto", 0) == torch.device("cpu")
    assert ["client-resources-num-gpus" in line for line in caplog.messages] == [True] * warns


def test_a_ridge_does_not_depend_on_threads() -> None:
    g, threads, weights = torch.Generator().manual_seed(0), torch.get_num_threads(), []
    outputs_mrk = torch.randn(10, 80, 10, generator=g, dtype=torch.float64)
    targets_r = torch.randint(10, (80,), generator=g)
    engine = engine_of(classification([20], classes=10))
    for count in (1, 2):
        torch.set_num_threads(count)
        weights.append(np.concatenate(engine.ridge(outputs_mrk, targets_r, 1.0)))
        assert torch.get_num_threads() == count
    torch.set_num_threads(threads)
    assert np.array_equal(weights[0], weights[1])
