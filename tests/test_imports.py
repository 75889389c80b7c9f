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
    node, cobo = package / "app/node/node.py", package / "clients/methods/cobo.py"
    node.write_text(node.read_text() + "\nimport coterie.app.report.html\n")
    cobo.write_text(cobo.read_text() + "\nimport coterie.strategies.pairs\n")
    done = linted(tmp_path)
    assert done.returncode == 1
    assert "coterie.app.node is not allowed to import coterie.app.report" in done.stdout
    assert "coterie.clients is not allowed to import coterie.strategies" in done.stdout
