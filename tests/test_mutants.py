"""Mutants differ from the product in one expression, and leave nothing behind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutants
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
