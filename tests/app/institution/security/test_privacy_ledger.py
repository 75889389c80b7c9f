"""Test the privacy ledger: sums over runs; a damaged ledger allows no gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.institution.node import InstitutionNode
from coterie.app.institution.security.journal import Journal, LedgerError
from coterie.app.institution.security.privacy_ledger import PrivacyLedger
from coterie.app.node.node import Node
from coterie.clients.engine.accountant import ORDERS
from coterie.strategies.protocol import Request

COST = np.linspace(0.1, 2.0, len(ORDERS))


def ledger(file: Path, run: str = "run") -> PrivacyLedger:
    """The ledger as another process of the node has it."""
    return PrivacyLedger(Journal(file), run)


def add(ledger: PrivacyLedger, cost_a: Any) -> None:
    with ledger.account(1) as (_, cost_1a):
        cost_1a += cost_a


def test_it_adds_up_over_runs(tmp_path: Path) -> None:
    file = tmp_path / "privacy.jsonl"
    assert not ledger(file).spent().any()
    first, second = ledger(file, "first"), ledger(file, "second")
    add(first, COST)
    add(second, 2 * COST)
    add(second, 0 * COST)
    for each in (first, second, ledger(file)):
        np.testing.assert_array_equal(each.spent(), COST + 2 * COST)
    assert len(file.read_text().splitlines()) == 2, "what costs nothing is not written"


@pytest.mark.parametrize("cost", [np.inf, np.nan, -1.0])
def test_a_cost_that_is_no_cost_is_not_written(tmp_path: Path, cost: float) -> None:
    file = tmp_path / "privacy.jsonl"
    with pytest.raises(LedgerError, match="finite"):
        add(ledger(file), cost)
    assert not file.exists()
    assert not ledger(file).spent().any()


def test_nothing_is_written_where_spending_fails(tmp_path: Path) -> None:
    each = ledger(tmp_path / "privacy.jsonl")
    with pytest.raises(ZeroDivisionError), each.account(1) as (_, cost_1a):
        cost_1a += 1 / 0
    assert not each.spent().any()


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", '{"run": "x"}', '{"rdp": [1, 2]}', '{"rdp": "x"}', '{"rdp": null}',
        *(f'{{"rdp": [{", ".join([x] * len(ORDERS))}]}}' for x in ("NaN", "-1", "Infinity")),
    ],
)  # fmt: skip
def test_a_damaged_one_stops_everything(tmp_path: Path, line: str) -> None:
    file = tmp_path / "privacy.jsonl"
    file.write_text(line + "\n")
    each = ledger(file)
    for _ in range(2):
        with pytest.raises(LedgerError, match="until a person has restored the file"):
            each.spent()


def deployed(path: Path, name: str, peer: int = 0) -> Node:
    keys: dict[str, Any] = {
        "dataset": "digits", "model": "linear", "peers": peer + 1, "method": "local", "name": name,
        "num-server-rounds": 2, "batch-size": 4, "local-steps": 2, "device": "cpu",
        "partition.samples-per-peer": 16, "partition.kind": "iid",
        "privacy.kind": "examples", "privacy.noise": 4.0, "defence.rule": "median",
    }  # fmt: skip
    return InstitutionNode(Config.from_flat(keys), [peer], path / name)


def test_an_institution_with_another_number_keeps_what_it_has_spent(tmp_path: Path) -> None:
    """A member leaves and the last one gets its number: the same examples, the same budget."""
    train = Request("local-rounds", 1, 2, attempt="a")
    node = deployed(tmp_path, "as-peer-0")
    node.handle(Request("start", 0, 0, attempt="a"))
    node.handle(train)
    own = tmp_path / "institution"
    spent = ledger(own / "privacy-0000.jsonl").spent()
    assert spent.any()
    with pytest.raises(LedgerError, match=r"is of peer 0, .* rename 0000 to 0001"):
        deployed(tmp_path, "as-peer-1", peer=1)
    assert [path.stem for path in own.glob("privacy-*.jsonl")] == ["privacy-0000"]
    for path in [*own.iterdir()]:
        path.rename(own / path.name.replace("0000", "0001"))
    node = deployed(tmp_path, "again", peer=1)
    node.handle(Request("start", 0, 0, attempt="a"))
    node.handle(train)
    assert (ledger(own / "privacy-0001.jsonl").spent() > spent).all()


def test_a_deployed_peer_goes_on_from_what_all_runs_have_spent(tmp_path: Path) -> None:
    file = tmp_path / "institution" / "privacy-0000.jsonl"
    spent, theta = [0.0], []
    for name in ("first", "second"):
        node = deployed(tmp_path, name)
        node.handle(Request("start", 0, 0, attempt="a"))
        response = node.handle(Request("local-rounds", 1, 2, attempt="a"))
        epsilon = response.reports[-1].metrics["epsilon"]
        assert epsilon is not None
        spent.append(epsilon)
        theta.append(response.reports[-1].metrics["test_loss"])
        result = json.loads((tmp_path / name / "models" / "peer-0000.json").read_text())
        assert result["privacy"]["epsilon"] == epsilon
        assert result["defence"]["rule"] == "median"
        page = (tmp_path / name / "models" / "peer-0000.md").read_text()
        assert f"epsilon {epsilon:.3g} at delta 1e-05" in page
        assert "| robust rule | median |" in page
    assert spent[0] < spent[1] < spent[2]
    assert theta[0] != theta[1], "draws that nobody can repeat"
    before = ledger(file).spent()
    node.handle(Request("start", 1, 1, attempt="b"))
    node.handle(Request("local-rounds", 1, 2, attempt="b"))  # played again: paid again
    assert (ledger(file).spent() > 1.4 * before).all()
