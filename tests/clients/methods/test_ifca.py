"""IFCA: a plain loop, FedAvg as its limit, and recovery of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.letters import Letters
from coterie.clients.methods.ifca import Ifca
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, rule_of, stacked
from tests.kit import CAMP_SAMPLES as SAMPLES


def twin(flat: dict[str, Any], k: int) -> tuple[Floats, Floats, Floats]:
    """Return personal models, weights, and every peer's k cluster models."""
    q = Plain(flat)
    centres = np.tile(q.start[:k], (q.n, 1, 1))

    def choices() -> list[int]:
        return [int(np.argmin([q.loss(i, x) for x in centres[i]])) for i in range(q.n)]

    chosen = choices()
    for _ in range(q.rounds):
        trained = q.train(centres[np.arange(q.n), chosen])
        w = np.tile(np.eye(q.n)[:, None], (1, k, 1))
        for i in range(q.n):
            for c in range(k):
                members = q.heard[i] & (np.array(chosen) == c)
                if members.any():
                    centres[i, c] = q.mean(trained, members)
                    w[i, c] = q.samples * members / q.samples[members].sum()
        chosen = choices()
    return centres[np.arange(q.n), chosen], w[np.arange(q.n), chosen], centres


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("k", [2, 3])
def test_it_equals_a_plain_loop(tmp_path: Path, k: int, topology: str, nodes: int) -> None:
    flat = camps(tmp_path, "ifca", starts="own", topology=topology, **{"ifca.clusters": k})
    x, w, _ = twin(flat, k)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-14


@pytest.mark.parametrize("topology", ["full", "ring"])
def test_one_cluster_is_fedavg(tmp_path: Path, topology: str) -> None:
    one = {"ifca.clusters": 1, "topology": topology}
    for make in (camps, lambda _, method, **more: digits(method, **more)):
        result = run(make(tmp_path / "a", "ifca", **one), tmp_path / "a")
        fedavg = run(make(tmp_path / "b", "fedavg", topology=topology), tmp_path / "b")
        assert stacked(result).equal(stacked(fedavg))
        if topology == "full":
            assert np.array_equal(result.weights(), fedavg.weights())


def test_it_finds_the_camps(tmp_path: Path) -> None:
    """One step per round is SGD on a camp's mean loss, so each model converges to its minimum.

    The models start at peers 0 and 1, both of the first camp, so one changes camps.
    """
    flat = camps(tmp_path, "ifca", starts="own", **{"ifca.clusters": 2})
    flat |= {"num-server-rounds": 70, "local-steps": 1, "momentum": 0.0, "learning-rate": 0.6}
    result, q = run(flat, tmp_path), Plain(flat)
    same = CAMP[:, None] == CAMP
    p = np.array(SAMPLES) * same / (np.array(SAMPLES) * same).sum(axis=1, keepdims=True)
    assert np.allclose(result.weights(), p, atol=1e-15)
    assert np.allclose(result.theta(), p @ (q.a * q.c) / (p @ q.a), atol=1e-12)


def test_models_that_start_alike_part(tmp_path: Path) -> None:
    """All train the first model; peers that it then fits worse than the start choose the next."""
    flat = camps(tmp_path, "ifca", **{"ifca.clusters": 3})
    result = run(flat, tmp_path)
    assert np.abs(result.theta() - twin(flat, 3)[0]).max() < 1e-12
    assert np.array_equal(result.weights() > 0, CAMP[:, None] == CAMP)
    first = run(flat | {"num-server-rounds": 1}, tmp_path / "first")
    left = CAMP == 0  # their model was not trained yet
    assert (first.weights()[~left] > 0).all()
    assert np.array_equal(first.weights()[left], np.eye(6)[left])


def test_from_a_common_start_it_is_fedavg_while_no_peer_leaves(tmp_path: Path) -> None:
    """On permuted digits the first model stays below the start's loss for every peer."""
    common = {"ifca.clusters": 4, "ifca.starts": "common", "partition.kind": "label-permutation"}
    result = run(digits("ifca", **common), tmp_path / "a")
    fedavg = run(digits("fedavg", **{"partition.kind": "label-permutation"}), tmp_path / "b")
    assert stacked(result).equal(stacked(fedavg))
    assert np.array_equal(result.weights(), fedavg.weights())
    different = run(digits("ifca", **common | {"ifca.starts": "different"}), tmp_path / "c")
    assert not stacked(different).equal(stacked(fedavg))


def test_from_a_common_start_a_peer_leaves_a_model_that_it_fits_worse(tmp_path: Path) -> None:
    """The first of three camps' rounds equals FedAvg; then a camp chooses another model."""
    common = {"ifca.clusters": 3, "ifca.starts": "common"}
    first = run(camps(tmp_path / "a", "ifca", **common) | {"num-server-rounds": 1}, tmp_path / "a")
    later = run(camps(tmp_path / "b", "ifca", **common), tmp_path / "b")
    assert not (later.weights() > 0).all()
    fedavg = run(camps(tmp_path / "c", "fedavg") | {"num-server-rounds": 1}, tmp_path / "c")
    stay = (first.weights() > 0).all(axis=1)
    assert stay.any()
    assert not stay.all()
    assert np.array_equal(first.theta()[stay], fedavg.theta()[stay])


def test_the_true_number_of_clusters_is_the_default(tmp_path: Path) -> None:
    explicit = run(digits("ifca", **{"ifca.clusters": 3}), tmp_path / "a")
    known = run(digits("ifca"), tmp_path / "b")  # a split into 3 clusters
    assert stacked(known).equal(stacked(explicit))
    other = run(digits("ifca", **{"ifca.clusters": 2}), tmp_path / "c")
    assert not stacked(other).equal(stacked(explicit))


def test_means_are_means_and_a_model_that_nobody_chose_stays(tmp_path: Path) -> None:
    """All peers send the same model for cluster 1: its mean is that model, not a multiple.

    An invalid choice (a letter of another program) counts for no cluster.
    """
    rule = rule_of(Ifca(3), camps(tmp_path, "ifca", starts="own", **{"ifca.clusters": 3}))
    state = rule.init()
    x = torch.full((6, 3), 0.7, dtype=torch.float64)
    x[5] = 1e6
    cluster = torch.tensor([1.0, 1, 1, 1, 1, 9], dtype=torch.float64)
    recipients, senders = np.nonzero(~np.eye(6, dtype=bool))
    offers = Letters(senders, recipients, senders, np.arange(6), {"x": x, "cluster": cluster})
    after = rule.update(state, rule.inbox(1, offers))
    assert torch.allclose(after.centres[:, 1], x[:1].expand(6, 3), rtol=1e-15)
    assert after.centres[:, [0, 2]].equal(state.centres[:, [0, 2]])


def test_only_those_who_are_heard_are_averaged(tmp_path: Path) -> None:
    rule = rule_of(Ifca(3), camps(tmp_path, "ifca", starts="own", **{"ifca.clusters": 3}))
    state = rule.init()
    x = torch.arange(18, dtype=torch.float64).view(6, 3)
    cluster = torch.tensor([0.0, 0, 1, 0, 1, 1], dtype=torch.float64)
    senders, recipients = np.array([[3, 0], [4, 0], [5, 2]]).T
    offers = Letters(senders, recipients, senders, np.arange(6), {"x": x, "cluster": cluster})
    centres = rule.update(state, rule.inbox(1, offers)).centres
    n = SAMPLES
    assert torch.allclose(centres[0, 0], (n[0] * x[0] + n[3] * x[3]) / (n[0] + n[3]))
    assert torch.allclose(centres[0, 1], x[4])
    assert torch.allclose(centres[2, 1], (n[2] * x[2] + n[5] * x[5]) / (n[2] + n[5]))
    assert centres[2, 0].equal(state.centres[2, 0])
    assert torch.allclose(centres[1, 0], x[1])
