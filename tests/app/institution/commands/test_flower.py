"""`coterie flower`: shorter waits of a SuperNode, and messages that a resident process forks."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.app.institution.commands import flower
from tests.checkout import ROOT

MOST = 3.0


class Clock:
    """Clock that only sleeping moves, in place of `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(flower, "time", made := Clock())
    return made


def ends(clock: Clock, seconds: float) -> list[float]:
    """Return the times at which a wait of so many seconds asks again."""
    pause, times = flower.growing_pause(), [clock.now]
    while times[-1] < seconds:
        pause(MOST)
        times.append(clock.now)
    return times[1:]


@pytest.mark.parametrize("seconds", [0.05, 0.7, 3.0, 20.0, 500.0])
def test_a_message_waits_for_a_quarter_of_the_time_at_most(clock: Clock, seconds: float) -> None:
    last = ends(clock, seconds)[-1]
    assert last - seconds <= min(MOST, max(MOST / 30, seconds / 4))


def test_the_number_of_questions_grows_with_the_logarithm_of_a_wait(clock: Clock) -> None:
    """Each pause is 1/4 of the wait before it, so the wait grows by 5/4: log(T) / log(5/4)."""
    times = ends(clock, 12)
    first = sum(end < 0.4 for end in times)  # 0.4 s: where a quarter is the least pause
    assert len(times) - first <= 1 + 15.3 + 1, "log(12 / 0.4) / log(5/4) = 15.2"


def test_a_new_wait_begins_with_a_short_pause(clock: Clock) -> None:
    pause = flower.growing_pause()
    for _ in range(40):
        pause(MOST)
    for most in (0.5, MOST):  # the message came and was answered
        before = clock.now
        pause(most)
        assert clock.now - before == pytest.approx(most / 30)


def test_an_executor_hears_of_a_task_as_soon_as_there_is_one(clock: Clock) -> None:
    tokens = iter(["", "", "token", "another"])
    acquire = lambda request, state: SimpleNamespace(token=next(tokens, ""))  # noqa: E731
    assert flower.hold(acquire, None, None).token == "token"
    assert next(tokens) == "another"
    assert flower.hold(acquire, None, None, 2.0).token == ""
    assert clock.now == pytest.approx(2.1, abs=0.06), "without a task, it is answered at the end"


def test_only_the_loaded_app_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(flower, "_forget_app", lambda: forgotten.append(True))
    app = tmp_path / f"coterie.coterie.0.2.0.{hashlib.sha256(b'same').hexdigest()[:8]}"

    def installed(loaded: Path | None, fab: bytes) -> Any:
        return flower.install(loaded, lambda fab, **more: (fab, more), fab, skip_prompt=True)

    assert installed(app, b"same") == app
    assert not forgotten
    for loaded, fab in ((app, b"other"), (None, b"same")):
        assert installed(loaded, fab) == (fab, {"skip_prompt": True})
    assert len(forgotten) == 2, "a message whose app was not loaded imports its own"


@pytest.mark.slow
def test_flowers_supernode_waits_as_it_is_told() -> None:
    """The names that `private.change_waits` replaces are those that Flower's loop uses."""
    script = """
from contextlib import contextmanager
from coterie.strategies.flower import private
waits = []
private.change_waits(waits.append, lambda acquire, request, state: ("held", request))
from flwr.supernode import start_client_internal as loop
from flwr.supernode.main import _RUNTIME_HANDLERS
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
asked = iter([None, None])
@contextmanager
def connected(**options):
    yield 1, lambda: next(asked), *6 * [None]
loop._init_connection = connected
factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
try:
    loop.start_client_internal(
        state_factory=factory, server_address="", node_config={}, isolation="process")
except StopIteration:
    pass
print(waits, _RUNTIME_HANDLERS.acquire_task("request", "state"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[3, 3] ('held', 'request')\n", done.stderr


@pytest.mark.slow
def test_messages_are_forks_of_a_process_that_comes_back_when_it_dies() -> None:
    script = """
import os, signal, subprocess
from coterie.app.institution.commands import flower
flower._fork_messages()
(resident,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
subprocess.Popen(["flwr-clientapp", "--help"])
while len(open(f"/proc/{resident}/task/{resident}/children").read().split()) == 0:
    pass
os.kill(int(resident), signal.SIGKILL)
os.waitid(os.P_PID, int(resident), os.WEXITED | os.WNOWAIT)
subprocess.Popen(["flwr-clientapp", "--wrong"])
print(subprocess.run(["echo", "no message"], capture_output=True, text=True).stdout)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage: flwr-clientapp" in done.stdout, "a fork outlives the resident process"
    assert "no message" in done.stdout
    assert "the resident process ended (exit code -9): another one" in done.stderr
    assert "flwr-clientapp: error: " in done.stderr
