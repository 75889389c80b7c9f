"""Diagnostic accuracy: scikit-learn's numbers, intervals that cover, thresholds, temperatures."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from coterie.clients.diagnostics import (
    HALF,
    _resamples,
    c_index,
    decisions,
    diagnose,
    diagnose_survival,
    fitted_temperature,
    rankings,
    recalibrated,
    risks,
    wilson,
    youden,
)

Floats = npt.NDArray[np.float64]


def drawn(n: int, seed: int = 0, *, digits: int = 12) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Scores with some skill, and labels; few digits make ties."""
    g = np.random.default_rng(seed)
    positive = g.random(n) < 0.4
    return (1 / (1 + np.exp(-g.normal(positive * 1.5 - 0.7)))).round(digits), positive


def pairs(p: Floats) -> Floats:
    return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("digits", [12, 1])
def test_values_are_those_of_scikit_learn(digits: int) -> None:
    p, positive = drawn(60, digits=digits)
    result = {name: value for name, (value, _, _) in rankings(p, positive).items()}
    assert result["auroc"] == pytest.approx(roc_auc_score(positive, p))
    assert result["auprc"] == pytest.approx(average_precision_score(positive, p))
    assert result["brier"] == pytest.approx(brier_score_loss(positive, p))
    assert result["observed_expected"] == pytest.approx(positive.sum() / p.sum())
    at = {name: value for name, (value, _, _) in decisions(p, positive, 0.3).items()}
    above = p > 0.3
    assert at["sensitivity"] == pytest.approx(recall_score(positive, above))
    assert at["specificity"] == pytest.approx(recall_score(~positive, ~above))
    assert at["ppv"] == pytest.approx(precision_score(positive, above))
    assert at["npv"] == pytest.approx(precision_score(~positive, ~above))
    assert at["accuracy"] == pytest.approx((positive == above).mean())


@pytest.mark.parametrize(("hits", "n"), [(0, 3), (7, 9), (29, 30), (40, 40)])
def test_intervals_of_shares_are_wilsons(hits: int, n: int) -> None:
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(np.arange(n) < hits) == pytest.approx((hits / n, expected.low, expected.high))


def test_no_healthy_patient_was_recognised_but_three_prove_little() -> None:
    """A bootstrap interval of 0 of 3 is 0 to 0."""
    value, low, high = decisions(np.array([0.9, 0.8, 0.7]), np.zeros(3, bool), 0.5)["specificity"]
    assert (value, low) == (0, 0)
    assert high == pytest.approx(0.5615, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auroc", "brier"])
def test_bootstrap_intervals_cover_the_truth(name: str) -> None:
    """About 95 % of the intervals of 200 samples of 80 contain the population's value."""
    p, positive = drawn(200_000, 1)
    scores = {"auroc": roc_auc_score, "brier": brier_score_loss}
    truth = scores[name](positive, p)
    held = 0
    for k in range(200):
        at = slice(k * 80, (k + 1) * 80)
        _, low, high = rankings(p[at], positive[at])[name]
        held += low <= truth <= high
    assert 0.9 < held / 200 <= 0.99


@pytest.mark.parametrize("copies", [1, 5])
def test_copies_of_a_patient_are_no_further_evidence(copies: int) -> None:
    """Patients of `copies` equal visits have the intervals of patients of one visit each."""
    p, positive = drawn(60)
    patients = np.repeat(np.arange(60), copies)
    of_visits = np.repeat(p, copies), np.repeat(positive, copies)
    once = decisions(p, positive, HALF) | rankings(p, positive)
    again = decisions(*of_visits, HALF, patients) | rankings(*of_visits, groups_n=patients)
    for name, estimate in once.items():
        assert again[name] == pytest.approx(estimate, rel=1e-12), name
    without = decisions(*of_visits, HALF)["accuracy"]
    if copies > 1:
        assert without[2] - without[1] < 0.6 * (once["accuracy"][2] - once["accuracy"][1])
    alike = wilson(np.ones(30, dtype=np.bool_), np.repeat([0, 1, 2], 10))
    assert alike == wilson(np.ones(3, dtype=np.bool_))


def test_a_resample_has_whole_patients() -> None:
    patients = np.array([3, 1, 3, 7, 1, 3])
    counts_bn = _resamples(6, patients)
    assert (counts_bn[:, [0, 0, 1]] == counts_bn[:, [2, 5, 4]]).all()
    assert (counts_bn[:, [0, 1, 3]].sum(axis=1) == 3).all()


def test_intervals_are_the_same_again() -> None:
    assert rankings(*drawn(50)) == rankings(*drawn(50))


def test_one_class_has_no_ranking() -> None:
    result = rankings(np.array([0.2, 0.8]), np.array([True, True]))
    assert np.isnan(result["auroc"]).all()
    assert np.isnan(result["auprc"]).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_has_the_largest_youden_index(seed: int) -> None:
    p, positive = drawn(80, seed, digits=2)
    threshold = youden(p, positive)
    fpr, tpr, _ = roc_curve(positive, p)
    at = decisions(p, positive, threshold)
    assert at["sensitivity"][0] + at["specificity"][0] - 1 == pytest.approx((tpr - fpr).max())


def test_of_equal_thresholds_the_one_nearest_to_a_half() -> None:
    result = youden(np.array([0.1, 0.3, 0.6, 0.9]), np.array([False, False, True, True]))
    assert result == pytest.approx(0.45)
    assert youden(np.array([0.1, 0.2, 0.3, 0.8, 0.9]), np.array([0, 1, 0, 1, 1], bool)) == (
        pytest.approx(0.55)
    )
    assert youden(np.array([0.5, 0.5]), np.array([False, True])) == 1.0, "no skill: all negative"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    """Labels drawn from probabilities that were sharpened by it afterwards."""
    g = np.random.default_rng(0)
    p = g.dirichlet([1, 1, 1], 40_000)
    labels = (g.random(len(p))[:, None] > p.cumsum(axis=1)).sum(axis=1)
    sharpened = recalibrated(p, 1 / temperature)
    assert fitted_temperature(sharpened, labels) == pytest.approx(temperature, rel=0.03)
    np.testing.assert_allclose(recalibrated(sharpened, temperature), p, atol=1e-9)


def test_temperatures_are_bounded() -> None:
    perfect = np.array([[0.9, 0.1], [0.1, 0.9]])
    assert fitted_temperature(perfect, np.array([0, 1])) == pytest.approx(0.05)
    assert fitted_temperature(perfect, np.array([1, 0])) == pytest.approx(20)


def test_diagnosis_is_json_and_uses_validation_only_to_choose() -> None:
    (p, positive), (own, labels) = drawn(50), drawn(40, 5)
    plain = diagnose((pairs(p), positive.astype(int)))
    both = diagnose((pairs(p), positive.astype(int)), (pairs(own), labels.astype(int)))
    json.dumps([plain, both], allow_nan=False)
    assert plain["measures"] == both["measures"]
    assert (plain["threshold"], plain["temperature"], plain["at_threshold"]) == (None, None, {})
    assert both["threshold"] == youden(own, labels)
    assert both["chosen_by"] == 40
    expected = decisions(p, positive, both["threshold"])
    assert {k: tuple(v) for k, v in both["at_threshold"].items()} == expected
    temperature = fitted_temperature(pairs(own), labels.astype(int))
    assert both["temperature"] == temperature
    scaled = recalibrated(pairs(p), temperature)[:, 1]
    assert both["recalibrated"]["brier"][0] == pytest.approx(brier_score_loss(positive, scaled))


def test_a_private_threshold_is_no_examples_value() -> None:
    (p, positive), (own, labels) = drawn(50), drawn(40, 5)
    parts = (pairs(p), positive.astype(int)), (pairs(own), labels.astype(int))
    exact, rounded = diagnose(*parts), diagnose(*parts, private=True)
    assert rounded["threshold"] == round(exact["threshold"], 2) != exact["threshold"]
    expected = decisions(p, positive, rounded["threshold"])
    assert {k: tuple(v) for k, v in rounded["at_threshold"].items()} == expected
    assert rounded["temperature"] == exact["temperature"]


def test_validation_examples_of_one_class_choose_nothing() -> None:
    p, positive = drawn(50)
    test = pairs(p), positive.astype(int)
    diagnosis = diagnose(test, (pairs(p[:4]), np.ones(4, dtype=int)))
    assert diagnosis["threshold"] is None
    assert "chosen_by" not in diagnosis


def lifetimes(n: int, seed: int = 0) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    """Risks with some skill and ties, events, and times with ties."""
    g = np.random.default_rng(seed)
    risk = g.normal(size=n).round(1)
    return risk, g.random(n) < 0.6, np.ceil(8 * g.exponential(np.exp(-risk)))


def by_pairs(risk: Floats, event: npt.NDArray[np.bool_], time: Floats) -> float:
    """Return Harrell's C from its definition, pair by pair."""
    right = pairs = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            if time[i] < time[j] or (time[i] == time[j] and not event[j]):
                pairs += 1
                right += 1 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0
    return right / pairs


@pytest.mark.parametrize("n", [5, 40, 700])
def test_the_c_index_is_that_of_the_definition(n: int) -> None:
    risk, event, time = lifetimes(n)
    assert c_index(risk, event, time)[0] == pytest.approx(by_pairs(risk, event, time), rel=1e-12)


def test_the_c_index_is_scikit_survivals() -> None:
    """Made by `concordance_index_censored(event, time, risk)[0]` of scikit-survival 0.28.0."""
    assert c_index(*lifetimes(40))[0] == pytest.approx(0.7490157480314961, rel=1e-14)


def test_the_c_index_of_ties_by_hand() -> None:
    """Comparable: an event with a later time, or with one censored at the same time."""
    event, time = np.array([True, True, False]), np.array([1.0, 1.0, 1.0])
    assert c_index(np.array([3.0, 2.0, 1.0]), event, time)[0] == 1
    assert c_index(np.array([1.0, 2.0, 1.0]), event, time)[0] == 0.75  # equal risks: one half
    assert np.isnan(c_index(np.array([1.0, 2.0, 1.0]), ~event & False, time)[0])


def test_the_c_index_sees_only_the_order_of_times_and_risks() -> None:
    risk, event, time = lifetimes(60)
    value = c_index(risk, event, time)[0]
    assert c_index(np.exp(3 * risk), event, time**3 + 7)[0] == value
    assert c_index(-risk, event, time)[0] == pytest.approx(1 - value, rel=1e-12)


def test_resamples_of_the_c_index_are_those_of_repeated_examples() -> None:
    risk, event, time = lifetimes(30)
    drawn = np.random.default_rng(1).integers(30, size=(4, 30))
    counts = np.stack([np.bincount(rows, minlength=30) for rows in drawn]).astype(float)
    expected = [by_pairs(risk[rows], event[rows], time[rows]) for rows in drawn]
    assert c_index(risk, event, time, counts) == pytest.approx(expected, rel=1e-12)


def test_survival_has_its_events_and_an_interval() -> None:
    risk, event, time = lifetimes(80)
    survival = np.exp(-np.exp(risk[:, None] / 4) * [0.1, 0.3, 0.9])
    targets = np.column_stack([np.zeros(80), event, time])
    result = diagnose_survival(survival, targets)
    assert json.loads(json.dumps(result)) == result
    assert (result["examples"], result["positives"]) == (80, event.sum())
    value, low, high = result["measures"]["c_index"]
    assert value == c_index(risks(survival), event, time)[0]
    assert 0.5 < low < value < high < 1
    assert diagnose_survival(survival[:0], targets[:0])["measures"]["c_index"] == [None] * 3


def test_a_c_index_that_no_resample_changes_has_no_interval() -> None:
    targets = np.array([[0.0, 1, 1], [1, 0, 2], [1, 0, 2]])
    result = diagnose_survival(np.array([[0.1], [0.5], [0.6]]), targets)
    assert result["measures"]["c_index"] == [1.0, None, None]
