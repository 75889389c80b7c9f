"""An approval: of what was shown, by its digest, and used once, however many ask at once."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.root import ROOT
from coterie.app.institution.security import approval
from coterie.app.institution.security.approval import ApprovalError
from coterie.app.institution.security.journal import Journal
from coterie.app.institution.security.privacy_ledger import PrivacyLedger
from coterie.app.runs import atomic
from coterie.clients.engine.accountant import ORDERS
from coterie.strategies.protocol import Request, Response
from tests.attacks.consortium import Institution, config_of, institutions, response_of

DIGEST = "ab" * 32
START = Request("start", 0, 0, attempt="a")
TAKE = """
import sys
from pathlib import Path
from coterie.app.institution.security import approval
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    try:
        approval.require_approval(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", "ab" * 32)
        print("approved")
    except approval.ApprovalError:
        pass
"""


@pytest.fixture
def node(tmp_path: Path) -> Institution:
    node = institutions(tmp_path)[0]
    node.set_policy(approval="digest")
    return node


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], str]], None]:
    """Sit at a terminal, and answer."""

    def sit(answer: Callable[[], str]) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("builtins.input", lambda _: answer())

    return sit


def code_of(answer: Response | str) -> str:
    assert isinstance(answer, str), "the node did it"
    return answer.split(": ")[1]


def approvals(out: Path) -> list[dict[str, object]]:
    return atomic.lines(out / "institution" / "approvals.jsonl")


def test_what_arrives_while_a_person_reads_is_not_approved(
    node: Institution, answering: Callable[[Callable[[], str]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """T3: the relay sends another configuration under the same name."""
    node.run_config["learning-rate"] = 0.3
    assert code_of(node.handle(START)) == "approval"
    seen = config_digest_of(config_of(node)).hex()

    def another() -> str:
        node.run_config["learning-rate"] = 0.9
        assert code_of(node.handle(START)) == "approval"
        return "yes"

    answering(another)
    assert main(["approve", str(node.home / "run")]) == 0
    assert "learning-rate = 0.3\n" in capsys.readouterr().out
    (line,) = approvals(node.home)
    assert line["digest"] == seen
    assert code_of(node.handle(START)) == "approval", "the other one still waits"
    node.run_config["learning-rate"] = 0.3
    response_of(node, START)


@pytest.mark.parametrize("reply", ["", "no", "y", "yes please"])
def test_nothing_but_yes_approves(
    reply: str, node: Institution, answering: Callable[[Callable[[], str]], None]
) -> None:
    node.handle(START)
    answering(lambda: reply)
    assert main(["approve", str(node.home / "run")]) == 2
    assert not approvals(node.home)


def test_without_a_terminal_the_digest_is_given(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    node.handle(START)
    line = ["approve", str(node.home / "run")]
    assert main(line) == 2
    digest = config_digest_of(config_of(node)).hex()
    assert f"add --digest {digest}\n" in capsys.readouterr().err
    for wrong in (DIGEST, digest[:12], digest.upper(), ""):
        assert main([*line, "--digest", wrong]) == 2
    assert not approvals(node.home)
    assert main([*line, "--digest", digest]) == 0
    response_of(node, START)


def test_a_configuration_that_is_not_what_came_is_not_approved(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    node.handle(START)
    (file,) = (node.home / "run").glob("config-*.toml")
    digest = config_digest_of(config_of(node)).hex()
    assert file.name == f"config-{digest}.toml"
    file.write_text(file.read_text().replace("learning-rate = 0.1", "learning-rate = 0.2"))
    assert main(["approve", str(node.home / "run"), "--digest", digest]) == 2
    assert "not the configuration that was received" in capsys.readouterr().err


def test_approve_shows_what_matters_and_what_has_changed(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run_config |= {"privacy.kind": "examples", "privacy.budget": 4.0}
    node.handle(START)
    digest = config_digest_of(config_of(node)).hex()
    assert main(["approve", str(node.home / "run"), "--digest", digest]) == 0
    shown = capsys.readouterr().out
    top, _, rest = shown.partition("\nKeys that differ from the defaults")
    assert 'columns  "a, b"' in top
    assert 'label    "y"' in top
    assert "privacy  epsilon at most 4 in all runs, delta 1e-05, noise 1" in top
    assert 'privacy.kind = "examples"' in rest
    assert "time     at most 600 s per round and 600 s for all to join" in top
    assert not {"privacy.clip", "local-steps"} & set(re.findall(r"^\S+", rest, re.M)), "defaults"
    assert "No run has been allowed here before." in rest
    assert len(shown.splitlines()) < 45
    response_of(node, START)
    node.run_config |= {"name": "second", "num-server-rounds": 9, "privacy.budget": 5.0}
    node.handle(START)
    main(["approve", str(node.home / "second")])
    changed = capsys.readouterr().out.partition('the last run that was allowed here, "run":\n')[2]
    assert changed.partition("\n\n")[0].splitlines() == [
        "num-server-rounds = 9 (was 5)", "privacy.budget = 5.0 (was 4.0)"
    ]  # fmt: skip


def test_a_recorded_configuration_loads_no_code(
    node: Institution, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`approve` refuses it, and `status` shows the run without its method."""
    node.handle(START)
    (file,) = (node.home / "run").glob("config-*.toml")
    (node.home / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(node.home)
    file.write_text(file.read_text().replace('model = "linear"', 'model = "evil:x"'))
    assert main(["approve", str(node.home / "run")]) == 2
    assert 'model = "evil:x" is not built in, and a file of a run loads' in capsys.readouterr().err
    assert main(["status", str(node.home)]) == 0
    assert re.search(r"^ run +\? ", capsys.readouterr().out, re.MULTILINE)


def test_what_a_person_reads_is_spelt_out(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal shows what lies between U+202E and U+202C from right to left."""
    node.run_config["table.columns"] = "a, \u202eb\u202c\u009b2J"
    node.handle(START)
    main(["approve", str(node.home / "run")])
    shown = capsys.readouterr().out
    assert "a, \\u202eb\\u202c" in shown
    assert not {"\u202e", "\u202c", "\u009b", "\x1b"} & set(shown)


def test_one_approval_is_used_by_one_of_many_runs_at_once(tmp_path: Path) -> None:
    """T4, in one process: each thread has a lock of its own on the file."""
    approval.approve(tmp_path, DIGEST)

    def take(run: int) -> bool:
        try:
            approval.require_approval(tmp_path, f"run-{run}", DIGEST)
        except ApprovalError:
            return False
        return True

    with ThreadPoolExecutor(15) as pool:
        assert sum(pool.map(take, range(60))) == 1
    assert len(approvals(tmp_path)) == 2


@pytest.mark.e2e
def test_one_approval_is_used_once_by_many_processes(tmp_path: Path) -> None:
    approval.approve(tmp_path, DIGEST)
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(tmp_path), f"run-{k}"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for k in range(4)
    ]  # fmt: skip
    for taker in takers:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "ready\n"
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write("\n")
        taker.stdin.flush()
    outputs = [taker.communicate(timeout=60)[0] for taker in takers]
    assert "".join(outputs).count("approved") == 1


def test_the_same_run_goes_on_with_its_approval_and_no_other_does(tmp_path: Path) -> None:
    approval.approve(tmp_path, DIGEST)
    for _ in range(3):
        approval.require_approval(tmp_path, "run", DIGEST)
    for run in ("Run", "run2", "run "):
        with pytest.raises(ApprovalError):
            approval.require_approval(tmp_path, run, DIGEST)


def test_the_command_that_a_node_suggests_is_quoted(tmp_path: Path) -> None:
    out = tmp_path / "x $(touch PWNED)"
    with pytest.raises(ApprovalError) as waits:
        approval.require_approval(out, "run", DIGEST)
    assert str(waits.value).endswith(f"coterie approve '{out}/run'")


def test_a_run_directory_of_somebody_else_names_no_file(tmp_path: Path) -> None:
    """`decisions.jsonl` has the digest that names the file."""
    secret = tmp_path / "secret.toml"
    secret.write_text(Config.from_flat({}).toml())
    digests: list[object] = ["../secret", "x" * 64, None, 3, [], "AB" * 32]
    for digest in digests:
        line = {"digest": digest, "config": "../secret.toml"}
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "decisions.jsonl").unlink(missing_ok=True)
        atomic.append(tmp_path / "run" / "decisions.jsonl", line)
        assert main(["approve", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "institution").exists()


@pytest.mark.e2e
def test_a_person_at_a_terminal_is_asked(tmp_path: Path) -> None:
    """A real terminal: the configuration, its digest, the question, and then the answer."""
    preset = tmp_path / "run.toml"
    preset.write_text('method = "fedavg"\nseed = 77\n')
    here, there = pty.openpty()
    asked = subprocess.Popen(
        [sys.executable, "-m", "coterie", "approve", str(preset), "--out", str(tmp_path / "out")],
        cwd=ROOT, stdin=there, stdout=there, stderr=there,
    )  # fmt: skip
    os.close(there)
    shown = b""
    while b"Type yes" not in shown:
        shown += os.read(here, 4096)
    assert not (tmp_path / "out").exists()
    assert b"seed = 77" in shown
    os.write(here, b"yes\n")
    assert asked.wait(60) == 0
    (line,) = approvals(tmp_path / "out")
    assert str(line["digest"]).encode() in shown
    os.close(here)


def test_status_of_a_node_has_waiting_approvals_runs_and_the_privacy_spent(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run_config |= {"method": "fedavg", "privacy.kind": "examples", "privacy.budget": 4.0}
    assert code_of(node.handle(START)) == "approval"
    assert main(["status", str(node.home)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"run waits for approval: coterie approve {node.home / 'run'}; 10 min left" in shown
    assert shown.endswith(" waits for approval"), "it is not refused"
    assert main(["status", str(node.home / "run")]) == 0
    assert " ".join(capsys.readouterr().out.split()) == shown
    digest = config_digest_of(config_of(node)).hex()
    approval.approve(node.home, digest)
    main(["status", str(node.home)])
    assert f"approved in advance, for 1 run: {digest}" in capsys.readouterr().out
    node.handle(START)
    journal = Journal(node.home / approval.OWN / "privacy-0.jsonl")
    with PrivacyLedger(journal, "run").account(1) as (_, cost_1a):
        cost_1a += 0.1 * np.array(ORDERS)
    assert main(["status", str(node.home)]) == 0
    shown = capsys.readouterr().out
    ((spent, left),) = re.findall(r"0: epsilon (\S+) spent .+; (\S+) left of run's 4\n", shown)
    assert float(spent) > 1
    assert abs(float(spent) + float(left) - 4) < 0.02
    assert "waits for approval" not in shown
    assert "approved in advance" not in shown, "the run has used it"
    assert re.search(r"run +fedavg +\S+ +allowed", shown)
    main(["approve", str(node.home / "run")])
    shown = capsys.readouterr().out
    assert f"spent    epsilon {spent} of peer 0, in all runs on this node; {left} left" in shown
