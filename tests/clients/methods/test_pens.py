"""PENS: a plain loop, the choice of neighbours, and its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.methods.dac import PENS
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, rule_of, stacked
from tests.problems import parabolas
from tests.stepping import Stepping


def twin(flat: dict[str, Any], m: int, best: int, first: int) -> tuple[Floats, Floats, Floats]:
    """Return models, weights of the last average, and counts."""
    q = Plain(flat)
    x, w, counts = q.start.copy(), np.eye(q.n), np.zeros((q.n, q.n))
    for t in range(1, q.rounds + 1):
        shown = q.train(x)
        for i in range(q.n):
            others = [j for j in range(q.n) if q.heard[i, j] and j != i]
            if t > first:
                often = [j for j in others if counts[i, j] > counts[i, others].mean()]
                others = often or others
            shuffled = stream(0, i, t, Purpose.CHOICE).permutation(q.n)
            used = [int(j) for j in shuffled if j in others][:m]
            if t <= first:
                used = sorted(used, key=lambda j: q.loss(i, shown[j]))[:best]
                counts[i, used] += 1
            who = np.isin(np.arange(q.n), [i, *used])
            x[i], w[i] = q.mean(shown, who), q.samples * who / q.samples[who].sum()
    return x, w, counts


@pytest.mark.some(4)
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("full", 6), ("ring", 3)])
@pytest.mark.parametrize(("m", "best", "first"), [(3, 1, 4), (9, 2, 3), (2, 2, 8)])
def test_it_equals_a_plain_loop(
    tmp_path: Path, m: int, best: int, first: int, topology: str, nodes: int
) -> None:
    options = {"models": m, "best": best, "selection-rounds": first}
    keys = {f"pens.{key}": value for key, value in options.items()}
    flat = camps(tmp_path, "pens", topology=topology, **keys)
    x, w, _ = twin(flat, m, best, first)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-12


def test_the_neighbours_are_the_camp(tmp_path: Path) -> None:
    """Every peer hears all models and selects the two with the lowest loss: those of its camp."""
    flat = camps(tmp_path, "pens", **{"pens.models": 5, "pens.selection-rounds": 4})
    stepping = Stepping(flat)
    state, rule = stepping.to(4), stepping.rule
    assert isinstance(rule, PENS)
    assert np.array_equal(rule.neighbours(state), (CAMP[:, None] == CAMP) & ~np.eye(6, dtype=bool))
    assert np.array_equal(run(flat, tmp_path).weights() > 0, CAMP[:, None] == CAMP)


def test_averaging_with_everybody_is_fedavg(tmp_path: Path) -> None:
    """All are selected, so all counts are equal and all remain neighbours."""
    for make in (camps, lambda _, method, **more: digits(method, **more)):
        options = {"pens.best": 9, "pens.selection-rounds": 2}
        result = run(make(tmp_path / "a", "pens", **options), tmp_path / "a")
        fedavg = run(make(tmp_path / "b", "fedavg"), tmp_path / "b")
        assert stacked(result).equal(stacked(fedavg))
        assert np.array_equal(result.weights(), fedavg.weights())


def test_neighbours_by_hand(tmp_path: Path) -> None:
    """Counts 3, 1, 2 have mean 2: only the first is above it. Equal counts exclude nobody."""
    rule = rule_of(PENS(), parabolas(tmp_path, 4))
    counts = np.array([[0.0, 3, 1, 2], [5, 0, 5, 5], [0, 0, 0, 0], [1, 0, 0, 0]])
    neighbours = rule.neighbours(replace(rule.init(), counts=counts))
    assert neighbours.astype(int).tolist() == [
        [0, 1, 0, 0], [1, 0, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0],
    ]  # fmt: skip


def test_a_random_chooser_selects_a_peer_best_t_over_n_minus_1_times(tmp_path: Path) -> None:
    """All models are the same draw: the sampled peers are selected, with probability m / (n - 1).

    With best = m the count of a peer after T rounds is binomial(T, m / (n - 1)).
    """
    rule, rounds = rule_of(PENS(2, 2, 10_000), parabolas(tmp_path, 6)), 2000
    pulled = np.zeros((6, 6))
    for t in range(1, rounds + 1):
        sender, recipient = rule.edges(rule.wants(rule.init(), t)).T
        pulled[recipient, sender] += 1
    assert (pulled.sum(axis=1) == 2 * rounds).all()
    share = 2 / 5
    deviation = (share * (1 - share) / rounds) ** 0.5
    assert np.abs(pulled / rounds - share * (1 - np.eye(6))).max() < 5 * deviation


def test_choices_do_not_depend_on_who_hosts_whom(tmp_path: Path) -> None:
    whole = rule_of(PENS(models=2), parabolas(tmp_path, 7))
    part = rule_of(PENS(models=2), parabolas(tmp_path, 7), [2, 5])
    for t in (1, 2, 30):
        every, some = (
            whole.edges(whole.wants(whole.init(), t)),
            part.edges(part.wants(part.init(), t)),
        )
        assert some.tolist() == every[np.isin(every[:, 1], [2, 5])].tolist()
