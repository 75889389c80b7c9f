"""Test policy.toml: error messages, and allowed and refused runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.keys import ConfigError
from coterie.app.config.settings import keys
from coterie.app.institution.process.job import Job
from coterie.app.institution.security import approval
from coterie.app.institution.security.disclosure import precision, protected
from coterie.app.institution.security.policy import (
    RENAMED,
    TABLES,
    AnswerPolicy,
    DataPolicy,
    Policy,
    PolicyError,
    ReportPolicy,
    policy_of,
    read_policy,
)
from coterie.app.institution.security.run_check import check_run
from coterie.app.runs import atomic
from coterie.clients.engine.privacy import normal
from coterie.strategies.protocol import Report
from tests.harness.deployment import exchange_keys

PRESET = """
method = "fedavg"
peers = 3
num-server-rounds = 4
dataset = "table"
[table]
columns = "a, b"
label = "y"
classes = "no, yes"
"""
PLAIN = Policy(answers=AnswerPolicy("plain"))
ITEMS = ("data.sets=table", "data.columns=a, b", "data.label=y", "data.classes=no, yes")


def file(directory: Path, text: str) -> Path:
    path = directory / "policy.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(arguments)
    out, error = capsys.readouterr()
    return code, out + error


def test_what_init_writes_is_what_check_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "home" / "policy.toml"
    assert printed(["policy", "init", str(path), *ITEMS], capsys)[0] == 0
    assert read_policy(path) == policy_of(dict(item.split("=") for item in ITEMS))
    path.write_text("\ufeff" + path.read_text())  # as Windows' Notepad saves it
    assert read_policy(path) == policy_of(dict(item.split("=") for item in ITEMS))
    assert printed(["policy", "check", str(path)], capsys) == (0, f"{path} is in order\n")
    code, line = printed(["policy", "init", str(path)], capsys)
    assert (code, line) == (2, f"{path} exists already: change it with an editor\n")


def test_every_key_is_explained_and_a_file_needs_none(tmp_path: Path) -> None:
    text = Policy().toml()
    assert read_policy(file(tmp_path, text)) == read_policy(file(tmp_path, "")) == Policy()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if "=" in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# ")
    assert len(lines) < 175
    assert set(TABLES) == {"", "data", "reports", "answers", "privacy", "clearance", "limits"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("approve = true", 'unknown key "approve"'),
        ("[data]\nset = 'table'", 'unknown key "data.set", did you mean "data.sets"?'),
        ("approval = 'maybe'", 'approval = "maybe": must be "digest" or "none"'),
        ("max-rounds = '9'", 'max-rounds = "9": must be an integer'),
        ("max-rounds = 0", "max-rounds = 0: must be at least 1"),
        ("[privacy]\nmax-epsilon = 0", "privacy.max-epsilon = 0: must be above 0"),
        ("[privacy]\nmax-delta = 1", "privacy.max-delta = 1: must be above 0 and below 1"),
        ("methods = 'fedavg, cobol'", 'methods: there is no "cobol", did you mean "cobo"?'),
        ("[data]\nsets = 'tables'", 'data.sets: there is no "tables", did you mean "table"?'),
        ("approval = 'none'", 'methods = "any" needs approval = "digest"'),
        (
            "approval = 'none'\nmethods = 'local'\n[data]\nsets = 'table'",
            'data.columns = "any" needs approval = "digest"',
        ),
        ("methods", "is not TOML"),
    ],
)
def test_a_wrong_policy_is_one_line_that_names_the_key(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as error:
        read_policy(file(tmp_path, text))
    assert message in str(error.value)
    assert str(error.value).startswith(f"policy {tmp_path / 'policy.toml'}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_key_of_an_earlier_version_is_refused_with_its_new_name(
    old: str, new: str, tmp_path: Path
) -> None:
    table, _, key = old.rpartition(".")
    with pytest.raises(PolicyError) as error:
        read_policy(file(tmp_path, f"[{table}]\n{key} = 1" if table else f"{key} = 1"))
    assert f'unknown key "{old}": it is called "{new}" now' in str(error.value)
    assert new in Policy().flat()


def test_letters_about_own_data_are_private_unless_a_person_writes_plain() -> None:
    """A run that sends no letters needs no privacy, and neither does one on published data."""
    table: dict[str, Any] = {"dataset": "table", "table.columns": "a"}
    for method in ("fedavg", "wga"):
        run = Config.from_flat(table | {"method": method})
        with pytest.raises(PolicyError, match=r'answers\.kind = "private" does not allow method'):
            check_run(Policy(), run)
        check_run(policy_of({"answers.kind": "plain"}), run)
        check_run(Policy(), Config.from_flat({"method": method}))
        private = {"privacy.kind": "examples", "privacy.noise": 4.0, "privacy.budget": 8.0}
        check_run(Policy(), Config.from_flat(table | private | {"method": method}))
    check_run(Policy(), Config.from_flat(table | {"method": "local"}))
    text = " ".join(Policy().toml().replace("#", "").split())
    assert "EVERY PEER IN THE TRUST FILE CAN READ SINGLE EXAMPLES" in text


def test_a_policy_that_others_may_write_to_is_none(tmp_path: Path) -> None:
    path = file(tmp_path, "")
    path.chmod(0o664)
    with pytest.raises(PolicyError, match="chmod go-w"):
        read_policy(path)
    path.chmod(0o644)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PolicyError, match=r"may write to the folder .*open: chmod go-w"):
        read_policy(path.rename(tmp_path / "open" / "policy.toml"))
    with pytest.raises(PolicyError, match="No such file"):
        read_policy(tmp_path / "none.toml")


def test_any_batch_size_of_a_run_is_limited_where_data_are_own() -> None:
    """Check all batch sizes of a run; All-for-one has a second one."""
    table: dict[str, Any] = {"dataset": "table", "table.columns": "a", "method": "all-for-one"}
    sizes = [key for key in keys() if key.endswith("batch-size")]
    assert len(sizes) > 1
    for key in sizes:
        with pytest.raises(PolicyError, match=rf"data.min-batch-size = 8 does not allow {key} = 7"):
            check_run(PLAIN, Config.from_flat(table | {key: 7}))
        with pytest.raises(PolicyError, match=rf"answers.min-examples = 32 does .* {key} = 31"):
            check_run(PLAIN, Config.from_flat(table | {key: 31}))
        check_run(PLAIN, Config.from_flat({"method": "all-for-one", key: 7}))
    check_run(PLAIN, Config.from_flat(table))
    check_run(PLAIN, Config.from_flat(table | {"method": "local", "batch-size": 8}))


def test_a_policy_may_ask_for_the_patients() -> None:
    flat: dict[str, Any] = {"dataset": "table", "table.columns": "a"}
    policy = Policy(data=DataPolicy(group="patient"))
    check_run(policy, Config.from_flat(flat | {"method": "local", "table.group": "patient"}))
    with pytest.raises(PolicyError, match=r'data.group = "patient" does not .*group = ""'):
        check_run(policy, Config.from_flat(flat | {"method": "local"}))


def test_agreed_constants_are_those_that_the_institution_wrote_down() -> None:
    run = Config.from_flat(
        {"dataset": "image-folder", "image-folder.mean": "1.5", "image-folder.std": "2",
         "image-folder.classes": "a, b"}
    )  # fmt: skip
    with pytest.raises(PolicyError, match=r'data.mean = "" does not allow image-folder.mean'):
        check_run(PLAIN, run)
    constants: dict[str, Any] = {"answers.kind": "plain", "data.mean": "1.5", "data.std": "2"}
    agreed = policy_of(constants | {"data.classes": "a, b"})
    check_run(policy_of(constants), run)
    check_run(agreed, Config.from_flat({"dataset": "text"}))  # has no such keys
    table = {"dataset": "table", "table.columns": "x", "table.label": "y"}
    with pytest.raises(PolicyError, match=r"put mean and scale .* into schema.toml"):
        check_run(agreed, Config.from_flat(table))
    with pytest.raises(PolicyError, match=r'data.classes = "a, b" does not allow arrays.classes'):
        check_run(agreed, Config.from_flat({"dataset": "arrays", "arrays.classes": "b, a"}))


def test_a_clip_whose_noise_would_be_rounded_to_zero_is_refused() -> None:
    """A learning rate can make up for any clip, so the models would tell everything."""
    sources = [np.random.default_rng(0)] * 2
    small, rounded = normal(sources, np.array([1e-6, 1e-24]), 100, torch.float32)
    assert small.std() / 1e-6 == pytest.approx(1, abs=0.3)
    assert not rounded.any()
    with pytest.raises(ConfigError, match="must be 1e-06 to 1e"):
        Config.from_flat({"privacy.kind": "examples", "privacy.clip": 1e-7})


def test_no_path_of_a_run_is_one_of_a_deployed_node() -> None:
    run: dict[str, Any] = dict.fromkeys(Config.from_flat({}).paths, "/elsewhere")
    config = Job(7, run, {"out": "/own", "quadratic.file": "/own/q.json"}, None).config()
    result = config.flat() | {"quadratic.file": config.flat().get("quadratic.file")}
    assert not [key for key, value in result.items() if str(value).startswith("/elsewhere")]
    assert config.out == "/own"


# --- reports --------------------------------------------------------------------------------------


def test_precision_is_a_standard_error() -> None:
    assert [precision(m) for m in (1, 20, 25, 100, 400, 2500, 10**6)] == pytest.approx(
        [0.5, 0.1, 0.1, 0.05, 0.02, 0.01, 0.0005]
    )
    for m in range(1, 3000, 7):
        assert 0.5 / math.sqrt(m) / 2.5 <= precision(m) <= 0.5 / math.sqrt(m) * (1 + 1e-9)


def test_numbers_about_own_data_are_rounded_and_training_stays_at_home() -> None:
    metrics: dict[str, float | None] = {
        "test_loss": 0.69314, "test_accuracy": 0.8437, "validation_loss": 1234.5,
        "train_loss": 0.5, "train_accuracy": 1.0, "bytes_sent": 123457, "candidates": 2.3456,
        "global_test_accuracy": 0.11, "gradient_evaluations": 640, "validation_accuracy": None,
    }  # fmt: skip
    sizes = {"train": 400, "test": 100, "validation": 25}
    result = protected(Report(3, 1, metrics, (0.3333, 0.6667)), ReportPolicy(), sizes)
    assert result.metrics == {
        "test_loss": 0.695, "test_accuracy": 0.85, "validation_loss": 1200.0, "train_loss": None,
        "train_accuracy": None, "bytes_sent": 123457, "candidates": 2.3,
        "global_test_accuracy": 0.1, "gradient_evaluations": 640, "validation_accuracy": None,
    }  # fmt: skip
    assert result.weights == (0.33, 0.67)
    spent = protected(Report(3, 1, {"epsilon": 3.04}, ()), ReportPolicy(), sizes)
    assert spent.metrics == {"epsilon": 3.04}
    report = protected(Report(3, 1, metrics, ()), ReportPolicy(training=True), sizes)
    assert report.metrics["train_accuracy"] == 1.0
    by_class = Report(3, 1, {"sensitivity": 0.8437, "auroc": 0.93, "mae": 0.123}, ())
    assert protected(by_class, ReportPolicy(), sizes, 100).metrics == {
        "sensitivity": 0.85, "auroc": 0.95, "mae": 0.125,
    }  # fmt: skip
    rare = protected(by_class, ReportPolicy(), sizes, 0).metrics
    assert rare == {"sensitivity": None, "auroc": None, "mae": 0.125}
    less = protected(Report(3, 1, metrics, (1.0, 0.0)), ReportPolicy("loss"), sizes)
    assert less.metrics["test_accuracy"] is None
    assert less.metrics["test_loss"] == 0.695


# --- coterie -------------------------------------------------------------------------------


def test_a_person_approves_a_preset_or_what_the_node_was_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, out = tmp_path / "run.toml", tmp_path / "out"
    preset.write_text(PRESET)
    code, line = printed(["approve", str(preset)], capsys)
    assert code == 2
    assert "--out" in line
    command = ["approve", str(preset), "seed=3", "--out", str(out)]
    code, line = printed(command, capsys)
    assert code == 2
    assert "seed = 3" in line
    digest = line.split()[-1]
    assert "no terminal to ask" in line
    assert not approval.unused(out)
    assert printed([*command, "--digest", digest], capsys)[0] == 0
    assert approval.unused(out) == {digest: 1}
    code, line = printed(["approve", str(tmp_path)], capsys)
    assert (code, "no such run was sent to this node" in line) == (2, True)
    config = Config.from_flat({"method": "local"})
    digest = config_digest_of(config).hex()
    approval.record(out / "run", config, digest, b"", "refused: it waits")
    code, line = printed(["approve", str(out / "run"), "--digest", digest], capsys)
    assert code == 0
    assert 'method = "local"' in line
    assert len(atomic.lines(out / "institution" / "approvals.jsonl")) == 2


def test_check_says_whether_a_run_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, policy = (
        tmp_path / "run.toml",
        file(tmp_path, "methods = 'fedavg'\nanswers.kind = 'plain'"),
    )
    preset.write_text(PRESET)
    code, line = printed(["policy", "check", str(policy), str(preset)], capsys)
    assert code == 0
    assert "a person must approve it" in line
    code, line = printed(["policy", "check", str(policy), str(preset), "method=local"], capsys)
    assert (code, line) == (
        2,
        'methods = "fedavg" does not allow method = "local": add it there if it may run\n',
    )


def test_a_node_that_can_read_nobody_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange_keys(tmp_path / "keys", range(1))
    node_config = (
        f'name="node-0" keys="{tmp_path}/keys/node-0.key" trust="{tmp_path}/keys/trust.toml" '
        f'policy="{file(tmp_path, PLAIN.toml())}" out="{tmp_path}/out"'
    )
    code, shown = printed(["preflight", "--node-config", node_config], capsys)
    assert (code, shown.splitlines()[-1]) == (2, "not ready: keys")
    assert "trust.toml has no other peer, so this node can read no letter: coterie keys" in shown


def test_preflight_names_everything_that_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, data = tmp_path / "run.toml", tmp_path / "data"
    preset.write_text(PRESET)
    exchange_keys(tmp_path / "keys", range(2))
    data.mkdir()
    rows = ["a,b,y", *(f"{k},{-k},{'yes' if k % 2 else 'no'}" for k in range(150))]
    (data / "data.csv").write_text("\n".join(rows))
    policy = file(tmp_path, PLAIN.toml())
    node_config = (
        f'name="node-1" keys="{tmp_path}/keys/node-1.key" trust="{tmp_path}/keys/trust.toml" '
    )
    node_config += f'policy="{policy}" out="{tmp_path}/out" data-dir="{data}"'
    line = ["preflight", "--node-config", node_config, str(preset)]
    code, shown = printed(line, capsys)
    assert code == 2
    assert "ok  keys: peer 1, " in shown
    assert "trusts 1 others" in shown
    assert "ok  data: train at least 100, test at least 20, validation fewer than 20" in shown
    assert "no  run: allowed, but it waits for approval" in shown
    assert shown.endswith("not ready: run\n")
    digest = shown.partition("waits for approval: ")[2][:64]
    approves = ["approve", str(preset), "--out", f"{tmp_path}/out", "--digest", digest]
    assert printed(approves, capsys)[0] == 0
    code, shown = printed(line, capsys)
    assert (code, shown.splitlines()[-1]) == (0, "ready")
    policy.chmod(0o666)
    (data / "data.csv").unlink()
    code, shown = printed([*line, "--superlink", "127.0.0.1:9"], capsys)
    assert shown.endswith("not ready: policy, keys, relay, run, data\n")
