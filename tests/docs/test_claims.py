"""Claims about trust have tests: each test that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


PAGES = {
    "docs/threat-model.md": 60, "docs/privacy.md": 7, "docs/consortium/what-leaves.md": 10,
    "SECURITY.md": 2,
}  # fmt: skip
"""Page -> minimum number of tests that it names."""


def test_every_test_that_is_named_exists() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name, minimum in PAGES.items():
        named = set(re.findall(r"`(test_\w+)`", (ROOT / name).read_text("utf-8")))
        assert len(named) >= minimum, name
        assert not {name for name in named if f"def {name}(" not in tests}


def test_each_attack_that_was_found_has_a_test() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| S(\d+) (.*)\|$", page, re.M))
    assert [int(number) for number in rows] == list(range(1, 18))
    assert all("`test_" in row for row in rows.values())
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert not {file for file in files if not (ROOT / file).is_file()}
