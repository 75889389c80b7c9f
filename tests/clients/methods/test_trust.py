"""Trust: plain loops of the three strategies, and their invariants."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.config.keys import flatten
from coterie.clients.letters import Letters
from coterie.clients.parts.simplex import softmax
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, stacked
from tests.stepping import Stepping

SIMILARITIES = ["validation", "predictions", "weights"]


def similarities(q: Plain, kind: str, i: int, x: Floats, who: list[int]) -> list[float]:
    """Return the similarity of peer i's model and each of `who`, strategy by strategy."""
    if kind == "validation":
        return [-q.loss(i, x[j], q.v) for j in who]
    if kind == "weights":
        return [float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])) for j in who]
    apart = [abs(q.loss(i, x[i], q.v) - q.loss(i, x[j], q.v)) for j in who]
    return [-10 * r / sum(apart) for r in apart]


def twin(flat: dict[str, Any], kind: str, beta: float) -> tuple[Floats, Floats]:
    """Return models and weights; on quadratics a model's output is its loss."""
    q = Plain(flat)
    x, w = q.start.copy(), np.eye(q.n)
    for _ in range(q.rounds):
        shown = x = q.train(x)
        w = np.zeros((q.n, q.n))
        for i in range(q.n):
            who = [j for j in range(q.n) if q.heard[i, j]]
            raw = np.exp(beta * np.array(similarities(q, kind, i, shown, who)))
            w[i, who] = raw / raw.sum()
        x = w @ shown
    return x, w


@pytest.mark.some(4)
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("beta", [1.0, 3.0])
@pytest.mark.parametrize("kind", SIMILARITIES)
def test_it_equals_a_plain_loop(
    tmp_path: Path, kind: str, beta: float, topology: str, nodes: int
) -> None:
    options = {"trust.similarity": kind, "trust.sharpness": beta}
    flat = camps(tmp_path, "trust", topology=topology, **options)
    x, w = twin(flat, kind, beta)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_without_sharpness_all_models_count_alike(tmp_path: Path, kind: str) -> None:
    options = {"trust.similarity": kind, "trust.sharpness": 0.0}
    result = run(digits("trust", dtype="float64", **options), tmp_path / "a")
    uniform = run(digits("fedavg", dtype="float64", mixing="uniform"), tmp_path / "b")
    assert np.abs(result.weights() - 1 / 3).max() < 1e-15
    assert (stacked(result) - stacked(uniform)).abs().max() < 1e-14


def test_the_weight_of_the_own_camp_grows_with_the_sharpness(tmp_path: Path) -> None:
    """Losses across camps are above 1, so exp(-30) bounds the weights there."""
    flat = camps(tmp_path, "trust", **{"trust.sharpness": 30.0})
    weights = run(flat, tmp_path).weights()
    assert weights[CAMP[:, None] != CAMP].max() < 1e-10
    assert weights.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-14)


def weights_of(flat: dict[str, Any], change: Any) -> Floats:
    """Return the weights of one round in which all models are changed before they are compared."""
    stepping = Stepping(flat)
    rule: Any = stepping.rule
    state, offers = rule.offer(rule.init(), 1)
    x = change(stepping, offers["x"])
    n = len(x)
    recipients, senders = np.nonzero(~np.eye(n, dtype=bool))
    letters = Letters(senders, recipients, senders, np.arange(n), {"x": x})
    after = rule.update(replace(state, x=x), rule.inbox(1, letters))
    return np.asarray(after.w)


def permuted_units(stepping: Stepping, x: torch.Tensor) -> torch.Tensor:
    """Reorder the hidden units of the second model only, which leaves its function as it is."""
    network = stepping.rule.engine.network
    named = {name: value.clone() for name, value in network.named(x).items()}
    order = torch.arange(6).flip(0)
    for name in ("1.weight", "1.bias"):
        named[name][1] = named[name][1][order]
    named["3.weight"][1] = named["3.weight"][1][:, order]
    return torch.cat([named[name].flatten(1) for name in network.names], dim=1)


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_only_the_comparison_of_parameters_sees_the_order_of_hidden_units(kind: str) -> None:
    flat = digits("trust", dtype="float64", **{"trust.similarity": kind})
    plain, changed = weights_of(flat, lambda _, x: x), weights_of(flat, permuted_units)
    same = np.abs(plain - changed).max() < 1e-12
    assert same == (kind != "weights")


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_equal_models_have_equal_weights(kind: str) -> None:
    flat = digits("trust", dtype="float64", **{"trust.similarity": kind})
    weights = weights_of(flat, lambda _, x: x[:1].expand(3, -1).contiguous())
    assert weights == pytest.approx(np.full((3, 3), 1 / 3), abs=1e-14)


def test_cosines_are_those_of_rows(tmp_path: Path) -> None:
    """A layer of weights (2 rows) and one of biases (1 row), by hand."""
    flat = digits("trust", dtype="float64")
    engine = Stepping(flat).rule.engine
    x = torch.randn(3, engine.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[2, :100] = 0.0
    found = engine.row_cosines(x, np.array([0, 1, 2]), np.array([1, 1, 0]))
    cosines: list[list[float]] = [[], [], []]
    for tensor in engine.network.tensors(x):
        rows = tensor if tensor.dim() > 2 else tensor[:, None]
        for e, (a, b) in enumerate([(0, 1), (1, 1), (2, 0)]):
            for one, other in zip(rows[a], rows[b], strict=True):
                length = one.norm() * other.norm()
                cosines[e].append(float(one @ other / length) if length > 0 else 0.0)
    assert found == pytest.approx([np.mean(each) for each in cosines], abs=1e-14)


def test_a_softmax_by_hand() -> None:
    s = np.array([[0.0, np.log(3), -np.inf], [-np.inf, np.nan, -np.inf], [900.0, -900.0, 0.0]])
    present = np.array([[True, True, True], [True, True, True], [False, True, True]])
    w = softmax(s, present)
    assert w[0].tolist() == pytest.approx([1 / 4, 3 / 4, 0])
    assert w[1].tolist() == [0, 0, 0]
    assert w[2].tolist() == [0, 0, 1]


def test_its_options_and_the_trust_file_share_a_name() -> None:
    """`trust` is a key, the relay's trust file, and the table of this method's options."""
    config = Config.from_flat(digits("trust", **{"trust.sharpness": 3.0, "trust": "trust.toml"}))
    again = Config.from_flat(flatten(tomllib.loads(config.toml())))
    assert (again.trust, again.flat()["trust.sharpness"]) == ("trust.toml", 3.0)
    assert again == config
    table = flatten(tomllib.loads("[trust]\nsharpness = 2.0"))
    assert table == {"trust.sharpness": 2.0}
