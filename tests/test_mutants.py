"""Mutants differ from the product in one expression, and leave nothing behind."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import mutants
from tests.defences import DEFENCES, HEAD, ROOT, Defence
from tests.mutants import Mutant, mutated, places


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a in b", "a not in b"),
        ("a + b", "a - b"),
        ("a or b", "a and b"),
        ("not a", "a"),
        ("a if b else c", "c if b else a"),
        ("True", "False"),
        ("2.5", "3.5"),
    ],
)
def test_an_expression_is_changed_once(before: str, after: str) -> None:
    new = mutated(ast.parse(before, mode="eval").body)
    assert new is not None
    assert ast.unparse(new) == after


@pytest.mark.parametrize("expression", ["f(x)", "'text' + x", "x + f'{y}'", "'text'", "-x"])
def test_what_only_breaks_a_program_is_left_alone(expression: str) -> None:
    assert mutated(ast.parse(expression, mode="eval").body) is None


def test_annotations_and_decorators_are_left_alone() -> None:
    tree = ast.parse("@f(1)\ndef g(x: A[2]) -> B[3]:\n    return x[4]\n")
    assert [ast.unparse(node) for node in places(tree) if mutated(node)] == ["4"]


def test_a_file_is_as_before_when_the_tests_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    text = 'é, b = "é", 1 < x\n'.encode()
    (tmp_path / "a.py").write_bytes(text)
    (node,) = (node for node in places(ast.parse(text)) if isinstance(node, ast.Compare))
    new = mutated(node)
    assert new is not None
    mutant = Mutant(Path("a.py"), node, new)
    assert str(mutant) == "a.py:1  1 < x  ->  1 <= x"
    with mutant.in_place():
        assert (tmp_path / "a.py").read_text() == 'é, b = "é", (1 <= x)\n'
    assert (tmp_path / "a.py").read_bytes() == text


PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
UNREMOVED = {
    "deliver a letter to another recipient": "encryption itself: no line of ours to remove",
    "send a letter that Flower joins": "a limit of the operating system, in the units' files",
    "join the Ray of a run": "the secret of `test_no_port_takes_code_or_orders`",
    "reach it from another machine": "in tests of several minutes only",
    "learn that a run takes place": "in tests of several minutes only",
    "have code executed by a problem": "the same line as for presets and directories",
    "the disk full at any of these writes": "no attack",
    "a peer's states are missing": "no attack",
    "the process killed, also between": "no attack",
    "the disk is full in a simulation": "no attack",
    "the relay's checkpoint, metrics": "the digest of peers' states",
}
"""Rows of the threat model whose defence is not removed -> the reason."""


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda each: each.test)
def test_a_defence_can_be_removed(defence: Defence) -> None:
    """Its text stands once in the product, its claim in the threat model, its test in a file."""
    assert defence.file.is_file()
    assert defence.old != defence.new
    assert " ".join(defence.claim.split()) in " ".join(PAGE.split())
    assert defence.node_id.startswith("tests/")


def test_each_claim_of_the_threat_model_has_a_defence_to_remove() -> None:
    tables = PAGE[: PAGE.index("## Defences without which")]
    rows = [row for row in re.findall(r"^\| (.*) \|$", tables, re.M) if "`test_" in row]
    assert len(rows) > 75
    known = [text for each in DEFENCES for text in (each.claim, f"`{each.test}`")] + [*UNREMOVED]
    assert [row for row in rows if not any(claim in row for claim in known)] == []
    assert [claim for claim in UNREMOVED if not any(claim in row for row in rows)] == []


def test_the_page_lists_the_defences() -> None:
    assert HEAD + "".join(f"{each.row()}\n" for each in DEFENCES) in PAGE
