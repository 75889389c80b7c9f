"""A node's disk: whole files only, versions that every peer has, states that come back equal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from app.node import checkpoints
from app.node.checkpoints import CheckpointStore, flatten, pack, unflatten, unpack, write
from clients.letters import Letters


@dataclass(frozen=True)
class Everything:
    """A state of every kind of array that a rule may keep."""

    x: Tensor
    half: Tensor
    counts: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float64]
    opt_state: dict[str, Tensor]
    tables: dict[str, npt.NDArray[np.float64]]
    nothing: dict[str, Tensor]


def state_of(peers: int, seed: int = 0) -> Everything:
    g = np.random.default_rng(seed)

    def tensor(*shape: int) -> Tensor:
        return torch.from_numpy(g.normal(size=(peers, *shape)))

    return Everything(
        x=tensor(5),
        half=tensor(2, 3).half(),
        counts=g.integers(9, size=(peers, 4)),
        chosen=g.random((peers, 4)) < 0.5,
        weights=g.random((peers, 4)),
        opt_state={"1.running_mean": tensor(3).float(), "count": tensor(), "empty": tensor(0)},
        tables={"a": g.random((peers, 2)), "b.c": g.random((peers,))},
        nothing={},
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, np.ndarray):
        return bool(
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    return one.dtype == other.dtype and torch.equal(one, other)


def test_a_state_comes_back_from_its_arrays() -> None:
    state, template = state_of(3), state_of(3, seed=1)
    again = unflatten(template, flatten(state))
    assert type(again) is Everything
    for name, value in vars(state).items():
        assert same(value, getattr(again, name)), name


def test_a_state_comes_back_from_the_disk(tmp_path: Path) -> None:
    state = state_of(3)
    CheckpointStore(tmp_path, [0, 1, 2]).save((4, 0), flatten(state), {})
    stacks, letters = CheckpointStore(tmp_path, [0, 1, 2]).load((4, 0))
    again = unflatten(state_of(3, seed=1), stacks)
    for name, value in vars(state).items():
        assert same(value, getattr(again, name)), name
    assert not letters


def test_peers_may_move_to_other_nodes(tmp_path: Path) -> None:
    state = state_of(4)
    flat = flatten(state)
    for peers in ([0, 2], [1], [3]):
        CheckpointStore(tmp_path, peers).save((2, 0), {k: v[peers] for k, v in flat.items()}, {})
    for peers in ([0, 1, 2, 3], [1, 2], [0, 3]):
        assert CheckpointStore(tmp_path, peers).versions() == [(2, 0)]
        stacks, _ = CheckpointStore(tmp_path, peers).load((2, 0))
        assert all(torch.equal(stacks[name], value[peers]) for name, value in flat.items())


def test_a_version_counts_when_every_peer_has_it(tmp_path: Path) -> None:
    both, first = CheckpointStore(tmp_path, [0, 1]), CheckpointStore(tmp_path, [0])
    assert both.versions() == []
    row = {"x": torch.zeros(2, 1)}
    both.save((0, 0), row, {})
    both.save((0, 1), row, {"received": torch.ones(1)})
    both.save((10, 0), row, {})
    first.save((2, 0), {"x": torch.zeros(1, 1)}, {})
    assert both.versions() == [(0, 0), (0, 1), (10, 0)]
    assert first.versions() == [(0, 0), (0, 1), (2, 0), (10, 0)]
    both.forget(before=(0, 1))
    assert both.versions() == [(0, 1), (10, 0)]
    both.forget(after=(2, 0))
    assert both.versions() == [(0, 1)]
    assert first.versions() == [(0, 1), (2, 0)]


@pytest.mark.parametrize("moment", ["half a file", "before the name", "between two peers"])
def test_a_crash_while_writing_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    here = CheckpointStore(tmp_path, [0, 1])
    here.save((1, 0), {"x": torch.tensor([[1.0], [2.0]])}, {})

    class Crash(BaseException):
        pass

    renames: list[Path] = []

    def half(tensors: object, path: Path) -> None:
        path.write_bytes(b"\x10\0\0\0")
        raise Crash

    def rename(part: Path, path: Path) -> None:
        renames.append(path)
        if moment == "before the name" or len(renames) == 2:
            raise Crash
        part.rename(path)

    if moment == "half a file":
        monkeypatch.setattr(checkpoints, "save_file", half)
    else:
        monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(Crash):
        here.save((2, 0), {"x": torch.tensor([[3.0], [4.0]])}, {})
    monkeypatch.undo()
    again = CheckpointStore(tmp_path, [0, 1])
    assert again.versions() == [(1, 0)]
    assert again.load((1, 0))[0]["x"].tolist() == [[1.0], [2.0]]
    again.save((2, 0), {"x": torch.tensor([[3.0], [4.0]])}, {})
    assert again.versions() == [(1, 0), (2, 0)]


def test_any_memory_layout_can_be_written(tmp_path: Path) -> None:
    """Shared, expanded, transposed and differentiated tensors; the reader gets plain ones."""
    base = torch.arange(6.0).view(2, 3)
    tensors = {
        "shared": base, "again": base, "column": base[:, 1], "transposed": base.T,
        "expanded": base[0].expand(4, 3), "leaf": base.clone().requires_grad_(),
    }  # fmt: skip
    write(tmp_path / "deep" / "file.safetensors", tensors)
    found = load_file(tmp_path / "deep" / "file.safetensors")
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("count", [0, 3])
def test_letters_come_back(count: int) -> None:
    g = np.random.default_rng(0)
    senders, recipients, rows = g.integers(9, size=(3, count))
    stack = {"x": torch.randn(4, 5), "sent.tensors.g": torch.randn(4)}
    letters = Letters(senders, recipients, rows, np.arange(4), stack)
    packed = pack("received", letters) | pack("sent", letters)
    for which in ("received", "sent"):
        again = unpack(which, packed, torch.device("cpu"))
        for name in ("senders", "recipients", "rows", "authors"):
            assert same(getattr(letters, name), getattr(again, name)), name
        assert same(letters.tensors, again.tensors)
