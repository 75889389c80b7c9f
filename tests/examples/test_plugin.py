"""The example package installs without a network, its tests pass, and its parts have names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.config.root import ROOT

PACKAGE = ROOT / "examples" / "plugin"


def done(command: list[str], **more: object) -> str:
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, **more  # type: ignore[call-overload]
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which the package is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("__pycache__"))
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    target = folder / "site"
    done(["-m", "pip", "install", *offline, "--target", str(target), str(folder / "package")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


@pytest.mark.e2e
def test_its_own_tests_pass(environment: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests")
    said = done(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], cwd=tmp_path, env=environment
    )
    assert "7 passed" in said


@pytest.mark.e2e
def test_installed_names_are_known(environment: dict[str, str], tmp_path: Path) -> None:
    said = done(["-m", "app", "list", "methods"], cwd=ROOT, env=environment)
    assert "nearest" in said
    run = done(
        ["-m", "app", "run", "method=nearest", "method-options.neighbours=1", "model=two-layers",
         "dataset=clinics", "peers=3", "num-server-rounds=1", f"out={tmp_path}"],
        cwd=ROOT, env=environment,
    )  # fmt: skip
    assert "run directory" in run
