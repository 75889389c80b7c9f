"""Attack an institution's node as its relay, and as a submitter of runs.

The numbers S1, S2, ... are those of the attacks that were tried on an earlier version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from coterie.app import client
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.process.job import Job
from coterie.app.institution.requests.faults import MEANINGS
from coterie.app.institution.security import approval
from coterie.app.runs import atomic
from coterie.strategies.flower.records import decode_response, encode_request
from coterie.strategies.protocol import PeerMessage, Report, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import (
    ROWS,
    RUN,
    Institution,
    Relay,
    asking,
    config_of,
    institutions,
    response_of,
    started,
)
from tests.inprocess import message_of

START = Request("start", 0, 0, attempt="a")


@pytest.fixture
def nodes(tmp_path: Path) -> list[Institution]:
    return institutions(tmp_path)


def code_of(answer: Response | str) -> str:
    """Return the code of a fault; apart from it, the fault names only the peer."""
    assert isinstance(answer, str), "the node did it"
    peer, code, meaning = answer.split(": ")
    assert peer == "peer 0 (node-0)"
    assert meaning == f"{MEANINGS[code]}; see the log of this node"
    return code


def untouched(node: Institution) -> bool:
    """Return whether the node has trained no model."""
    return not list(node.home.rglob("*.safetensors"))


# --- S1: deployed means deployed -----------------------------------------------------------------


@pytest.mark.parametrize("typed", [{}, {"worker": False, "peer": 0, "simulated": True}])
def test_typing_what_a_simulation_has_makes_no_simulated_node(
    typed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: node-config as in Flower's guides, and a run that sets the paths."""
    monkeypatch.chdir(tmp_path)
    run: dict[str, Any] = {"dataset": "digits", "peers": 1, "method": "local", "model": "linear"}
    run |= {"partition.kind": "iid", "run-dir": str(tmp_path / "stolen")}
    config: dict[str, Any] = {"partition-id": 0, "num-partitions": 1, **typed}
    reply = client.handle(
        message_of(encode_request(START)), Context(7, 1, config, RecordDict(), run)
    )
    answer = decode_response(reply.content, START)
    assert isinstance(answer, str), "the node did it"
    assert "keys: keys, trust file or start command of this node are invalid" in answer
    assert not (tmp_path / "stolen").exists()


def test_flowers_simulation_is_told_by_its_process() -> None:
    """Ray that is merely there makes no simulation; `tests/app/runners` run a real one."""
    import ray  # noqa: F401

    assert not client.in_simulation()


# --- S7: what an institution joins --------------------------------------------------------------


def test_a_node_without_a_policy_takes_part_in_nothing(nodes: list[Institution]) -> None:
    node = nodes[0]
    del node.node_config["policy"]
    assert code_of(node.handle(START)) == "keys"
    assert untouched(node)


@pytest.mark.parametrize(
    ("run", "key"),
    [
        ({"method": "wga"}, "methods"),
        ({"dataset": "digits"}, "data.sets"),
        ({"num-server-rounds": 501}, "max-rounds"),
        ({"peers": 101}, "max-peers"),
        ({"batch-size": 1}, "data.min-batch-size"),
        ({"table.test": 0.6, "table.validation": 0.35}, "data.max-held-out"),
        ({"table.columns": "a, b, name"}, "data.columns"),
        ({"table.label": "c"}, "data.label"),
        ({"table.event": "c", "table.schema": "0" * 16, "table.classes": ""}, "data.label"),
        ({"table.classes": "yes, no"}, "data.classes"),
        ({"attack.kind": "nan", "attack.peers": "1"}, "no policy allows attack.kind"),
    ],
)
def test_a_run_outside_the_policy_is_refused_before_data_are_read(
    run: dict[str, Any], key: str, nodes: list[Institution], capsys: pytest.CaptureFixture[str]
) -> None:
    """The relay learns no more than that; the log names the key, and the decision is kept."""
    node = nodes[0]
    Path(str(node.node_config["data-dir"]), "data.csv").write_text("no table")
    node.run_config |= run
    assert code_of(node.handle(START)) == "policy"
    assert key in capsys.readouterr().err
    (decision,) = atomic.lines(node.home / "run" / "decisions.jsonl")
    assert decision["decision"].startswith(f"refused: {key}")
    assert config_of(node).method in (node.home / "run" / decision["config"]).read_text()


PRIVATE: dict[str, Any] = {
    "privacy.kind": "examples", "privacy.noise": 4.0, "privacy.budget": 3.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("run", "key"),
    [
        ({"privacy.kind": "none"}, "privacy.kind"),
        ({"privacy.budget": 0.0}, "privacy.max-epsilon"),
        ({"privacy.budget": 3.1}, "privacy.max-epsilon"),
        ({"privacy.delta": 0.01}, "privacy.max-delta"),
    ],
)
def test_a_run_that_is_not_private_enough_is_refused_before_data_are_read(
    run: dict[str, Any], key: str, nodes: list[Institution]
) -> None:
    node = nodes[0]
    node.set_policy(privacy__kind="examples", privacy__max_epsilon=3.0)
    table = Path(str(node.node_config["data-dir"]), "data.csv")
    rows = table.read_text()
    table.write_text("no table")
    node.run_config |= PRIVATE | run
    assert code_of(node.handle(START)) == "policy"
    (decision,) = atomic.lines(node.home / "run" / "decisions.jsonl")
    assert decision["decision"].startswith(f"refused: {key} = ")
    table.write_text(rows)
    node.run_config |= PRIVATE | {"privacy.delta": 1e-5}
    response_of(node, START)


def test_a_run_waits_for_a_person_and_an_approval_is_for_one_run(nodes: list[Institution]) -> None:
    node = nodes[0]
    node.set_policy(approval="digest")
    assert code_of(node.handle(START)) == "approval"
    digest = config_digest_of(config_of(node)).hex()
    approval.approve(node.home, "0" * 64)
    assert code_of(node.handle(START)) == "approval"
    approval.approve(node.home, digest)
    for _ in range(2):  # again after a restart
        response_of(node, START)
    decisions = atomic.lines(node.home / "run" / "decisions.jsonl")
    assert [line["decision"][:7] for line in decisions] == ["refused", "allowed"]
    node.run_config["name"] = "again"
    assert code_of(node.handle(START)) == "approval"
    node.run_config |= {"name": "run", "learning-rate": 0.2}
    assert code_of(node.handle(START)) == "approval"


def test_paths_of_a_run_never_reach_a_node(nodes: list[Institution], tmp_path: Path) -> None:
    """A pipe stands for /dev/zero: opening it would wait forever."""
    node, pipe = nodes[0], tmp_path / "pipe"
    os.mkfifo(pipe)
    for key in ("quadratic.file", "topology-file", "data-dir", "out", "run-dir"):
        node.run_config[key] = str(pipe)
    node.run_config |= {"dataset": "quadratic", "topology": "file"}
    assert code_of(node.handle(START)) == "configuration"
    node.run_config["topology"] = "full"
    assert str(pipe) not in str(config_of(node).flat())
    assert code_of(node.handle(START)) == "data"


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "forge",
    [
        lambda r: Request("local-rounds", 1, 10**9, attempt="a"),
        lambda r: Request("local-rounds", 1, 5, attempt="a"),
        lambda r: replace(r, stage="update", round=6, last=6),
        lambda r: replace(r, edges=np.array([[0, 0], [2, 0]])),
        lambda r: replace(r, edges=np.array([[1, 2], [2, 0]])),
        lambda r: replace(r, edges=np.array([[1, 0], [1, 0]])),
        lambda r: replace(r, edges=np.array([[7, 0], [2, 0]])),
        lambda r: replace(r, samples=np.arange(4)),
        lambda r: replace(r, asked=np.array([False, False])),
    ],
)
def test_an_order_that_the_strategy_does_not_allow_is_refused(
    forge: Callable[[Request], Request], nodes: list[Institution]
) -> None:
    offers = started(nodes)
    order = asking([offers[1], offers[2]])
    forged = forge(order)
    forged = replace(forged, letters=tuple(replace(x, round=forged.round) for x in forged.letters))
    nodes[0].version = forged.round - 1
    assert code_of(nodes[0].handle(forged)) == "request"
    nodes[0].version = 0
    assert len(response_of(nodes[0], order).letters) == 2


def test_a_method_that_asks_nobody_is_asked_nothing(nodes: list[Institution]) -> None:
    for node in nodes:
        node.run_config["method"] = "fedavg"
    offers = started(nodes)
    assert code_of(nodes[0].handle(asking([offers[1], offers[2]]))) == "request"


def test_a_letter_that_a_node_did_not_want_is_not_heard(nodes: list[Institution]) -> None:
    """FedeRiCo requests one neighbour; the relay delivers the other one, or both."""
    for node in nodes:
        node.run_config |= {"method": "federico", "federico.neighbours": 1}
        node.set_policy(methods="federico")
    offers = started(nodes)
    begin = Request("start", 0, 0, attempt="a", samples=asking([offers[1]]).samples)
    ((wanted, _),) = response_of(nodes[0], begin).wants.tolist()
    for letters in ([offers[1], offers[2]], [offers[3 - wanted]]):
        assert code_of(nodes[0].handle(asking(letters))) == "request"
    assert len(response_of(nodes[0], asking([offers[wanted]])).letters) == 1


# --- S12: rounds that are not the run's ---------------------------------------------------------


def test_a_start_beyond_the_run_changes_nothing(nodes: list[Institution]) -> None:
    """S12: it deleted older state and locked the run's name."""
    started(nodes)
    node = nodes[0]
    before = {path: path.read_bytes() for path in node.home.rglob("*") if path.is_file()}
    far = Request("start", 10**6, 10**6, committed=10**6, attempt="b")
    assert code_of(node.handle(far)) == "request"
    assert {path: path.read_bytes() for path in before} == before
    node.version = 0
    response_of(node, replace(START, attempt="c"))


# --- S2: no single cell -------------------------------------------------------------------------


def regression(node: Institution, **changes: Any) -> None:
    """The attack of S2: one training row, its label as the loss of round 0."""
    node.run_config |= {"table.label": "b", "table.columns": "a", "table.classes": ""}
    node.run_config |= changes
    node.set_policy(data__columns="a", data__label="b", data__classes="", data__max_held_out=1.0)


def test_a_run_cannot_make_a_loss_out_of_one_cell(nodes: list[Institution]) -> None:
    """S2: a part of one row. No key hides the columns: constants are those of schema.toml."""
    node = nodes[0]
    for share in (0.98, 0.995, 0.01):  # one row to train on, none, one to test with
        regression(node, **{"table.test": share})
        assert code_of(node.handle(START)) == "data"
    assert untouched(node)


def test_what_a_report_tells_does_not_change_with_one_label(
    nodes: list[Institution], tmp_path: Path
) -> None:
    """No measure of the training examples leaves the node."""
    reports: list[Report] = []
    for node in nodes[:1], institutions(tmp_path / "other")[:1]:
        regression(node[0])
        table = Path(str(node[0].node_config["data-dir"]), "data.csv")
        if reports:
            rows = table.read_text().splitlines()
            a, b, y = rows[7].split(",")
            rows[7] = f"{a},{float(b) + 0.05:.3f},{y}"
            table.write_text("\n".join(rows) + "\n")
        (node[0].home / "institution").mkdir(parents=True)
        (node[0].home / "institution" / "split.key").write_bytes(bytes(32))  # the same split
        node[0].handle(START)
        samples = np.array([rows // 2 for rows in ROWS])
        (report,) = response_of(node[0], replace(START, samples=samples)).reports
        assert report.metrics["train_loss"] is None
        assert report.metrics["test_loss"] is not None
        reports.append(report)
    assert reports[0] == reports[1]


def test_a_class_of_few_is_not_measured_by_itself(nodes: list[Institution]) -> None:
    """A sensitivity over one patient is whether the model was right about that one."""
    node = nodes[0]
    table = Path(str(node.node_config["data-dir"]), "data.csv")
    table.write_text(
        "\n".join(["a,b,y", *(f"{k},1,{'yes' if k < 4 else 'no'}" for k in range(80))])
    )
    (node.home / "institution").mkdir(parents=True)
    (node.home / "institution" / "split.key").write_bytes(bytes(32))  # has a patient in the test
    node.run_config |= {"method": "local", "num-server-rounds": 1}
    for least, disclosed in ((20, False), (1, True)):
        node.run_config["name"] = f"least-{least}"
        node.set_policy(data__min_examples=least)
        response_of(node, START)
        response_of(node, replace(START, samples=np.array([40, 25, 20])))
        request = Request("update", 1, 1, attempt="a", samples=np.array([40, 25, 20]))
        (report,) = response_of(node, request).reports
        assert (report.metrics["sensitivity"] is not None) == disclosed
        assert report.metrics["test_accuracy"] is not None


# --- S3: no count, name, value or existence ------------------------------------------------------


def test_faults_do_not_answer_questions_about_the_data(nodes: list[Institution]) -> None:
    """S3: every question about columns, labels, files and rows has the same answer."""
    node = nodes[0]
    node.set_policy(approval="digest", data__columns="any", data__label="any", data__classes="any")
    table = Path(str(node.node_config["data-dir"]), "data.csv")
    faults = set()
    questions: list[dict[str, Any]] = [
        {"table.columns": "a, nosuch"},
        {"table.columns": "a, y", "table.label": "b"},
        {"table.classes": "Alice Example, no"},
        {"table.classes": "yes"},
        {"table.columns": "a", "table.label": "nosuch"},
        {"table.group": "nosuch"},
        {"table.columns": "a", "table.group": "b", "table.test": 0.0},
        {"table.columns": "a", "table.split": "time", "table.time": "y"},
    ]
    for question in questions:
        node.run_config = {**RUN, **question, "name": f"run-{len(node.errors)}"}
        approval.approve(node.home, config_digest_of(config_of(node)).hex())
        assert code_of(node.handle(START)) == "data"
        faults.add(node.errors[-1])
    node.run_config = dict(RUN)
    approval.approve(node.home, config_digest_of(config_of(node)).hex())
    for content in ("a,b,y\n1,,no\n", "", None):
        table.unlink()
        if content is not None:
            table.write_text(content)
        node.handle(START)
        faults.add(node.errors[-1])
    assert len(faults) == 1


def test_marks_of_missing_cells_ask_no_questions(nodes: list[Institution]) -> None:
    """S3: a run that takes a number for a missing cell would fail only where a row has it."""
    node = nodes[0]
    node.set_policy(approval="digest")
    table = Path(str(node.node_config["data-dir"]), "data.csv")
    present = table.read_text().splitlines()[1].split(",")[0]
    answers = set()
    for number in (present, "12345.5"):
        node.run_config = {
            **RUN,
            "table.na-values": f"a={number}",
            "name": f"run-{len(node.errors)}",
        }
        approval.approve(node.home, config_digest_of(config_of(node)).hex())
        answers.add((code_of(node.handle(START)), node.errors[-1]))
    assert len(answers) == 1
    assert answers.pop()[0] == "data"


# --- S11: an uncommitted round ------------------------------------------------------------------


def test_a_round_asked_again_with_other_letters_is_on_the_ledger_and_limited(
    nodes: list[Institution],
) -> None:
    """S11: with and without C's letter; the difference is C's model. It survives restarts."""
    offers = started(nodes)
    node = nodes[0]
    node.set_policy(answers__max_replays=1)
    (ledger,) = [node.home / "institution" / "ledger-0000.jsonl"]
    response_of(node, asking([offers[1], offers[2]]))
    node.version = 0
    response_of(node, asking([offers[1]]))
    entries = [line for line in atomic.lines(ledger) if "heard" in line]
    assert [(line["from"], line["repeat"], line["differs"]) for line in entries] == [
        ([1, 2], 0, False),
        ([1], 1, True),
    ]
    node.version = 0
    assert code_of(node.handle(asking([offers[2]]))) == "budget"
    assert code_of(node.handle(asking([offers[1], offers[2]]))) == "budget"
    restart = replace(START, attempt="b", samples=np.array([rows // 2 for rows in ROWS]))
    response_of(node, restart)
    again = replace(asking([offers[1], offers[2]]), attempt="b")
    assert code_of(node.handle(again)) == "budget"


def test_other_weights_of_the_same_letters_are_on_the_ledger_too(nodes: list[Institution]) -> None:
    """A relay can also say that others have other numbers of examples; averages weigh by them."""
    offers = started(nodes)
    order = asking([offers[1], offers[2]])
    for samples in (order.samples, order.samples, order.samples * np.array([1, 2, 1])):
        nodes[0].version = 0
        response_of(nodes[0], replace(order, samples=samples))
    entries = [line for line in ledger_of(nodes[0]) if "heard" in line]
    assert [line["differs"] for line in entries] == [False, False, True]


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [("max_answers_per_round", 1), ("max_answers_per_peer", 0), ("max_answers", 1)],
)
def test_answers_are_budgeted(limit: str, allowed: int, nodes: list[Institution]) -> None:
    """Two are asked: `limit` = 1 refuses both at once, but not one, unless it was given before."""
    offers = started(nodes)
    node = nodes[0]
    node.set_policy(**{f"answers__{limit}": 1})
    if limit == "max_answers_per_peer":
        response_of(node, asking([offers[1], offers[2]]))  # one each
    else:
        assert code_of(node.handle(asking([offers[1], offers[2]]))) == "budget"
        response_of(node, asking([offers[1]]))
    answers = [x for x in ledger_of(node) if "answer-to" in x]
    assert len(answers) == (allowed or 2)
    response_of(node, asking([offers[1]]))  # the same answer again tells nothing new
    assert len([x for x in ledger_of(node) if "answer-to" in x]) == len(answers)


def test_the_budget_in_all_is_of_all_runs(nodes: list[Institution]) -> None:
    offers = started(nodes)
    node = nodes[0]
    node.set_policy(answers__max_answers=2)
    response_of(node, asking([offers[1], offers[2]]))
    for each in nodes:
        each.run_config["name"] = "other"
        each.version = None
    offers = started(nodes)
    assert code_of(node.handle(asking([offers[1]]))) == "budget"


def test_a_damaged_ledger_answers_nothing(nodes: list[Institution]) -> None:
    offers = started(nodes)
    response_of(nodes[0], asking([offers[1]]))
    with (nodes[0].home / "institution" / "ledger-0000.jsonl").open("a") as file:
        file.write('{"run": "ru\n')
    nodes[0].version = 0
    assert code_of(nodes[0].handle(asking([offers[1]]))) == "budget"


def ledger_of(node: Institution) -> list[dict[str, Any]]:
    lines = (node.home / "institution" / "ledger-0000.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fedavg", "cobo", "random-graph", "federico", "wga"])
def test_a_relay_that_keeps_to_the_strategy_is_refused_nothing(
    method: str, nodes: list[Institution]
) -> None:
    """One method of each strategy, through the real relay."""
    for node in nodes:
        node.run_config |= {"method": method, "federico.neighbours": 1, "evaluate-every": 2}
        node.run_config |= {"table.test": 0.25, "table.validation": 0.25}
        node.set_policy(methods=method, data__min_examples=10)
    strategy = config_of(nodes[0]).strategy()
    means = Broker(strategy, Relay(nodes), join_timeout=1.0).run()
    assert means.keys() == {0, 2, 4, 5}
    assert "test_accuracy" in means[5]
    assert not [line for node in nodes for line in node.errors]


def test_letters_of_a_run_that_is_allowed_are_exchanged(nodes: list[Institution]) -> None:
    """The control of all of these: a round of the run as its relay plays it."""
    offers = started(nodes)
    answered: list[PeerMessage] = []
    answered += response_of(nodes[0], asking([offers[1], offers[2]])).letters
    assert [letter.recipient for letter in answered] == [1, 2]
    edges = np.array([[1, 0], [2, 0]])
    samples = np.array([rows // 2 for rows in ROWS])
    update = Request(
        "update", 1, 1, edges, np.ones(2, dtype=np.bool_), attempt="a", samples=samples
    )
    (report,) = response_of(nodes[0], update).reports
    assert report.metrics["test_accuracy"] is not None
    assert Job(7, RUN, nodes[0].node_config, None).simulated is False


# --- T14: who may read what a node writes ---------------------------------------------------------


def test_what_a_node_writes_is_open_to_its_own_user_only(nodes: list[Institution]) -> None:
    """A whole run: states, models, cards, letters' memory, audit log, decisions and ledgers."""
    for node in nodes:
        node.run_config["num-server-rounds"] = 2
    node = nodes[0]
    node.set_policy(approval="digest")
    approval.approve(node.home, config_digest_of(config_of(node)).hex())
    earlier = node.home / "run"
    earlier.mkdir(mode=0o755)  # as a version before this one left it
    mask = os.umask(0o022)
    os.umask(mask)
    Broker(config_of(node).strategy(), Relay(nodes), join_timeout=1.0).run()
    assert not [line for node in nodes for line in node.errors]
    written = [node.home, *node.home.rglob("*")]
    names = {path.name for path in written}
    assert names >= {"audit-0000.jsonl", "mail-0000.json", "decisions.jsonl", "ledger-0000.jsonl"}
    assert names >= {"approvals.jsonl", "peer-0000.safetensors", "peer-0000.json"}
    assert not [path for path in written if path.stat().st_mode & 0o077]
    assert os.umask(mask) == mask, "nothing about the process has changed"


# --- preflight, asked by the relay ---------------------------------------------------------------


def asked(node: Institution, **request: Any) -> dict[str, str]:
    """Return the node's answer to a preflight request."""
    ask = Request("preflight", 0, 0, **({"clock": time.time()} | request))
    return dict(response_of(node, ask).checks)


def test_a_relay_that_asks_who_is_ready_gets_bands_and_codes(nodes: list[Institution]) -> None:
    node = nodes[0]
    checks = asked(node)
    assert checks.pop("versions").startswith("flwr 1.")
    assert checks.pop("data") == "train at least 20, test at least 20, validation fewer than 20"
    assert checks == dict.fromkeys(("clock", "policy", "keys", "out", "memory", "run"), "ok")
    assert untouched(node)
    assert node.version is None, "nothing was begun"
    assert asked(node, clock=time.time() - 100)["clock"] == "machine"
    node.set_policy(reports__disclosure="loss")
    assert asked(node)["data"] == "ok", "not even a band"


def test_a_run_that_may_not_start_may_not_look_at_data(nodes: list[Institution]) -> None:
    """A run that waits for approval reads no data either; the approval is kept."""
    node = nodes[0]
    Path(str(node.node_config["data-dir"]), "data.csv").write_text("no table")
    node.set_policy(methods="fedavg")
    checks = asked(node)
    assert (checks["run"], checks["data"]) == ("policy", "not looked at")
    node.set_policy(approval="digest")
    checks = asked(node)
    assert (checks["run"], checks["data"]) == ("approval", "not looked at")
    approval.approve(node.home, config_digest_of(config_of(node)).hex())
    for _ in range(2):
        assert asked(node)["data"] == "data"
    node.node_config.pop("policy")
    checks = asked(node)
    assert (checks["policy"], checks["run"], checks["data"]) == ("keys", "keys", "not looked at")


def test_only_a_preflight_asks_without_a_run(nodes: list[Institution]) -> None:
    letter = PeerMessage("offer", 1, None, 0, 8, bytes(8))
    assert code_of(nodes[0].handle(Request("preflight", 0, 0, letters=(letter,)))) == "request"
    nodes[0].run_config["peers"] = 20_000
    assert asked(nodes[0])["run"] == "policy", "whose graph would not fit into memory"
