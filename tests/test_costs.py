"""Costs of the methods: the formulas of their pages against runs, to the byte and the example.

The section "Costs" of a page holds the formulas. They are evaluated for every peer and round of
small runs: uneven data, an uneven topology, several local steps, and the options that change a
cost. Those of docs/methods/index.md replace the bytes of a model under letters.scheme =
"increments" and with a reduced payload.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.registry import METHODS
from coterie.app.wire.operators import OPERATORS
from coterie.clients.rule import Rule
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Silent, Wanted, WantedAnswers, WantedHelp
from docs import hooks
from tests.metering import Metered, Names
from tests.problems import classification, write_quadratic
from tests.test_table import REFUSES

EXCHANGES = {
    Silent: "none",
    Everyone: "pull",
    Wanted: "wants",
    WantedAnswers: "ask",
    WantedHelp: "ask",
    Pairs: "pairs",
}
COSTS = ("heard", "sent", "received", "gradients", "reports", "passes", "state")

PAIRS = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [3, 4]]  # 3, 2, 3, 3 and 1 neighbours
SIZES = [1, 5, 9, 16, 23]
CLUSTERS = np.array([0, 0, 1, 1, 1])
STEPS: dict[str, Any] = {"local-steps": 3, "num-server-rounds": 4}
EPOCHS: dict[str, Any] = {"local-epochs": 2, "num-server-rounds": 2}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "cobo": [{"sampling": "constant", "probability": 0.5, "gamma": 30.0}, {"simplex": True}],
    "wga": [
        {"weights": "inverse-variance"}, {"alpha": 0.3, "targets": "0,3"},
    ],
    "bias-correction": [{"bias": "oracle", "targets": "1,2"}, {"weights": "inverse-variance"}],
    "all-for-one": [
        {"estimator": "plain", "refresh-every": 2, "similarity-batch-size": 7},
        {"estimator": "debiased", "refresh-every": 3, "similarity-batch-size": 10},
        {"criterion": "oracle"},
    ],
    "federico": [
        {"neighbours": 1, "answer": "epoch", "ensemble": 1}, {"neighbours": 0}, {"ensemble": 0},
    ],
    "dpfl": [{"init-epochs": 3}, {"period": 2}, {"period": 2, "refresh": "skip"}, {"budget": 2}],
    "random-graph": [{"budget": 2}, {"budget": 2, "budget-counts-self": False}],
    "fedavg-ft": [{"epochs": 3}],
    "fedprox-ft": [{"epochs": 1}],
    "apfl": [{"adaptive": True}],
    "fedrep": [{"head-epochs": 2}],
    "fedpac": [{"head-epochs": 2}, {"lambda": 0.0}],
    "fedproto": [{"lambda": 0.0}],
    "fedfomo": [{"models": 2}, {"models": 0, "baseline": "previous"}],
    "dac": [{"models": 2}, {"models": 1, "gossip": False, "tau-schedule": "constant"}],
    "pens": [{"models": 2, "best": 1, "selection-rounds": 2}, {"models": 1, "best": 1}],
    "dispfl": [{"density": 0.2, "growth": "random"}, {"prune": 0.0, "density": 1.0}],
    "l2c": [{"warm-up": 1, "keep": 2}, {"warm-up": 2, "keep": 1}],
    "clustered-fl": [{"eps1": 10.0, "eps2": 0.0}],
    "fedem": [{"components": 2}],
    "facade": [{"clusters": 1}, {"clusters": 3}],
}  # fmt: skip
"""Options that change a cost, or must not change it."""
NEEDS: dict[str, dict[str, Any]] = {
    "dpfl": {"init-epochs": 1}, "random-graph": {"init-epochs": 1}, "fedavg-ft": {"epochs": 2},
    "fedprox-ft": {"epochs": 2}, "fedrep": {"head-epochs": 3}, "ifca": {"clusters": 2},
}  # fmt: skip
"""Options that have no default, or a slow one."""
TREES: dict[str, Any] = {"model": "boosted-trees", "boosted-trees.trees": 2}
GAPS: dict[str, dict[str, Any]] = {"dac": {"models": 1, "gossip": False}}
"""Options with which readers miss letters in six rounds."""
ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (method, training, {}) for method in METHODS for training in (STEPS, EPOCHS)
]
ROWS += [(method, STEPS, options) for method in VARIANTS for options in VARIANTS[method]]


def formula(method: str, column: str, names: Names) -> int:
    """Return a peer's cost by the formula of the page."""
    text = hooks.costs(method)[column].strip("`")
    return int(eval(text, {"__builtins__": {"min": min, "max": max}}, names))


def assert_costs(metered: Metered, method: str) -> None:
    assert len(metered.rounds) == metered.config.num_server_rounds
    for t, (names, paid, _) in enumerate(metered.rounds, start=1):
        for column in COSTS:
            expected = [formula(method, column, mine) for mine in names]
            assert paid[column].tolist() == expected, (column, t)


def configuration(method: str, options: dict[str, Any], directory: Path) -> dict[str, Any]:
    graph = directory / "graph.json"
    graph.write_text(json.dumps(PAIRS), encoding="utf-8")
    options = NEEDS.get(method, {}) | options
    return {
        "method": method, "peers": len(SIZES), "batch-size": 6,
        "learning-rate": 0.05, "topology": "file", "topology-file": str(graph),
        **{f"{method}.{key}": value for key, value in options.items()},
        **(TREES if method == "boosting" else {}),
        **({"model": "linear"} if method == "partial-pooling" else {}),
    }  # fmt: skip


@pytest.mark.some(15)
@pytest.mark.slow
@pytest.mark.parametrize(("method", "training", "options"), ROWS, ids=str)
def test_a_run_costs_what_the_page_says(
    tmp_path: Path, method: str, training: dict[str, Any], options: dict[str, Any]
) -> None:
    """Five peers with 1 to 23 examples, some of them with one neighbour only."""
    problem = classification(SIZES, validations=[2, 3, 4, 5, 6])
    flat = {"model": "mlp", "mlp.hidden": "3", "partition.validation": 0.2, **training}
    flat |= configuration(method, options, tmp_path)
    assert_costs(Metered(flat, replace(problem, clusters=CLUSTERS)), method)


@pytest.mark.some(13)
@pytest.mark.parametrize("method", [m for m in METHODS if m not in REFUSES])
def test_a_step_of_a_quadratic_is_one_gradient_in_float64(tmp_path: Path, method: str) -> None:
    g = np.random.default_rng(0)
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "problem.json", g.uniform(0.5, 1.5, (5, 2)), g.normal(size=(5, 2)),
        g.normal(size=(5, 2)), noise=0.1, samples=SIZES,
    )  # fmt: skip
    metered = Metered(flat | STEPS | configuration(method, {}, tmp_path))
    assert_costs(metered, method)
    assert {(mine["N"], mine["b"]) for mine in metered.rounds[0].names} == {(1, 8)}


PRECISIONS = ("full", "float16", "bfloat16", "int8", "int4")
INCREMENTS = {"letters.scheme": "increments", "letters.ratio": 0.5}
LETTER_ROWS: list[tuple[str, dict[str, Any]]] = [
    (method, INCREMENTS)
    for method, row in METHODS.items()
    if row.offers_model and row.strategy is not Silent
]
LETTER_ROWS += [
    ("cobo", {"payload": precision, **letters})
    for precision in PRECISIONS
    for letters in ({}, *(INCREMENTS | {"letters.operator": name} for name in OPERATORS))
]
LETTER_ROWS += [
    ("dac", INCREMENTS | {"letters.operator": name, "payload": precision})
    for precision in ("full", "int8")
    for name in OPERATORS
]


def priced(metered: Metered) -> list[dict[str, npt.NDArray[np.int64]]]:
    """Return the bytes of models that each peer sent and received in each round, (n,)."""
    config, engine, formulas = metered.config, metered.engine, hooks.letters()
    shapes = engine.network.shapes
    names = metered.rounds[0].names[0] | {
        "q": partial(size, config.payload), "T": len(shapes), "ratio": config.letters.ratio,
        "factors": sum(factors(shape, config.letters.ratio) for shape in shapes),
    }  # fmt: skip
    calls = {"__builtins__": {"min": min, "max": max, "round": round}}
    for name in ("k", "low", "first", "copy"):
        names[name] = eval(formulas[name], calls, names)
    names["increment"] = eval(formulas[config.letters.operator], calls, names)
    has_increments = config.letters.scheme == "increments" and names["increment"] < names["first"]
    rounds = []
    for t, letters in enumerate(gaps(metered), start=1):
        costs = {name: np.zeros(engine.n, dtype=np.int64) for name in ("sent", "received")}
        for (i, j), gap in letters.items():
            cost = names["copy" if has_increments and t > 1 else "first"]
            if has_increments and gap:
                cost = eval(formulas["letter"], calls, names | {"gap": gap})
            costs["sent"][i] += cost
            costs["received"][j] += cost
        rounds.append(costs)
    return rounds


def size(payload: str, x: int) -> int:
    """Return the bytes of a tensor of x numbers of 4 bytes."""
    text = hooks.letters()[f'"{payload if x >= 64 else "full"}"']
    return int(eval(text, {"__builtins__": {}}, {"b": 4, "x": x}))


def gaps(metered: Metered) -> list[dict[tuple[int, int], int]]:
    """Return (sender, reader) -> rounds since the reader's last letter, or 0, in each round."""
    last, rounds = dict[tuple[int, int], int](), []
    for t, round_ in enumerate(metered.rounds, start=1):
        edges = [(i, j) for i, j in round_.edges.tolist()]
        rounds.append({edge: t - last.get(edge, t) for edge in edges})
        last |= dict.fromkeys(edges, t)
    return rounds


def factors(shape: tuple[int, ...], ratio: float) -> int:
    """Return the number of numbers that low-rank sends of a tensor."""
    m, n = shape[0], math.prod(shape[1:])
    rank = max(1, int(ratio * m * n / (m + n)))
    return min(rank * (m + n), m * n) if len(shape) > 1 else m


@pytest.mark.some(10)
@pytest.mark.parametrize(("method", "letters"), LETTER_ROWS, ids=str)
def test_letters_cost_what_the_page_says(
    tmp_path: Path, method: str, letters: dict[str, Any]
) -> None:
    """The cost table has the rest: answers and tensors beside the model."""
    flat = {"model": "mlp", "mlp.hidden": "8", "partition.validation": 0.2, **STEPS, **letters}
    if method in GAPS:
        flat["num-server-rounds"] = 6
    problem = classification(SIZES, validations=[2, 3, 4, 5, 6])
    metered = Metered(
        flat | configuration(method, GAPS.get(method, {}), tmp_path),
        replace(problem, clusters=CLUSTERS),
    )
    if method in GAPS:
        later = [gap for letters in gaps(metered)[1:] for gap in letters.values()]
        assert {0, 1, 3} <= set(later)
    d = metered.engine.d
    whole = size(metered.config.payload, d)
    per_number = {"b": Fraction(whole, d)}
    for (names, paid, _), models in zip(metered.rounds, priced(metered), strict=True):
        for column, count in (("sent", "shown"), ("received", "heard")):
            rest = [formula(method, column, n | per_number) - whole * n[count] for n in names]
            assert paid[column].tolist() == (models[column] + rest).tolist(), column


@pytest.mark.parametrize(("name", "method"), METHODS.items(), ids=METHODS)
def test_a_page_has_all_costs_and_the_paper(name: str, method: type[Rule[Any]]) -> None:
    assert [*hooks.costs(name)] == ["exchange", *COSTS]
    assert hooks.costs(name)["exchange"] == EXCHANGES[method.strategy]
    paper, deviations = hooks.source(name)
    assert paper
    assert deviations or name == "local"
