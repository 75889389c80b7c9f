"""How many models go into one call, on how many threads: bounds, and how often it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from clients.engine import chunks
from clients.engine.chunks import Chunks, held_bytes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chunks, "_THREADS", 1)
    before, threads = dict(chunks.measured), torch.get_num_threads()
    chunks.measured.clear()
    yield
    chunks.measured.clear()
    chunks.measured.update(before)
    torch.set_num_threads(threads)


class Work:
    """Takes `overhead` + `each` * models seconds on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.now, self.seconds, self.calls = 0.0, seconds, list[int]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def __call__(self, models: int) -> None:
        self.calls.append(models)
        self.now += self.seconds(models)


def of(memory: int = 10**9, chunk: int = 0, name: str = "net") -> Chunks:
    return Chunks((name,), CPU, chunk, memory)


def test_overhead_is_shared_by_a_large_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, lambda models: 1.0 + 0.01 * models)
    assert of().size(24, 32, lambda: 1, work) == 24


def test_a_chunk_that_outgrows_the_cache_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, lambda models: 0.1 + models * (1.0 if models <= 4 else 3.0))
    assert of().size(24, 32, lambda: 1, work) == 4


def test_the_plain_loop_wins_where_stacking_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, lambda models: models**1.5)
    assert of().size(24, 32, lambda: 1, work) == 1


@pytest.mark.parametrize("models", [2, 3, 7, 24, 1000])
@pytest.mark.parametrize(("memory", "held", "most"), [(100, 30, 3), (100, 1000, 1), (100, 0, 100)])
def test_a_chunk_fits_the_memory(
    monkeypatch: pytest.MonkeyPatch, models: int, memory: int, held: int, most: int
) -> None:
    work = Work(monkeypatch, lambda models: 1.0)
    sizes = [of(memory).size(models, 32, lambda: held, work) for _ in range(2)]
    assert sizes == [min(models, most)] * 2
    assert max(work.calls, default=0) <= min(models, most)


def test_a_chunk_that_runs_out_of_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, lambda models: 1.0)

    def call(models: int) -> None:
        work(models)
        if models > 8:
            raise torch.OutOfMemoryError

    assert of().size(24, 32, lambda: 1, call) == 8


@pytest.mark.parametrize(("memory", "width"), [(1000, 32), (320, 32), (160, 16), (5, 1)])
def test_a_batch_is_cut_where_one_model_alone_holds_too_much(memory: int, width: int) -> None:
    assert of(memory, name=f"cut {memory}").width(32, lambda: 320) == width


def test_a_fixed_chunk_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, lambda models: 1.0)
    assert of(chunk=5).size(24, 32, lambda: 1, work) == 5
    assert of().size(1, 32, lambda: 1, work) == 1
    assert not work.calls


@pytest.mark.parametrize(("waking", "threads"), [(0.5, 2), (0.95, 1), (2.0, 1)])
@pytest.mark.parametrize("models", [1, 24])
def test_threads_work_together_only_where_that_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, models: int, waking: float, threads: int
) -> None:
    """`waking`: time on two threads for what takes 1 on one."""
    monkeypatch.setattr(chunks, "_THREADS", 2)
    work = Work(monkeypatch, lambda models: models**0.5 * waking ** (torch.get_num_threads() - 1))
    for _ in range(2):
        assert of().size(models, 32, lambda: 1, work) == models
        assert torch.get_num_threads() == threads
        torch.set_num_threads(2)  # another network may have wanted them


def test_numbers_of_models_that_vary_from_round_to_round_are_not_measured_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CoBo samples pairs: 8 peers alone could ask for 56 different numbers of gradients."""
    work = Work(monkeypatch, lambda models: 1.0)
    measured = 0
    sizes = {}
    for models in range(2, 200):
        before = len(work.calls)
        sizes[models] = of().size(models, 32, lambda: 1, work)
        measured += len(work.calls) > before
    assert measured == 7  # one for each doubling: 2, 4, 8, .. 128
    assert all(size == models for models, size in sizes.items())  # everything at once is fastest
    before = len(work.calls)
    of().size(100, 32, lambda: 1, work)
    assert len(work.calls) == before
    of().size(100, 16, lambda: 1, work)
    of(name="another").size(100, 32, lambda: 1, work)
    assert len(work.calls) > before


@pytest.mark.parametrize("memory", [1, 100, 10_000])
@pytest.mark.parametrize("models", [1, 7, 50])
@pytest.mark.parametrize("longest", [0, 1, 900, 10_000])
def test_evaluation_fits_the_memory(memory: int, models: int, longest: int) -> None:
    held = 10
    size, width = of(memory).evaluation(models, longest, lambda: held)
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
