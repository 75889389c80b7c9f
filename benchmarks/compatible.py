"""Resolution of the wheel beside other libraries, written into the table of CONTRIBUTING.md.

`python -m benchmarks.compatible` builds the wheel and lets `uv pip compile` resolve it together
with each row, for this version of Python. Nothing is installed. It needs a package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- python -m benchmarks.compatible -->\n", "<!-- end -->\n"
BESIDE = (
    *("monai", "opacus", "lightning", "mlflow", "jupyterlab", "flwr-datasets", "nnunetv2"),
    *("nvflare", "transformers<5", "transformers>=5", "xgboost", "ray[default]", "fedbiomed"),
)
"""Rows besides the newest and the oldest allowed flwr and torch."""
SHOWN = "flwr", "ray", "torch", "torchvision", "numpy"
"""Packages whose resolved versions are columns."""


class NoSolutionError(Exception):
    """Explanation of uv in one line."""


def resolve(*requirements: str, options: Sequence[str] = ()) -> dict[str, str]:
    """Return the version of each package that satisfies requirements.

    Raises
    ------
    NoSolutionError
        The index does not answer, or nothing satisfies them; one line.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
    done = subprocess.run(
        [*command, "--no-annotate", "--python", sys.executable, *options, "-"],
        input="\n".join(requirements), capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise NoSolutionError(reason(done.stderr))
    return dict(re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", done.stdout, re.M))


def reason(error: str) -> str:
    """Return the first cause in uv's explanation as a line."""
    line = " ".join(error.split())
    found = re.search(r"Because (.+?)(?:,? we can conclude| And because|$)", line)
    return (found[1] if found else line)[:200]


def ends(library: str) -> tuple[str, str]:
    """Return the oldest and the newest installable version of a dependency that we allow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = (of for of in project["dependencies"] if Requirement(of).name == library)
    oldest, newest = (
        resolve(wanted, options=["--resolution", which])[library]
        for which in ("lowest-direct", "highest")
    )
    return oldest, newest


def row(wheel: Path, beside: str) -> str:
    """Return the line of the table for a library."""
    name = Requirement(beside).name
    try:
        found = resolve(str(wheel), beside)
    except NoSolutionError as error:
        return f"| `{beside}` | no: {error} |{' |' * len(SHOWN)}"
    versions = " | ".join(found[library] for library in SHOWN)
    return f"| `{beside}` | {found[name]} | {versions} |"


def table(wheel: Path) -> str:
    """Return the table of all rows."""
    flwr, torch = ends("flwr"), ends("torch")
    pinned = [
        f"{name}=={version}" for name, of in (("flwr", flwr), ("torch", torch)) for version in of
    ]
    with ThreadPoolExecutor(4) as pool:
        rows = [*pool.map(lambda beside: row(wheel, beside), dict.fromkeys([*pinned, *BESIDE]))]
    columns = ["beside", "resolved", *SHOWN]
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*head, *rows, ""])


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as place:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place]
        subprocess.run([*build, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(place).glob("*.whl")
        text = table(wheel)
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
