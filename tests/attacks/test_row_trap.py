"""A trusted peer reads table rows out of one answer, with a model made for the purpose (T6).

All hidden units look along one direction of the inputs, each with a threshold of its own. The
gradients of two neighbouring units differ by the examples between their thresholds. Where that is
one example x, the weights' gradients differ by c x and the biases' by c, so their ratio is x.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.preflight import problem_of
from coterie.app.institution.security.split import split_seed
from coterie.app.runs import atomic
from coterie.strategies.protocol import Request
from tests.attacks.consortium import (
    ROWS,
    Institution,
    asking,
    config_of,
    institutions,
    offer_of,
    opened,
    response_of,
    started,
)

HIDDEN = 1000
SCALE = 0.02  # any will do: the size of a model does not give the trap away
PRIVATE: dict[str, Any] = {
    "privacy.kind": "examples", "privacy.noise": 4.0, "privacy.budget": 8.0,
}  # fmt: skip
Array = npt.NDArray[np.float64]


def trap() -> Array:
    """The parameters of an MLP 2-HIDDEN-2 whose units switch on one after the other."""
    weights = SCALE * np.tile([0.8, 0.6], (HIDDEN, 1))
    biases = -SCALE * np.linspace(-3.0, 3.0, HIDDEN)
    outputs = np.stack([np.ones(HIDDEN), np.zeros(HIDDEN)]) / HIDDEN
    return np.concatenate([weights.ravel(), biases, outputs.ravel(), np.zeros(2)])


def rows_in(gradient_d: Array) -> Array:
    """(m, 2) the ratios that differences of neighbouring units give."""
    by_weight = np.diff(gradient_d[: 2 * HIDDEN].reshape(HIDDEN, 2), axis=0)
    by_bias = np.diff(gradient_d[2 * HIDDEN : 3 * HIDDEN])
    between = np.abs(by_bias) > 1e-12
    ratios: Array = by_weight[between] / by_bias[between, None]
    return ratios


def count_read(ratios: Array, rows: Array) -> int:
    """Return the number of rows that occur among the ratios, to six decimals."""
    if not len(ratios):
        return 0
    apart = np.abs(rows[:, None] - ratios[None]).max(axis=2)
    return int((apart.min(axis=1) < 1e-6).sum())


def training_rows(node: Institution) -> Array:
    """The rows that the node trains on, as the model sees them."""
    config = config_of(node)
    problem = problem_of(config, node.peer, split_seed(node.home / "institution", config))
    rows: Array = problem.inputs[problem.train.rows[node.peer]]
    return rows


@pytest.fixture
def nodes(tmp_path: Path) -> list[Institution]:
    nodes = institutions(tmp_path)
    for node in nodes:
        # With some splits two rows fall between the same two units, and the trap reads their mean.
        (node.home / "institution").mkdir(parents=True, exist_ok=True)
        (node.home / "institution" / "split.key").write_bytes(bytes([node.peer + 1]) * 32)
        node.run_config |= {"method": "wga", "model": "mlp", "mlp.hidden": str(HIDDEN)}
        node.run_config |= {"batch-size": 64}
        node.set_policy(methods="wga, fedavg")
    return nodes


def answer_to_the_trap(nodes: list[Institution]) -> Array:
    """Return the answer of peer 0 to the trap of peer 1."""
    offers = started(nodes)
    letter, plain = offer_of(nodes, 1, {"x": trap()})
    answers = response_of(nodes[0], asking([letter, offers[2]])).letters
    (answer,) = [letter for letter in answers if letter.recipient == 1]
    return opened(nodes, answer, 1, about=plain)["g"]


def test_a_plain_answer_holds_every_row(nodes: list[Institution]) -> None:
    """`answers.kind = "plain"` reveals training rows, as its comment in the policy says."""
    ratios = rows_in(answer_to_the_trap(nodes))
    rows = training_rows(nodes[0])
    assert count_read(ratios, rows) == len(rows) == 30


def test_a_private_answer_holds_none(nodes: list[Institution]) -> None:
    for node in nodes:
        node.run_config |= PRIVATE
        node.set_policy(methods="wga", answers__kind="private")
    assert not count_read(rows_in(answer_to_the_trap(nodes)), training_rows(nodes[0]))


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"method": "fedavg"},
        PRIVATE | {"privacy.budget": 0.0},
        PRIVATE | {"privacy.budget": 9.0},
        PRIVATE | {"privacy.delta": 0.1},
    ],
)
def test_without_a_person_who_says_plain_answers_are_private(
    run: dict[str, Any], nodes: list[Institution]
) -> None:
    """Privacy without a bound, or with one above the policy's, does not count."""
    node = nodes[0]
    node.set_policy(methods="wga, fedavg", answers__kind="private")
    Path(str(node.node_config["data-dir"]), "data.csv").write_text("no table")
    node.run_config |= run
    answer = node.handle(Request("start", 0, 0, attempt="a"))
    assert isinstance(answer, str)
    assert answer.startswith("peer 0 (node-0): policy: ")
    (decision,) = atomic.lines(node.home / "run" / "decisions.jsonl")
    assert decision["decision"].startswith('refused: answers.kind = "private"')


def test_answers_are_over_a_minimum_number_of_examples(nodes: list[Institution]) -> None:
    """Refuse batches and training splits below the minimum of the policy."""
    start, reasons = Request("start", 0, 0, attempt="a"), []
    for batch, minimum in ((8, 16), (64, 31), (64, 30)):
        nodes[0].run_config["batch-size"] = batch
        nodes[0].set_policy(methods="wga", answers__min_examples=minimum)
        answer = nodes[0].handle(start)
        reasons.append(answer.split(": ")[1] if isinstance(answer, str) else "done")
    assert reasons == ["policy", "data", "done"]


def test_a_model_after_an_average_holds_every_row_too(nodes: list[Institution]) -> None:
    """A method that asks nobody is no better: the trap is placed where the victim trains next.

    Peer 1 knows the other two models of the round, so it can choose its own such that the mean is
    the trap; what the victim shows next differs from the mean by a gradient there.
    """
    for node in nodes:
        node.run_config |= {"method": "fedavg", "learning-rate": 0.5}
    offers = started(nodes)
    share = np.array(ROWS) / sum(ROWS)
    others = sum(share[k] * opened(nodes, offers[k], 1)["x"] for k in (0, 2))
    letter, _ = offer_of(nodes, 1, {"x": (trap() - others) / share[1]})
    edges = np.array([[1, 0], [2, 0]])
    samples = np.array([rows // 2 for rows in ROWS])
    letters = (letter, offers[2])
    order = Request("update", 1, 1, edges, np.zeros(2, bool), letters, 0, "a", samples)
    (shown,) = response_of(nodes[0], order).letters
    gradient = (trap() - opened(nodes, shown, 1)["x"]) / 0.5
    assert count_read(rows_in(gradient), training_rows(nodes[0])) == 30
