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
from coterie.app.institution.process import service
from coterie.app.institution.scale import Memory, check_near, check_sound, disclosed
from coterie.datasets.own.scale import combined
from coterie.datasets.own.schema import digest, read_schema
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError
from coterie.strategies.errors import RelayError
from coterie.strategies.protocol import PeerMessage, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import (
    RUN,
    Institution,
    Relay,
    config_of,
    institutions,
    opened,
    response_of,
)

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
        # Fewer than the 20 training rows of peer 2, of which a split may make one an outlier.
        node.set_policy(**{"data__share_statistics": "yes", "data__min_examples": 10, **policy})
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
    ages = 50 + np.arange(20.0)
    few = np.where(ages == 50, np.nan, ages)
    cells = np.stack([few, np.full(20, 7.0), ages / 7, ages % 2], axis=1)
    columns = [*map(Column, "abc"), Column("d", "category", ("f", "m"))]
    expected = [[0, 0, 20, 0], [0, 0, 8.5, 0], [0, 0, 0.6, 0]]  # the variance is 0.679
    assert disclosed(cells, columns, min_values=20).tolist() == expected


def test_many_rows_of_few_patients_stay() -> None:
    cells, columns = np.arange(40.0)[:, None], [Column("days")]
    for visits, leaves in ((1, True), (2, True), (3, False), (40, False)):
        left = disclosed(cells, columns, 20, np.arange(40) // visits)
        assert left.any() == leaves


def test_two_runs_and_one_patient_more_tell_nothing_about_the_patient(tmp_path: Path) -> None:
    """Before, count times mean of both runs differed by the patient's values."""
    g, columns, least = np.random.default_rng(0), [Column("a"), Column("b")], 20
    cells = g.normal((70, 250), (12, 50), (200, 2)).round(1)

    def left(rows: Any) -> Any:
        table = cells[rows]
        return Memory(tmp_path).held(disclosed(table, columns, 20), table, columns, least)

    first = left(np.arange(26))
    assert (first[0] == 26).all()
    assert np.abs(first[1] - cells[:26].mean(axis=0)).max() < 10
    for rows in (np.arange(27), np.arange(1, 26), np.arange(45), np.arange(19, 45), np.arange(26)):
        assert (left(rows) == first).all()
    cells[3] = 80, 260  # corrected
    assert (left(np.arange(26)) == first).all()
    second = left(np.arange(46))
    assert (second[0] == 46).all()
    for rows in (np.arange(46), np.arange(47), np.arange(1, 46)):
        assert (left(rows) == second).all()
    assert (left(np.arange(26)) == first).all()  # all runs count, not the last one
    part = disclosed(cells[:20], columns, 20)  # another division of the same rows
    assert (Memory(tmp_path).held(part, cells[:26], columns, least) == first).all()
    text = (tmp_path / "statistics.jsonl").read_text()
    assert not any(f"{value}" in text for value in cells[5:10, 1])
    silent = np.zeros((3, 2))
    assert (Memory(tmp_path).held(silent, cells[:26], columns, least) == silent).all()


def test_a_value_that_few_rows_have_stays() -> None:
    """Mean and variance give the one value of a column that is 0 otherwise: v / m + m."""

    def left(values: Sequence[float]) -> Any:
        return disclosed(np.array(values, dtype=float)[:, None], [Column("days")], 20)[:, 0]

    assert not left([0] * 29 + [37]).any()
    assert not left([0] * 500 + [1] * 18 + [37]).any()
    assert left([0] * 500 + [*range(1, 31)])[0] == 530
    assert left([0] * 500 + [1] * 40)[0] == 540
    assert left([0] * 70 + [*range(1, 31)])[0] == 100  # the upper quartile is a small value
    ordinary = [60.0 + k % 21 for k in range(63)]
    for outlier in (2500, -400, 1e9):
        assert (left([*ordinary, outlier]) == left(ordinary)).all()
        assert (left([0] * 900 + [*ordinary, outlier]) == left([0] * 900 + ordinary)).all()


def rare(nodes: Sequence[Institution]) -> None:
    """Make column b 0 at these nodes, and 37 in the first rows, which are too few."""
    for node in nodes:
        file = Path(str(node.node_config["data-dir"])) / "data.csv"
        head, *rows = (line.split(",") for line in file.read_text().splitlines())
        rows = [[a, "37" if k < 8 else "0", y] for k, (a, _, y) in enumerate(rows)]
        file.write_text("\n".join(map(",".join, [head, *rows])) + "\n")


def test_a_column_that_one_node_keeps_to_itself_has_the_scale_of_the_others(tmp_path: Path) -> None:
    nodes = consortium(tmp_path)
    rare(nodes[:1])
    sent = sent_in(nodes, played(nodes))
    assert sent[0][[0, 2], 0].all()  # the mean may be rounded to 0
    assert not sent[0][:, 1].any()
    expected = combined([sent[1], sent[2]])[:, 1]
    assert [each["mean"][1] for each in scales(nodes)] == pytest.approx([expected[0]] * 3)
    assert [each["scale"][1] for each in scales(nodes)] == pytest.approx([expected[1]] * 3)


def test_a_column_that_all_keep_to_themselves_is_no_raw_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the scale of schema.toml, or the run does not begin."""
    (tmp_path / "with").mkdir()
    nodes = consortium(tmp_path / "with", SCHEMA)
    rare(nodes)
    played(nodes)
    for each in scales(nodes):
        assert each["mean"][0] != 0.5
        assert (each["mean"][1], each["scale"][1]) == (0, 1)
    (tmp_path / "without").mkdir()
    nodes = consortium(tmp_path / "without")
    rare(nodes)
    with pytest.raises(RelayError, match="data"):
        played(nodes)
    assert "different values of b, so no statistics of it left: leave it out" in caplog.text


def test_a_scale_on_which_single_cells_stand_out_is_refused() -> None:
    """One of the peers claims hardly any deviation, or such a one that all inputs are alike."""
    own, honest = np.array([[30.0], [60.0], [144.0]]), np.array([[30.0], [70.0], [100.0]])
    columns = [Column("age")]
    for invented in ([1e6, 60, 1e-9], [30, 60, 1e60], [30, 1e9, 1]):
        sent = {0: own, 1: honest, 2: np.array(invented)[:, None]}
        with pytest.raises(DataError, match=r"in columns .*: age \(peer 2\)\. Compare units"):
            check_near(own, combined([*sent.values()]), columns, sent)
    check_near(own, combined([own, honest]), columns, {0: own, 1: honest})


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
    nodes[1].set_policy(data__share_statistics="no", data__min_examples=10)
    tap = played(nodes)
    assert not sent_in(nodes, tap)[1].any()
    assert [(each["mean"], each["scale"]) for each in scales(nodes)] == [([0.5, 0], [2, 1])] * 3


def test_who_approves_reads_what_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scale, tells in (("common", True), ("own", False)):
        keys = COMMON | {"table.scale": scale}
        items = [f"{key}={value}" for key, value in keys.items()]
        assert main(["approve", *items, "--out", str(tmp_path), "--digest", "no"]) == 2
        assert ("# table.scale: in a sealed run" in capsys.readouterr().out) is tells


def test_privacy_sends_no_statistics(tmp_path: Path) -> None:
    nodes = consortium(tmp_path, SCHEMA)
    for node in nodes:
        node.run_config |= {
            "privacy.kind": "examples", "privacy.noise": 1.0, "privacy.budget": 8.0,
            "privacy.delta": 1e-5,
        }  # fmt: skip
    assert not played(nodes).letters
    assert not list(tmp_path.rglob("statistics-*.csv"))


def begun(nodes: Sequence[Institution], attempt: str) -> list[Response | str]:
    """Start a run, as a relay does that has been restarted; return the last responses."""
    first = Request("start", 0, 0, attempt=attempt)
    letters = [response_of(node, first).letters[0] for node in nodes]
    second = replace(first, samples=np.array([30, 25, 20]))
    return [
        node.handle(replace(second, letters=[each for each in letters if each.sender != node.peer]))
        for node in nodes
    ]


def test_all_nodes_keep_one_scale_when_a_table_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hospital corrects its units, another one has lost its disk, and the relay restarts."""
    nodes = consortium(tmp_path)
    assert not any(isinstance(answer, str) for answer in begun(nodes, "a"))
    before = scales(nodes)
    service._nodes._nodes.clear()
    assert not any(isinstance(answer, str) for answer in begun(nodes, "b"))
    file = Path(str(nodes[1].node_config["data-dir"])) / "data.csv"
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *("2" + row.lstrip("-") for row in rows)]) + "\n")
    (nodes[2].home / "run" / "nodes" / "scale-0002.json").unlink()
    service._nodes._nodes.clear()
    answers = begun(nodes, "c")
    assert all("data" in str(answer) for answer in answers[:2])
    assert "differs from that with which this run began" in caplog.text
    assert scales(nodes[:2]) == before[:2]


def test_a_damaged_scale_stops_the_node(
    done: tuple[list[Institution], Tap], caplog: pytest.LogCaptureFixture
) -> None:
    node = done[0][2]
    file = node.home / "run" / "nodes" / "scale-0002.json"
    whole = file.read_text()
    for damaged in ("", "[]", whole[:40], whole.replace('"mean"', '"men"'), "{}"):
        file.write_text(damaged)
        service._nodes._nodes.clear()
        assert ": state:" in str(node.handle(Request("start", 2, 2, attempt="c")))
        assert f"{file}: damaged; put it back" in caplog.text
        caplog.clear()
    file.write_text(whole.replace('"b"', '"c"'))
    assert ": data:" in str(node.handle(Request("start", 2, 2, attempt="c")))
    file.write_text(whole)


@pytest.mark.parametrize("schema", ["", SCHEMA])
def test_plain_letters_hold_no_statistics(
    tmp_path: Path, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without sealing the relay could read them."""
    nodes = consortium(tmp_path, schema, sealing=False)
    for node in nodes:
        for key in ("keys", "trust"):
            del node.node_config[key]
        node.node_config["peer"] = node.peer
        node.run_config["sealing"] = False
    if not schema:
        with pytest.raises(RelayError, match="policy"):
            played(nodes)
        assert "statistics of columns leave in sealed letters only" in caplog.text
        assert not list(tmp_path.rglob("statistics-*.csv"))
        return
    played(nodes)
    for file in tmp_path.rglob("statistics-*.csv"):
        assert file.read_text().split() == ["column,count,mean,variance"]
    assert [(each["mean"], each["scale"]) for each in scales(nodes)] == [([0.5, 0], [2, 1])] * 3


def test_a_run_without_all_statistics_does_not_begin(tmp_path: Path) -> None:
    """A relay that withholds a letter, and a peer that invents one."""
    nodes = consortium(tmp_path)
    samples = np.array([30, 25, 20])
    first = Request("start", 0, 0, attempt="a")
    letters = [node.handle(first).letters[0] for node in nodes]  # type: ignore[union-attr]
    for given in ([], letters[1:2]):
        again = nodes[0].handle(replace(first, samples=samples, letters=list(given)))
        is_waiting = isinstance(again, Response) and again.restored is None
        assert is_waiting or str(again).startswith("peer 0 (node-0): data")
    for wrong in (
        [[-1.0], [0], [1]], [[9.0], [0], [-1]], [[9.0], [1e200], [1]], [[1e9], [0], [1]],
    ):  # fmt: skip
        with pytest.raises(DataError, match="peer 2 sent statistics that no rows have"):
            check_sound(2, np.array(wrong), 1005)
    check_sound(2, np.array([[1010.0], [0], [1]]), 1005)  # rounded
