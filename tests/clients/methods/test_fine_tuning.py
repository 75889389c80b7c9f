"""FedAvg + FT and FedProx + FT: a plain loop, the best model, and costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import FineTuned
from tests.inline import Floats, run
from tests.kit import Plain, digits, quadratic, rule_of, stacked


def twin(flat: dict[str, Any], mu: float, epochs: int) -> Floats:
    """Run FedProx, keep each peer's best global model, and fine-tune it with zero momentum."""
    q = Plain(flat)
    w = best = q.start
    for t in range(q.rounds + 1):
        if t:
            w = q.averaged(q.train(w, lambda i, x, before=w: mu * (x - before[i])))  # type: ignore[misc]
        better = [q.loss(i, w[i], q.v) < q.loss(i, best[i], q.v) for i in range(q.n)]
        best = np.where(np.array(better)[:, None], w, best)
    q.velocity[:], q.steps = 0, epochs
    return q.train(best)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize(("method", "mu"), [("fedavg-ft", 0.0), ("fedprox-ft", 0.7)])
def test_it_equals_a_plain_loop(tmp_path: Path, method: str, mu: float, nodes: int) -> None:
    flat = quadratic(tmp_path, method, **{f"{method}.epochs": 2})
    if mu:
        flat[f"{method}.mu"] = mu
    result = run(flat, tmp_path, nodes).theta()
    assert np.abs(result - twin(flat, mu, 2)).max() < 1e-12


def test_without_a_penalty_both_are_one(tmp_path: Path) -> None:
    more = {"fedprox-ft.mu": 0.0, "fedprox-ft.epochs": 2}
    prox = run(digits("fedprox-ft", **more), tmp_path / "prox")
    plain = run(digits("fedavg-ft", **{"fedavg-ft.epochs": 2}), tmp_path / "avg")
    assert stacked(prox).equal(stacked(plain))


def test_what_is_tuned_did_best_on_the_own_validation_data(tmp_path: Path) -> None:
    """FedAvg's report gives the best round; with 0 epochs its model is the personal one."""
    more = {"num-server-rounds": 8, "evaluate-every": 1, "learning-rate": 1.5}
    tuned = run(digits("fedavg-ft", **more, **{"fedavg-ft.epochs": 0}), tmp_path / "tuned")
    plain = run(digits("fedavg", **more), tmp_path / "plain")
    losses = np.array([plain.metric("validation_loss", t) for t in plain.rounds])
    best = losses.argmin(axis=0)
    assert len(set(best)) > 1  # not the last model for all peers
    for name in ("validation_loss", "test_loss", "test_accuracy"):
        expected = [plain.metric(name, t)[peer] for peer, t in enumerate(best)]
        assert tuned.metric(name).tolist() == expected


def test_without_validation_data_the_current_global_model_is_tuned(tmp_path: Path) -> None:
    more = {"partition.validation": 0.0}
    tuned = run(digits("fedavg-ft", **more, **{"fedavg-ft.epochs": 0}), tmp_path / "tuned")
    assert stacked(tuned).equal(stacked(run(digits("fedavg", **more), tmp_path / "plain")))


def test_a_diverged_model_is_not_the_best(tmp_path: Path) -> None:
    rule = rule_of(FineTuned(), quadratic(tmp_path, "fedavg-ft"))
    state = rule.init()
    no = np.empty(0, dtype=np.int64)
    x = state.x + torch.tensor([[0.0], [torch.nan], [torch.inf], [1e3]])
    alone = Letters(no, no, no, np.arange(4), {"x": x})
    after = rule.update(replace(state, x=x), rule.inbox(1, alone))
    assert after.best["x"].equal(state.best["x"])


def test_every_report_is_that_of_a_run_that_ends_there(tmp_path: Path) -> None:
    """Tuning does not change the shared model, and each evaluation counts its own cost once."""
    tuned = digits("fedavg-ft", **{"fedavg-ft.epochs": 2})
    often = run(tuned | {"evaluate-every": 1}, tmp_path / "often")
    fedavg = run(digits("fedavg", **{"evaluate-every": 1}), tmp_path / "fedavg")
    for t in (1, 2, 3):
        short = run(tuned | {"num-server-rounds": t}, tmp_path / str(t))
        assert often.metric("test_loss", t).tolist() == short.metric("test_loss").tolist()
        costs = often.metric("gradient_evaluations", t)
        assert costs.tolist() == short.metric("gradient_evaluations").tolist()
        examples = 16  # 20 minus 20 % for validation; 2 epochs
        assert (costs - fedavg.metric("gradient_evaluations", t) == 2 * examples).all()
        shared = often.metric("global_test_loss", t)
        assert shared.tolist() == fedavg.metric("test_loss", t).tolist()
