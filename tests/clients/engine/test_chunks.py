"""How many models and examples go into one call: a rule of shapes and of the machine."""

from __future__ import annotations

import time

import pytest
import torch

from coterie.clients.engine.chunks import BUDGET, LARGEST, THREADS, TOGETHER, Chunks, held_bytes
from coterie.clients.engine.engine import Engine
from coterie.clients.training import Training
from tests.problems import classification

CPU = torch.device("cpu")


def of(memory: int = 10**9, chunk: int = 0, *, stacks: bool = True) -> Chunks:
    return Chunks(CPU, stacks=stacks, chunk=chunk, memory=memory)


@pytest.mark.parametrize(
    ("memory", "held", "most"),
    [
        (100, 30, 3),
        (100, 1000, 1),
        (100, 0, 100),
        (10**9, BUDGET["cpu"] // 5, 5),
        (10**9, 1, LARGEST),
    ],
)
def test_a_call_takes_as_many_models_as_fit(memory: int, held: int, most: int) -> None:
    assert of(memory).calls(9, held).size == most


@pytest.mark.parametrize(("models", "threads"), [(1, 1), (3, 1), (4, THREADS), (9, THREADS)])
def test_threads_share_large_calls_only(models: int, threads: int) -> None:
    of().calls(models, TOGETHER // 4)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(THREADS)


@pytest.mark.parametrize(("models", "threads"), [(1, 1), (3, 1), (4, THREADS)])
def test_threads_share_long_calls_on_little_memory(models: int, threads: int) -> None:
    of().calls(models, 1, TOGETHER // 4)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(THREADS)


def test_a_fixed_chunk_is_taken_as_it_is() -> None:
    assert of(chunk=5).calls(9, 10**12).size == 5
    assert of(chunk=5, stacks=False).calls(9, 1).size == 5


def test_models_that_lose_by_company_go_alone() -> None:
    assert of(stacks=False).calls(9, 1).size == 1
    assert of(stacks=False).evaluation(20, 100, 1)[0].size == 1


@pytest.mark.parametrize(
    ("model", "stacks"), [("mlp", True), ("linear", True), ("lenet", False), ("resnet9", False)]
)
def test_convolutions_lose_by_company_on_a_cpu(model: str, stacks: bool) -> None:
    problem = classification([4, 4], shape=(1, 8, 8))
    engine = Engine(problem, model, None, [0, 1], Training(batch_size=2), device="cpu")
    assert engine.network.stacks == stacks
    assert engine._chunks.calls(9, 1).size == (LARGEST if stacks else 1)


@pytest.mark.parametrize(("memory", "width"), [(1000, 32), (320, 32), (160, 16), (5, 1)])
def test_a_batch_is_cut_where_one_model_alone_holds_too_much(memory: int, width: int) -> None:
    assert of(memory).width(32, 320) == width


@pytest.mark.parametrize("memory", [1, 100, 10_000])
@pytest.mark.parametrize("models", [1, 7, 50])
@pytest.mark.parametrize("longest", [0, 1, 900, 10_000])
def test_evaluation_fits_the_memory(memory: int, models: int, longest: int) -> None:
    held = 10
    (size, _), width = of(memory).evaluation(models, longest, held)
    assert 1 <= size <= models
    assert 1 <= width <= max(longest, 1)
    assert size * width * held <= max(memory, held)
    if memory >= held * min(longest, 2048) * models > 0:
        assert (size, width) == (models, min(longest, 2048))


def test_what_autograd_keeps_is_counted_once() -> None:
    x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    y = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    assert held_bytes(lambda: x * y) == 16_000  # both factors
    assert held_bytes(lambda: x * x) == 8_000  # one tensor, kept twice
    assert held_bytes(lambda: (x * x).exp()) == 16_000  # and the result of exp
    assert held_bytes(lambda: x + y) == 0
    assert held_bytes(lambda: x * y, shared=[y[:10]]) == 8_000


def test_no_choice_depends_on_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the same run twice would differ by rounding, and a close choice by more."""

    def clock() -> float:
        raise AssertionError

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
    assert evaluates.activations == trains.activations > 0
