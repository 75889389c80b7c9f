"""Hundreds of forged replies; `tests.fuzz.replies` forges 20,000."""

from __future__ import annotations

import pytest

from coterie.strategies.exchange_plan import ExchangePlan
from tests.fuzz.replies import KINDS, attack


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_forged_replies_cost_nobody_else_anything(kind: type[ExchangePlan]) -> None:
    assert attack(kind, 100, seed=0) > 50
