"""Test an editable install, as `make install` and `pip install -e .` make it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.checkout import copy, install

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.e2e
def test_the_package_is_found_from_any_directory(tmp_path: Path) -> None:
    """In the clone's parent too, where Python finds a folder `coterie` without `__init__.py`."""
    clone = copy(tmp_path / "coterie")
    install(clone)
    empty = tmp_path / "elsewhere" / "coterie"
    empty.mkdir(parents=True)
    bin_ = clone / ".venv" / "bin"
    program = "import coterie, coterie.clients.rule, sys; coterie.run; print(coterie.__file__)"
    theirs = "import importlib.util as u; print([u.find_spec(n) for n in ('app', 'datasets')])"
    for place in (tmp_path, empty.parent, empty, clone, clone / "docs"):
        python = [str(bin_ / "python"), "-c", f"{program}; {theirs}"]
        done = subprocess.run(python, cwd=place, capture_output=True, text=True, check=True)
        found, names = done.stdout.splitlines()
        assert Path(found).resolve() == clone / "coterie" / "__init__.py"
        assert names == "[None, None]" or place == clone, "names of other libraries are free"
    command = [str(bin_ / "coterie"), "list", "schedules"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not done.stderr


def test_src_holds_nothing_but_a_link_to_the_package() -> None:
    """An editable install puts `src/` on sys.path: another name there would hide a library."""
    links = {path.name: path.readlink() for path in (ROOT / "src").iterdir() if path.is_symlink()}
    others = [path for path in (ROOT / "src").iterdir() if not path.is_symlink()]
    assert links == {"coterie": Path("..", "coterie")}
    assert [path.name for path in others if path.name != "coterie.egg-info"] == []
