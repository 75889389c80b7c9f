"""An arrow may only go down: which sub-package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

APP: dict[str, set[str]] = {
    "coterie.app.__main__": {"coterie.app.cli"},
    "coterie.app.cli": {
        *(
            "coterie.app.comparisons",
            "coterie.app.runners",
            "coterie.app.dashboard",
            "coterie.app.report",
            "coterie.app.node",
        ),
        "coterie.app.trained",
        *("coterie.app.security", "coterie.app.runs", "coterie.app.config"),
    },
    "coterie.app.comparisons": {
        "coterie.app.runners",
        "coterie.app.report",
        "coterie.app.runs",
        "coterie.app.config",
    },
    "coterie.app.runners": {
        "coterie.app.report",
        "coterie.app.node",
        "coterie.app.runs",
        "coterie.app.config",
    },
    "coterie.app.dashboard": {"coterie.app.report", "coterie.app.runs", "coterie.app.config"},
    "coterie.app.report": {"coterie.app.runs", "coterie.app.config"},
    "coterie.app.client": {"coterie.app.node"},
    "coterie.app.server": {"coterie.app.security", "coterie.app.runs", "coterie.app.config"},
    "coterie.app.node": {
        "coterie.app.trained",
        "coterie.app.security",
        "coterie.app.wire",
        "coterie.app.runs",
        "coterie.app.config",
    },
    "coterie.app.trained": {"coterie.app.security", "coterie.app.runs", "coterie.app.config"},
    "coterie.app.security": {"coterie.app.wire", "coterie.app.runs", "coterie.app.config"},
    "coterie.app.runs": {"coterie.app.config"},
    "coterie.app.config": set(),
    "coterie.app.wire": set(),
}
"""Part of app/ -> the parts that it may import. A node and a relay import none of cli,
comparisons, runners, dashboard and report: those do not even travel to them."""

LIBRARY = [
    ["coterie.strategies.flower"],
    ["coterie.strategies.relay"],
    ["strategies"],
    ["coterie.clients.methods"],
    ["coterie.clients.parts"],
    ["coterie.clients.rule"],
    ["coterie.clients.attack"],
    ["coterie.clients.engine"],
    ["coterie.clients.models"],
    ["coterie.clients.letters", "coterie.clients.measures", "coterie.clients.training"],
    ["coterie.clients.defence", "coterie.clients.privacy"],
    ["datasets", "coterie.datasets.table"],
    ["coterie.datasets.arrays"],
    ["coterie.datasets.per_peer"],
    ["coterie.datasets.published", "coterie.datasets.synthetic", "coterie.datasets.own"],
    ["coterie.datasets.files", "coterie.datasets.partition"],
    ["coterie.datasets.source"],
    ["coterie.datasets.plugins"],
    ["coterie.datasets.problem"],
    ["coterie.datasets.preprocessing"],
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
    assert upward("coterie.app.node.node", "from coterie.app.report import write")
    assert upward("coterie.app.server", "from coterie.app.runners import inline")
    assert upward("coterie.clients.engine.engine", "from coterie.clients.methods.cobo import CoBo")
    assert upward(
        "coterie.strategies.relay.broker",
        "from coterie.strategies.flower.strategy import RelayStrategy",
    )
    assert not upward(
        "coterie.app.node.node", "from coterie.app.security.channel import SecureChannel"
    )
    assert not upward("coterie.clients.methods.cobo", "from coterie.clients.rule import Rule")
