"""What every Python of `.venv` has: the variables that Flower and Ray need, and `import coterie`.

`python -m coterie.app.runners.environment` (a part of `make install`) copies this module into `.venv`,
where a line of a .pth file lets each interpreter call `prepare` as it starts. So a bare `flwr run`
has them too, in any shell and on any system.
"""

import importlib.machinery
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what is needed is in .venv
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Threads of torch's that have nothing to do try again for a moment before they sleep: waking
    # one can take longer than its part of a call. Ten times as long a moment is faster still where
    # nothing else runs, and three times slower beside one busy process.
    "GOMP_SPINCOUNT": "1000",
}
_INSTALLED = "coterie_environment"
_PACKAGES = ("coterie", "app", "clients", "datasets", "strategies")


def prepare() -> None:
    """Set what the user has not set; the checkout, and the commands of `.venv` for Flower to find.

    COTERIE_ROOT is the directory that `.venv` lies in: there a bare `flwr run`, whose processes
    work in directories of Flower's, puts its results.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["COTERIE_ROOT"] = os.path.dirname(sys.prefix)
    sys.meta_path.append(_Checkout())
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if os.path.dirname(sys.executable) not in places:
        os.environ["PATH"] = os.pathsep.join([*places, os.path.dirname(sys.executable)])


class _Checkout:
    """Finds the packages of the checkout, from any directory, where nothing else has that name.

    The checkout is not put on the path itself: its other folders are no packages.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Where a package lies, if it is one of ours."""
        if name not in _PACKAGES:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.environ["COTERIE_ROOT"]])


def install() -> None:
    """Let every interpreter of this environment call `prepare`."""
    packages = Path(sysconfig.get_path("purelib"))
    shutil.copyfile(__file__, packages / f"{_INSTALLED}.py")
    line = f"import {_INSTALLED}; {_INSTALLED}.prepare()\n"
    (packages / "coterie.pth").write_text(line, encoding="utf-8")


if __name__ == "__main__":
    install()
