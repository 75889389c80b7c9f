"""Tests of the method on all kinds of problems, and of runs with all parts."""

from collections.abc import Callable
from pathlib import Path

import coterie
from coterie.testing import check_method

__all__ = ["check_method"]


def test_the_method_on_every_kind_of_problem(check_method: Callable[..., None]) -> None:
    check_method("nearest", method_options__neighbours=1)


def test_clinics_that_are_alike_find_each_other(tmp_path: Path) -> None:
    run = coterie.run(
        method="nearest", method_options={"neighbours": 1},
        model="two-layers", model_options={"width": 8},
        dataset="clinics", dataset_options={"patients": 60}, peers=4,
        num_server_rounds=10, evaluate_every=10, device="cpu", out=tmp_path,
    )  # fmt: skip
    last = run.graph[run.graph["round"] == 10]
    assert set(last[last["to"] == "clinic 1"]["from"]) < {"clinic 2", "clinic 3"}
    assert run.names[-1] == "clinic 4"


def test_shares_grow(tmp_path: Path) -> None:
    run = coterie.run(
        method="local", dataset="digits", partition__kind="growing", peers=3,
        partition__samples_per_peer=0, num_server_rounds=1, device="cpu", out=tmp_path,
    )  # fmt: skip
    evaluated = run.metrics[run.metrics["round"] == 1]
    assert evaluated["gradient_evaluations"].notna().all()


def test_an_attack_on_a_star_of_peers_that_take_turns(tmp_path: Path) -> None:
    run = coterie.run(
        method="fedavg", dataset="digits", peers=4, num_server_rounds=3, device="cpu",
        topology="star", schedule__kind="alternating", schedule__max_age=1,
        attack__kind="zero", attack__peers="3", defence__rule="heaviest", out=tmp_path,
    )  # fmt: skip
    assert run.summary["topology"] == "star"
    assert run.metrics["attacker"].sum() >= 1
