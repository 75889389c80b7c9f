"""An arrow may only go down: which sub-package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

APP: dict[str, set[str]] = {
    "app.__main__": {"app.cli"},
    "app.cli": {
        *("app.runners", "app.dashboard", "app.report", "app.node", "app.trained"),
        *("app.security", "app.runs", "app.config"),
    },
    "app.runners": {"app.report", "app.node", "app.runs", "app.config"},
    "app.dashboard": {"app.report", "app.runs", "app.config"},
    "app.report": {"app.runs", "app.config"},
    "app.client": {"app.node"},
    "app.server": {"app.security", "app.runs", "app.config"},
    "app.node": {"app.trained", "app.security", "app.wire", "app.runs", "app.config"},
    "app.trained": {"app.security", "app.runs", "app.config"},
    "app.security": {"app.wire", "app.runs", "app.config"},
    "app.runs": {"app.config"},
    "app.config": set(),
    "app.wire": set(),
}
"""Part of app/ -> the parts that it may import. A node and a relay import none of cli, runners,
dashboard and report: those do not even travel to them."""

LIBRARY = [
    ["strategies.flower"],
    ["strategies.relay"],
    ["strategies"],
    ["clients.methods"],
    ["clients.parts"],
    ["clients.rule"],
    ["clients.attack"],
    ["clients.engine"],
    ["clients.models"],
    ["clients.letters", "clients.measures", "clients.training"],
    ["clients.defence", "clients.privacy"],
    ["datasets", "datasets.table"],
    ["datasets.arrays"],
    ["datasets.per_peer"],
    ["datasets.published", "datasets.synthetic", "datasets.own"],
    ["datasets.files", "datasets.partition"],
    ["datasets.source"],
    ["datasets.plugins"],
    ["datasets.problem"],
    ["datasets.preprocessing"],
]
"""The rest of the house from top to bottom: a part may import only what stands below its line."""

LINE = {part: number for number, parts in enumerate(LIBRARY) for part in parts}


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, at its top, inside a function or for its types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str | None:
    """The part of the house that a module, or a name in one, belongs to; None if not ours."""
    parts = name.split(".")
    for length in (2, 1):
        part = ".".join(parts[:length])
        if part in APP or part in LINE:
            return part
    return None


def upward(module: str, source: str) -> list[str]:
    """The imports of a module that do not go down."""
    here = part_of(module)
    wrong = []
    for name in imports(ast.parse(source)):
        there = part_of(name)
        if here is None or there is None or there == here:
            continue
        if here in APP:
            down = there in APP[here] or there in LINE
        else:
            down = there in LINE and LINE[there] > LINE[here]
        if not down:
            wrong.append(f"{module} imports {name}")
    return wrong


def test_an_arrow_may_only_go_down() -> None:
    packages = ("app", "strategies", "clients", "datasets")
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    wrong = []
    for path in files:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        assert module in packages or part_of(module), f"{module} is in no part of the house"
        wrong += upward(module, path.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


def test_an_arrow_that_goes_up_is_found() -> None:
    assert upward("app.node.node", "from app.report import write")
    assert upward("app.server", "from app.runners import inline")
    assert upward("clients.engine.engine", "from clients.methods.cobo import CoBo")
    assert upward("strategies.relay.broker", "from strategies.flower.strategy import RelayStrategy")
    assert not upward("app.node.node", "from app.security.channel import SecureChannel")
    assert not upward("clients.methods.cobo", "from clients.rule import Rule")
