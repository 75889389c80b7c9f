"""Test the refusal of models and answers far larger than their recipient's other letters (T15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.node.cohort.filters import limit, oversized
from coterie.clients.letters import Letters
from tests.inline import run

DIGITS: dict[str, Any] = {
    "dataset": "digits", "peers": 6, "partition.samples-per-peer": 30, "num-server-rounds": 15,
    "evaluate-every": 15, "model": "mlp",
}  # fmt: skip


def offers(sizes_n: list[float]) -> Letters:
    """Return the offers of all peers to all peers, each with its size in a single coordinate."""
    n = len(sizes_n)
    edges = np.array([[i, j] for j in range(n) for i in range(n) if i != j])
    stack = torch.zeros(n, 50, dtype=torch.float64)
    stack[range(n), range(n)] = torch.tensor(sizes_n, dtype=torch.float64)
    return Letters(edges[:, 0], edges[:, 1], edges[:, 0], np.arange(n), {"x": stack})


def refused(letters: Letters) -> list[tuple[int, int]]:
    large_e = oversized(letters)
    ends = zip(letters.senders[large_e], letters.recipients[large_e], strict=True)
    return [(int(sender), int(recipient)) for sender, recipient in ends]


def test_the_limit_follows_from_median_and_spread() -> None:
    """Norms e^-1, 1, 1, e, e^9: the median is 1, log distances 0, 0, 1, 1, 9 have the median 1."""
    sizes = np.exp([-1.0, 0.0, 0.0, 1.0, 9.0])
    np.testing.assert_allclose(limit(sizes, 3.0), 3 * np.exp(6))
    np.testing.assert_allclose(limit(np.array([2.0, 2.0, 2.0, 9.0]), 3.0), 6.0)
    np.testing.assert_allclose(limit(100 * sizes, 3.0), 100 * limit(sizes, 3.0))
    assert limit(np.zeros(4), 3.0) == np.inf


@pytest.mark.parametrize("size", [3.1, 900.0, 1e30])
def test_one_of_six_is_refused_by_all_others(size: float) -> None:
    assert refused(offers([1.0, 1.0, size, 1.0, 1.0, 1.0])) == [(2, k) for k in (0, 1, 3, 4, 5)]


def test_nobody_is_refused_whose_peers_differ_as_much() -> None:
    assert not refused(offers([1.0, 2.5, 1.0, 2.9, 0.1, 1.0]))
    assert not refused(offers([0.1, 1.0, 3.0, 9.0, 30.0]))
    assert not refused(offers([0.0, 0.0, 0.0, 5.0])), "nobody has learnt anything yet"


def test_nobody_is_refused_where_half_of_the_peers_have_converged() -> None:
    """Their gradients are a thousandth of the others'."""
    senders, to = np.arange(1, 7), np.zeros(6, dtype=np.int64)
    sizes = torch.tensor([[1.0], [1e-3], [1.1], [0.9], [1e-3], [1e-3]])
    answers = Letters(senders, to, np.arange(6), senders, {"g": sizes}, kind="answer")
    assert not oversized(answers).any()


def test_two_that_lie_among_five_honest_ones_are_both_refused() -> None:
    lies = {sender for sender, _ in refused(offers([1.0, 50.0, 1.1, 70.0, 0.9, 1.0, 1.2]))}
    assert lies == {1, 3}


def test_where_there_is_no_median_the_own_model_is_what_is_known() -> None:
    assert not refused(offers([1.0, 999.0]))
    assert refused(offers([1.0, 1001.0])) == [(1, 0)]


def test_numbers_that_overflow_are_large() -> None:
    letters = offers([1.0] * 5)
    stack = letters["x"].float()
    stack[4, :2] = 1e30  # finite, but the sum of squares is not
    (sender, _), *_ = refused(
        Letters(letters.senders, letters.recipients, letters.rows, letters.authors, {"x": stack})
    )
    assert sender == 4


def test_answers_are_compared_with_each_other() -> None:
    """The norm covers all tensors; with two answers there is no median."""
    senders, to = np.array([1, 2, 3, 4]), np.zeros(4, dtype=np.int64)
    ones, last = torch.ones(4, 9), torch.tensor([[1.0], [1.0], [1.0], [400.0]])
    answers = Letters(senders, to, np.arange(4), senders, {"g": ones, "h": last}, kind="answer")
    assert oversized(answers).tolist() == [False, False, False, True]
    assert not oversized(answers.select(np.array([False, False, True, True]))).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "strength"),
    [("fedavg", 30.0), ("fedavg", 900.0), ("ditto", 900.0), ("bias-correction", 100.0)],
)
def test_who_shouts_ruins_nobody(method: str, strength: float, tmp_path: Path) -> None:
    """Honest accuracy with an attacker stays within ten points of that without its letters.

    Before there was a median to compare with, FedAvg was at chance, a tenth.
    """
    keys = DIGITS | {"method": method}
    attack = {"attack.kind": "scale", "attack.peers": "0", "attack.strength": strength}
    lied, honest = run(keys | attack, tmp_path / "lied"), run(keys, tmp_path / "honest")
    accuracy = [result.metric("test_accuracy", 15)[1:].mean() for result in (lied, honest)]
    assert accuracy[0] > accuracy[1] - 0.1
    assert lied.reports[15, 1].metrics["refused_models"]
    assert not any("refused_models" in r.metrics for r in honest.reports.values())
