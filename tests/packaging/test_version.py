"""Test that all files state the same version, authors and keywords."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_package_names_the_authors_and_keywords_of_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    about = metadata.metadata("coterie")
    assert about["Author"] == ", ".join(author["name"] for author in citation["authors"])
    assert about["Keywords"] == ",".join(citation["keywords"])
    assert about["License-Expression"] == citation["license"]


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    newest = re.search(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest is not None
    assert {project["version"], cited["version"], newest[1]} == {metadata.version("coterie")}
    assert newest[2] in (str(cited["date-released"]), "unreleased")
