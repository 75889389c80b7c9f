"""Processes that tests of security start run this checkout, not what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT, of_this_checkout


def test_another_version_is_named(tmp_path: Path) -> None:
    assert of_this_checkout([sys.executable], tmp_path)["PYTHONPATH"] == str(ROOT)
    package = tmp_path / "coterie" / "app" / "node" / "process"
    package.mkdir(parents=True)
    (package / "job.py").touch()
    for folder in (package, *package.parents[:3]):  # before everything else
        (folder / "__init__.py").touch()
    with pytest.raises(AssertionError, match=r"not this checkout: .*job\.py"):
        of_this_checkout([sys.executable], tmp_path)
