"""Attacks on what a deployed node has spent: epsilon, answers, and rounds that are over.

Everything here is an institution's real node; only Flower's processes are left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.institution.node import InstitutionNode
from coterie.app.institution.process import service
from coterie.app.node.node import Node
from coterie.app.runs import atomic
from coterie.clients.engine.accountant import ORDERS, epsilon
from coterie.strategies.protocol import Request
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit
from tests.attacks.consortium import (
    ROWS,
    Institution,
    Relay,
    asking,
    config_of,
    institutions,
    response_of,
    started,
)
from tests.attacks.test_institution import PRIVATE, START, code_of
from tests.killing import killed_before

LEDGER = "privacy-0000.jsonl"


@pytest.fixture
def nodes(tmp_path: Path) -> list[Institution]:
    return institutions(tmp_path)


def spent(out: Path, delta: float = 1e-5) -> float:
    """Epsilon of everything on a privacy ledger, added up by this test."""
    lines = (out / "institution" / LEDGER).read_text().splitlines()
    total = np.sum([json.loads(line)["rdp"] for line in lines], axis=0)
    return float(epsilon(total[None], delta)[0])


# --- T2: a cost that is not finite --------------------------------------------------------------


@pytest.mark.parametrize("noise", [1e-170, 3e-162, 1e-160, 6e-153, 1e-20, 0.0099])
def test_noise_too_small_to_account_for_is_refused(noise: float, nodes: list[Institution]) -> None:
    """Its Rényi divergences were infinite and NaN, and the reported epsilon was 0."""
    node = nodes[0]
    node.set_policy(privacy__kind="examples", privacy__max_epsilon=3.0)
    node.run_config |= PRIVATE | {"privacy.noise": noise}
    assert code_of(node.handle(START)) == "configuration"
    assert not (node.home / "institution" / LEDGER).exists()


def test_no_noise_at_all_is_for_simulations(nodes: list[Institution]) -> None:
    """A policy that demands no privacy would let it run; its ledger would hold an infinite cost."""
    node = nodes[0]
    node.run_config |= {"privacy.kind": "examples", "privacy.noise": 0.0}
    assert code_of(node.handle(START)) == "policy"
    assert not list(node.home.rglob("*.state"))


# --- T5: runs side by side ----------------------------------------------------------------------


def alone(out: Path, name: str, **changes: Any) -> Config:
    """A run of one deployed peer, which needs no relay for its rounds."""
    keys: dict[str, Any] = {
        "dataset": "digits", "model": "linear", "peers": 1, "method": "local", "name": name,
        "num-server-rounds": 6, "evaluate-every": 6, "batch-size": 16, "local-steps": 1,
        "device": "cpu", "partition.samples-per-peer": 16, "partition.kind": "iid",
        "privacy.kind": "examples", "privacy.noise": 8.0, "privacy.budget": 3.0,
    }  # fmt: skip
    return Config.from_flat(keys | changes)


def test_runs_side_by_side_share_one_budget(tmp_path: Path) -> None:
    """Four runs, each of which begins after the first round of the one before."""
    nodes: list[Node] = []

    def begin(number: int) -> None:
        if number == 4:
            return
        config = alone(tmp_path, f"run-{number}")
        later = iter([lambda: begin(number + 1)])
        nodes.append(
            InstitutionNode(
                config, [0], tmp_path / config.name,
                on_round=lambda t: next(later, lambda: None)(),
            )
        )  # fmt: skip
        node = nodes[-1]
        node.handle(Request("start", 0, 0, attempt="a"))
        node.handle(Request("local-rounds", 1, 6, attempt="a"))

    begin(0)
    assert len(nodes) == 4
    assert 2.5 < spent(tmp_path) <= 3.0


# --- T9: killed between two files ----------------------------------------------------------------


@pytest.mark.long
def test_a_node_killed_anywhere_has_charged_all_that_can_leave_it(
    nodes: list[Institution], tmp_path: Path
) -> None:
    """Before each change to the disk that an update makes; then the node is started again."""
    for each in nodes:
        each.run_config |= PRIVATE
    node = nodes[0]
    offers = started(nodes)
    order = asking([offers[1], offers[2]])
    answer = response_of(node, order)
    assert len(answer.letters) == 2
    update = Request("update", 1, 1, order.edges, order.asked, attempt="a", samples=order.samples)
    begin = replace(AGAIN, round=1, last=1, committed=1)
    shutil.copytree(node.home, tmp_path / "before")
    answered = len(costs_of(node))
    response_of(node, update)
    costs = costs_of(node)
    assert len(costs) > answered
    rounds, change = [], 0
    while True:
        shutil.rmtree(node.home)
        shutil.copytree(tmp_path / "before", node.home)
        service._nodes._nodes.clear()
        node.version = 0
        if not killed_before(change, response_of, node, update):
            break
        charged = costs_of(node)
        assert charged == costs[: len(charged)], "what was charged is exact"
        service._nodes._nodes.clear()
        at = response_of(node, begin).restored
        assert at == 0 or charged == costs
        rounds.append(at)
        change += 1
    assert rounds == sorted(rounds, key=str), "first lost, from some change on kept"
    assert {*rounds} == {0, 1}


def test_two_processes_never_work_on_one_state(nodes: list[Institution]) -> None:
    """A busy state is an error at once: the other process may have been stopped for good."""
    offers = started(nodes)
    node, order = nodes[0], asking([offers[1], offers[2]])
    with atomic.locked(node.home / "run" / "nodes" / "state-0000.lock"):
        for request in (order, replace(AGAIN, attempt="a")):
            assert code_of(node.handle(request)) == "state"
    response_of(node, order)


def costs_of(node: Institution) -> list[list[float]]:
    lines = (node.home / "institution" / LEDGER).read_text().splitlines()
    return [json.loads(line)["rdp"] for line in lines]


# --- T13: files that are not what was written ---------------------------------------------------


class Copying:
    """A recorder that keeps a copy of a file as it was after round 2."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.content = b""

    def round(self, commit: Commit) -> None:
        if commit.ledger.round == 2:
            self.content = self._file.read_bytes()


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> tuple[Institution, Path, bytes]:
    """An institution after a whole run; its memory of the run, and that as it was at round 2."""
    nodes = institutions(tmp_path_factory.mktemp("over"))
    node = nodes[0]
    memory = node.home / "run" / "nodes" / "mail-0000.json"
    copying = Copying(memory)
    Broker(config_of(node).strategy(), Relay(nodes), copying, join_timeout=1.0).run()
    assert not node.errors
    return node, memory, copying.content


@pytest.fixture
def played(
    over: tuple[Institution, Path, bytes], tmp_path: Path
) -> Iterator[tuple[Institution, Path, bytes]]:
    """Yield the same, and restore its files at the end."""
    node = over[0]
    shutil.copytree(node.home, tmp_path / "home")
    yield over
    shutil.rmtree(node.home)
    shutil.copytree(tmp_path / "home", node.home)
    service._nodes._nodes.clear()  # it has read the ledgers further


AGAIN = replace(START, attempt="b", samples=np.array([rows // 2 for rows in ROWS]))


@pytest.mark.slow
def test_a_run_that_is_over_is_not_played_again(played: tuple[Institution, Path, bytes]) -> None:
    """The control of the next two."""
    assert code_of(played[0].handle(AGAIN)) == "request"


@pytest.mark.parametrize("change", ["digit", "emptied", "other run", "rolled back", "removed"])
def test_a_memory_that_was_changed_plays_no_round_again(
    change: str, played: tuple[Institution, Path, bytes]
) -> None:
    node, memory, older = played
    content = memory.read_bytes()
    match change:
        case "digit":
            assert b'"committed": 4' in content
            memory.write_bytes(content.replace(b'"committed": 4', b'"committed": 0'))
        case "emptied":
            memory.write_bytes(b"")
        case "other run":
            node.run_config["name"] = "another"
            response_of(node, AGAIN)
            node.run_config["name"] = "run"
            (node.home / "another" / "nodes" / memory.name).rename(memory)
        case "rolled back":
            assert older != content
            memory.write_bytes(older)
        case _:
            memory.unlink()
    assert code_of(node.handle(AGAIN)) == "state"


def nan(lines: list[dict[str, Any]]) -> None:
    lines[0]["rdp"][0] = float("nan")


def negative(lines: list[dict[str, Any]]) -> None:
    lines[0]["rdp"] = [-1.0] * len(ORDERS)


def smaller(lines: list[dict[str, Any]]) -> None:
    lines[0]["rdp"] = [x / 2 for x in lines[0]["rdp"]]


def without_the_last(lines: list[dict[str, Any]]) -> None:
    lines.pop()


def without_any(lines: list[dict[str, Any]]) -> None:
    lines.clear()


@pytest.mark.parametrize("change", [nan, negative, smaller, without_the_last, without_any, None])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_privacy_ledger_that_was_changed_lets_nobody_spend(
    change: Callable[[list[dict[str, Any]]], None] | None, same_process: bool, tmp_path: Path
) -> None:
    config = alone(tmp_path, "run")
    node = InstitutionNode(config, [0], tmp_path / "run")
    node.handle(Request("start", 0, 0, attempt="a"))
    node.handle(Request("local-rounds", 1, 2, attempt="a"))
    file = tmp_path / "institution" / LEDGER
    if change is None:
        file.unlink()
    else:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        change(lines)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not same_process:
        node = InstitutionNode(config, [0], tmp_path / "run")
    with pytest.raises(ValueError, match=LEDGER):
        node.handle(Request("local-rounds", 3, 6, attempt="a"))


def test_a_folder_of_ledgers_that_was_rolled_back_lets_nobody_spend(tmp_path: Path) -> None:
    """The folder of ledgers is restored from a backup, the folders of the runs are not."""
    node = InstitutionNode(alone(tmp_path, "run"), [0], tmp_path / "run")
    node.handle(Request("start", 0, 0, attempt="a"))
    node.handle(Request("local-rounds", 1, 2, attempt="a"))
    shutil.copytree(tmp_path / "institution", tmp_path / "backup")
    node.handle(Request("local-rounds", 3, 4, attempt="a"))
    shutil.rmtree(tmp_path / "institution")
    (tmp_path / "backup").rename(tmp_path / "institution")
    for name in ("run", "another"):
        again = InstitutionNode(alone(tmp_path, name), [0], tmp_path / name)
        with pytest.raises(ValueError, match=LEDGER):
            again.handle(Request("start", 0, 0, attempt="b"))
