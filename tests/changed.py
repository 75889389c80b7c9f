"""Run the quick tests of changed files: `python -m tests.changed BASE`, through `make check`.

Changed files are those that differ from the commit where this branch left BASE, and new files. The
tests of a module are its mirror below `tests/`, and the test files that import the module, directly
or through a helper in `tests/`. `OTHERS` has the tests of other files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
ALWAYS = {"tests/test_architecture.py", "tests/test_imports.py"}
OTHERS = {
    "*.md": ("tests/docs/test_commands.py", "tests/docs/test_site.py"),
    "docker/*": ("tests/docs/test_image.py",),
    "app/institution/commands/units/*": ("tests/docs/test_image.py", "tests/docs/test_units.py"),
    "recipes/*": ("tests/app/config/test_recipes.py", "tests/docs/test_commands.py"),
    "presets/*": ("tests/app/config/test_config.py", "tests/docs/test_commands.py"),
    "app/report/*": ("tests/app/report",),
    "app/dashboard/*": ("tests/app/dashboard",),
    "pyproject.toml": ("tests/packaging", "tests/docs/test_image.py", "tests/app/config"),
}
"""Pattern of paths -> their tests."""


def changed(base: str) -> list[str]:
    """Paths of changed files."""
    fork = _git("merge-base", base, "HEAD")[0]
    new = _git("ls-files", "--others", "--exclude-standard")
    return [*_git("diff", "--name-only", fork), *new]


def select(paths: Iterable[str]) -> set[str]:
    """Select test files, and folders of test files, for changed paths."""
    result, waiting, seen = set(ALWAYS), set(paths), set[str]()
    while waiting:
        seen |= {path := waiting.pop()}
        result |= {test for pattern, of in OTHERS.items() if fnmatch(path, pattern) for test in of}
        if path.endswith(".py"):
            module = PurePosixPath(path)
            is_test = module.name.startswith("test_")
            result.add(path if is_test else f"tests/{module.parent}/test_{module.name}")
            users = {file for file, names in _imports().items() if _name(module) in names}
            waiting |= users - seen  # a test file without importers ends the search
    return {test for test in result if (ROOT / test).exists()}


def _name(module: PurePosixPath) -> str:
    """Name by which a module is imported."""
    name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    return name if module.parts[0] in ("tests", "coterie", "benchmarks") else f"coterie.{name}"


@cache
def _imports() -> dict[str, set[str]]:
    """File of the tests -> names that it imports."""
    files = (ROOT / "tests").rglob("*.py")
    return {str(file.relative_to(ROOT)): set(_imported(file)) for file in files}


def _imported(file: Path) -> Iterator[str]:
    """Names of modules that a file imports, and of what it takes from them."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()


if __name__ == "__main__":
    base, *options = sys.argv[1:]
    tests = sorted(select(changed(base)))
    print(*tests, sep="\n")
    sys.exit(pytest.main(["-m", "not e2e", *options, *tests]))
