"""The relay solves for the labels of single rows, from the losses that many runs report (T7).

It knows the columns of the rows, which models the seeds of the runs start from, and nothing else.
The loss of a start model is linear in the labels of the rows that it is measured on, so a hundred
rounded losses over known rows determine sixty labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tomli_w
import torch
from scipy.optimize import lsq_linear

from coterie.app.config.preflight import problem_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.security.split import split_seed
from coterie.clients.engine.engine import Engine
from coterie.datasets.own.schema import described, digest
from coterie.datasets.preprocessing import Column
from coterie.strategies.protocol import Request
from tests import networks
from tests.attacks.consortium import (
    ROWS,
    RUN,
    Institution,
    config_of,
    institutions,
    response_of,
)

Array = npt.NDArray[np.float64]
ALL, RUNS = ROWS[0], 40
SAMPLES = np.array([rows // 2 for rows in ROWS])


@dataclass(frozen=True)
class Told:
    """Reports of one run: two numbers about a test split, and public knowledge.

    Attributes
    ----------
    loss, accuracy : of the start model; None: not reported.
    scores : (rows, 2) log-probabilities that the start model gives each class.
    rows : that the test part has had, which the relay does not know.
    """

    loss: float | None
    accuracy: float | None
    scores: Array
    rows: npt.NDArray[np.int64]


SCHEMA = {name: Column(name, mean=0, scale=1) for name in "ab"}
SCHEMA["y"] = Column("y", "category", ("no", "yes"))


@pytest.fixture
def node(tmp_path: Path) -> Institution:
    """Return an institution with random labels."""
    node = institutions(tmp_path)[0]
    institution = node.home / "institution"
    institution.mkdir(parents=True)
    (institution / "split.key").write_bytes(
        bytes(range(32))
    )  # so that the test is the same each time
    draw = np.random.default_rng(5)
    rows = [f"{a:.3f},{b:.3f}" for a, b in draw.normal(size=(ALL, 2))]
    table = [f"{row},{'yes' if y else 'no'}" for row, y in zip(rows, labels(), strict=True)]
    data = Path(str(node.node_config["data-dir"]))
    (data / "data.csv").write_text("\n".join(["a,b,y", *table]))
    (data / "schema.toml").write_text(tomli_w.dumps(described(SCHEMA)))
    return node


def labels() -> npt.NDArray[np.int64]:
    return np.random.default_rng(6).integers(0, 2, ALL)


def run(node: Institution, seed: int, **changes: Scalar) -> Told:
    """Submit a run, and take what its start tells."""
    node.run_config = RUN | {
        "method": "local", "seed": seed, "name": f"run-{seed}", "model": "mlp", "mlp.hidden": "16",
        "table.schema": digest(SCHEMA), "table.scale": "schema", "num-server-rounds": 1, **changes,
    }  # fmt: skip
    node.version = None
    (report,) = response_of(node, Request("start", 0, 0, attempt="a", samples=SAMPLES)).reports
    config = config_of(node)
    problem = problem_of(config, 0, split_seed(node.home / "institution", config))
    engine = Engine(
        problem, config.network, config.model_options, [0], config.training, seed=seed,
        device="cpu", dtype="float64",
    )  # fmt: skip
    x, buffers = engine.initial()
    with torch.no_grad():
        outputs, _ = networks.outputs(
            engine.network, x, buffers, torch.tensor(problem.inputs, dtype=torch.float64)[None]
        )
    metrics = report.metrics
    return Told(
        metrics["test_loss"], metrics["test_accuracy"], torch.log_softmax(outputs[0], 1).numpy(),
        problem.test.rows[0],
    )  # fmt: skip


def count_solved(reports: list[Told], shares: list[Array]) -> int:
    """Return how many labels are right after least squares over the reported numbers.

    Parameters
    ----------
    shares : of each run, (rows,) how probably a row is in the test part.
    """
    sides, values = [], []
    for each, share in zip(reports, shares, strict=True):
        count, (no, yes) = share.sum(), each.scores.T
        if each.loss is not None:
            sides.append(share * (no - yes))
            values.append(count * each.loss + share @ no)
        if each.accuracy is not None:
            right = np.where(yes > no, 1.0, -1.0)
            sides.append(share * right)
            values.append(count * each.accuracy - share @ (right < 0))
    solution = lsq_linear(np.array(sides), np.array(values), (0, 1)).x
    return int(((solution > 0.5) == labels()).sum())


def known(rows: npt.NDArray[np.int64]) -> Array:
    return np.isin(np.arange(ALL), rows).astype(np.float64)


def drawn_by(seed: int) -> Array:
    """The test part that earlier versions drew from the seed of the run."""
    return known(np.random.default_rng([seed, 0, 0x0D]).permutation(ALL)[: ALL // 2])


@pytest.mark.slow
def test_rounded_losses_tell_the_labels_only_of_rows_that_are_known(node: Institution) -> None:
    """Attack without an effective budget. Chance is 30 of 60, plus two deviations 38.

    An attacker who weighs each row with one half does better than chance (33 to 41 of 60 with seven
    secrets): this is why there is a budget (`python -m studies.reconstruction`).
    """
    node.set_policy(reports__max_numbers_per_example=1e6)
    reports = [run(node, seed) for seed in range(RUNS)]
    assert count_solved(reports, [known(each.rows) for each in reports]) >= 58
    assert count_solved(reports, [drawn_by(seed) for seed in range(RUNS)]) <= 38
    assert 30 < count_solved(reports, [np.full(ALL, 0.5)] * RUNS) < 50


def test_all_runs_have_one_budget_of_numbers(node: Institution) -> None:
    """The budget is one number per example over all runs and restarts."""
    node.set_policy(reports__max_numbers_per_example=0.1)
    reports = [run(node, seed) for seed in range(4)]
    assert [each.loss is not None for each in reports] == [True, True, True, False]
    assert [each.accuracy is not None for each in reports] == [True, True, True, False]
    again = run(node, 1)
    assert (again.loss, again.accuracy) == (reports[1].loss, reports[1].accuracy), (
        "it tells nothing new"
    )
    assert run(node, 5).loss is None


def test_methods_are_compared_on_the_same_split_and_models_are_not(node: Institution) -> None:
    """Otherwise the relay could ask one split about as many start models as it likes."""
    node.set_policy(methods="local, fedavg, dpfl", data__min_examples=9)
    first = run(node, 0).rows
    for same in ({"method": "fedavg"}, {"method": "dpfl", "learning-rate": 0.01}):
        np.testing.assert_array_equal(run(node, 0, name=f"same-{len(same)}", **same).rows, first)
    for other in ({"mlp.hidden": "17"}, {"table.columns": "b, a"}, {"dtype": "float32"}):
        assert set(run(node, 0, name="other", **other).rows) != set(first)
    assert set(run(node, 1).rows) != set(first)
