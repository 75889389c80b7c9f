"""Nodes that see only their own data: the same run as a simulation, and reports that tell less."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from coterie.app.config.config import Config
from coterie.app.institution.node import InstitutionNode
from coterie.app.institution.process.service import Nodes
from coterie.app.institution.requests import faults
from coterie.app.institution.security.policy import (
    AnswerPolicy,
    DataPolicy,
    Disclosure,
    Policy,
    ReportPolicy,
)
from coterie.app.institution.security.sealing import Sealing
from coterie.app.institution.security.trust import create
from coterie.app.node.node import Node
from coterie.app.report.run_page import write as write_report
from coterie.app.runs import progress
from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import Run as Results
from coterie.app.runs.summary import finish
from coterie.datasets.problem import DataError
from coterie.errors import AwayError
from coterie.strategies.errors import RelayError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.broker import Broker
from tests.inline import Run, StoppedError, run

SIZES = (12, 20, 31)
FLAT: dict[str, Any] = {
    "dataset": "table", "table.columns": "a,b,c", "table.label": "y", "table.classes": "no,yes",
    "table.validation": 0.2, "peers": 3, "num-server-rounds": 4, "evaluate-every": 2,
    "method": "fedavg", "model": "linear", "batch-size": 4, "local-steps": 2, "dtype": "float64",
    "dpfl.init-epochs": 1, "federico.neighbours": 1, "device": "cpu",
}  # fmt: skip


def fill(data_dir: Path) -> Path:
    """A table for each peer, of different sizes and with other classes in the majority."""
    for peer, size in enumerate(SIZES):
        g = np.random.default_rng(peer)
        x = g.normal(size=(size, 3)).round(3)
        y = np.where(x[:, 0] + (-1) ** peer * x[:, 1] > 0, "yes", "no")
        lines = [",".join([*map(str, row), label]) for row, label in zip(x, y, strict=True)]
        folder = data_dir / str(peer)
        folder.mkdir(parents=True)
        (folder / "data.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return data_dir


def divided(data_dir: Path) -> Path:
    """Divide the tables into parts: of ten rows, two for validation and two for testing."""
    for table in data_dir.rglob("data.csv"):
        head, *rows = table.read_text().splitlines()
        parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
        for number, row in enumerate(rows):
            name = ("validation", "test", *["train"] * 3)[number % 5]
            parts[name].append(row)
        for name, part in parts.items():
            table.with_name(f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
        table.unlink()
    return data_dir


def deployed(flat: dict[str, Any], directory: Path, data: Path, **changes: Any) -> list[Node]:
    """Return one node per peer, with its own folder only."""
    config = Config.from_flat(flat)
    return [
        InstitutionNode(replace(config, data_dir=str(data / str(p))), [p], directory, **changes)
        for p in range(len(SIZES))
    ]


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "cobo", "dpfl", "all-for-one", "federico", "apfl", "stacking"]
)
def test_nodes_with_their_own_data_give_the_simulation(method: str, tmp_path: Path) -> None:
    """The institutions divide their tables themselves; otherwise a node's secret does."""
    data = divided(fill(tmp_path / "data"))
    flat = FLAT | {"method": method, "table.scale": "own"}  # a common one is rounded
    if method == "stacking":
        flat |= {"peer-models": {"0": "forest", "2": "mlp"}, "forest.trees": 3}
    expected = run(flat | {"data-dir": str(data)}, tmp_path / "simulation", 3)
    config, result = Config.from_flat(flat), Run(Config.from_flat(flat), tmp_path / "deployment")
    nodes = deployed(flat, result.directory, data)
    Broker(config.strategy(), InProcessTransport(nodes), result, join_timeout=1.0).run()
    assert result.rounds == expected.rounds == [0, 2, 4]
    for t in result.rounds:
        for name in expected.reports[t, 0].metrics:
            one, other = result.metric(name, t), expected.metric(name, t)
            np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(result.weights(t), expected.weights(t), rtol=1e-9, atol=1e-12)
    assert result.ledger.messages == expected.ledger.messages + 2 * 3  # who holds how much


def test_the_quality_of_own_data_stays_on_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A column whose name, range and coded value would be recognised in anything that leaves.

    A file that is not read has a name that would be, too.
    """
    data = fill(tmp_path / "data")
    (data / "0" / "secret_patient.csv").touch()
    for table in data.rglob("data.csv"):
        head, *rows = table.read_text().splitlines()
        coded = [f"{-99 if k < 3 else 73.0625 + k / 64},{row}" for k, row in enumerate(rows)]
        table.write_text("\n".join([f"secret_lab,{head}", *coded]) + "\n")
    flat = FLAT | {"table.columns": "secret_lab,a,b,c"}
    config = Config.from_flat(flat)
    recorder = Run(config, tmp_path / "relay")
    left: list[Any] = []

    class Recorded(InProcessTransport):
        def exchange(self, requests: Any) -> Any:
            responses = super().exchange(requests)
            left.append(repr(responses))
            return responses

    homes = [tmp_path / f"home-{peer}" for peer in range(3)]
    nodes = [
        InstitutionNode(replace(config, data_dir=str(data / str(p))), [p], homes[p])
        for p in range(3)
    ]
    Broker(config.strategy(), Recorded(nodes), recorder, join_timeout=1.0).run()
    assert left
    assert not any(word in text for text in left for word in ("secret_", "73.0625", "-99", "ppv"))
    assert not [*recorder.directory.rglob("*quality*")]
    for peer, home in enumerate(homes):
        own = (home / f"quality-{peer:04d}.csv").read_text()
        assert "secret_lab is -99 in" in own
        assert {each["peer"] for each in csv.DictReader(own.splitlines())} == {str(peer)}
        card = json.loads((home / "models" / f"peer-{peer:04d}.json").read_text())
        assert card["data_quality"][0]["code"] == -99
        assert card["data_quality"][0]["drift"] is None, "no other institution is seen"
        assert "ppv" in card["diagnostics"]["measures"]
        assert "73.0625" not in (home / "models" / f"peer-{peer:04d}.md").read_text()
    assert "data quality: peer 0: secret_lab is -99" in caplog.text
    assert "data quality: unread in data-dir: 1 (secret_patient.csv)" in caplog.text


def test_patients_and_times_stay_on_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither letters, reports, models nor cards name one; a policy counts patients."""
    data = fill(tmp_path / "data")
    for table in data.rglob("data.csv"):
        head, *rows = table.read_text().splitlines()
        marked = [f"secret-{k // 3},{2000 + k}-01-31,{row}" for k, row in enumerate(rows)]
        table.write_text("\n".join([f"patient,day,{head}", *marked]) + "\n")
    keys = {"table.group": "patient", "table.split": "time", "table.time": "day"}
    flat = FLAT | keys | {"method": "stacking", "model": "forest", "forest.trees": 3}
    left: list[str] = []

    class Recorded(InProcessTransport):
        def exchange(self, requests: Any) -> Any:
            responses = super().exchange(requests)
            left.append(repr((requests, responses)))
            return responses

    config = Config.from_flat(flat)
    nodes = deployed(flat, tmp_path / "run", data)
    broker = Broker(config.strategy(), Recorded(nodes), Run(config, tmp_path / "run"))
    broker.run()
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert not any(word in text for text in left for word in ("secret-", "-01-31"))
    assert not any(word in text for text in files for word in (b"secret-", b"-01-31"))
    card = json.loads((tmp_path / "run" / "models" / "peer-0002.json").read_text())
    assert card["examples"] == {"train": 21, "test": 4, "validation": 6}
    data_policy = DataPolicy(min_examples=3)
    for grouped, number in ((True, 2), (False, 6)):
        few = replace(policy_with("all"), data=replace(data_policy, min_examples=number + 1))
        keys_of_run = FLAT | ({"table.group": "patient"} if grouped else {})
        with pytest.raises(DataError, match=rf"does not allow {number} examples in the test part"):
            InstitutionNode(
                replace(Config.from_flat(keys_of_run), data_dir=str(data / "2")), [2],
                tmp_path / "2" / "few", policy=few,
            )  # fmt: skip
    private = FLAT | {"table.group": "patient", "table.scale": "own"}
    private |= {"privacy.kind": "examples", "privacy.noise": 1.0}
    own = replace(Config.from_flat(private), data_dir=str(data / "2"))
    InstitutionNode(own, [2], tmp_path / "2" / "private")
    assert "up to 3 training rows, and up to that many times epsilon" in caplog.text


def test_a_joining_peer_brings_its_sample_count(tmp_path: Path) -> None:
    """FedAvg weights by n_i; that of the third peer counts from its first round."""
    data = fill(tmp_path / "data")
    flat = FLAT | {"evaluate-every": 1, "table.scale": "own"}
    result = Run(Config.from_flat(flat), tmp_path / "run")
    nodes = deployed(flat, result.directory, data)

    class Late(InProcessTransport):
        calls = 0

        def nodes(self) -> list[int]:
            self.calls += 1
            return [0, 1, 2] if result.ledger.round >= 1 else [0, 1]

    strategy = result.config.strategy()
    Broker(strategy, Late(nodes), result, join_timeout=0.0, quorum=2).run()
    n = np.array([problem_size(size) for size in SIZES], dtype=np.float64)
    weights = {t: np.array(result.reports[t, 0].weights) for t in (1, 4)}
    np.testing.assert_allclose(weights[1], [*(n[:2] / n[:2].sum()), 0.0])
    np.testing.assert_allclose(weights[4], n / n.sum())
    assert (4, 2) in result.reports


def names_in(directory: Path, config: Config, nodes: Sequence[Node]) -> list[str]:
    """Return the names of the peers in the rows of metrics.jsonl."""
    recorder = RunRecorder(directory, config.peers, config.num_server_rounds)
    Broker(config.strategy(), InProcessTransport(nodes), recorder, join_timeout=1.0).run()
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["peer_name"] for line in lines[-config.peers :]]


@pytest.mark.slow
def test_a_simulation_calls_peers_by_folder_and_a_deployment_by_key(tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    (data / "0").rename(data / "0-ward of Jane Doe")
    config = Config.from_flat(FLAT | {"data-dir": str(data)})
    folders = ["0-ward of Jane Doe", "1", "2"]
    where = tmp_path / "simulation"
    assert names_in(where, config, [Node(config, [0, 1], where), Node(config, [2], where)]) == (
        folders
    )
    keys = tmp_path / "keys"
    entries = [create(f"hospital-{p}", keys, p)[2] for p in range(3)]
    (keys / "trust.toml").write_text("".join(entry.toml() for entry in entries))
    sealed, plain = [], []
    for peer, folder in enumerate(folders):
        local = replace(config, data_dir=str(data / folder))
        sealing = Sealing(b"", ((peer, str(keys / f"hospital-{peer}.key")),), f"{keys}/trust.toml")
        home = tmp_path / f"node-{peer}" / "run"
        sealed.append(InstitutionNode(local, [peer], home, sealing))
        plain.append(InstitutionNode(local, [peer], tmp_path / f"plain-{peer}"))
    assert names_in(tmp_path / "sealed", config, sealed) == [f"hospital-{p}" for p in range(3)]
    assert names_in(tmp_path / "plain", config, plain) == ["peer 0", "peer 1", "peer 2"]


def problem_size(rows: int) -> int:
    return rows - 2 * round(0.2 * rows)


def test_data_that_does_not_fit_ends_the_run_with_one_line(tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    config = Config.from_flat(FLAT | {"table.classes": "no,maybe"})

    class Making:
        """Node that is created by its first request, as in a deployment."""

        def __init__(self, peer: int) -> None:
            self.peer = peer

        def handle(self, request: Any) -> Any:
            local = replace(config, data_dir=str(data / str(self.peer)))
            return InstitutionNode(local, [self.peer], tmp_path / "run").handle(request)

    with pytest.raises(RelayError, match=r"start: node \d: DataError: table: \d+ of \d+ rows"):
        Broker(
            config.strategy(), InProcessTransport([Making(p) for p in range(3)]), join_timeout=1.0
        ).run()
    assert not list((tmp_path / "run").glob("models/*"))


def test_a_method_that_needs_the_true_clusters_is_refused(tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    with pytest.raises(Exception, match=r"oracle: .*clusters"):
        deployed(FLAT | {"method": "oracle"}, tmp_path, data)


def test_a_method_that_needs_all_data_in_one_place_is_refused(tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    with pytest.raises(Exception, match=r"pooled .*only a simulation has in one place"):
        deployed(FLAT | {"method": "pooled"}, tmp_path, data)


def policy_with(disclosure: Disclosure) -> Policy:
    data, answers = DataPolicy(min_examples=2), AnswerPolicy("plain", min_examples=2)
    return Policy(data=data, answers=answers, reports=ReportPolicy(disclosure=disclosure))


@pytest.mark.slow
@pytest.mark.parametrize("disclosure", ["loss", "none"])
def test_reports_tell_no_more_than_the_operator_allows(
    disclosure: Disclosure, tmp_path: Path
) -> None:
    data = fill(tmp_path / "data")
    config = replace(Config.from_flat(FLAT), run_dir=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(config.toml())
    recorder = RunRecorder(tmp_path / "run", 3, config.num_server_rounds)
    nodes = deployed(FLAT, tmp_path / "run", data, policy=policy_with(disclosure))
    Broker(config.strategy(), InProcessTransport(nodes), recorder, join_timeout=1.0).run()
    recorder.finish()
    summary = finish(tmp_path / "run")
    results = Results.read(tmp_path / "run")
    assert results.reported.all()
    assert np.isnan(results.metric("test_accuracy")).all()
    assert np.isnan(results.metric("gradient_evaluations")).all()
    assert (results.metric("bytes_sent")[-1] > 0).all()
    assert summary["mean_test_accuracy"] is None
    assert summary["total_bytes"] > 0
    disclosed = disclosure == "loss"
    assert np.isnan(results.metric("test_loss")).all() != disclosed
    assert np.isnan(results.metric("train_loss")).all()  # not even then
    assert (summary["mean_test_loss"] is not None) == disclosed
    assert (results.weights[-1] == np.eye(3)).all() != disclosed
    write_report(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()


def test_a_node_that_misses_the_end_keeps_its_last_evaluated_model(tmp_path: Path) -> None:
    """The others have the last one; both cards say of which round."""
    data, run_dir = fill(tmp_path / "data"), tmp_path / "run"
    flat = FLAT | {"num-server-rounds": 5, "evaluate-every": 2}
    config = Config.from_flat(flat)
    recorder = RunRecorder(run_dir, 3, 5)

    class Leaving(InProcessTransport):
        def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
            rest = {n: of for n, of in requests.items() if n != 2 or of.round < 4}
            return {**dict.fromkeys(requests, "gone"), **super().exchange(rest)}

    nodes = deployed(flat, run_dir, data)
    Broker(config.strategy(), Leaving(nodes), recorder, join_timeout=1.0).run()
    recorder.finish(away=[2])
    cards = [json.loads(path.read_text()) for path in sorted(run_dir.glob("models/*.json"))]
    assert [(card["round"], card.get("rounds")) for card in cards] == [(5, None), (5, None), (2, 5)]
    models = [load_file(path) for path in sorted(run_dir.glob("models/*.safetensors"))]
    assert len(models) == 3
    line = "peer 2 was away at the end, after round 3 of 5, and has its model of round 2"
    with pytest.raises(AwayError, match=line):
        progress.require_end(run_dir)


@pytest.mark.slow
def test_one_silent_peer_among_others(tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    config = replace(Config.from_flat(FLAT), run_dir=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(config.toml())
    recorder = RunRecorder(tmp_path / "run", 3, config.num_server_rounds)
    nodes = deployed(FLAT, tmp_path / "run", data)
    nodes[1] = deployed(FLAT, tmp_path / "run", data, policy=policy_with("none"))[1]
    means = Broker(config.strategy(), InProcessTransport(nodes), recorder, join_timeout=1.0).run()
    recorder.finish()
    assert means[4].keys() >= {"test_loss", "test_accuracy"}
    summary = finish(tmp_path / "run")
    assert 0 <= summary["mean_test_accuracy"] <= 1
    write_report(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_continues_with_the_data_that_it_began_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fingerprints stay on the node, under its own key; the relay hears that its data are wrong."""
    data, config = fill(tmp_path / "data"), Config.from_flat(FLAT)
    homes = [tmp_path / f"home-{peer}" / "run" for peer in range(3)]
    left: list[str] = []

    class Recorded(InProcessTransport):
        def exchange(self, requests: Any) -> Any:
            responses = super().exchange(requests)
            left.append(repr(responses))
            return responses

    def go_on(before: Run | None, until: int | None = None) -> Run:
        record = Run(config, tmp_path / "relay", until=until)
        if before is not None:
            record.ledger = before.ledger
        nodes = [
            InstitutionNode(replace(config, data_dir=str(data / str(p))), [p], homes[p])
            for p in range(3)
        ]
        transport = Recorded(nodes)
        try:
            Broker(config.strategy(), transport, record, record.ledger, join_timeout=1.0).run()
        except StoppedError:
            pass
        except RelayError as error:
            raise error from transport.error
        return record

    begun = go_on(None, until=1)
    kept = [json.loads((home / "data.json").read_text()) for home in homes]
    assert not (tmp_path / "relay" / "data.json").exists()
    for peer, content in enumerate(kept):
        (digest,) = content["files"].values()
        assert content["files"].keys() == {"data.csv"}
        assert digest != sha256((data / str(peer) / "data.csv").read_bytes()).hexdigest()
        assert not any(
            word in text for text in left for word in (digest, *content["peers"].values())
        )
    begun = go_on(begun, until=2)
    table = data / "1" / "data.csv"
    before, times = table.read_bytes(), table.stat()
    table.write_bytes(before.replace(b"yes", b"no\n"))
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RelayError) as caught:
        go_on(begun)
    assert isinstance(caught.value.__cause__, DataError)
    assert "data.csv" not in f"{caught.value.__cause__}{left}"
    assert faults.line_of(caught.value.__cause__).startswith("data: ")
    assert "data.csv changed since" in caplog.text
    table.write_bytes(before)
    assert go_on(begun).rounds[-1] == 4
    card = json.loads((homes[1] / "models" / "peer-0001.json").read_text())
    assert card["data"] == kept[1]["peers"]["peer 1"]


def test_a_starting_run_gets_no_node_with_data_of_before(tmp_path: Path) -> None:
    data, nodes = fill(tmp_path / "data"), Nodes()
    config = replace(
        Config.from_flat(FLAT), data_dir=str(data / "1"), run_dir=str(tmp_path / "home" / "run")
    )

    def of(*, starts: bool) -> Node:
        return nodes.deployed(config, (1,), starts=starts)

    first = of(starts=True)
    assert of(starts=False) is first
    (data / "1" / "data.csv").write_text((data / "2" / "data.csv").read_text())
    assert of(starts=False) is first, "a run goes on with what it began with"
    assert of(starts=True) is not first


def test_a_node_of_an_earlier_version_says_that_it_checks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run has no data.json; a peer that joins late has none either, and nothing to say."""
    data, config = fill(tmp_path / "data"), Config.from_flat(FLAT)
    homes = [tmp_path / str(peer) / "run" for peer in range(3)]
    record = Run(config, tmp_path / "relay", until=2)
    for _ in range(2):
        nodes = [
            InstitutionNode(replace(config, data_dir=str(data / str(p))), [p], homes[p])
            for p in range(3)
        ]
        broker = Broker(
            config.strategy(), InProcessTransport(nodes), record, record.ledger, join_timeout=1.0
        )
        assert "cannot check" not in caplog.text
        with suppress(StoppedError):
            broker.run()
        for home in homes:
            (home / "data.json").unlink(missing_ok=True)
        record.until = None
    assert caplog.text.count("cannot check whether the data changed") == 3
