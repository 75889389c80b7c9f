"""Trust: a plain loop, and its invariants."""

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


def twin(flat: dict[str, Any], beta: float) -> tuple[Floats, Floats]:
    q = Plain(flat)
    x, w = q.start.copy(), np.eye(q.n)
    for _ in range(q.rounds):
        shown = x = q.train(x)
        w = np.zeros((q.n, q.n))
        for i in range(q.n):
            who = [j for j in range(q.n) if q.heard[i, j]]
            raw = np.exp(-beta * np.array([q.loss(i, shown[j], q.v) for j in who]))
            w[i, who] = raw / raw.sum()
        x = w @ shown
    return x, w


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_it_equals_a_plain_loop(tmp_path: Path, beta: float, topology: str, nodes: int) -> None:
    flat = camps(tmp_path, "trust", topology=topology, **{"trust.sharpness": beta})
    x, w = twin(flat, beta)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10


def test_without_sharpness_all_models_count_alike(tmp_path: Path) -> None:
    flat = digits("trust", dtype="float64", **{"trust.sharpness": 0.0})
    result = run(flat, tmp_path / "a")
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


def test_the_order_of_hidden_units_does_not_matter() -> None:
    flat = digits("trust", dtype="float64")
    plain, changed = weights_of(flat, lambda _, x: x), weights_of(flat, permuted_units)
    assert np.abs(plain - changed).max() < 1e-12


def test_equal_models_have_equal_weights() -> None:
    flat = digits("trust", dtype="float64")
    weights = weights_of(flat, lambda _, x: x[:1].expand(3, -1).contiguous())
    assert weights == pytest.approx(np.full((3, 3), 1 / 3), abs=1e-14)


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
