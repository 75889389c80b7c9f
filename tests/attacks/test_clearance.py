"""Clearance: a node attacks its own letters; one that tells too much is held, and only that one.

Three hospitals send forests with leaves of single rows. At two of them the label follows from the
columns; at the third it is a coin, so that its forest can only memorise patients.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie.app.cli.main import main
from coterie.app.config.digest import config_digest_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.scale import Memory
from coterie.app.institution.security import clearance
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.policy import PolicyError, read_policy
from coterie.app.institution.security.trust import KeysError, read_trust
from coterie.app.runs import atomic
from coterie.strategies.protocol import PeerMessage, Request
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import RUN, Institution, Relay, config_of, institutions

FORESTS: dict[str, Scalar] = RUN | {
    "method": "mixture", "model": "forest", "num-server-rounds": 1, "table.split": "random",
    "forest.trees": 10, "forest.min-samples-leaf": 1, "forest.threshold-step": 0.0,
}  # fmt: skip
COIN = 2
"""Hospital whose labels are coins."""


def write_table(folder: Path, peer: int, rows: int = 160) -> None:
    """Write the table of a hospital."""
    draw = np.random.default_rng(10 + peer)
    x_nk = draw.normal(size=(rows, 2)).round(3)
    ill_n = draw.random(rows) < 0.5 if peer == COIN else x_nk[:, 0] > 0
    with (folder / "data.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "y"])
        table.writerows([*x, "yes" if y else "no"] for x, y in zip(x_nk, ill_n, strict=True))


def fix_split(out: Path) -> None:
    """Let a node divide its rows in the same way each time."""
    own = out / "institution"
    own.mkdir(parents=True)
    (own / "split.key").write_bytes(bytes(range(32)))


def hospitals(
    directory: Path, run: dict[str, Scalar] = FORESTS, **policy: Any
) -> list[Institution]:
    """Return institutions with larger tables, and a policy with [clearance]."""
    nodes = institutions(directory, run)
    for node in nodes:
        write_table(Path(str(node.node_config["data-dir"])), node.peer)
        fix_split(node.home)
        keys: dict[str, Any] = {
            "methods": str(run["method"]), "answers__min_examples": 1, "clearance__action": "hold",
            "answers__threshold_step": 0.0,
        }  # fmt: skip
        node.set_policy(**keys | policy)
    return nodes


def played(nodes: list[Institution]) -> None:
    Broker(config_of(nodes[0]).strategy(), Relay(nodes), join_timeout=0).run()


def sheet_of(node: Institution) -> dict[str, Any]:
    sheet = clearance.read(node.home / "run")
    assert sheet is not None
    return sheet


def verdicts(node: Institution, kind: str = "offer") -> list[str]:
    return [each["verdict"] for each in sheet_of(node)["letters"] if each["kind"] == kind]


def received(node: Institution) -> set[str]:
    """Return the peers whose letters a node accepted."""
    lines = atomic.lines(node.home / "run" / f"audit-000{node.peer}.jsonl")
    return {line["from"] for line in lines if line["verdict"] == "accepted"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[Institution]:
    nodes = hospitals(tmp_path_factory.mktemp("hospitals"))
    played(nodes)
    return nodes


def test_only_the_memorising_tree_is_held(done: list[Institution]) -> None:
    """The others finish with each other's letters, and so does the hospital that sent none."""
    for node in done:
        (letter,) = sheet_of(node)["letters"]
        low = letter["measured"]["ratio"]["auc"][1]
        assert letter["verdict"] == ("held" if node.peer == COIN else "sent")
        assert (low > 0.6) == (node.peer == COIN)
        assert received(node) == {f"{k} node-{k}" for k in range(3) if k not in (node.peer, COIN)}
        assert node.version == 1
        assert (node.home / "run" / "models" / f"peer-000{node.peer}.safetensors").exists()


def test_the_sheet_and_the_card_say_why(done: list[Institution]) -> None:
    run = done[COIN].home / "run"
    page, card = (run / "clearance.md").read_text(), (run / "models" / "peer-0002.md").read_text()
    assert len(page.splitlines()) < 40
    assert "held: membership, AUC 0." in page
    assert "limit 0.6" in page
    assert "does not show" in page
    assert "attacked 1 of its letters before they left, and 0 of them left" in card


def test_a_changed_byte_breaks_the_signature(
    done: list[Institution], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = done[COIN]
    trust = Path(str(node.node_config["trust"]))
    assert main(["keys", "verify", str(node.home / "run"), "--file", str(trust)]) == 0
    assert "valid: node-2 (peer 2) signed this sheet" in capsys.readouterr().out
    text = (node.home / "run" / "clearance.json").read_text()
    assert text.count('"held"') == 1
    for old, new in (('"held"', '"sent"'), ("node-0", "node-1"), ("0.6", "0.7")):
        (tmp_path / "clearance.json").write_text(text.replace(old, new, 1))
        assert main(["keys", "verify", str(tmp_path), "--file", str(trust)]) == 2
        assert "the signature is not valid" in capsys.readouterr().err
    other = PrivateKeys.generate().public
    with pytest.raises(KeysError):
        clearance.verify(sheet_of(node), other)
    clearance.verify(sheet_of(node), read_trust(trust)[COIN].keys)
    (tmp_path / "clearance.json").write_text(text[:-9])
    with pytest.raises(atomic.DamagedError, match="put it back"):
        clearance.read(tmp_path)


def test_a_letter_waits_until_a_person_approves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the approval, letters of this run leave; nothing of other runs is approved."""
    nodes = hospitals(tmp_path, clearance__action="ask")
    node = nodes[COIN]
    played(nodes)
    assert verdicts(node) == ["waits for approval"]
    run = node.home / "run"
    assert f"coterie approve --letters {run}" in caplog.text
    digest = clearance.digest_for_letters(config_digest_of(config_of(node)).hex(), run.name)
    assert main(["approve", "--letters", str(run), "--digest", "0" * 64]) == 2
    assert main(["approve", "--letters", str(run), "--digest", digest]) == 0
    policy, gate = read_policy(Path(str(node.node_config["policy"]))), clearance.Gate
    again = gate(policy, config_of(node), run, COIN)
    assert again._verdict(is_above=True, is_unknown=False) == "sent after approval"
    assert again._sheet["letters_approved_by"]
    assert main(["approve", "--letters", str(run), "--digest", digest]) == 0  # once too often
    other = gate(policy, config_of(node), node.home / "other", COIN)
    assert not other._sheet["letters_approved_by"]
    assert other._verdict(is_above=True, is_unknown=False) == "waits for approval"


def test_too_few_held_out_patients_say_nothing(tmp_path: Path) -> None:
    """Then a person decides, whatever happens above the limits."""
    for action in ("warn", "hold"):
        nodes = hospitals(
            tmp_path / action, clearance__action=action, clearance__min_held_out=81,
            clearance__max_auc=1.0,
        )  # fmt: skip
        played(nodes)
        assert [verdicts(node) for node in nodes] == [["waits for approval"]] * 3
        (letter,) = sheet_of(nodes[0])["letters"]
        assert letter["reasons"] == ["80 held-out patients, minimum 81, to measure membership"]


def test_off_is_off_and_a_warning_changes_no_letter(tmp_path: Path) -> None:
    models = []
    for action in ("none", "warn"):
        nodes = hospitals(tmp_path / action, clearance__action=action)
        played(nodes)
        runs = [node.home / "run" / "models" for node in nodes]
        files = [run / f"peer-000{peer}.safetensors" for peer, run in enumerate(runs)]
        models.append([load_file(file) for file in files])
        sheets = [clearance.read(node.home / "run") for node in nodes]
        assert (sheets == [None] * 3) == (action == "none")
    assert verdicts(nodes[COIN]) == ["sent with a warning"]
    for before, after in zip(*models, strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_answers_and_statistics_pass_the_same_gate(tmp_path: Path) -> None:
    """Answers are measured in every round: a reader cannot ask between two measurements."""
    run = RUN | {"num-server-rounds": 5, "table.scale": "common", "table.split": "random"}
    nodes = hospitals(
        tmp_path, run, clearance__max_auc=1.0, clearance__every=3, data__share_statistics="yes",
        answers__min_examples=8,
    )  # fmt: skip
    played(nodes)
    sheet = sheet_of(nodes[0])
    rounds: dict[str, list[int]] = {}
    for each in sheet["letters"]:
        rounds.setdefault(each["kind"], []).append(each["round"])
        assert each["verdict"] == "sent", each
    assert rounds == {
        "statistics": [0],
        "offer": [1, 4, 5],
        "answer": [t for t in range(1, 6) for _ in "ab"],
    }
    answer = next(each for each in sheet["letters"] if each["kind"] == "answer")
    assert answer["measured"]["held_out"] == 80
    assert answer["measured"]["readable"] == 0
    assert sheet["letters"][0]["measured"] == {"fewest": 80}


def test_the_sheet_counts_letters_that_are_not_measured(tmp_path: Path) -> None:
    """Between two measurements letters leave, and the sheet counts them."""
    run = RUN | {"num-server-rounds": 5, "method": "fedavg"}
    nodes = hospitals(tmp_path, run, clearance__max_auc=1.0, answers__min_examples=8)
    played(nodes)
    assert [each["round"] for each in sheet_of(nodes[0])["letters"]] == [1, 5]
    assert sheet_of(nodes[0])["not_measured"] == {"offer": 3}


def test_first_and_last_letter_of_a_peer_that_sleeps_are_measured(tmp_path: Path) -> None:
    """Also if it is not awake in the first and the last round."""
    run = RUN | {
        "num-server-rounds": 6, "method": "fedavg", "schedule.kind": "sample",
        "schedule.fraction": 0.67, "seed": 10,
    }  # fmt: skip
    nodes = hospitals(tmp_path, run, clearance__max_auc=1.0, answers__min_examples=8)
    awake = config_of(nodes[0]).strategy().schedule.awake
    rounds = [t for t in range(1, 7) if awake(t)[0]]
    assert 1 < rounds[0] < rounds[1] < rounds[-1] < 6
    played(nodes)
    assert [each["round"] for each in sheet_of(nodes[0])["letters"]] == [rounds[0], rounds[-1]]


def test_a_letter_of_nothing_leaves(tmp_path: Path) -> None:
    """FedRep's body of a network of one layer has no number."""
    run = RUN | {"num-server-rounds": 2, "method": "fedrep"}
    nodes = hospitals(tmp_path, run, answers__min_examples=8)
    played(nodes)
    assert verdicts(nodes[0]) == ["sent"] * 2
    assert nodes[0].version == 2


def test_statistics_that_are_held_are_the_reason_why_a_run_does_not_begin(tmp_path: Path) -> None:
    (node, *_), run = hospitals(tmp_path), tmp_path / "run"
    policy = read_policy(Path(str(node.node_config["policy"])))
    gate = clearance.Gate(policy, config_of(node), run, 0)
    letter = PeerMessage("statistics", 0, None, 0, 8, b"12345678")
    assert not gate.passes(letter, ["node-1"], lambda: {"fewest": 3}, is_last=False)
    with pytest.raises(PolicyError, match="stopped the statistics"):
        gate.require_sent("statistics")
    assert gate.passes(letter, ["node-1"], lambda: {"fewest": 300}, is_last=False)
    gate.require_sent("statistics")


def test_another_configuration_under_the_same_name_keeps_the_sheet(tmp_path: Path) -> None:
    nodes = hospitals(tmp_path)
    played(nodes)
    run, policy = nodes[0].home / "run", read_policy(Path(str(nodes[0].node_config["policy"])))
    before = (run / "clearance.json").read_text()
    nodes[0].run_config["num-server-rounds"] = 2
    clearance.Gate(policy, config_of(nodes[0]), run, 0).write(None, "", None)
    (kept,) = run.glob("clearance-*.json")
    assert kept.read_text() == before
    assert sheet_of(nodes[0])["letters"] == []


def test_after_a_letter_that_did_not_leave_all_are_measured(tmp_path: Path) -> None:
    run = RUN | {"num-server-rounds": 4, "method": "fedavg"}
    nodes = hospitals(tmp_path, run, answers__min_examples=8, clearance__min_held_out=81)
    played(nodes)
    assert verdicts(nodes[0]) == ["waits for approval"] * 4


def test_a_run_cannot_ask_a_node_to_report_what_it_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = hospitals(tmp_path, FORESTS | {"clearance": True})[0]
    assert "configuration" in str(node.handle(Request("start", 0, 0, attempt="a")))
    assert "clearance is for simulations" in caplog.text


def test_one_patient_more_is_behind_the_difference_of_two_exact_letters(tmp_path: Path) -> None:
    """The difference of two curvatures of one patient more is this patient."""
    rows, memory = np.random.default_rng(0).normal(size=(60, 3)), Memory(tmp_path)
    patients = np.arange(60) // 2
    assert memory.changed(rows[:50], None) is None
    assert memory.changed(rows[:50][::-1], None) is None  # the same letter tells nothing new
    assert memory.changed(rows[:51], None) == 1
    assert Memory(tmp_path).changed(rows[:54], None) == 3
    assert memory.changed(rows[:50], patients[:50]) is not None
    assert memory.changed(rows[:52], patients[:52]) == 1
    assert not any(f"{value}" in (tmp_path / "statistics.jsonl").read_text() for value in rows[0])


def test_two_runs_and_one_patient_more_are_held(tmp_path: Path) -> None:
    """The test part is a file of its own, so that the training parts differ by one patient."""
    run = RUN | {
        "method": "partial-pooling", "num-server-rounds": 1, "partial-pooling.min-rows": 8,
    }  # fmt: skip
    nodes = hospitals(tmp_path, run, answers__min_examples=8, clearance__max_auc=1.0)
    for node in nodes:
        file = Path(str(node.node_config["data-dir"])) / "data.csv"
        head, *rows = file.read_text().splitlines()
        file.with_name("train.csv").write_text("\n".join([head, *rows[:80]]) + "\n")
        file.with_name("test.csv").write_text("\n".join([head, *rows[80:]]) + "\n")
        file.unlink()
    played(nodes)
    assert verdicts(nodes[0]) == ["sent"]
    train = Path(str(nodes[0].node_config["data-dir"])) / "train.csv"
    train.write_text(train.read_text() + "2.5,-0.5,yes\n")
    for node in nodes:
        node.run_config["name"], node.version = "more", None
    played(nodes)
    (letter,) = (clearance.read(nodes[0].home / "more") or {})["letters"]
    assert (letter["verdict"], letter["measured"]["fewest"]) == ("held", 1)
    assert letter["reasons"] == ["a number is about 1 patient, minimum 8"]
    (other,) = (clearance.read(nodes[1].home / "more") or {})["letters"]
    assert other["verdict"] == "sent"
