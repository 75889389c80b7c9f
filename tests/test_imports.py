"""Test the import contracts of `[tool.importlinter]` in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coterie.app.runners import bundle

ROOT = Path(__file__).parents[1]
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]


def linted(place: Path) -> subprocess.CompletedProcess[str]:
    """Lint a copy of the package: the linter does not look into other folders for subpackages."""
    return subprocess.run(
        [*LINT, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )


def test_imports_keep_the_contracts(tmp_path: Path) -> None:
    bundle.write_package(tmp_path)
    done = linted(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_that_breaks_one_is_seen(tmp_path: Path) -> None:
    package = bundle.write_package(tmp_path)
    node, pairs = package / "app/node/node.py", package / "strategies/pairs.py"
    node.write_text(node.read_text() + "\nimport coterie.app.report.html\n")
    pairs.write_text(pairs.read_text() + "\nimport coterie.clients.letters\n")
    done = linted(tmp_path)
    assert done.returncode == 1
    assert "coterie.app.node is not allowed to import coterie.app.report" in done.stdout
    assert "coterie.strategies is not allowed to import coterie.clients" in done.stdout
