"""Hundreds of forged replies; `benchmarks.hostile_replies` forges 20,000."""

from __future__ import annotations

import pytest

from benchmarks.hostile_replies import KINDS, attack
from strategies.brokering import Brokering


@pytest.mark.parametrize("kind", KINDS)
def test_forged_replies_cost_nobody_else_anything(kind: type[Brokering]) -> None:
    assert attack(kind, 100, seed=0) > 50
