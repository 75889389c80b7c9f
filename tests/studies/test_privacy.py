"""Test the attacks of the privacy studies: they succeed without noise, and claims hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.clients.engine import accountant
from studies import privacy_audit, privacy_inversion
from studies.privacy import DELTA, noise_for
from studies.privacy_audit import Look, lower_bound


def proven(look: Look, noise: float) -> tuple[float, float]:
    score_wt, claimed = privacy_audit.attack(look, noise, trials=400)
    return lower_bound(score_wt), claimed


@pytest.mark.parametrize("look", [Look(1), Look(3, drawn=8), Look(3, last=True)])
def test_noise_hides_a_canary_as_well_as_is_claimed(look: Look) -> None:
    naked, infinite = proven(look, 0.0)
    assert naked > 2.5
    assert infinite == math.inf
    proven_epsilon, claimed = proven(look, 4.0)
    assert proven_epsilon <= claimed < 5


def test_an_audit_catches_a_claim_that_is_too_small() -> None:
    assert lower_bound(np.random.default_rng(0).normal(size=(2, 400))) < 0.3, (
        "there is nothing to tell"
    )
    _, claimed = proven(Look(1), 4.0)
    proven_epsilon, honest = proven(Look(1), 0.5)  # an eighth of the noise that was claimed
    assert claimed < proven_epsilon < honest


def test_noise_spends_the_epsilon_it_was_made_for() -> None:
    rdp_a = 30 * accountant.query(100, 100, noise_for(4.0, 30), 1)
    assert accountant.epsilon(rdp_a[None], DELTA)[0] == pytest.approx(4.0, rel=2e-3)


def test_one_example_can_be_read_off_its_gradient_unless_there_is_noise() -> None:
    problem = privacy_inversion.problem_of(1)
    true = problem.inputs[problem.train.rows[0]].reshape(1, 64)
    scores = []
    for epsilon in (math.inf, 8.0):
        engine = privacy_inversion.engine_of(problem, epsilon)
        x_pd, buffers = engine.initial()
        answer_d = engine.gradients(x_pd, buffers, engine.data.everything()).values[0]
        inverted = privacy_inversion.inverted(engine, answer_d, torch.zeros(1), steps=0)
        scores.append(privacy_inversion.matched(inverted.reshape(1, 64).numpy(), true)[1])
    assert scores[0] > 0.999
    assert abs(scores[1]) < 0.5
