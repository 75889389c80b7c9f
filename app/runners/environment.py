"""The environment variables that Flower and Ray need here, for every Python of `.venv`.

`python -m app.runners.environment` (a part of `make install`) copies this module into `.venv`,
where a line of a .pth file lets each interpreter call `prepare` as it starts. So a bare `flwr run`
has them too, in any shell and on any system.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what is needed is in .venv
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Threads that spin while they wait are ten times slower when others use the cores too.
    "OMP_WAIT_POLICY": "PASSIVE",
}
_INSTALLED = "coterie_environment"


def prepare() -> None:
    """Set what the user has not set; the checkout, and the commands of `.venv` for Flower to find.

    COTERIE_ROOT is the directory that `.venv` lies in: there a bare `flwr run`, whose processes
    work in directories of Flower's, puts its results.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["COTERIE_ROOT"] = os.path.dirname(sys.prefix)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if os.path.dirname(sys.executable) not in places:
        os.environ["PATH"] = os.pathsep.join([*places, os.path.dirname(sys.executable)])


def install() -> None:
    """Let every interpreter of this environment call `prepare`."""
    packages = Path(sysconfig.get_path("purelib"))
    shutil.copyfile(__file__, packages / f"{_INSTALLED}.py")
    line = f"import {_INSTALLED}; {_INSTALLED}.prepare()\n"
    (packages / "coterie.pth").write_text(line, encoding="utf-8")


if __name__ == "__main__":
    install()
