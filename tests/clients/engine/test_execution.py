"""Plans of calls: a rule of shapes and of the machine; calls side by side give the same bits."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine import execution, tuning
from coterie.clients.engine.backends.batched import Batched
from coterie.clients.engine.backends.sequential import Sequential
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.execution import Execution, Plan, held_bytes, share_out
from coterie.clients.engine.network import Network
from coterie.clients.engine.tasks import TASKS
from coterie.clients.letters import Ints
from coterie.clients.mixture import Mixture
from coterie.clients.models.build import mlp
from coterie.clients.models.options import MlpOptions
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from tests.networks import outputs as by_torch
from tests.problems import classification

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
WORKERS, SIZES, THREADS = 3, [9, 4, 8, 1, 7], 4


def of(
    memory: int = 10**9, chunk: int = 0, *, stacks: bool = True, device: torch.device = CPU
) -> Execution:
    """An execution on a machine with four cores; nothing is computed on the device."""
    network = Network(mlp((1, 4, 4), 3, MlpOptions("5")))
    backend = (Batched if stacks else Sequential)(network, TASKS["classification"])
    return Execution(backend, device, chunk=chunk, memory=memory, tf32=False)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "THREADS", THREADS)


@pytest.fixture(params=[1, WORKERS])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pretend this number of cores, and let any call be large enough for them."""
    monkeypatch.setattr(execution, "THREADS", request.param)
    monkeypatch.setattr(tuning, "SINGLE_BYTES", 1)
    return int(request.param)


# ---- plans ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "held", "most"),
    [
        (100, 30, 3),
        (100, 1000, 1),
        (100, 0, 100),
        (10**9, tuning.CHUNK_BYTES // 5, 5),
        (10**9, 1, tuning.CHUNK_MODELS),
    ],
)
def test_a_call_takes_as_many_models_as_fit(memory: int, held: int, most: int) -> None:
    assert of(memory).training(9, held).models == most


def test_on_a_gpu_calls_follow_its_memory() -> None:
    """A ResNet-9 with batches of 128 holds 0.6 GB: 100 in a call where 100 GB are allowed."""
    assert of(10**11, device=GPU).training(200, 6 * 10**8).models == 166
    assert of(10**11, device=GPU).training(2000, 10**6).models == 10**5
    assert of(10**11, device=GPU).training(9, 1).workers == 1
    assert of(10**11, stacks=False, device=GPU).training(9, 10**6) == Plan(1, 1, 1)


@pytest.mark.parametrize(("models", "threads"), [(1, 1), (3, 1), (4, THREADS), (9, THREADS)])
def test_threads_share_large_calls_only(models: int, threads: int) -> None:
    assert of().training(models, tuning.SHARED_BYTES // 4).threads == threads


@pytest.mark.parametrize(("models", "threads"), [(1, 1), (3, 1), (4, THREADS)])
def test_threads_share_long_calls_on_little_memory(models: int, threads: int) -> None:
    assert of().training(models, 1, tuning.SHARED_BYTES // 4).threads == threads


def test_a_fixed_chunk_is_taken_as_it_is() -> None:
    assert of(chunk=5).training(9, 10**12).models == 5


def test_models_of_a_sequential_backend_go_alone() -> None:
    assert of(stacks=False, chunk=5).training(9, 1).models == 1
    assert of(stacks=False).evaluation(20, 100, 1).models == 1


@pytest.mark.parametrize(("memory", "width"), [(1000, 32), (320, 32), (160, 16), (5, 1)])
def test_a_batch_is_cut_where_one_model_alone_holds_too_much(memory: int, width: int) -> None:
    assert of(memory).width(32, 320) == width


@pytest.mark.parametrize("memory", [1, 100, 10_000])
@pytest.mark.parametrize("models", [1, 7, 50])
@pytest.mark.parametrize("longest", [0, 1, 900, 10_000])
def test_evaluation_fits_the_memory(memory: int, models: int, longest: int) -> None:
    held = 10
    size, _, _, width = of(memory).evaluation(models, longest, held)
    assert 1 <= size <= models
    assert 1 <= width <= max(longest, 1)
    assert size * width * held <= max(memory, held)
    if memory >= held * min(longest, 2048) * models > 0:
        assert (size, width) == (models, min(longest, 2048))


@pytest.mark.parametrize("memory", [1, 250, 10**6])
@pytest.mark.parametrize("models", [1, 2, 9])
def test_calls_side_by_side_fit_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, models: int
) -> None:
    monkeypatch.setattr(tuning, "SINGLE_BYTES", 1)
    plan = of(memory, stacks=False).training(models, 100)
    assert plan == (1, min(4, models, max(1, memory // 100)), 4, 0)
    assert of(memory, stacks=False).evaluation(models, 1, 100)[:2] == plan[:2]


def test_small_calls_and_stacks_go_one_after_another() -> None:
    alone, each = of(stacks=False), tuning.SINGLE_BYTES
    assert [alone.training(9, each // part).workers for part in (10, 4, 1)] == [1, 2, 4]
    assert of().training(9, each).workers == 1
    alone.backend.network.alone = "draws from torch's generator"
    again = Execution(alone.backend, CPU, chunk=0, memory=10**9, tf32=False)
    assert again.training(9, each).workers == 1


def test_what_autograd_keeps_is_counted_once() -> None:
    x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    y = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    assert held_bytes(lambda: x * y) == 16_000  # both factors
    assert held_bytes(lambda: x * x) == 8_000  # one tensor, kept twice
    assert held_bytes(lambda: (x * x).exp()) == 16_000  # and the result of exp
    assert held_bytes(lambda: x + y) == 0
    assert held_bytes(lambda: x * y, shared=[y[:10]]) == 8_000


def test_counting_keeps_no_tensor() -> None:
    """An output that its own node saves (sigmoid's) would keep the whole graph."""
    x = torch.ones(8, requires_grad=True)
    lives = weakref.ref(x)
    assert held_bytes(x.sigmoid) == 32
    del x
    assert lives() is None


def test_no_choice_depends_on_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the same run twice would differ by rounding, and a close choice by more."""

    def clock() -> float:
        raise AssertionError

    # A record of the log carries the time.
    monkeypatch.setattr(logging.getLogger("coterie.engine"), "disabled", True)
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, name, clock)
    problem = classification([4, 4], shape=(1, 8, 8))
    engine = Engine(problem, "lenet", None, [0, 1], Training(batch_size=2), device="cpu")
    x_pd, buffers = engine.initial()
    fit = engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(1))
    engine.losses(fit.x, fit.buffers, "test")


def test_who_evaluates_first_counts_the_same() -> None:
    def engine() -> Engine:
        problem = classification([4, 4], shape=(1, 8, 8))
        return Engine(problem, "lenet", None, [0, 1], Training(batch_size=2), device="cpu")

    trains, evaluates = engine(), engine()
    evaluates.losses(*evaluates.initial(), "test")
    assert evaluates.holds(9) == trains.holds(9) > 9 * (trains.holds(1) - trains.holds(0)) > 0


# ---- the process ------------------------------------------------------------------------------


def settings() -> tuple[Any, ...]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return torch.get_num_threads(), cuda.allow_tf32, cudnn.allow_tf32, torch.is_grad_enabled()


@pytest.mark.parametrize("model", ["mlp", "lenet"])
@pytest.mark.parametrize("tf32", [False, True])
def test_calls_leave_the_process_as_it_was(
    monkeypatch: pytest.MonkeyPatch, model: str, tf32: bool
) -> None:
    """Inside they set threads and TF32, also where they fail."""
    problem = classification([4, 4], shape=(1, 8, 8))
    engine = Engine(problem, model, None, [0, 1], Training(batch_size=2), device="cpu", tf32=tf32)
    inside = []
    backend = type(engine._trainer.execution.backend)
    before, differentiate = settings(), backend.value_and_grad

    def seen(*arguments: Any) -> Any:
        inside.append(settings()[1:3])
        if len(inside) == 2:
            raise KeyError
        return differentiate(*arguments)

    monkeypatch.setattr(backend, "value_and_grad", seen)
    x, buffers = engine.initial()
    engine.gradients(x, buffers, engine.data.everything(np.array([0])))
    assert settings() == before
    with pytest.raises(KeyError):
        engine.fit(x, buffers, engine.opt_state(x), engine.batches(1))
    assert settings() == before
    engine.losses(x, buffers, "test")
    engine.step(x, x, engine.opt_state(x), 1)
    assert settings() == before
    assert set(inside) == {(tf32, tf32)}


# ---- side by side -----------------------------------------------------------------------------


def test_every_item_is_worked_off_once_and_no_worker_has_two() -> None:
    busy, done, lock = set[int](), list[int](), threading.Lock()
    meet = threading.Barrier(WORKERS)  # passed only if they are at work at the same time

    def work(worker: int, item: int) -> None:
        with lock:
            assert worker not in busy
            busy.add(worker)
        meet.wait(timeout=60)
        with lock:
            busy.remove(worker)
            done.append(item)

    share_out(work, range(WORKERS), range(4 * WORKERS))
    assert sorted(done) == [*range(4 * WORKERS)]


def test_what_fails_is_said_when_nobody_works_any_more() -> None:
    begun, failed, done = threading.Event(), threading.Event(), list[int]()

    def work(_: int, item: int) -> None:
        if item == 0:
            begun.wait(timeout=60)
            failed.set()
            raise KeyError("the first")
        begun.set()
        failed.wait(timeout=60)
        done.append(item)

    with pytest.raises(KeyError, match="the first"):
        share_out(work, range(2), range(2))
    assert done == [1]
    share_out(lambda _, item: done.append(item), range(2), [2])  # nothing is broken
    assert done == [1, 2]


@pytest.mark.parametrize("graded", [True, False])
def test_threads_differentiate_if_the_caller_does_and_leave_its_cores_alone(graded: bool) -> None:
    modes, threads = list[bool](), torch.get_num_threads()
    with torch.set_grad_enabled(graded):
        share_out(lambda *_: modes.append(torch.is_grad_enabled()), range(2), range(4))
    assert modes == [graded] * 4
    assert torch.get_num_threads() == threads


class Branches(nn.Module):
    """Network whose layers are not in sequence, which runs one model at a time."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        scores: Tensor = self.head(self.drop(h + h.sigmoid()).flatten(1))
        return scores


def engine(model: str, training: Training, privacy: Privacy | None = None) -> Engine:
    shape = (1, 4, 4) if ":" in model else (1, 8, 8)
    problem = classification(SIZES, shape=shape, tests=[3, 1, 6, 2, 5])
    return Engine(problem, model, None, range(5), training, device="cpu", privacy=privacy)


def everything(of: Engine) -> list[Tensor]:
    """Return models, buffers, gradients and scores after a few minibatches."""
    x, buffers = of.initial(common=False)
    fit = of.fit(x, buffers, of.opt_state(x), of.batches(1, steps=None, epochs=2))
    asked: Ints = np.array([4, 0, 0, 2, 1, 3, 2])
    batch = of.batches(2, peers=asked, steps=1)[0]
    asked_buffers = {name: value[asked] for name, value in fit.buffers.items()}
    gradients = of.gradients(fit.x[asked], asked_buffers, batch)
    splits: list[SplitName] = ["train", "test"]
    scores = [each for split in splits for each in of.losses(fit.x, fit.buffers, split)]
    single = of.example_losses(fit.x[asked], asked_buffers, "test", asked)
    parts = [*fit.buffers.values(), *fit.opt_state.values(), *gradients.buffers.values()]
    return [fit.x, *parts, gradients.values, gradients.losses, *scores, single]


KINDS = [
    ("lenet", Training(batch_size=3, optimizer="adam")),
    ("tests.clients.engine.test_execution:Branches", Training(batch_size=3, momentum=0.9)),
]
_ALONE: dict[str, list[Tensor]] = {}


@pytest.mark.parametrize(("model", "training"), KINDS)
def test_models_side_by_side_learn_what_each_learns_alone(
    cores: int, model: str, training: Training
) -> None:
    of = engine(model, training)
    assert of._trainer.execution.training(5, 100).workers == cores
    assert len(of._trainer.execution.backends(cores)) == cores
    result = everything(of)
    for one, other in zip(result, _ALONE.setdefault(model, result), strict=True):
        assert torch.equal(one, other)


def test_mixtures_and_neighbours_are_asked_side_by_side_too(cores: int) -> None:
    of = engine("lenet", Training(batch_size=3))
    x, buffers = of.initial(common=False)
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    members = torch.stack([x, x.roll(1, 0)], dim=1)
    mixed = of.mixture_losses(Mixture(weights, members, {}), "test")
    by_hand = []
    for p in range(5):
        inputs, targets = (each[0] for each in of.data.examples("test", *_rows(of, p)))
        shares = [
            share * by_torch(of.network, member[None], {}, inputs[None])[0][0].softmax(dim=1)
            for share, member in zip(weights[p], members[p], strict=True)
        ]
        by_hand.append(nn.functional.nll_loss(sum(shares).log(), targets).item())
    np.testing.assert_allclose(mixed.losses, by_hand, rtol=1e-5)
    features = of.embeddings(x, buffers, "test")
    for p in range(5):
        inputs, _ = of.data.examples("test", *_rows(of, p))
        below = of.network.below_head(of.network.module)
        own_x = x[p : p + 1, ~of.network.columns(of.network.head)]
        alone = by_torch(below, own_x, {}, inputs)[0][0]
        torch.testing.assert_close(features[p, : len(alone)], alone)


def _rows(of: Engine, p: int) -> tuple[Tensor, Tensor]:
    """The whole test split of a peer."""
    return torch.tensor([p]), torch.arange(int(of.data.shards["test"].lengths_p[p]))[None]


def test_a_network_without_a_twin_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "THREADS", WORKERS)
    monkeypatch.setattr(tuning, "SINGLE_BYTES", 1)
    of = engine("lenet", Training(batch_size=3))
    of.network.module.lock = threading.Lock()  # type: ignore[assignment]
    assert len(of._trainer.execution.backends(WORKERS)) == 1
    assert everything(of)[0].isfinite().all()


@pytest.mark.slow
def test_private_gradients_go_side_by_side_too(cores: int) -> None:
    """They are charged before, and noise belongs to the peer."""
    privacy = Privacy(kind="examples", noise=1.0, clip=1.0)
    results = []
    for chunk in (0, 1):
        problem = classification(SIZES, shape=(1, 8, 8))
        training = Training(batch_size=3)
        engine = Engine(
            problem, "lenet", None, range(5), training, device="cpu", privacy=privacy,
            dtype="float64", chunk=chunk,
        )  # fmt: skip
        if chunk:
            assert engine._trainer.execution.training(5, 100).workers == cores
        x, buffers = engine.initial()
        results.append(engine.fit(x, buffers, engine.opt_state(x), engine.batches(1)).x)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
