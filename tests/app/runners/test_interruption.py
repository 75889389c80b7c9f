"""Test that Ctrl-C waits for the end of a round, and a second one does not."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor, nn

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.runners import failures, local
from coterie.app.runs import progress

KEYS = {
    "method": "fedavg", "peers": 2, "partition.clusters": 1, "partition.samples-per-peer": 8,
    "num-server-rounds": 4, "evaluate-every": 1, "engine.backend": "sequential", "device": "cpu",
    "model": f"{__name__}:network",
}  # fmt: skip
presses: list[int] = []
"""How often Ctrl-C is pressed in the next calls of the network."""


@pytest.fixture(autouse=True)
def python_handles_it() -> Iterator[None]:
    """Processes that a shell starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Pressed(nn.Linear):
    """Linear layer in whose calls somebody presses Ctrl-C."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(presses.pop(0) if presses else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(x)


def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Pressed(shape[0] * shape[1] * shape[2], outputs))


def run(directory: Path, *pressed: int) -> tuple[str, Mapping[str, Any]]:
    """Run until Ctrl-C is pressed in calls in round 2; return output and progress.json."""
    console = Console(file=io.StringIO(), width=120)
    config = Config.from_flat({**KEYS, "out": str(directory)}).located("run")

    def press(round_: int, *_: object) -> None:
        presses[:] = pressed if round_ == 1 else ()

    with pytest.raises(KeyboardInterrupt):
        local.run(config, None, console, [press])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), progress.read(Path(config.run_dir))


def test_ctrl_c_in_the_midst_of_training_stops_after_the_round(tmp_path: Path) -> None:
    printed, now = run(tmp_path, 1, 0, 0, 0)
    assert presses == [], "the calls of the round went on"
    assert printed.count("stops after this round; Ctrl-C again: at once") == 1
    assert (now["status"], now["round"]) == ("stopped", 1)


def test_stop_is_ctrl_c_from_another_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_flat({**KEYS, "out": str(tmp_path)}).located("run")

    def stop(round_: int, *_: object) -> None:
        assert main(["stop", config.run_dir]) == 0

    with pytest.raises(KeyboardInterrupt):
        local.run(config, None, Console(file=io.StringIO()), [stop])
    assert f"process {os.getpid()} stops after this round" in capsys.readouterr().out
    assert progress.read(Path(config.run_dir))["status"] == "stopped"
    assert main(["stop", config.run_dir]) == 2
    assert "is not in progress: nothing to stop here" in capsys.readouterr().err


def test_a_second_one_stops_at_once(tmp_path: Path) -> None:
    _, now = run(tmp_path, 1, 0, 1, 0, 0)
    assert presses == [0, 0]
    assert (now["status"], now["round"]) == ("stopped", 1)


def test_what_somebody_else_handles_stays_theirs() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with failures.deferred() as check:
            os.kill(os.getpid(), signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_the_end_of_a_block_is_an_end_of_waiting() -> None:
    finished = False

    def work() -> None:
        nonlocal finished
        with failures.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        work()
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
