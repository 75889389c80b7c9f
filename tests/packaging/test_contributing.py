"""CONTRIBUTING.md, followed word for word in a copy of the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests import budget, walks
from tests.checkout import ROOT, copy

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
DRAWING = PAGE.partition("```\n")[2].partition("```\n")[0]
WALK = re.compile(r"^\| ([^|]+) \| (`[^|]+`) \| (\d+) files, ([\d,]+) lines \|$", re.M)
MANY = re.compile(r"\{(.*)\}")
BLOCK = re.compile(r'^( *)```\w+ title="([^"\n]+)"\n(.*?)^ *```$', re.M | re.S)
SCRIPT = """
import runpy
import sys
import pytest
import coterie
from coterie.app.cli.main import main

assert coterie.__file__.startswith(sys.argv[1])
runpy.run_module("coterie.app.config.defaults", run_name="__main__")
assert main(["list", "methods"]) == 0
keys = {
    "method": "halfway", "model": "bottleneck", "topology": "star", "schedule.kind": "first-day",
    "attack.kind": "zero", "attack.peers": "1", "defence.rule": "first", "dataset": "digits",
    "partition.kind": "iid", "peers": 3, "num-server-rounds": 2, "device": "cpu", "out": "runs",
}
assert main(["run", *(f"{key}={value}" for key, value in keys.items())]) == 0
tests = ["tests/clients/methods/test_halfway.py", "tests/test_costs.py", "tests/docs/test_site.py"]
tests += ["tests/clients/methods/test_twins.py", "tests/app/config/test_config.py"]
chosen = "halfway or bottleneck or pyproject or every_network"
sys.exit(pytest.main(["-q", "-p", "no:xdist", "-m", "not e2e", "-k", chosen, *tests]))
"""


def follow(checkout: Path) -> list[str]:
    """Do what the page says, and return the titles of its blocks."""
    titles = []
    for indent, title, block in BLOCK.findall((checkout / "CONTRIBUTING.md").read_text("utf-8")):
        titles.append(title)
        text = "\n".join(line.removeprefix(indent) for line in block.splitlines()) + "\n"
        name, _, place = title.partition(", ")
        file = checkout / name
        if not place:
            assert not file.exists()
            file.write_text(text, encoding="utf-8")
            continue
        where, _, start = place.partition(" ")
        lines = file.read_text("utf-8").splitlines(keepends=True)
        (at,) = (number for number, line in enumerate(lines) if line.startswith(start))
        lines.insert(at + (where == "below"), text)
        file.write_text("".join(lines), encoding="utf-8")
    return titles


def test_every_shared_module_of_tests_is_named() -> None:
    """Commands of this folder and modules of two or three functions are not in the table."""
    table = PAGE.partition("| a test needs | take |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", table))
    assert not [path for path in named if not (ROOT / "tests" / path).is_file()]
    tests = ROOT / "tests"
    shared = {path for folder in (tests, tests / "harness") for path in folder.glob("*.py")}
    names = {path.relative_to(tests).as_posix() for path in shared if path.name[:5] != "test_"}
    assert names - named == {
        "budget.py", "changed.py", "conftest.py", "defences.py", "flower_versions.py", "marks.py",
        "mutants.py", "networks.py", "topologies.py", "walks.py",
    }  # fmt: skip


@pytest.mark.long
def test_the_page_adds_a_method_a_model_a_topology_and_more(tmp_path: Path) -> None:
    checkout = copy(tmp_path / "checkout")
    titles = follow(checkout)
    assert [title.partition(",")[0] for title in titles] == [
        "clients/methods/halfway.py",
        "app/config/registry.py",
        "app/config/registry.py",
        "tests/clients/methods/test_halfway.py",
        "docs/methods/halfway.md",
        "clients/models/build.py",
        "clients/models/options.py",
        "tests/clients/methods/test_twins.py",
        "strategies/topology.py",
        "strategies/topology.py",
        "strategies/schedule.py",
        "clients/attack.py",
        "clients/defence.py",
    ]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(checkout)],
        cwd=checkout, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "halfway" in done.stdout
    assert " passed" in done.stdout


def test_the_drawing_has_the_layers_of_the_import_contracts() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"] == "the application")
    drawn = [
        re.findall(r"app/(\w+)", line) for line in DRAWING.splitlines() if line.startswith("app/")
    ]
    assert list(map(set, drawn)) == [set(layer.split(" | ")) for layer in layers]
    (order,) = (each["layers"] for each in contracts if each["name"].startswith("the house"))
    rooms = [room for room in re.findall(r"^(\w+)(?=/| )", DRAWING, re.M) if room != "coterie"]
    assert list(dict.fromkeys(rooms)) == [
        layer.removeprefix("coterie.") for layer in order if " : " not in layer
    ]


def test_every_folder_is_named() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    folders = {path.partition("/")[0] for path in tracked if "/" in path}
    structure = PAGE.partition("## Code structure")[2].partition("What to read")[0]
    named = set(re.findall(r"(?:^|`)(\w+)[/ ]", structure, re.M))
    assert {folder for folder in folders if not folder.startswith(".")} <= named


def files_of(names: str) -> set[str]:
    """Return the files of a cell: `file`, `folder/` or `folder/{one,two}.py`."""
    files = set[str]()
    for name in re.findall(r"`([^`]+)`", names):
        if match := MANY.search(name):
            files |= {MANY.sub(stem, name) for stem in match[1].split(",")}
        elif name.endswith("/"):
            inside = (ROOT / name).rglob("*.py")
            files |= {str(path.relative_to(ROOT)) for path in inside if path.stem != "__init__"}
        else:
            files.add(name)
    return files


@pytest.mark.parametrize(("task", "names", "count", "lines"), WALK.findall(PAGE))
def test_a_walk_is_as_long_as_stated(task: str, names: str, count: str, lines: str) -> None:
    files = files_of(names)
    length = sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in files)
    assert len(files) == int(count)
    assert length == pytest.approx(int(lines.replace(",", "")), rel=0.15), task


@pytest.mark.e2e
@pytest.mark.parametrize("task", walks.WALKS)
def test_a_walk_has_the_files_that_execute_it(task: str) -> None:
    """In its own process; else `python -m tests.walks` writes the rows again."""
    (stated,) = (names for name, names, *_ in WALK.findall(PAGE) if name == task)
    done = subprocess.run(
        [sys.executable, "-m", "tests.walks", task],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ((_, names, *_),) = WALK.findall(done.stdout)
    assert files_of(stated) == files_of(names)


def test_no_wing_is_larger_than_its_budget() -> None:
    """Delete as much, or raise a number of the table with a word about what pays for it."""
    ceilings = budget.ceilings()
    assert list(ceilings) == [*budget.WINGS, "all"]
    sizes = budget.sizes()
    over = [
        f"{wing}: {size[unit]} {unit}, at most {ceilings[wing][unit]}"
        for wing, size in sizes.items()
        for unit in budget.UNITS
        if size[unit] > ceilings[wing][unit]
    ]
    assert not over


def test_no_walk_is_left_out() -> None:
    rows = re.findall(r"^\| .* lines \|$", PAGE, re.M)
    assert len(WALK.findall(PAGE)) == len(rows) > 8
