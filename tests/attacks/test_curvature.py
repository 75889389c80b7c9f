"""A letter of partial pooling has the curvature: sums over patients, column by column.

Attack by a reader: a category that one patient has. The row of the curvature that belongs to it is
this patient alone, all other columns included. Defence: `min-rows`, which the policy requires.

Attack by a sender: letters that are no curvature, or so large that nothing else counts. Defence:
they are left out; a group's spread bounds the weight of a letter, however precise it says it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.institution.security.policy import PolicyError, policy_of
from coterie.app.institution.security.run_check import check_run
from coterie.clients.methods.partial_pooling import PartialPooling, _positive, _unpacked
from coterie.clients.parts.random_effects import estimated
from tests.clients.methods.test_boosting import problem
from tests.clients.parts.test_random_effects import IS_FREE, letters
from tests.stepping import Stepping

RARE = 2
"""Column with a category that one patient has."""
KEYS: dict[str, Any] = {
    "method": "partial-pooling", "model": "linear", "peers": 1, "num-server-rounds": 1,
}  # fmt: skip


def test_rare_columns_count_patients() -> None:
    """Ten rows of one patient are one: their column is not in a letter of ten patients or more."""
    made = problem("two", [60])
    rows, groups = made.inputs.copy(), np.arange(len(made.inputs))
    rows[:, RARE], at = 0, made.train.rows[0][:10]
    rows[at, RARE], groups[at] = 1, groups[at[0]]
    keys = KEYS | {"partial-pooling.min-rows": 10}
    inputs = {
        "rows": replace(made, inputs=rows),
        "patients": replace(made, inputs=rows, groups=groups),
    }
    Stepping(keys, problem=inputs["rows"]).to(1)
    with pytest.warns(UserWarning, match="1 of 5 columns"):
        Stepping(keys, problem=inputs["patients"]).to(1)


def patient_in_letter(min_rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the row of the patient with the category, and what the letter says of them."""
    made = problem("two", [60])
    rows = made.inputs.copy()
    rows[:, RARE] = 0
    rows[made.train.rows[0][0], RARE] = 1
    made = replace(made, inputs=rows)
    stepping = Stepping(KEYS | {"partial-pooling.min-rows": min_rows}, problem=made)
    stepping.to(1)
    x = np.insert(stepping.cohort.engine.training_rows(0)[0], 0, 1, axis=1)
    column = x[:, 1 + RARE]
    (patient,) = np.flatnonzero(column != np.median(column))
    h = _unpacked(stepping.state.letters[0], x.shape[1])[1][0]
    alone = h[1 + RARE] - np.median(column) * h[0]  # what all others have cancels
    return x[patient], alone


def test_a_rare_category_would_give_its_patient_away() -> None:
    patient, alone = patient_in_letter(1)
    assert alone / alone[0] == pytest.approx(patient, abs=1e-2)
    with pytest.warns(UserWarning, match="1 of 5 columns"):
        patient, alone = patient_in_letter(10)
    assert not alone.any() or abs(alone / alone[0] - patient).max() > 0.1


def test_a_policy_requires_the_minimum() -> None:
    flat = KEYS | {"dataset": "table", "peers": 3, "table.test": 0.2, "table.columns": "a, b"}
    flat |= {"table.label": "c"}
    policy = policy_of({"answers.kind": "plain"})
    least = policy.answers.min_examples
    check_run(policy, Config.from_flat(flat | {"partial-pooling.min-rows": least}))
    with pytest.raises(PolicyError, match=f"must set partial-pooling.min-rows={least}"):
        check_run(policy, Config.from_flat(flat))


CLAIMS = {
    "indefinite": lambda letter, d: np.r_[letter[:d], -letter[d:-2], letter[-2:]],
    "without end": lambda letter, d: np.r_[letter[:d], letter[d:-2] * 1e34, letter[-2:]],
    "another unit": lambda letter, d: np.r_[letter[:-2], 1e20, 1],
    "not a number": lambda letter, d: np.r_[np.nan, letter[1:]],
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_letter_that_no_rows_give_is_left_out(claim: str) -> None:
    honest = Stepping(KEYS | {"peers": 4}, problem=problem("two", [60] * 4))
    honest.to(1)
    rule, state = honest.rule, honest.state
    assert isinstance(rule, PartialPooling)
    d = rule.parameters
    letter = np.r_[state.letters[0, 3], 1.0]
    assert rule._is_sound(letter)
    assert not rule._is_sound(CLAIMS[claim](letter, d))


@pytest.mark.parametrize("times", [1e6, 1e20])
def test_a_letter_that_says_it_is_certain_moves_others_little(times: float) -> None:
    """The weight of a letter in a group's mean is at most that of the spread, T^-1."""
    g = np.random.default_rng(0)
    theta = np.array([[0.0, 1, -1, 0.5]] * 7) + 0.3 * g.normal(size=(7, 4))
    b, h = letters(np.vstack([theta, theta[:1] + 0.5]))
    before = estimated(b, h, IS_FREE, 1).estimates[:7]
    h[7], b[7] = h[7] * times, b[7] * times
    after = estimated(b, _positive(h), IS_FREE, 1).estimates[:7]
    assert np.abs(after - before)[:, 1:].max() < 0.1
