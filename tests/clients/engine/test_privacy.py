"""Private gradients against a plain loop, their noise, and what they cost."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.app.config.registry import METHODS
from coterie.clients.engine import accountant
from coterie.clients.engine.data import Charge
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.privacy import Guard, normal
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.privacy import Privacy
from coterie.clients.training import BackendName as Backend
from coterie.clients.training import Training
from coterie.datasets import plugins
from coterie.datasets.problem import Problem
from tests.inline import run
from tests.kit import engine_of
from tests.problems import classification, write_quadratic

SIZES = (9, 6, 12)
STEPS = Training(batch_size=4, local_steps=2)
NETWORKS = {"linear": (1, 4, 4), "mlp": (1, 4, 4), "lenet": (3, 32, 32)}


def clipping(problem: Problem, model: str = "linear", peers: Any = None, **keys: Any) -> Engine:
    """An engine that clips the gradient of every example."""
    return engine_of(
        problem, model, peers=peers, training=STEPS, privacy=Privacy("examples", **keys)
    )


def guard_of(engine: Engine) -> Guard:
    assert engine.guard is not None
    return engine.guard


def charges(batches: Any) -> list[list[int]]:
    return [[int(charge) for charge in batch.charges_e] for batch in batches]


def clipped_by_hand(problem: Problem, model: str, x_pd: Tensor, clip: float) -> Tensor:
    """Each example's gradient by itself, from an engine that looks at one example at a time."""
    plain = engine_of(problem, model, training=STEPS)
    batch = plain.batches(1)[0]
    rows = []
    for p in range(len(x_pd)):
        total = torch.zeros_like(x_pd[p])
        for b in range(int(batch.counts_e[p])):
            weights = torch.zeros_like(batch.weights_eb)
            weights[p, b] = 1.0
            one = batch.weighted(weights / batch.weights_eb.clamp_min(1e-9))
            g = plain.gradients(x_pd, plain.network.buffers(len(x_pd)), one).values[p]
            total += g * min(1.0, clip / max(float(g.norm()), 1e-30))
        rows.append(total / float(batch.counts_e[p]))
    return torch.stack(rows)


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
@pytest.mark.parametrize("clip", [0.3, 3.0])
def test_clipping_is_the_plain_loop(model: str, clip: float) -> None:
    problem = classification(SIZES, shape=NETWORKS[model])
    engine = clipping(problem, model, clip=clip, noise=0.0)
    x_pd, buffers = engine.initial(common=False)
    x_pd = (
        x_pd + 0.03 * torch.randn(x_pd.shape, generator=torch.Generator().manual_seed(1)).double()
    )
    gradients = engine.gradients(x_pd, buffers, engine.batches(1)[0]).values
    torch.testing.assert_close(gradients, clipped_by_hand(problem, model, x_pd, clip))
    plain = engine_of(problem, model, training=STEPS)
    whole = plain.gradients(x_pd, buffers, plain.batches(1)[0]).values
    assert (gradients - whole).abs().max() > 1e-3, "clipping did something"


def _shared(shape: tuple[int, ...], outputs: int) -> nn.Module:
    twice = nn.Linear(outputs, outputs)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), outputs), twice, nn.Tanh(), twice
    )


class _OneTwiceAndOneNever(nn.Module):
    """Network that uses one layer twice and another one never."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(shape), outputs)
        self.twice, self.never = nn.Linear(outputs, outputs), nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.twice(self.twice(self.first(x.flatten(1)).tanh()).tanh())
        return outputs


class _Overwriting(nn.Module):
    """ReLU overwrites what a layer put out."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(math.prod(shape), 6), nn.Linear(6, outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.other(self.relu(self.one(x.flatten(1))))
        return outputs


def _overwriting_in_a_line(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Network of layers with batched kernels, except for SiLU."""
    first = nn.Linear(math.prod(shape), 6)
    return nn.Sequential(
        nn.Flatten(), first, nn.ReLU(inplace=True), nn.Linear(6, 6), nn.SiLU(),
        nn.Linear(6, outputs),
    )  # fmt: skip


@pytest.mark.parametrize(
    "build", [_shared, _OneTwiceAndOneNever, _Overwriting, _overwriting_in_a_line]
)
def test_what_is_there_twice_or_overwritten_is_clipped_by_its_whole_gradient(build: Any) -> None:
    model = plugins.register("model", build.__name__, build)
    problem = classification(SIZES)
    engine = clipping(problem, model, clip=0.3, noise=0.0)
    x_pd, buffers = engine.initial(common=False)
    gradients = engine.gradients(x_pd, buffers, engine.batches(1)[0]).values
    torch.testing.assert_close(gradients, clipped_by_hand(problem, model, x_pd, 0.3))


class _Centred(nn.Module):
    """Batch norm in a network's own code: no layer gives it away."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(math.prod(shape), 6), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x.flatten(1))
        h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-3).sqrt()
        result: Tensor = self.last(h)
        return result


@pytest.mark.parametrize("backend", ["sequential", "vmapped"])
def test_a_batch_norm_in_a_network_s_own_code_moves_no_sum_beyond_the_clip(
    backend: Backend,
) -> None:
    """One example in the place of another moves the sum of clipped gradients by 2 clip at most."""
    model, clip = plugins.register("model", "_Centred", _Centred), 0.1
    problem = classification((8,))
    rows = problem.train.rows[0]
    inputs = problem.inputs.copy()
    inputs[rows[0]] *= 1e3
    sums = []
    for each in (problem, replace(problem, inputs=inputs)):
        engine = Engine(
            each, model, None, [0], Training(batch_size=1000), dtype="float64", device="cpu",
            backend=backend, privacy=Privacy("examples", clip=clip, noise=0.0),
        )  # fmt: skip
        x_pd, buffers = engine.initial()
        batch = engine.batches(1, epochs=1)[0]
        sums.append(engine.gradients(x_pd, buffers, batch).values[0] * len(rows))
    assert float((sums[1] - sums[0]).norm()) <= 2 * clip * (1 + 1e-9)
    assert all(float(total.norm()) <= len(rows) * clip * (1 + 1e-9) for total in sums)


def _normalised(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Layers without per-example gradient kernels."""
    d = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(d), nn.Linear(d, outputs))


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet", _shared, _Overwriting, _normalised])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_example_whose_gradient_is_not_finite_adds_nothing(model: Any, value: float) -> None:
    """Otherwise the sum is non-finite exactly if that example is in the data."""
    name = model if isinstance(model, str) else plugins.register("model", model.__name__, model)
    problem = classification(SIZES, shape=NETWORKS.get(name, (1, 4, 4)))
    bad = [rows[0] for rows in problem.train.rows]
    inputs = problem.inputs.copy()
    inputs[bad] = value
    without = clipping(problem, name, clip=0.3, noise=0.0)
    x_pd, buffers = without.initial(common=False)
    engine = clipping(replace(problem, inputs=inputs), name, clip=0.3, noise=0.0)
    batch, same = (e.batches(1, epochs=1)[0] for e in (engine, without))
    assert (batch.rows_eb == 0).any(), "somebody has it"
    result = engine.gradients(x_pd, buffers, batch).values
    others = torch.where(same.rows_eb == 0, 0.0, same.weights_eb)
    expected = without.gradients(x_pd, buffers, replace(same, weights_eb=others)).values
    torch.testing.assert_close(result, expected)


def test_crafted_weights_do_not_tell_whether_an_example_is_there() -> None:
    """Weights of 1e308 on a pixel that one example alone has, in float32 of 1e38."""
    problem = classification(SIZES)
    inputs = problem.inputs.copy()
    inputs[:, :, 0, 0] = 0
    inputs[problem.train.rows[1][2], :, 0, 0] = 10
    engine = clipping(replace(problem, inputs=inputs), "mlp", clip=0.3, noise=0.0)
    x_pd, buffers = engine.initial()
    x_pd[:, 0] = 1e308
    for batch in engine.batches(2, epochs=1):
        assert engine.gradients(x_pd, buffers, batch).values.isfinite().all()


@pytest.mark.parametrize("sure", [45.0, 50.0, 52.0])
@pytest.mark.parametrize("size", [1e17, 1e18, 1e20, 1e30])
def test_no_gradient_is_longer_than_the_clip_whatever_size_its_factors_have(
    sure: float, size: float
) -> None:
    """A gradient is what goes into a layer times the gradient of what comes out.

    In float32 the square of a small one is 0 and that of a large one infinite, though their product
    is neither. Crafted: hidden activations of any size, and a last layer that is sure of a class.
    """
    clip = 1e-5
    engine = Engine(
        classification((8,)), "mlp", None, [0], Training(batch_size=1), device="cpu",
        privacy=Privacy("examples", clip=clip, noise=0.0),
    )  # fmt: skip
    x_pd, buffers = engine.initial()
    leaves = engine.network.named(x_pd)
    first, *_, weight, bias = leaves.values()
    first.mul_(size)
    weight.zero_()
    bias.copy_(torch.tensor([sure, 0.0, 0.0]).expand_as(bias))
    longest = 0.0
    for batch in engine.batches(1, epochs=1):
        result = engine.gradients(x_pd, buffers, batch).values
        assert result.isfinite().all()
        longest = max(longest, float(result.double().norm()))
    assert longest < 1.001 * clip


class _Difference(nn.Module):
    """One linear layer at two places of an example, which cancel each other."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.width = math.prod(shape) // 2
        self.linear = nn.Linear(self.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.linear(x.flatten(1).unflatten(1, (2, self.width))).unbind(1)
        return first - second  # type: ignore[no-any-return]


@pytest.mark.parametrize("apart", [1.0, 1e2, 1e3])
def test_no_gradient_is_longer_than_the_clip_where_large_numbers_cancel(apart: float) -> None:
    """Activations of 1e6 with small differences: float32 loses the whole norm."""
    name = plugins.register("model", _Difference.__name__, _Difference)
    for seed in (0, 12, 37):
        problem = classification((8,), seed=seed)
        first = 1e6 * problem.inputs.reshape(-1, 2, 8)[:, :1]
        second = first + apart * problem.inputs.reshape(-1, 2, 8)[:, 1:]
        inputs = np.concatenate([first, second], axis=1).reshape(problem.inputs.shape)
        engine = Engine(
            replace(problem, inputs=inputs), name, None, [0], Training(batch_size=1),
            device="cpu", privacy=Privacy("examples", clip=1.0, noise=0.0),
        )  # fmt: skip
        x_pd, buffers = engine.initial()
        for batch in engine.batches(1, epochs=1):
            assert engine.gradients(x_pd, buffers, batch).values.norm() < 1.001


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_without_noise_and_with_a_large_clip_nothing_changes(model: str) -> None:
    problem = classification(SIZES, shape=NETWORKS[model])
    private, plain = (
        clipping(problem, model, clip=1e6, noise=0.0),
        engine_of(problem, model, training=STEPS),
    )
    x_pd, buffers = plain.initial()
    fits = [e.fit(x_pd, buffers, e.opt_state(x_pd), e.batches(1)).x for e in (private, plain)]
    torch.testing.assert_close(*fits, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_noise_is_normal_unbiased_and_of_its_size() -> None:
    problem = classification(SIZES)
    quiet = clipping(problem, clip=0.5, noise=0.0)
    loud = clipping(problem, clip=0.5, noise=2.0)
    x_pd, buffers = quiet.initial()
    batch = quiet.batches(1)[0]
    mean_pd = quiet.gradients(x_pd, buffers, batch).values
    draws = []
    for t in range(400):
        loud.enter(t, 0)
        draws.append(loud.gradients(x_pd, buffers, batch).values - mean_pd)
    drawn = torch.stack(draws)
    size = 2.0 * 0.5 / 4  # noise x clip / examples of the minibatch
    spread = size / drawn[:, 0].numel() ** 0.5
    assert (drawn.mean(dim=(0, 2)).abs() < 5 * spread).all(), "unbiased"
    assert drawn.std() == pytest.approx(size, rel=0.02)
    flat = drawn.flatten() / size
    assert abs(float((flat.abs() < 1).double().mean()) - 0.6827) < 0.01
    assert (drawn[0] != drawn[1]).all(), "no noise twice"


def test_noise_belongs_to_the_peer_wherever_it_is_hosted() -> None:
    problem = classification(SIZES)
    every, alone = (clipping(problem, clip=1.0, noise=1.0, peers=p) for p in ([0, 1, 2], [2]))
    for engine in (every, alone):
        engine.enter(3, 1)
    x_pd, buffers = every.initial()
    together = every.gradients(x_pd, buffers, every.batches(3)[0]).values
    apart = alone.gradients(x_pd[2:], buffers, alone.batches(3)[0]).values
    torch.testing.assert_close(together[2:], apart, rtol=1e-12, atol=1e-12)
    every.enter(3, 2)
    assert (every.gradients(x_pd, buffers, every.batches(3)[0]).values != together).all()


def test_normal_numbers_are_normal_and_their_stream_s_own() -> None:
    streams = [stream(0, peer, 1, Purpose.PRIVACY) for peer in (0, 0, 1, 2)]
    numbers = normal(streams, np.array([1.0, 1.0, 3.0, 0.0]), 100_001, torch.float64).numpy()
    assert numbers.shape == (4, 100_001)
    one, again, other, none = numbers
    np.testing.assert_array_equal(one, again)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert kstest(one, "norm").pvalue > 0.01
    assert kstest(other / 3, "norm").pvalue > 0.01
    assert not none.any()


# ---- accounting -----------------------------------------------------------------------------


def test_minibatches_are_charged_for_what_they_are() -> None:
    engine = clipping(classification(SIZES), clip=1.0, noise=4.0)
    drawn, epoch, estimate = (
        engine.batches(1), engine.batches(2, epochs=2),
        engine.batches(1, Purpose.ESTIMATE, steps=1, halves=True),
    )  # fmt: skip
    assert {c for each in charges(drawn) for c in each} == {Charge.DRAWN}
    assert [each[1] for each in charges(epoch)][:4] == [1, 2, 1, 2]  # two steps an epoch
    assert [each[2] for each in charges(epoch)] == [1, 2, 2, 1, 2, 2]
    assert {c for each in charges(estimate) for c in each} == {Charge.WHOLE}
    x_pd, buffers = engine.initial()
    spent = guard_of(engine).rdp
    assert not guard_of(engine).epsilon().any()
    for batch in epoch[:4]:
        engine.gradients(x_pd, buffers, batch)
    np.testing.assert_allclose(spent[1], 2 * np.asarray(accountant.query(6, 6, 4.0, 1)))
    before = spent[1].copy()
    for _ in range(3):  # the same draw again is one sample with three gradients
        engine.gradients(x_pd, buffers, drawn[0])
    np.testing.assert_allclose(spent[1] - before, accountant.query(6, 4, 4.0, 3))


# ---- runs -----------------------------------------------------------------------------------


def flat(**keys: Any) -> dict[str, Any]:
    run_ = {
        "dataset": "digits", "model": "linear", "peers": 4, "num-server-rounds": 3,
        "evaluate-every": 1, "dtype": "float64", "batch-size": 4, "local-steps": 2,
        "partition.samples-per-peer": 16, "partition.clusters": 2, "learning-rate": 0.05,
        "privacy.kind": "examples", "privacy.noise": 4.0, "device": "cpu",
    }  # fmt: skip
    return run_ | {k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}


@pytest.mark.parametrize("method", ["fedavg", "cobo", "all-for-one", "ditto"])
def test_the_same_wherever_peers_live_and_after_a_stop(tmp_path: Path, method: str) -> None:
    keys = flat(method=method)
    alone, apart = run(keys, tmp_path / "one"), run(keys, tmp_path / "two", 2)
    half = run(keys, tmp_path / "half", 2, until=2)
    rest = run(keys, tmp_path / "half", 2, after=half)
    spent = [alone.metric("epsilon", t) for t in range(4)]
    assert all((spent[t] < spent[t + 1]).all() for t in (1, 2))
    for other in (apart, rest):
        np.testing.assert_array_equal(other.metric("epsilon"), spent[3])
        for mine, theirs in zip(alone.models(), other.models(), strict=True):
            for name in mine:
                torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-10)


def test_a_budget_is_never_exceeded_and_then_the_peer_only_listens(tmp_path: Path) -> None:
    free = run(flat(method="wga"), tmp_path / "free")
    budget = float(free.metric("epsilon", 2).min()) * 1.01
    keys = flat(method="wga", privacy__budget=budget)
    bounded = run(keys, tmp_path / "bounded")
    apart = run(keys, tmp_path / "apart", 2)
    assert (bounded.metric("epsilon") <= budget).all()
    assert (free.metric("epsilon") > budget).all()
    sent = bounded.metric("gradient_evaluations") < free.metric("gradient_evaluations")
    assert sent.all()
    np.testing.assert_array_equal(bounded.metric("epsilon"), apart.metric("epsilon"))
    np.testing.assert_allclose(bounded.metric("test_loss"), apart.metric("test_loss"), rtol=1e-9)


def test_what_is_not_covered_is_refused(tmp_path: Path) -> None:
    for name, method in METHODS.items():
        keys = {"method": name, "privacy.kind": "examples"}
        if name == "partial-pooling":
            keys["model"] = "linear"
        if name == "boosting":  # its only model has no gradients
            keys["model"] = "boosted-trees"
            with pytest.raises(ConfigError, match=r"boosted-trees.*noise is added to gradients"):
                Config.from_flat(keys)
        elif method.exposes:
            with pytest.raises(ConfigError, match=f"does not cover {name}: .*private examples"):
                Config.from_flat(keys)
        else:
            Config.from_flat(keys)
    covered = {name for name, method in METHODS.items() if not method.exposes}
    assert {"cobo", "wga", "all-for-one", "bias-correction", "fedavg", "local"} <= covered
    with pytest.raises(ConfigError, match="mixed-precision"):
        Config.from_flat({"privacy.kind": "examples", "mixed-precision": True})
    private: dict[str, Any] = {"method": "fedavg", "privacy.kind": "examples"}
    for absent in ({"schedule.kind": "sample"}, {"clock.profile": "phones", "clock.deadline": 1.0}):
        with pytest.raises(ConfigError, match="no deadline"):
            Config.from_flat(private | dict[str, Any](absent))
    problem = write_quadratic(tmp_path / "q.json", [[1.0]], [[0.0]], [0.0])
    with pytest.raises(ConfigError, match="no examples"):
        check(Config.from_flat(problem | {"method": "local", "privacy.kind": "examples"}))
    with pytest.raises(ValueError, match="batch norm"):
        clipping(classification((4,), shape=(3, 32, 32)), "resnet9", clip=1.0)
