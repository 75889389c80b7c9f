"""Size of the product by wing, and the ceilings of CONTRIBUTING.md: `python -m tests.budget`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from coterie.app.institution.security.policy import Policy
from tests.checkout import ROOT

FOLDERS = ("app", "clients", "strategies", "datasets", "coterie")
WINGS = ("core", "institution", "lab")
UNITS = ("lines", "files", "classes", "keys")
Table = dict[str, dict[str, int]]


def sizes() -> Table:
    """Return the numbers of lines, files, classes and keys of each wing, and of all of them."""
    sizes = {wing: Counter[str]() for wing in WINGS}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):  # follows no links
            tree = ast.parse(text := path.read_text("utf-8"))
            classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
            sizes[_wing(path)].update(lines=len(text.splitlines()), files=1, classes=classes)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]
    tables = [value for value in config["config"].values() if isinstance(value, dict)]
    sizes["core"]["keys"] = len(config["config"]) - len(tables) + sum(map(len, tables))
    sizes["institution"]["keys"] = len(Policy().flat())
    sizes["all"] = sum(sizes.values(), Counter())
    return {wing: {unit: count[unit] for unit in UNITS} for wing, count in sizes.items()}


def _wing(path: Path) -> str:
    _, *folders = path.relative_to(ROOT).parts
    return next((wing for wing in WINGS if folders[:1] == [wing]), "core")


def ceilings() -> Table:
    """Return the table of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| wing |")[2]
    rows = re.findall(r"^\| (\w+)" + r" \| ([\d,]+)" * len(UNITS) + r" \|$", text, re.M)
    return {
        wing: {unit: int(n.replace(",", "")) for unit, n in zip(UNITS, numbers, strict=True)}
        for wing, *numbers in rows
    }


if __name__ == "__main__":
    for wing, size in sizes().items():
        print(f"| {wing} | {' | '.join(f'{size[unit]:,}' for unit in UNITS)} |")
