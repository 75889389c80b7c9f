"""A peer whose model is honest on all held-out rows, and decides where no row is.

Attack: "leaf" of `studies.hostile_members`. Without limits it decides the prediction of every
patient unlike the held-out rows, as the first test shows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.trained.export import export
from coterie.app.trained.personal import personal_model
from coterie.clients.attack import ATTACKS, AttackKind, Knowledge
from coterie.clients.engine import linear
from coterie.clients.engine.tasks import TASKS
from coterie.clients.methods.mixture import Mixture
from studies.hostile_members import LEAF, with_leaf
from studies.kept import kept
from tests.clients.methods.test_boosting import KEYS, SIZES, problem
from tests.stepping import Stepping

ATTACKER, FAR, ABOVE = 2, 21.0, 5.0
NETWORK = {"model": "mlp", "mlp.hidden": "8", "local-steps": 20, "num-server-rounds": 2}
CASES = [
    ("stacking", "boosted-trees", "two"),
    ("stacking", "mlp", "three"),
    ("stacking", "boosted-trees", "numbers"),
    ("boosting", "boosted-trees", "two"),
    ("boosting", "boosted-trees", "numbers"),
    ("mixture", "mlp", "numbers"),
    ("selection", "boosted-trees", "numbers"),
]


def attacked(
    monkeypatch: pytest.MonkeyPatch, method: str, model: str, task: str, kind: str = "leaf"
) -> Stepping:
    """A run with the attacker; the test rows are far from all others in feature 0."""
    made = problem(task, SIZES, 15)
    inputs = made.inputs.copy()
    inputs[np.concatenate(made.test.rows), 0] = FAR
    keys = {**KEYS, "method": method, "peers": 3, "num-server-rounds": 2, "model": model}
    keys |= {} if model != "mlp" else NETWORK
    keys = {k: v for k, v in keys.items() if not k.startswith("boosted") or model != "mlp"}
    network = Stepping({**keys, "method": "local"}, problem=made).cohort.engine.network

    def forge(known: Knowledge) -> torch.Tensor:
        letter = known.own.clone()
        with_leaf({name: value[0] for name, value in network.named(letter[None]).items()}, ABOVE)
        return letter

    monkeypatch.setitem(ATTACKS, "leaf", AttackKind("a leaf", forge))
    keys |= {"attack.kind": kind, "attack.peers": str(ATTACKER)} if kind else {}
    stepping = Stepping(keys, problem=replace(made, inputs=inputs))
    stepping.to(2)
    return stepping


def without_limits(state: Any) -> Any:
    wide = np.full_like(state.high, np.inf)
    return replace(state, low=-wide, high=wide)


@pytest.mark.parametrize(("method", "model", "task"), CASES)
def test_a_leaf_that_no_row_tested_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, method: str, model: str, task: str
) -> None:
    stepping = attacked(monkeypatch, method, model, task)
    rule, state = stepping.rule, stepping.state
    honest = [0, 1]
    if method in ("mixture", "selection"):  # whichever weight it gets
        state = replace(state, w=np.full_like(state.w, 1 / 3))
    loss = rule.evaluate(state, "test").losses[honest]
    assert (rule.weights(state)[honest, ATTACKER] > 0.01).all()
    # The law: on the rows that chose the weights the limits change nothing.
    for mine, free in zip(
        rule.evaluate(state, "validation"), rule.evaluate(without_limits(state), "validation"),
        strict=True,
    ):  # fmt: skip
        assert (mine == free)[honest].all() or mine.isnan().all()
    before = rule.evaluate(without_limits(state), "test").losses[honest]
    assert (before > 50).all()
    assert (loss < 20).all()
    rows, decided = np.transpose([rule.beyond(state)[p][ATTACKER] for p in honest])
    assert (rows == 20).all()
    assert decided.any() == (task != "numbers")


def test_a_shift_of_all_scores_does_not_widen_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax ignores it, so a member could use it to hide a wide range."""
    task, g = TASKS["classification"], np.random.default_rng(0)
    scores = torch.tensor(g.normal(size=(1, 50, 2)))
    shifted = scores + torch.tensor(g.normal(size=(1, 50, 1))) * 1e4
    for mine, other in zip(task.ranges(scores), task.ranges(shifted), strict=True):
        assert np.allclose(mine, other, atol=1e-6)
    low, high = map(torch.tensor, task.ranges(scores))
    odd = torch.tensor([[[1e6, -1e6], [torch.nan, 0.0], [torch.inf, 0.0]]])
    kept = task.clipped(odd, low[:, None], high[:, None])
    assert (kept.abs() <= high.abs().max()).all()
    assert (task.clipped(scores, low[:, None], high[:, None]) == scores).all()


def test_a_member_without_finite_scores_does_not_end_a_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mixtures of probabilities are bounded, but not by a network that overflows."""
    stepping = attacked(monkeypatch, "mixture", "mlp", "two", "")
    state, rule = stepping.state, stepping.rule
    named = stepping.cohort.engine.network.named(state.members[0])
    named["1.weight"][:, 0, 0], named["3.weight"][:, 0, 0] = 1e38, 1e38
    assert isinstance(rule, Mixture)
    state = replace(state, w=np.full_like(state.w, 1 / 3))
    assert rule.evaluate(state, "test").losses[0].isfinite()


@pytest.mark.parametrize("c", [2.0**20, 1e-7, 3e5])
def test_stacking_knows_no_unit(c: float) -> None:
    """stacking(c y) = c stacking(y), also for numbers above 10,000, with models that err."""
    g = np.random.default_rng(0)
    y = torch.tensor(g.normal(5.0, 2.0, (60, 2)))
    z = torch.stack([y + torch.tensor(g.normal(0, s, (60, 2))) for s in (1.0, 0.5, 3.0)])
    task = TASKS["regression"]

    def scale(losses: np.ndarray) -> float:
        return 2 * float(losses.mean())

    v, b = linear.ridge(task, z, y, 1.0, scale)
    v_c, b_c = linear.ridge(task, c * z, c * y, 1.0, scale)
    assert v_c == pytest.approx(v, rel=1e-6)
    assert b_c == pytest.approx(c * b, rel=1e-6)
    assert v[1] > 0.5
    absurd = torch.cat([z, 1e9 * z[:1]])
    assert linear.ridge(task, absurd, y, 1.0, scale)[0][3] == 0


@pytest.mark.slow
def test_the_model_file_and_its_exports_have_the_limits(tmp_path: Path) -> None:
    flat = {
        "dataset": "digits", "model": "boosted-trees", "boosted-trees.trees": 10, "peers": 3,
        "partition.samples-per-peer": 60, "partition.clusters": 1, "num-server-rounds": 1,
        "device": "cpu", "method": "stacking", "attack.peers": "2",
        "attack.kind": "studies.hostile_members:LEAF",
    }  # fmt: skip
    assert isinstance(LEAF, AttackKind)
    config = Config.from_flat(flat)
    run = kept(config, tmp_path)
    problem, model = problem_of(config), personal_model(run.directory, 0)
    raw = torch.tensor(problem.inputs[problem.test.rows[0]])
    targets = torch.tensor(problem.test.targets[0])
    loss = torch.nn.functional.cross_entropy(model(raw), targets).item()
    assert loss == pytest.approx(run.at("test_loss", run.last_row())[0], abs=1e-6)
    bright = raw.clone()
    bright[..., 0, 0] = 16.0
    probability = model.probabilities(bright)[:, 0]
    assert probability.mean() < 0.6
    assert dict(model.limited(bright))["peer 2"] == len(bright)
    for format_ in (".onnx", ".pt2"):
        export(model, tmp_path / f"model{format_}")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    there = torch.tensor(session.run(None, {"raw": bright.float().numpy()})[1])
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.allclose(there, model.probabilities(bright), atol=1e-5)
    assert torch.allclose(program(bright.float()), model(bright), atol=1e-5)
    cards = (json.loads(path.read_text()) for path in run.directory.glob("models/*.json"))
    counted = [each for card in cards for each in card.get("limited", ())]
    assert counted
    assert all(0 <= each["decided"] <= each["rows"] for each in counted)
