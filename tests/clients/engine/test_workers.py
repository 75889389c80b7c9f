"""Calls side by side: each item once, nobody left behind, the same bits as one after another."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine import chunks
from coterie.clients.engine.batches import Ints
from coterie.clients.engine.chunks import ALONE, Chunks
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.workers import share_out
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from tests.problems import classification

WORKERS, SIZES = 3, [9, 4, 8, 1, 7]


@pytest.fixture(params=[1, WORKERS])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many cores, and calls that are never too small for them."""
    monkeypatch.setattr(chunks, "THREADS", request.param)
    monkeypatch.setattr(chunks, "ALONE", 1)
    return int(request.param)


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
    found, threads = list[bool](), torch.get_num_threads()
    with torch.set_grad_enabled(graded):
        share_out(lambda *_: found.append(torch.is_grad_enabled()), range(2), range(4))
    assert found == [graded] * 4
    assert torch.get_num_threads() == threads


class Branches(nn.Module):
    """Not one layer after the other: a network of somebody else, which goes alone."""

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
    """What an engine computes of a few minibatches: models, buffers, gradients, scores."""
    x, buffers = of.initial(common=False)
    fit = of.fit(x, buffers, of.opt_state(x), of.batches(1, steps=None, epochs=2))
    asked: Ints = np.array([4, 0, 0, 2, 1, 3, 2])
    batch = of.batches(2, peers=asked, steps=1)[0]
    own = {name: value[asked] for name, value in fit.buffers.items()}
    gradients = of.gradients(fit.x[asked], own, batch)
    splits: list[SplitName] = ["train", "test"]
    scores = [each for split in splits for each in of.losses(fit.x, fit.buffers, split)]
    single = of.example_losses(fit.x[asked], own, "test", asked)
    parts = [*fit.buffers.values(), *fit.opt_state.values(), *gradients.buffers.values()]
    return [fit.x, *parts, gradients.values, gradients.losses, *scores, single]


KINDS = [
    ("lenet", Training(batch_size=3, optimizer="adam")),
    ("tests.clients.engine.test_workers:Branches", Training(batch_size=3, momentum=0.9)),
]
_ALONE: dict[str, list[Tensor]] = {}


@pytest.mark.parametrize(("model", "training"), KINDS)
def test_models_side_by_side_learn_what_each_learns_alone(
    cores: int, model: str, training: Training
) -> None:
    of = engine(model, training)
    assert of._chunks.calls(5, 100).workers == cores
    assert len(of.workers(cores)) == cores
    found = everything(of)
    for one, other in zip(found, _ALONE.setdefault(model, found), strict=True):
        assert torch.equal(one, other)


def test_mixtures_and_neighbours_are_asked_side_by_side_too(cores: int) -> None:
    of = engine("lenet", Training(batch_size=3))
    x, buffers = of.initial(common=False)
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    members = torch.stack([x, x.roll(1, 0)], dim=1)
    mixed = of.mixture_losses(weights, members, {}, "test")
    by_hand = []
    for p in range(5):
        inputs, targets = (each[0] for each in of.data.examples("test", *_rows(of, p)))
        shares = [
            share * of.network(member[None], {}, inputs[None])[0][0].softmax(dim=1)
            for share, member in zip(weights[p], members[p], strict=True)
        ]
        by_hand.append(nn.functional.nll_loss(sum(shares).log(), targets).item())
    np.testing.assert_allclose(mixed.losses, by_hand, rtol=1e-5)
    found = of.embeddings(x, buffers, "test")
    for p in range(5):
        inputs, _ = of.data.examples("test", *_rows(of, p))
        own = of.embed(x[p : p + 1], {}, inputs)[0]
        torch.testing.assert_close(found[p, : len(own)], own)


def _rows(of: Engine, p: int) -> tuple[Tensor, Tensor]:
    """The whole test split of a peer."""
    return torch.tensor([p]), torch.arange(int(of.data.shards["test"].lengths_p[p]))[None]


def test_a_network_without_a_twin_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "THREADS", WORKERS)
    monkeypatch.setattr(chunks, "ALONE", 1)
    of = engine("lenet", Training(batch_size=3))
    of.network.module.lock = threading.Lock()  # type: ignore[assignment]
    assert of.workers(WORKERS) == [of]
    assert everything(of)[0].isfinite().all()


@pytest.mark.parametrize("memory", [1, 250, 10**6])
@pytest.mark.parametrize("models", [1, 2, 9])
def test_calls_side_by_side_fit_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, models: int
) -> None:
    monkeypatch.setattr(chunks, "THREADS", 4)
    monkeypatch.setattr(chunks, "ALONE", 1)
    of = Chunks(torch.device("cpu"), stacks=False, chunk=0, memory=memory)
    assert of.calls(models, 100) == (1, min(4, models, max(1, memory // 100)))
    assert of.evaluation(models, 1, 100)[0] == (1, min(4, models, max(1, memory // 100)))


def test_small_calls_and_stacks_go_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "THREADS", 4)
    cpu = torch.device("cpu")
    alone = Chunks(cpu, stacks=False, chunk=0, memory=0)
    assert [alone.calls(9, ALONE // each).workers for each in (10, 4, 1)] == [1, 2, 4]
    assert Chunks(cpu, stacks=True, chunk=0, memory=0).calls(9, ALONE).workers == 1
    assert Chunks(cpu, stacks=False, chunk=0, memory=0, apart=False).calls(9, ALONE).workers == 1


def test_private_gradients_are_counted_one_after_another(cores: int) -> None:
    training = Training(batch_size=3)
    of = engine("lenet", training, Privacy(kind="examples", noise=1.0, clip=1.0))
    assert of._chunks.calls(5, 100).workers == 1
