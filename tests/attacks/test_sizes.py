"""Test that a policy refuses oversized runs before data are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.institution.security.policy import Policy, PolicyError
from coterie.app.institution.security.run_check import check_run
from coterie.app.runs import atomic
from coterie.datasets.problem import DataError
from coterie.strategies.protocol import Request, Response
from tests.attacks.consortium import Institution, institutions, response_of
from tests.attacks.hostile_files import watched

START = Request("start", 0, 0, attempt="a")


@pytest.fixture
def node(tmp_path: Path) -> Institution:
    return institutions(tmp_path)[0]


def code_of(answer: Response | str) -> str:
    assert isinstance(answer, str), "the node did it"
    return answer.split(": ")[1]


@pytest.mark.parametrize(
    ("run", "code", "key"),
    [
        ({"peers": 400_000_000, "attack.kind": "nan", "attack.share": 0.5}, "configuration", ""),
        ({"local-steps": 2**62}, "configuration", ""),
        ({"model": "mlp", "mlp.hidden": "x"}, "configuration", ""),
        ({"local-steps": 10_001}, "policy", "limits.max-steps = 10000"),
        ({"local-epochs": 101}, "policy", "limits.max-epochs = 100"),
        ({"batch-size": 5000}, "policy", "limits.max-batch-size = 4096"),
        ({"method": "dpfl", "dpfl.init-epochs": 101}, "policy", "methods"),
        (
            {"model": "mlp", "mlp.hidden": "-".join("8" * 101)},
            *("policy", "limits.max-layers = 100"),
        ),
    ],
)
def test_a_run_that_takes_too_much_is_refused_before_data_are_read(
    run: dict[str, Any], code: str, key: str, node: Institution
) -> None:
    Path(str(node.node_config["data-dir"]), "data.csv").write_text("no table")
    node.run_config |= run
    assert code_of(node.handle(START)) == code
    if code == "policy":
        (decision,) = atomic.lines(node.home / "run" / "decisions.jsonl")
        assert decision["decision"].startswith(f"refused: {key}")


def test_a_network_that_is_too_large_is_refused_before_its_memory_is_taken(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has two columns, the network 2 x 9,999,999 + 9,999,999^2 weights and more."""
    node.run_config |= {"model": "mlp", "mlp.hidden": "9999999-9999999"}
    assert code_of(node.handle(START)) == "policy"
    assert "limits.max-parameters = 250000000 refuses the network" in capsys.readouterr().err


def test_the_bounds_are_the_institution_s(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    """A linear model of two columns and two classes has 6 numbers: 48 bytes and a header."""
    node.set_policy(limits__max_parameters=6, limits__max_bytes=5000)
    response_of(node, START)
    node.run_config["name"] = "again"
    node.set_policy(limits__max_parameters=5)
    assert code_of(node.handle(START)) == "policy"
    assert "limits.max-parameters = 5 refuses" in capsys.readouterr().err
    node.set_policy(limits__max_bytes=1000)
    assert code_of(node.handle(START)) == "policy"
    assert "limits.max-bytes = 1000 does not allow letters of a round" in capsys.readouterr().err


def test_models_that_a_method_keeps_count_together(
    node: Institution, capsys: pytest.CaptureFixture[str]
) -> None:
    node.set_policy(methods="fedem", limits__max_parameters=24)
    node.run_config |= {"method": "fedem", "fedem.components": 4}
    response_of(node, START)
    node.run_config |= {"name": "again", "fedem.components": 5}
    assert code_of(node.handle(START)) == "policy"
    assert "limits.max-parameters = 24 refuses" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "key"),
    [
        ({"dataset": "image-folder", "image-folder.shape": "3x600x600"}, "max-pixels"),
        ({"dataset": "text", "text.context": 5000}, "max-context"),
        ({"model": "transformer", "transformer.layers": 101}, "max-layers"),
        ({"method": "fedavg-ft", "fedavg-ft.epochs": 101}, "max-epochs"),
        ({"all-for-one.similarity-batch-size": 5000, "method": "all-for-one"}, "max-batch-size"),
    ],
)
def test_each_size_has_a_key(run: dict[str, Any], key: str) -> None:
    classes = {"image-folder.classes": "a, b"} if run.get("dataset") == "image-folder" else {}
    with pytest.raises(PolicyError, match=f"limits.{key}"):
        check_run(Policy(), Config.from_flat(run | classes))


def test_a_deployed_node_downloads_nothing(tmp_path: Path) -> None:
    """A run names the data set; which hosts are asked is for the institution to say."""
    for name in ("mnist", "cifar10", "cifar100"):
        config = Config.from_flat({"dataset": name, "data-dir": str(tmp_path)})
        with watched() as events, pytest.raises(DataError, match="downloads nothing"):
            problem_of(config, peer=0)
        assert not events.ran
