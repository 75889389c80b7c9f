"""Minibatches: uniform without replacement, whole epochs, and streams of each peer's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coterie.clients.engine.data import Batch, Plan, plan
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.training import Training
from coterie.datasets import plugins
from tests.problems import classification

DRAWS = 2000


def drawn(n: int, batch_size: int, steps: int = DRAWS) -> Plan:
    return plan([stream(0, 0, 1, Purpose.TRAIN)], [n], batch_size, steps=steps)


@pytest.mark.parametrize(
    ("n", "batch_size"),
    [(10, 3), (10, 1), (200, 4), (65, 4)],
    ids=["permuted", "one", "chosen", "just chosen"],
)
def test_steps_are_uniform_without_replacement(n: int, batch_size: int) -> None:
    """Hoeffding and a union bound: with T steps the frequency of one of k events is off by
    more than sqrt(log(2e6 k) / 2T) with probability below 1e-6."""
    rows_tb = drawn(n, batch_size).rows_etb[0]
    assert rows_tb.shape == (DRAWS, batch_size)
    assert all(len(set(row)) == batch_size for row in rows_tb.tolist())
    inside_tn = np.zeros((DRAWS, n))
    np.put_along_axis(inside_tn, rows_tb, 1.0, axis=1)
    together = inside_tn.T @ inside_tn / DRAWS  # diagonal: inclusion of one, else of a pair
    expected = np.full((n, n), batch_size * (batch_size - 1) / (n * (n - 1)))
    np.fill_diagonal(expected, batch_size / n)
    bound = math.sqrt(math.log(2e6 * n * (n + 1) / 2) / (2 * DRAWS))
    assert np.abs(together - expected).max() < bound


@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (200, 4)])
def test_successive_steps_are_independent(n: int, batch_size: int) -> None:
    """Examples shared by two successive steps: batch_size^2 / n in expectation (at most
    batch_size of them, so Hoeffding's bound is that much wider)."""
    rows_tb = drawn(n, batch_size).rows_etb[0]
    shared = [len(np.intersect1d(*pair)) for pair in rows_tb.reshape(-1, 2, batch_size)]
    bound = batch_size * math.sqrt(math.log(2e6) / (2 * len(shared)))
    assert abs(np.mean(shared) - batch_size**2 / n) < bound


@pytest.mark.parametrize("batch_size", [5, 6, 100])
def test_a_batch_that_covers_the_data_is_all_of_it(batch_size: int) -> None:
    batches = drawn(5, batch_size, steps=3)
    assert batches.rows_etb.tolist() == [[[0, 1, 2, 3, 4]] * 3]
    assert batches.counts_et.tolist() == [[5] * 3]


@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (10, 5), (10, 16), (1, 4), (200, 7)])
def test_an_epoch_visits_each_example_once(n: int, batch_size: int) -> None:
    epochs = 3
    batches = plan([stream(0, 0, 1, Purpose.TRAIN)], [n], batch_size, epochs=epochs)
    in_one = math.ceil(n / batch_size)
    assert batches.steps == epochs * in_one
    last = n - (in_one - 1) * min(batch_size, n)
    assert batches.counts_et[0].tolist() == ([min(batch_size, n)] * (in_one - 1) + [last]) * epochs
    visits = [
        [r for t in range(in_one) for r in rows_tb[t, : counts_t[t]].tolist()]
        for rows_tb, counts_t in zip(
            np.split(batches.rows_etb[0], epochs),
            np.split(batches.counts_et[0], epochs),
            strict=True,
        )
    ]
    assert all(sorted(visit) == list(range(n)) for visit in visits)
    if n >= 10:
        assert len({tuple(visit) for visit in visits}) == epochs  # shuffled again each time


@pytest.mark.parametrize(("n", "kept"), [(33, 32), (34, 34), (32, 32), (1, 1), (65, 64), (5, 5)])
def test_batch_norm_leaves_out_a_rest_of_one(n: int, kept: int) -> None:
    """As DataLoader(drop_last=True) does; other networks and other rests lose nothing."""

    def counts(layer: Callable[[int], nn.Module]) -> list[int]:
        model = plugins.register("model", "small", lambda shape, outputs: nn.Sequential(
            nn.Flatten(), nn.Linear(16, 4), layer(4), nn.Linear(4, outputs)
        ))  # fmt: skip
        training = Training(batch_size=32, local_epochs=2)
        engine = Engine(classification([n]), model, None, [0], training, device="cpu")
        return [int(batch.counts_e[0]) for batch in engine.batches(1)]

    assert sum(counts(nn.BatchNorm1d)) == 2 * kept
    assert sum(counts(nn.LayerNorm)) == 2 * n


def test_peers_with_less_data_finish_earlier() -> None:
    streams = [stream(0, peer, 1, Purpose.TRAIN) for peer in range(3)]
    batches = plan(streams, [7, 2, 4], 3, epochs=1)
    assert batches.counts_et.tolist() == [[3, 3, 1], [2, 0, 0], [3, 1, 0]]
    assert not batches.rows_etb[1, 1:].any()


def test_every_first_example_of_an_epoch_is_as_likely() -> None:
    firsts = [
        plan([stream(seed, 0, 1, Purpose.TRAIN)], [4], 2, epochs=1).rows_etb[0, 0, 0]
        for seed in range(DRAWS)
    ]
    frequencies = np.bincount(firsts, minlength=4) / DRAWS
    assert np.abs(frequencies - 0.25).max() < math.sqrt(math.log(8e6) / (2 * DRAWS))


def batches_of(peers: list[int], n: int = 6, **wanted: int) -> list[Batch]:
    problem = classification([9, 4, 12, 7, 5, 30][:n])
    training = Training(batch_size=4, local_steps=3)
    engine = Engine(problem, "linear", None, peers, training, seed=5, device="cpu", chunk=1)
    return engine.batches(3, **wanted)


@pytest.mark.parametrize("wanted", [{"steps": 4}, {"epochs": 2}])
def test_a_peers_minibatches_do_not_depend_on_company(wanted: dict[str, int]) -> None:
    """Minibatches depend neither on the hosted peers nor on the number of peers."""
    alone = batches_of([2], n=3, **wanted)
    for company in ([0, 2], [1, 2, 4, 5], list(range(6))):
        together = batches_of(company, **wanted)
        e = company.index(2)
        for t, batch in enumerate(together):
            count = batch.counts_e[e]
            assert count == (alone[t].counts_e[0] if t < len(alone) else 0)
            if count:
                assert batch.rows_eb[e, :count].tolist() == alone[t].rows_eb[0, :count].tolist()
                assert batch.keys_e[e] == alone[t].keys_e[0]
                assert batch.weights_eb[e, :count].tolist() == [1 / count] * int(count)
            assert not batch.weights_eb[e, count:].any()


def test_peers_rounds_purposes_and_partners_draw_differently() -> None:
    problem = classification([200] * 3)
    engine = Engine(problem, "linear", None, [0, 1, 2], Training(batch_size=8), device="cpu")
    drawn = [
        engine.batches(1, steps=1)[0].rows_eb,
        engine.batches(2, steps=1)[0].rows_eb,
        engine.batches(1, Purpose.ANSWER, steps=1)[0].rows_eb,
        engine.batches(1, partners=np.array([1, 1, 1]), steps=1)[0].rows_eb,
    ]
    rows = [tuple(row) for rows_eb in drawn for row in rows_eb.tolist()]
    assert len(set(rows)) == 12


def test_the_same_peer_can_be_asked_many_times_at_once() -> None:
    """Edges (peer, partner) in any order draw what each draws alone."""
    problem = classification([200] * 3)
    engine = Engine(problem, "linear", None, [0, 1, 2], Training(batch_size=8), device="cpu")
    peers, partners = np.array([2, 0, 2, 1]), np.array([0, 2, 1, 2])
    many = engine.batches(1, Purpose.ANSWER, peers=peers, partners=partners, steps=1)[0]
    for e in range(4):
        one = engine.batches(
            1, Purpose.ANSWER, peers=peers[e : e + 1], partners=partners[e : e + 1], steps=1
        )[0]
        assert one.rows_eb[0].tolist() == many.rows_eb[e].tolist()
        assert one.keys_e[0] == many.keys_e[e]


def test_all_data_is_one_batch_of_equal_weights() -> None:
    problem = classification([3, 1, 5])
    engine = Engine(problem, "linear", None, [0, 1, 2], Training(), device="cpu")
    whole = engine.data.everything()
    assert whole.counts_e.tolist() == [3, 1, 5]
    assert np.allclose(whole.weights_eb.sum(dim=1), 1.0)
    assert whole.weights_eb[0].tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert whole.rows_eb[2].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_examples_are_the_peers_own_and_normalised(dtype: type[np.generic]) -> None:
    """Inputs are (raw - mean) / std in the engine's precision, for any type of the pool."""
    problem = classification([5, 3, 4], shape=(2, 3, 3))
    pool = (problem.inputs * 20 + 100).clip(0, 255).astype(dtype)
    mean, std = np.array([90.0, 110.0])[:, None, None], np.array([30.0, 50.0])[:, None, None]
    problem = replace(problem, inputs=pool, mean=mean, std=std)
    engine = Engine(problem, "linear", None, [0, 2], Training(), device="cpu", dtype="float64")
    peers, rows = torch.tensor([1, 0]), torch.tensor([[3, 0], [4, 4]])
    inputs, targets = engine.data.examples("train", peers, rows)
    for e, peer in enumerate((2, 0)):
        expected = (pool[problem.train.rows[peer][rows[e]]].astype(np.float64) - mean) / std
        assert np.allclose(inputs[e], expected, rtol=1e-14, atol=0)
        assert targets[e].tolist() == problem.train.targets[peer][rows[e]].tolist()
