"""The tree of errors: drawn as it is, complete, and exported where users need it."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie import errors

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "strategies", "clients", "datasets", "coterie")


def drawn() -> dict[str, str]:
    """Error -> its parent, as the docstring of coterie/errors.py draws them."""
    assert errors.__doc__ is not None
    path: list[str] = []
    parents = {}
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^([│ ]*)(?:[├└]── )?(\w+Error|Error)\b", line):
            branches = re.findall(r"│   |    |[├└]── ", line[: match.start(2)])
            del path[len(branches) :]
            if path:
                parents[match[2]] = path[-1]
            path.append(match[2])
    return parents


def defined() -> dict[str, str]:
    """Return the defining module of each exception class of the product."""
    classes = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and any(
                    re.search(r"(Error|Exception|Interrupt)$", ast.unparse(base))
                    for base in node.bases
                ):
                    classes[node.name] = module.removesuffix(".__init__")
    return classes


def derived(of: type[Exception]) -> Iterator[tuple[str, str]]:
    for each in of.__subclasses__():
        if each.__module__.partition(".")[0] in PACKAGES:
            yield each.__name__, of.__name__
            yield from derived(each)


@pytest.mark.slow
def test_the_tree_is_drawn_as_it_is() -> None:
    modules = defined()
    for module in set(modules.values()):
        importlib.import_module(module)
    assert dict(derived(errors.Error)) == drawn()
    no_error = {"Error", "Interrupted", "_HandOver"}  # the root, and what stops a run
    assert modules.keys() - drawn().keys() == no_error


@pytest.mark.parametrize(
    "name",
    ["Error", "ConfigError", "DataError", "ResultsError", "RunError", "PartError", "DivergedError"],
)
def test_what_users_catch_is_exported(name: str) -> None:
    assert issubclass(getattr(coterie, name), coterie.Error)


def test_an_error_survives_the_trip_between_processes() -> None:
    there = pickle.loads(pickle.dumps(coterie.PartError("a.py:3", 4, (1, 2))))
    assert (str(there), there.round, there.peers) == ("a.py:3", 4, (1, 2))
