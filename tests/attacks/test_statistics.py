"""Statistics of columns: what leaves for the common scale, who can read it, and who can move it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.cli.main import main
from coterie.app.node.scale import check_near, checked, disclosed
from coterie.datasets.own.scale import combined
from coterie.datasets.own.schema import digest, read_schema
from coterie.datasets.problem import DataError
from coterie.strategies.errors import RelayError
from coterie.strategies.protocol import PeerMessage, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import RUN, Institution, Relay, config_of, institutions, opened

COMMON = RUN | {"table.scale": "common", "num-server-rounds": 2}
SCHEMA = """
[columns.a]
mean = 0.5
scale = 2
[columns.b]
mean = 0
scale = 1
[columns.y]
kind = "category"
categories = ["no", "yes"]
"""


class Tap(Relay):
    """A relay that keeps all letters with statistics, as it sees them."""

    def __init__(self, nodes: Sequence[Institution]) -> None:
        super().__init__(nodes)
        self.letters: list[PeerMessage] = []
        self.attempt = ""

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        outcome = super().exchange(requests)
        self.attempt = next(iter(requests.values())).attempt
        for answer in outcome.values():
            letters = answer.letters if isinstance(answer, Response) else ()
            self.letters += [letter for letter in letters if letter.kind == "statistics"]
        return outcome


def consortium(directory: Path, schema: str = "", **policy: Any) -> list[Institution]:
    """Institutions whose policies share statistics."""
    run = dict(COMMON)
    if schema:
        (directory / "schema.toml").write_text(schema)
        run["table.schema"] = digest(read_schema(directory))
    nodes = institutions(directory, run)
    for node in nodes:
        if schema:
            (Path(str(node.node_config["data-dir"])) / "schema.toml").write_text(schema)
        node.set_policy(**{"data__share_statistics": "yes", **policy})
    return nodes


def played(nodes: list[Institution]) -> Tap:
    tap = Tap(nodes)
    Broker(config_of(nodes[0]).strategy(), tap, join_timeout=0).run()
    return tap


def sent_in(nodes: Sequence[Institution], tap: Tap) -> dict[int, Any]:
    """Peer -> the statistics in its letter, as one of the readers opens it."""
    return {
        letter.sender: opened(nodes, letter, min(letter.keys), attempt=tap.attempt)["statistics"]
        for letter in tap.letters
    }


def scales(nodes: Sequence[Institution]) -> list[Any]:
    files = (node.home / "run" / "nodes" / f"scale-000{node.peer}.json" for node in nodes)
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Institution], Tap]:
    nodes = consortium(tmp_path_factory.mktemp("consortium"))
    return nodes, played(nodes)


def test_what_left_is_rounded_sealed_and_on_record(done: tuple[list[Institution], Tap]) -> None:
    nodes, tap = done
    assert sorted(letter.sender for letter in tap.letters) == [0, 1, 2]
    for letter in tap.letters:
        assert letter.keys.keys() == {0, 1, 2} - {letter.sender}
        sent = sent_in(nodes, tap)[letter.sender]
        digits = [float(f"{value:.2e}") for value in sent.flat]
        assert sent.flatten().tolist() == digits
        home = nodes[letter.sender].home / "run"
        text = (home / f"statistics-000{letter.sender}.csv").read_text()
        rows = csv.DictReader(text.splitlines())
        recorded = [[float(row[key]) for key in ("count", "mean", "variance")] for row in rows]
        assert np.array_equal(np.transpose(recorded), sent)
        lines = (home / f"audit-000{letter.sender}.jsonl").read_text().splitlines()
        left = [json.loads(line) for line in lines if '"statistics"' in line]
        assert [line["verdict"] for line in left] == ["sent", "accepted", "accepted"]
        assert left[0]["sealed"]
        payload: Any = letter.payload
        assert payload["payload"].data not in sent.tobytes()
        assert sent[1].tobytes() not in payload["payload"].data


def test_all_nodes_have_the_scale_of_the_letters(done: tuple[list[Institution], Tap]) -> None:
    nodes, tap = done
    count, mean, variance = np.stack([*sent_in(nodes, tap).values()], axis=1)
    total = (count * mean).sum(axis=0) / count.sum(axis=0)
    spread = (count * (variance + (mean - total) ** 2)).sum(axis=0) / count.sum(axis=0)
    for scale in scales(nodes):
        assert scale == {**scales(nodes)[0], "columns": ["a", "b"]}
        assert scale["mean"] == pytest.approx(total)
        assert scale["scale"] == pytest.approx(np.sqrt(spread))


def test_a_resumed_node_keeps_the_scale(done: tuple[list[Institution], Tap]) -> None:
    """The relay cannot give it another one."""
    nodes, tap = done
    before = scales(nodes)
    forged = replace(tap.letters[1], sender=1)
    request = Request("start", 2, 2, letters=[forged], attempt="b", samples=np.array([30, 25, 20]))
    answer = nodes[0].handle(request)
    assert isinstance(answer, Response)
    assert any("refused the statistics of peer 1" in line for line in answer.refused)
    assert scales(nodes) == before


def test_few_values_and_one_value_stay() -> None:
    """A column with the same value in all rows would tell the value of every patient."""
    statistics = np.array([[19, 20, 20, np.nan], [51.234, 7, 3.14159, np.nan], [4, 0, 2, np.nan]])
    expected = [[0, 0, 20, 0], [0, 0, 3.14, 0], [0, 0, 2, 0]]
    assert disclosed(statistics, min_values=20).tolist() == expected


def test_a_scale_on_which_single_cells_stand_out_is_refused() -> None:
    """One of the peers claims a million rows with hardly any deviation."""
    own, invented = np.array([[30.0], [60.0], [144.0]]), np.array([[1e6], [60.0], [1e-9]])
    with pytest.raises(DataError, match="values here of age are more than 100 deviations"):
        check_near(own, combined([own, invented]), ["age"])
    check_near(own, combined([own, np.array([[30.0], [70.0], [100.0]])]), ["age"])


def test_no_statistics_without_the_policy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Approval by policy alone asks nobody: "ask" then means no."""
    nodes = consortium(tmp_path, data__share_statistics="ask")
    with pytest.raises(RelayError, match="policy"):
        played(nodes)
    assert 'data.share-statistics = "ask"' in caplog.text
    assert "schema.toml has no mean and scale of a, b" in caplog.text
    assert not list(tmp_path.rglob("statistics-*.csv"))


def test_if_one_declines_all_take_the_schemas_scale(tmp_path: Path) -> None:
    nodes = consortium(tmp_path, SCHEMA)
    nodes[1].set_policy(data__share_statistics="no")
    tap = played(nodes)
    assert not sent_in(nodes, tap)[1].any()
    assert [(each["mean"], each["scale"]) for each in scales(nodes)] == [([0.5, 0], [2, 1])] * 3


def test_who_approves_reads_what_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scale, tells in (("common", True), ("own", False)):
        keys = COMMON | {"table.scale": scale}
        items = [f"{key}={value}" for key, value in keys.items()]
        assert main(["approve", *items, "--out", str(tmp_path), "--digest", "no"]) == 2
        assert ("this node sends count, mean and variance" in capsys.readouterr().out) is tells


def test_privacy_sends_no_statistics(tmp_path: Path) -> None:
    nodes = consortium(tmp_path, SCHEMA)
    for node in nodes:
        node.run_config |= {
            "privacy.kind": "examples", "privacy.noise": 1.0, "privacy.budget": 8.0,
            "privacy.delta": 1e-5,
        }  # fmt: skip
    assert not played(nodes).letters
    assert not list(tmp_path.rglob("statistics-*.csv"))


def test_a_run_without_all_statistics_does_not_begin(tmp_path: Path) -> None:
    """A relay that withholds a letter, and a peer that invents one."""
    nodes = consortium(tmp_path)
    samples = np.array([30, 25, 20])
    first = Request("start", 0, 0, attempt="a")
    letters = [node.handle(first).letters[0] for node in nodes]  # type: ignore[union-attr]
    for given in ([], letters[1:2]):
        again = nodes[0].handle(replace(first, samples=samples, letters=list(given)))
        is_waiting = isinstance(again, Response) and again.standing is None
        assert is_waiting or str(again).startswith("peer 0 (node-0): data")
    for wrong in ([[-1.0], [0], [1]], [[9.0], [0], [-1]], [[9.0], [1e200], [1]]):
        with pytest.raises(DataError, match="no rows have"):
            checked(np.array(wrong))
