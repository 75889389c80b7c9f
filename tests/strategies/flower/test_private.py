"""Flower without its private names: the public way, and what is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from flwr.app import Array
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from coterie.strategies.flower import private, stored
from coterie.strategies.flower.transport import FlowerTransport, Replies
from tests import private_names
from tests.harness.superlink import SuperLink

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "obstacle", stored.obstacle.__wrapped__)


def test_a_simulation_is_known_with_and_without_the_name_of_its_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flwr.simulation", SimpleNamespace())
    for kind, expected in ((InMemoryGrid, True), (HttpGrid, False), (SimpleNamespace, True)):
        assert private.is_simulation(cast(Grid, kind.__new__(kind))) == expected
    monkeypatch.delitem(sys.modules, "flwr.simulation")
    for kind, expected in ((InMemoryGrid, True), (HttpGrid, False), (SimpleNamespace, False)):
        assert private.is_simulation(cast(Grid, kind.__new__(kind))) == expected


def missing(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    patch.setattr(private, "MISSING", "No module named 'flwr.proto'")


def renamed_constant(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    patch.setattr(private, "arrays", SimpleNamespace())


def renamed_attribute(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    patch.setattr(private, "CHUNKS", "_pieces")


def other_bytes(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    patch.setattr(private, "head_of", lambda content: ("Array2", [], 1))


def renamed_call(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    del grid.__dict__["_client"].PullObject


def renamed_field(patch: pytest.MonkeyPatch, grid: HttpGrid) -> None:
    patch.setattr(private.message_pb2, "PullObjectRequest", SimpleNamespace)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (missing, "No module named 'flwr.proto'"),
        (renamed_constant, "arrays have changed: KeyError: 'FLWR"),
        (renamed_attribute, "arrays have changed: "),
        (other_bytes, "arrays have changed: "),
        (renamed_call, "'PullObject'"),
        (renamed_field, "'object_id'"),
    ],
)
def test_what_a_version_lacks_is_told_in_a_line(
    change: Callable[[pytest.MonkeyPatch, HttpGrid], None], reason: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    grid = SuperLink().grid
    assert not isinstance(FlowerTransport(grid, 1.0)._replies, Replies)
    caplog.set_level("WARNING", "flwr")
    caplog.clear()
    change(monkeypatch, grid)
    assert isinstance(FlowerTransport(grid, 1.0)._replies, Replies)
    (record,) = caplog.records
    line = record.getMessage()
    assert reason in line
    assert line.startswith("flwr 1.")
    assert line.endswith(f"the newest tested version is {private.NEWEST}")


def test_a_letter_is_sent_as_it_is_where_flower_cannot_cut_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private, "MISSING", "gone")
    array = Array("uint8", (3,), "", b"abc")
    before = array.deflate()
    stored.cut(array)
    assert array.deflate() == before
    assert stored.size_of(array) == 3


def test_every_process_imports_without_private_names() -> None:
    """Relay and nodes, as a later version of flwr could have them."""
    code = f"""{private_names.START}
import sys
import coterie.app.client
assert not {{"flwr.superlink.grid", "flwr.simulation"}} & sys.modules.keys()
import coterie.app.server, coterie.app.institution.commands.preflight
from coterie.strategies.flower import private, stored
print(stored.obstacle())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No module named 'flwr.")
