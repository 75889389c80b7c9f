"""A `.venv` for a copy of the checkout, as `make install` leaves it, in seconds."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from coterie.app.runners.superlink import QUIET


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
    pip = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "install", "--quiet"]
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(checkout)]
    subprocess.run([*pip, *editable], check=True)
    with (bin_ / "activate").open("a") as activate:
        activate.writelines(f"export {name}={value}\n" for name, value in QUIET.items())
    (bin_.parent / ".installed").touch()
