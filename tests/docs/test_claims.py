"""Threat model: every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_exists() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    page += (ROOT / "SECURITY.md").read_text("utf-8")
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name, at_least in (("threat-model", 16), ("privacy", 8)):
        text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        named = set(re.findall(r"`(test_\w+)`", text))
        assert len(named) >= at_least
        assert not {each for each in named if f"def {each}(" not in tests}
    rows = dict(re.findall(r"^\| S(\d+) (.*)\|$", page, re.M))
    assert [int(number) for number in rows] == list(range(1, 18))
    assert all("`test_" in row for row in rows.values())
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert not {file for file in files if not (ROOT / file).is_file()}
