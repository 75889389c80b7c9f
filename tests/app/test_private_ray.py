"""Ray whose private names are elsewhere: settings through its environment, or one line."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from coterie.app.private_ray import patient, start_seconds
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


def test_a_node_that_starts_slowly_is_waited_for() -> None:
    answers = iter([RuntimeError("no info"), RuntimeError("no info"), {"labels": {}}])

    def find(gcs: str, node: str) -> object:
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return gcs, node, answer

    assert patient(find, 60, "127.0.0.1:1", "a") == ("127.0.0.1:1", "a", {"labels": {}})


def test_a_node_that_does_not_start_ends_the_wait() -> None:
    with pytest.raises(StopIteration):
        patient(partial(next, iter(())), 60)
    with pytest.raises(RuntimeError, match="no info"):
        patient(_missing, -1)


def _missing() -> None:
    raise RuntimeError("no info")


def test_a_busy_machine_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for load, seconds in ((0.5, 30.0), (2.0, 30.0), (20.0, 300.0)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert start_seconds() == seconds


WAITS = """
import os
os.getloadavg = lambda: (4.0, 0.0, 0.0)
import coterie.app.private_ray as our
our._imported_by_us = True
from ray._private import services
find = services.get_node
with our.private():
    wait = services.get_node
    assert (wait.func, wait.args) == (our.patient, (find, our.start_seconds()))
    assert os.environ["RAY_worker_register_timeout_seconds"] == str(round(2 * our.start_seconds()))
assert services.get_node is find
"""


@pytest.mark.slow
def test_ray_looks_for_its_node_as_long_as_this_machine_needs() -> None:
    subprocess.run([sys.executable, "-c", WAITS], check=True)
