"""Change the product in small ways, and see which tests fail: `python -m tests.mutants`.

`COUNT` mutants, spread evenly over the folders of the product; each changes one expression of one
file: a comparison, an operation, a number, a condition, a truth value. Tests run until one fails:
the mirror of the file, the quick tests of it (`tests.changed`), its slow ones, then all of
`make unit`. It changes the files of this checkout, so run it in a copy.

`python -m tests.mutants 40 7` makes 40 mutants from seed 7. `--security` instead removes each
defence of the threat model (`tests.defences`) and runs the test that attacks it; `--security WORDS`
removes those whose claim or test has these words. It exits with 1 if a test does not notice.
"""

from __future__ import annotations

import ast
import copy
import itertools
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.changed import ALWAYS, ROOT, select
from tests.defences import DEFENCES, HEAD, Defence

COUNT = 150
FOLDERS = ("app", "clients", "strategies", "datasets", "coterie")
SECONDS = 300
"""Time for the tests of a mutant; one that takes longer counts as noticed."""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
"""Operator -> the one that takes its place."""
IDLE = {"annotation", "returns", "bases", "decorator_list"}
QUICK = "not e2e and not slow"


def mutated(node: ast.AST) -> ast.expr | None:
    """Return the change of an expression, or None if it has none."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[first, *others]) if type(first) in SWAPPED:
            new.ops = [SWAPPED[type(first)](), *others]  # type: ignore[list-item]
        case ast.BinOp(op=op) if type(op) in SWAPPED and not _text(new.left, new.right):
            new.op = SWAPPED[type(op)]()  # type: ignore[assignment]
        case ast.BoolOp(op=op):
            new.op = SWAPPED[type(op)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
        case ast.Constant(value=bool() as value):
            new.value = not value
        case ast.Constant(value=int() | float() as value):
            new.value = value + 1
        case _:
            return None
    return new if isinstance(new, ast.expr) else None


def _text(*sides: ast.expr) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def places(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of one line, without those that do nothing, such as annotations."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            # Only since Python 3.12 the parts of a formatted string have positions.
            if isinstance(node, ast.AST) and name not in IDLE:
                if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
                    yield node
                if not isinstance(node, ast.JoinedStr):
                    yield from places(node)


class Mutant(NamedTuple):
    """An expression of a file, and what takes its place."""

    path: Path
    node: ast.expr
    new: ast.expr

    def __str__(self) -> str:
        old, new = ast.unparse(self.node), ast.unparse(self.new)
        return f"{self.path}:{self.node.lineno}  {old}  ->  {new}"

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Change the file for as long as the context lasts."""
        file, node = ROOT / self.path, self.node
        lines = file.read_bytes().splitlines(keepends=True)
        line = lines[node.lineno - 1]
        new = f"({ast.unparse(self.new)})".encode()
        lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
        with changed(file, b"".join(lines)):
            yield


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """Give a file another content for as long as the context lasts."""
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def mutants() -> dict[str, list[Mutant]]:
    """Return every possible mutant, by folder."""
    result = defaultdict[str, list[Mutant]](list)
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT)
        for node in places(ast.parse(file.read_bytes())):
            if new := mutated(node):
                result["/".join(path.parent.parts[:2])].append(Mutant(path, node, new))
    return result


def noticed(path: Path) -> str | None:
    """Return the tests that fail: "mirror", "quick", "slow" or "unit"; None if none does."""
    mirror = ROOT / "tests" / path.parent / f"test_{path.name}"
    tests = sorted(select([str(path)]) - ALWAYS)
    if mirror.exists() and _fails(["-m", QUICK, str(mirror)]):
        return "mirror"
    parallel = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    if tests and _fails([*parallel, "-m", QUICK, *tests, *sorted(ALWAYS)]):
        return "quick"
    if tests and _fails([*parallel, "-m", "e2e or slow", *tests]):
        return "slow"
    return "unit" if _fails([*parallel, "-m", QUICK]) else None


def _fails(options: list[str]) -> bool:
    return _exit_code(options) not in (0, 5)  # 5: no test selected


def _exit_code(options: list[str], seconds: float | None = SECONDS) -> int:
    """Return the exit code of pytest; -1 if it takes too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # not an installed Coterie
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return -1
    return done.returncode


def without(defence: Defence) -> str:
    """Remove a defence, and return "yes" if its test fails, else why it does not count.

    An error while tests are collected is a broken file, not a test that notices.
    """
    file = defence.file
    with changed(file, file.read_text("utf-8").replace(defence.old, defence.new).encode()):
        code = _exit_code(["-n", "0", defence.node_id])
    return {0: "NO", 1: "yes", -1: "NO: the test does not end"}.get(code, "NO: the file is broken")


def security(words: str) -> int:
    """Remove the defences whose claim or test has `words`; return 1 if one is not noticed."""
    every = [each for each in DEFENCES if words in f"{each.claim} {each.test}"]
    if _exit_code(["-n", "2", *{each.node_id: None for each in every}], None):
        print("a test fails with all defences in place")
        return 1
    print(HEAD.replace(" |\n", " | noticed |\n", 1).rstrip("\n") + "---|", flush=True)
    results = list[str]()
    for each in every:
        results.append(without(each))
        print(f"{each.row()} {results[-1]} |", flush=True)
    print(f"\n{results.count('yes')} of {len(every)} defences noticed")
    return int(set(results) != {"yes"})


def main() -> None:
    """Make the mutants, and print what became of each and how many every step noticed."""
    if sys.argv[1:2] == ["--security"]:
        sys.exit(security(" ".join(sys.argv[2:])))
    count, seed = [*map(int, sys.argv[1:]), *(COUNT, 0)[len(sys.argv) - 1 :]]
    draw, of_folder = random.Random(seed), mutants()
    results = list[str]()
    for _, folder in zip(range(count), itertools.cycle(of_folder)):
        mutant = draw.choice(of_folder[folder])
        with mutant.in_place():
            results.append(noticed(mutant.path) or "survived")
        print(f"{results[-1]:9} {mutant}", flush=True)
    print(Counter(results))


if __name__ == "__main__":
    main()
