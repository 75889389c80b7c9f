"""Ray whose private names are elsewhere: settings through its environment, or one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import private_names

ROOT = Path(__file__).parents[2]
BEGIN = """
import os
from coterie.app.private_ray import private
def begin():
    with private():
        return os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]
"""


def result(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process without the names."""
    command = [sys.executable, "-c", private_names.START + BEGIN + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_process_begins_as_often_as_it_likes_with_one_secret() -> None:
    done = result("first, again = begin(), begin()\nassert first == again\nprint(*first)")
    assert done.returncode == 0, done.stderr
    mode, token = done.stdout.split()
    assert (mode, len(token)) == ("token", 64)
    assert "No module named 'ray._private'; so Ray starts its dashboard" in done.stderr


@pytest.mark.slow
def test_a_ray_that_is_not_private_is_not_started() -> None:
    done = result("import ray\nbegin()")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "and a program has imported it before: start Coterie alone"
    )
