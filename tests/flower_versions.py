"""Tests that meet Flower, with the newest version of flwr and with the oldest that is allowed.

`python -m tests.flower_versions [VERSION ...]`, `make test-flower`. An environment per version has
the libraries of this one, but flwr and what this flwr needs in another version; nothing here
changes. The version that is installed is left out: `make test` tests it. Exits with 1 if a test
fails; an index that does not answer is told in a line, and fails nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.compatible import NoSolutionError, ends
from tests.checkout import ROOT, site_packages

TESTS = (
    "tests/strategies",
    "tests/app/runners/test_bare_flwr_run.py",
    "tests/app/runners/test_two_nodes.py",
    "tests/app/runners/test_deployment.py::test_a_secure_deployment_computes_what_a_simulation_does",
)
"""Strategies and transports, plain `flwr run`, `--nodes 2`, and a sealed deployment."""


def environment(place: Path, version: str) -> Path:
    """Make an environment with a version of flwr, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join([*site_packages(), str(ROOT / "src"), ""]))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    install = ["--python", str(python), "install", f"flwr[simulation]=={version}"]
    done = subprocess.run([*pip, *install], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"flwr {version} cannot be installed: {done.stderr[-2000:]}")
    differing = metadata.distributions(path=[str(packages)])
    print(*sorted(f"{of.name} {of.version}" for of in differing), sep=", ", flush=True)
    return python


def main(versions: Sequence[str]) -> int:
    """Run the tests with each version, and return the exit code."""
    installed, failed = metadata.version("flwr"), []
    if not versions:
        try:
            oldest, newest = ends("flwr")
        except NoSolutionError as error:
            print(f"only flwr {installed} was tested: the index names no versions: {error}")
            return 0
        print(f"flwr: oldest allowed {oldest}, newest {newest}, installed {installed}")
        versions = [each for each in dict.fromkeys((newest, oldest)) if each != installed]
        if not versions:
            print("no other version to test")
    for version in versions:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="flower-") as place:
            python = environment(Path(place), version)
            workers = ["--dist", "loadscope", "--no-loadscope-reorder"]
            workers += ["-n", str(2 * (os.cpu_count() or 1))]
            tests = [str(python), "-m", "pytest", "--quiet", *workers, *TESTS]
            passed = not subprocess.run(tests, cwd=ROOT).returncode
        minutes = (time.monotonic() - began) / 60
        print(f"flwr {version}: {'passed' if passed else 'FAILED'} in {minutes:.1f} minutes")
        failed += [] if passed else [version]
    if failed:
        print(f"tests fail with flwr {', '.join(failed)}; see strategies/flower/private.py")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
