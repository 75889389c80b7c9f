"""Marks of single parameters."""

from __future__ import annotations

from typing import Any

import pytest


def case(*values: Any, is_long: bool) -> Any:
    """Return the values of a parametrized test, which are tried with --long only if `is_long`."""
    return pytest.param(*values, marks=[pytest.mark.long] if is_long else [])
