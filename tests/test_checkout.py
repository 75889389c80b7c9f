"""Processes that tests of security start run this checkout, not what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT, of_this_checkout


def test_another_version_is_named(tmp_path: Path) -> None:
    assert of_this_checkout([sys.executable], tmp_path)["PYTHONPATH"] == str(ROOT)
    package = tmp_path / "coterie" / "app"
    package.mkdir(parents=True)
    for file in (package / "client.py", package / "__init__.py", package.parent / "__init__.py"):
        file.touch()  # before everything else
    with pytest.raises(AssertionError, match=r"not this checkout: .*client\.py"):
        of_this_checkout([sys.executable], tmp_path)


@pytest.mark.parametrize("folder", ["attacks", "app/institution"])
def test_security_tests_that_start_python_say_which_code_runs(folder: str) -> None:
    """In the checkout, where `-m` and `-c` search first, or with its environment."""
    for file in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
        text = file.read_text("utf-8")
        starts = text.count("[sys.executable, ") + text.count("[*inside, sys.executable")
        named = text.count("cwd=ROOT") + text.count("of_this_checkout(")
        assert not starts or named, f"{file.name} may attack an installed version"
