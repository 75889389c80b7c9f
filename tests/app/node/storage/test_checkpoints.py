"""Test checkpoints: atomic files, versions that all peers have, states restored exactly."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from coterie.app.node.cohort.arrays import flatten, unflatten
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.app.node.cohort.mail import offers_of, packed, unpacked
from coterie.app.node.storage import checkpoints, tensor_file
from coterie.app.node.storage.checkpoints import CheckpointStore
from coterie.app.node.storage.tensor_file import read_checked, write, write_checked
from coterie.app.runs.atomic import DamagedError, replacing_checked
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.training import Training
from coterie.strategies.errors import StateError
from coterie.strategies.exchange_plan import Round
from coterie.strategies.schedule import Sample
from tests.problems import classification


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


def cohort_of(peers: list[int], state: Any = None) -> HostedPeers:
    """Some of four peers, with a state of any kind."""
    problem = classification([6, 7, 8, 9])
    engine = Engine(problem, "linear", None, peers, Training(), dtype="float64", device="cpu")
    cohort = HostedPeers(engine, FedAvg().bind(engine, 3), 3)
    if state is not None:
        cohort.state = state
    return cohort


def rows_of(state: Everything, peers: list[int]) -> Everything:
    return unflatten(state, {name: value[peers] for name, value in flatten(state).items()})


def test_a_cohort_comes_back_from_the_disk(tmp_path: Path) -> None:
    peers = [0, 1, 3]
    saved = cohort_of(peers, state_of(3))
    saved.offers = offers_of(saved.peers, {"x": torch.randn(3, 5)}, np.array([4, 5, 5]))
    saved.costs.sent[:], saved.costs.received[:] = [1, 2, 3], [4, 5, 6]
    saved.costs.n_gradients[:] = [7, 8, 9]
    CheckpointStore(tmp_path, saved).save((4, 0))
    again = cohort_of(peers, state_of(3, seed=1))
    CheckpointStore(tmp_path, again).recall((4, 0))
    for name, value in vars(saved.state).items():
        assert same(value, getattr(again.state, name)), name
    for name, value in vars(saved.offers).items():
        other = getattr(again.offers, name)
        assert value == other if isinstance(value, str) else same(value, other), name
    for name, value in vars(saved.costs).items():
        assert same(value, getattr(again.costs, name)), name
    assert not again.engine.n_gradients.any()
    assert not again.answered


def test_the_letters_of_a_round_under_way_come_back_too(tmp_path: Path) -> None:
    cohort, again = (cohort_of([0, 1]) for _ in range(2))
    store = CheckpointStore(tmp_path, cohort)
    cohort.begin(1)
    store.save((0, 0))
    cohort.exchange(Round(1, np.array([[1, 0]]), np.array([False]), evaluated=False))
    store.save((0, 1))
    other = CheckpointStore(tmp_path, again)
    other.recall((0, 1), (0, 0))
    assert again.answered
    assert again.received.recipients.tolist() == [0]
    assert torch.equal(again.received["x"], cohort.received["x"])
    assert not len(again.sent)
    other.recall((0, 0))
    assert not again.answered


def test_what_is_in_memory_counts_only_while_its_files_do(tmp_path: Path) -> None:
    mine, theirs = cohort_of([0, 1]), cohort_of([0, 1])
    one, two = CheckpointStore(tmp_path, mine), CheckpointStore(tmp_path, theirs)
    one.save((1, 0))
    before = mine.state
    one.recall((1, 0))
    assert mine.state is before  # not read again
    one.save((1, 0))
    theirs.state = replace(theirs.state, x=theirs.state.x + 1)
    two.save((1, 0))  # another process of this node began again
    one.recall((1, 0))
    assert torch.equal(mine.state.x, theirs.state.x)
    mine.state = replace(mine.state, x=mine.state.x + 1)  # a round began, and failed
    one.recall((1, 0))
    assert torch.equal(mine.state.x, theirs.state.x)


def test_only_a_new_cohort_of_a_simulation_is_not_made_again(tmp_path: Path) -> None:
    for durable in (False, True):
        cohort = cohort_of([0, 1])
        store, first = CheckpointStore(tmp_path, cohort, durable=durable), cohort.state
        store.restart()
        assert (cohort.state is first) is not durable
        second = cohort.state
        store.restart()
        assert cohort.state is not second
    CheckpointStore(tmp_path, cohort).save((4, 0))
    again = cohort_of([0, 1])
    store = CheckpointStore(tmp_path, again)
    store.recall((4, 0))
    recalled = again.state
    store.restart()
    assert again.state is not recalled


def test_a_version_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, cohort_of([1, 3]))
    store.save((4, 0))
    with pytest.raises(StateError, match=r"peers \[1, 3\] have no state of round 5 in "):
        store.recall((5, 1), (5, 0))


def test_peers_may_move_to_other_nodes(tmp_path: Path) -> None:
    state = state_of(4)
    for peers in ([0, 2], [1], [3]):
        CheckpointStore(tmp_path, cohort_of(peers, rows_of(state, peers))).save((2, 0))
    for peers in ([0, 1, 2, 3], [1, 2], [0, 3]):
        cohort = cohort_of(peers, state_of(len(peers), seed=1))
        store = CheckpointStore(tmp_path, cohort)
        assert store.resume(9) == 2
        expected, restored = flatten(rows_of(state, peers)), flatten(cohort.state)
        assert all(torch.equal(restored[name], value) for name, value in expected.items())


def versions(store: CheckpointStore) -> list[tuple[int, int]]:
    """Return the versions that can be recalled, among a few."""
    recalled = []
    for version in ((0, 0), (0, 1), (1, 0), (2, 0), (10, 0)):
        with contextlib.suppress(StateError):
            store.recall(version)
            recalled.append(version)
    return recalled


def test_a_version_counts_when_every_peer_has_it(tmp_path: Path) -> None:
    both, first = (CheckpointStore(tmp_path, cohort_of(peers)) for peers in ([0, 1], [0]))
    assert both.resume(9) is None
    for version in ((0, 0), (0, 1), (10, 0)):
        both.save(version)
    first.save((2, 0))
    assert versions(both) == [(0, 0), (0, 1), (10, 0)]
    both.forget((10, 0))
    assert versions(both) == [(10, 0)]
    assert both.resume(2) is None  # peer 1 has no state between two rounds
    assert versions(both) == []
    assert first.resume(2) == 2
    assert versions(first) == [(2, 0)]


def test_a_node_that_missed_the_end_of_a_round_keeps_the_state_before_it(tmp_path: Path) -> None:
    """It is killed in round 15 after its answers; then the relay is killed in round 16."""
    store = CheckpointStore(tmp_path, cohort_of([0], state_of(1)))
    for version in ((13, 0), (14, 0), (14, 1)):
        store.save(version)
        store.forget((13, 0))
    assert store.resume(16) == 14, "round 15 was committed without it"
    store.save((16, 0))
    store.forget((15, 0))
    again = cohort_of([0], state_of(1, seed=1))
    assert CheckpointStore(tmp_path, again).resume(15) == 14


def half_awake(peers: int) -> HostedPeers:
    """A cohort of peers of which half sleep in each round."""
    engine = Engine(
        classification([6] * peers), "linear", None, range(peers), Training(), device="cpu"
    )
    schedule = Sample(peers, 40, fraction=0.5)
    return HostedPeers(engine, FedAvg().bind(engine, 40), 40, schedule=schedule)


def test_files_hold_who_was_awake_and_stay_few(tmp_path: Path) -> None:
    cohort, again = half_awake(6), half_awake(6)
    store = CheckpointStore(tmp_path, cohort)
    cohort.begin(1)
    store.save((0, 0))
    for t in range(1, 21):
        edges = np.array([(s, r) for s in range(6) for r in range(6) if s != r])
        here = cohort.schedule.awake(t)[edges].all(axis=1)
        changed = int(cohort.schedule.changes(t).sum())
        cohort.step(Round(t, edges[here], np.zeros(int(here.sum()), dtype=np.bool_), False))
        assert cohort.changed.sum() == changed
        store.save((t, 0))
        store.forget((t - 1, 0))
        assert len(list(tmp_path.rglob("0*.state"))) <= 8
    other = CheckpointStore(tmp_path, again)
    assert other.resume(30) == 20
    assert same(flatten(again.state), flatten(cohort.state))
    assert same(flatten(again.costs), flatten(cohort.costs))
    assert again.offers.authors.tolist() == cohort.offers.authors.tolist()
    assert same(dict(again.offers.tensors), dict(cohort.offers.tensors))
    assert other.resume(19) == 19


@pytest.mark.parametrize("moment", ["half a file", "before the name", "between two files"])
def test_a_crash_while_writing_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(checkpoints, "TOGETHER", 1)
    cohort = cohort_of([0, 1], state_of(2))
    here = CheckpointStore(tmp_path, cohort)
    here.save((1, 0))

    class Crash(BaseException):
        pass

    renames: list[Path] = []

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        save_file(tensors, path, metadata)
        os.truncate(path, path.stat().st_size // 2)
        raise Crash

    def rename(part: Path, path: Path) -> None:
        renames.append(path)
        if moment == "before the name" or len(renames) == 2:
            raise Crash
        part.rename(path)

    if moment == "half a file":
        monkeypatch.setattr(tensor_file, "save_file", half)
    else:
        monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(Crash):
        here.save((2, 0))
    monkeypatch.undo()
    again = cohort_of([0, 1], state_of(2, seed=1))
    store = CheckpointStore(tmp_path, again)
    assert store.resume(9) == 1
    assert same(flatten(again.state), flatten(state_of(2)))
    store.save((2, 0))
    assert versions(store) == [(1, 0), (2, 0)]


def test_any_memory_layout_can_be_written(tmp_path: Path) -> None:
    """Shared, expanded, transposed and differentiated tensors; the reader gets plain ones."""
    base = torch.arange(6.0).view(2, 3)
    tensors = {
        "shared": base, "again": base, "column": base[:, 1], "transposed": base.T,
        "expanded": base[0].expand(4, 3), "leaf": base.clone().requires_grad_(),
        "empty": base[:0], "also empty": base[:0, :0],
    }  # fmt: skip
    write(tmp_path / "deep" / "file.safetensors", tensors)
    result = load_file(tmp_path / "deep" / "file.safetensors")
    assert all(torch.equal(result[name], value) for name, value in tensors.items())
    write_checked(tmp_path / "checked", tensors, {"of": "us"}, bound=b"here")
    result = read_checked(tmp_path / "checked", bound=b"here")
    assert result.keys() == tensors.keys()
    assert all(torch.equal(result[name], value) for name, value in tensors.items())
    assert not list(tmp_path.rglob("*.part"))


def test_models_that_are_offered_as_they_are_lie_in_a_checkpoint_once(tmp_path: Path) -> None:
    models = torch.randn(3, 5000)
    state = {"state.x": models, "offer.x": models, "offer.y": models.clone()}
    write_checked(tmp_path / "file", state, {"peers": "0 1 2"}, bound=b"")
    assert (tmp_path / "file").stat().st_size < 2.1 * models.nbytes
    content = (tmp_path / "file").read_bytes()
    for _ in range(5):  # the same bytes each time: tests and people compare files
        write_checked(tmp_path / "file", state, {"peers": "0 1 2"}, bound=b"")
        again = (tmp_path / "file").read_bytes()
        assert again == content
    tensors = read_checked(tmp_path / "file", bound=b"")
    assert all(torch.equal(value, models) for value in tensors.values())
    with pytest.raises(DamagedError):
        read_checked(tmp_path / "file", bound=b"another run")


def test_models_that_are_offered_as_they_are_come_back_once(tmp_path: Path) -> None:
    saved, again = (cohort_of([0, 1, 3]) for _ in range(2))
    saved.begin(1)
    CheckpointStore(tmp_path, saved).save((0, 0))
    CheckpointStore(tmp_path, again).recall((0, 0))
    for cohort in (saved, again):
        assert cohort.state.x.data_ptr() == cohort.offers.tensors["x"].data_ptr()
        assert cohort.state.x.data_ptr() % 64 == 0  # sums depend on the alignment


def test_files_from_before_models_were_written_once_are_read(tmp_path: Path) -> None:
    tensors = {"state.x": torch.randn(3, 5), "offer.x": torch.randn(3, 5)}
    for name, metadata in (("state", {"peers": "0 1 2"}), ("letters", None)):
        with replacing_checked(tmp_path / name, bound=b"") as draft:
            save_file(tensors, draft, metadata)
        assert same(read_checked(tmp_path / name, bound=b""), tensors)


@pytest.mark.parametrize("count", [0, 3])
def test_letters_come_back(count: int) -> None:
    g = np.random.default_rng(0)
    senders, recipients, rows = g.integers(9, size=(3, count))
    stack = {"x": torch.randn(4, 5), "sent.tensors.g": torch.randn(4)}
    letters = Letters(senders, recipients, rows, np.arange(4), stack)
    tensors = packed("received", letters) | packed("sent", letters)
    for which in ("received", "sent"):
        again = unpacked(which, tensors, torch.device("cpu"))
        for name in ("senders", "recipients", "rows", "authors"):
            assert same(getattr(letters, name), getattr(again, name)), name
        assert same(letters.tensors, again.tensors)
