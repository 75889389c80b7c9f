"""Clustered FL: the condition for a split, the bipartition, and FedAvg inside the parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.letters import Bools, Letters
from coterie.clients.methods.clustered_fl import ClusteredFL, bipartition
from tests.inline import Floats, run
from tests.kit import CAMP, N, Plain, camps, digits, rule_of, stacked
from tests.kit import CAMP_SAMPLES as SAMPLES
from tests.problems import write_quadratic

SPLIT = {"clustered-fl.eps1": 0.5, "clustered-fl.eps2": 0.1}


def cosines(u: Floats) -> Floats:
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    return np.asarray(u @ u.T)


def least_alike(u: Floats) -> tuple[float, Bools]:
    """Return the bipartition with the smallest maximum cosine across, by exhaustive search."""
    alpha, cuts = cosines(u), {}
    for rest in product([False, True], repeat=len(u) - 1):
        part = np.array([True, *rest])
        if not part.all():
            cuts[rest] = alpha[part][:, ~part].max()
    best = min(cuts, key=lambda rest: cuts[rest])
    return cuts[best], np.array([True, *best])


@pytest.mark.parametrize("seed", range(8))
def test_no_bipartition_is_less_alike(seed: int) -> None:
    u = np.random.default_rng(seed).normal(size=(7, 3))
    part = bipartition(u @ u.T)
    assert part[0]
    assert not part.all()
    smallest, best = least_alike(u)
    assert cosines(u)[part][:, ~part].max() == pytest.approx(smallest, abs=1e-9)
    assert np.array_equal(part, best)


def test_two_groups_of_ways_are_told_apart() -> None:
    g = np.random.default_rng(0)
    group = g.integers(2, size=12) > 0
    u = np.where(group[:, None], 1.0, -1.0) * np.ones(5) + g.normal(0, 0.3, (12, 5))
    u *= g.uniform(0.1, 10, (12, 1))  # lengths do not matter
    assert np.array_equal(bipartition(u @ u.T), group == group[0])


def test_who_has_not_moved_is_like_nobody() -> None:
    u = np.array([[1.0, 0], [1, 0.1], [0, 0]])
    assert bipartition(u @ u.T).tolist() == [True, True, False]
    assert bipartition(np.zeros((2, 2))).tolist() == [True, False]


def bowls(directory: Path, peers: int = 4, **more: Any) -> dict[str, Any]:
    """f_i(x) = |x|^2 / 2 in two dimensions, from 0."""
    return write_quadratic(
        directory / "problem.json", np.ones((peers, 2)), np.zeros((peers, 2)), np.zeros(2), **more
    )


def letters(x: torch.Tensor, edges: Bools) -> Letters:
    """Make letters along edges [recipient, sender]."""
    recipients, senders = np.nonzero(edges & ~np.eye(len(x), dtype=bool))
    return Letters(senders, recipients, senders, np.arange(len(x)), {"x": x})


def members(rule: ClusteredFL, x: Floats, round_: int = 1, edges: Bools | None = None) -> Bools:
    """Return the clusters after a round in which models moved from 0 to x."""
    shown = torch.tensor(x)
    everybody = np.ones((len(x), len(x)), dtype=bool)
    state = replace(rule.init(), x=shown)
    offers = letters(shown, everybody if edges is None else edges)
    return rule.update(state, rule.inbox(round_, offers)).members


@pytest.mark.parametrize("round_", [1, 2])
def test_a_cluster_splits_exactly_when_the_criterion_says_so(tmp_path: Path, round_: int) -> None:
    """Updates +-(2, 0) + (0, 0.3): the mean has length 0.3, each of them sqrt(4.09)."""
    x = np.array([[2.0, 0.3], [2, 0.3], [-2, 0.3], [-2, 0.3]])
    longest = 4.09**0.5
    together, apart = np.ones((4, 4)), np.kron(np.eye(2), np.ones((2, 2)))
    for eps1, eps2, expected in (
        (0.3001, longest - 1e-4, apart),
        (0.2999, longest - 1e-4, together),
        (0.3001, longest + 1e-4, together),
        (0.2999, longest + 1e-4, together),
    ):
        rule = rule_of(ClusteredFL(eps1, eps2), bowls(tmp_path))
        assert np.array_equal(members(rule, x, round_), expected > 0)


def test_the_mean_weighs_by_samples(tmp_path: Path) -> None:
    """3 (2, 0) + 1 (-6, 0) = 0 although the plain mean is not."""
    x = np.array([[2.0, 0], [-6, 0]])
    fair = rule_of(ClusteredFL(0.1, 1.0), bowls(tmp_path, 2))
    assert members(fair, x).all()
    rule = rule_of(ClusteredFL(0.1, 1.0), bowls(tmp_path, 2, samples=[3, 1]))
    assert np.array_equal(members(rule, x), np.eye(2) > 0)


def test_whoever_is_not_heard_has_no_say_and_stays(tmp_path: Path) -> None:
    """Without peer 3 the others split into {0, 1} and {2}; peer 3 receives nothing."""
    x = np.array([[1.0, 0], [1, 0], [-2, 0], [9, 9]])
    edges = np.ones((4, 4), dtype=bool)
    edges[3, :3] = edges[:3, 3] = False
    result = members(rule_of(ClusteredFL(0.1, 0.5), bowls(tmp_path)), x, 1, edges)
    expected = [[1, 1, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert np.array_equal(result, np.array(expected) > 0)


def test_whoever_is_in_another_cluster_does_not_count(tmp_path: Path) -> None:
    """Unrequested letters count neither in the mean update nor in the mean model."""
    rule = rule_of(ClusteredFL(0.1, 0.5), bowls(tmp_path))
    x = torch.tensor([[1.0, 0], [1, 0.1], [-2, 0], [0, 0]], dtype=torch.float64)
    apart = np.kron(np.eye(2), np.ones((2, 2))) > 0
    state = replace(rule.init(), x=x, members=apart)
    after = rule.update(state, rule.inbox(2, letters(x, np.ones((4, 4), dtype=bool))))
    assert np.array_equal(after.members, apart)
    means = [[1, 0.05], [1, 0.05], [-1, 0], [-1, 0]]
    assert torch.allclose(after.x, torch.tensor(means, dtype=torch.float64))


def twin(flat: dict[str, Any]) -> tuple[Floats, list[set[int]], int]:
    """Return models, clusters and the round of the first split of a central implementation."""
    q, eps1, eps2 = Plain(flat), flat["clustered-fl.eps1"], flat["clustered-fl.eps2"]
    x, clusters, cut = q.start.copy(), [set(range(q.n))], 0
    for t in range(1, q.rounds + 1):
        before, x = x, q.train(x)
        parts = []
        for cluster in clusters:
            ids = sorted(cluster)
            u = x[ids] - before[ids]
            p = q.samples[ids] / q.samples[ids].sum()
            norms = np.linalg.norm(u, axis=1)
            if len(ids) > 1 and np.linalg.norm(p @ u) < eps1 and norms.max() > eps2:
                first = {i for i, inside in zip(ids, least_alike(u)[1], strict=True) if inside}
                parts += [first, cluster - first]
                cut = cut or t
            else:
                parts.append(cluster)
        clusters = parts
        for cluster in clusters:
            x[sorted(cluster)] = q.mean(x, [i in cluster for i in range(q.n)])
    return x, clusters, cut


@pytest.mark.some(4)
@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize("starts", ["common", "own"])
@pytest.mark.parametrize(("eps2", "parts"), [(0.3, 4), (0.6, 2)])
def test_it_equals_a_server(
    tmp_path: Path, eps2: float, parts: int, starts: str, nodes: int
) -> None:
    options = SPLIT | {"clustered-fl.eps2": eps2, "num-server-rounds": 12}
    flat = camps(tmp_path, "clustered-fl", starts=starts, **options)
    x, clusters, cut = twin(flat)
    assert 1 < cut < 12
    assert len(clusters) == parts
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    for cluster in clusters:
        shares = [SAMPLES[j] * (j in cluster) for j in range(N)]
        for i in cluster:
            assert result.weights()[i] == pytest.approx(np.array(shares) / sum(shares), abs=1e-14)


def test_before_a_split_it_is_fedavg(tmp_path: Path) -> None:
    never = {"clustered-fl.eps1": 0.0}
    for make in (camps, lambda _, method, **more: digits(method, **more)):
        result = run(make(tmp_path / "a", "clustered-fl", **never), tmp_path / "a")
        fedavg = run(make(tmp_path / "b", "fedavg"), tmp_path / "b")
        assert stacked(result).equal(stacked(fedavg))
        assert np.array_equal(result.weights(), fedavg.weights())
        assert np.array_equal(result.metric("bytes_received"), fedavg.metric("bytes_received"))


@pytest.mark.slow
def test_parts_go_their_own_way(tmp_path: Path) -> None:
    """The first split is that of the camps, and each converges to the minimum of its mean loss.

    From then on a peer receives from its own part only.
    """
    options = {"clustered-fl.eps1": 0.05, "clustered-fl.eps2": 0.2, "evaluate-every": 149}
    flat = camps(tmp_path, "clustered-fl", **options, **{"local-steps": 1, "momentum": 0.0})
    result, q = run(flat | {"num-server-rounds": 150}, tmp_path), Plain(flat)
    same = CAMP[:, None] == CAMP
    p = q.samples * same
    assert np.allclose(result.theta(), p @ (q.a * q.c) / (p @ q.a), atol=1e-12)
    assert np.array_equal(result.weights() > 0, same)
    received = result.metric("bytes_received", 150) - result.metric("bytes_received", 149)
    assert (received == 2 * 3 * 8).all()
