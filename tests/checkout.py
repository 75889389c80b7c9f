"""A `.venv` for a copy of the checkout, as `make install` leaves it, in a second."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path


def install(checkout: Path) -> None:
    """Give `checkout` an environment of its own, with the packages and commands of this one."""
    bin_ = checkout / ".venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bin_.parent)], check=True)
    packages = next(bin_.parent.glob("lib/python*/site-packages"))
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for script in Path(sys.executable).parent.glob("fl*w*"):  # flwr, flower-superlink and so on
        _, _, rest = script.read_text().partition("\n")
        (bin_ / script.name).write_text(f"#!{bin_ / 'python'}\n{rest}")
        (bin_ / script.name).chmod(0o755)
    environment = [str(bin_ / "python"), "-m", "coterie.app.runners.environment"]
    subprocess.run(environment, cwd=checkout, check=True)
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
    needed = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    (bin_.parent / ".installed").write_text("\n".join(needed) + "\n")
