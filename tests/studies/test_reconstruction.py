"""Labels solved from reported numbers: what the policy's defaults change."""

from __future__ import annotations

import numpy as np

from coterie.app.institution.security.policy import DataPolicy, ReportPolicy
from studies.reconstruction import Split, solved

ROWS, TRIALS = 60, 6


def share_solved(share: float, numbers: float, split: Split) -> float:
    """Return the share of right labels, a mean over trials; a coin has 0.5."""
    runs = int(numbers * ROWS / 2)
    return float(np.mean([solved(ROWS, share, runs, split, trial)[0] for trial in range(TRIALS)]))


def test_a_larger_test_part_hides_less() -> None:
    """The secret is the choice of test rows: if nearly all are test rows, it hides nothing."""
    numbers, limit = ReportPolicy().max_numbers_per_example, DataPolicy().max_held_out
    assert share_solved(limit, numbers, "known") > 0.95
    assert share_solved(limit, numbers, "new") < 0.75
    assert share_solved(0.95, numbers, "new") > 0.85
