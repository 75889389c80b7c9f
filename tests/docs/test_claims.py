"""Claims about trust: every test that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    "docs/threat-model.md": 60, "docs/privacy.md": 15, "docs/consortium/what-leaves.md": 10,
    "SECURITY.md": 6,
}  # fmt: skip
"""Page -> minimum number of tests that it names."""


def test_every_test_that_is_named_exists() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page, minimum in PAGES.items():
        text = (ROOT / page).read_text("utf-8")
        named = set(re.findall(r"`(test_\w+)`", text))
        assert len(named) >= minimum, page
        assert not {name for name in named if f"def {name}(" not in tests}, page
        files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
        assert not {file for file in files if not (ROOT / file).is_file()}, page


def test_each_attack_that_was_found_has_a_test() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    rows = re.findall(r"^\| ([ST]\d+) (.*)\|$", page, re.M)
    names = [name for name, _ in rows]
    assert names[:17] == [f"S{number}" for number in range(1, 18)]
    assert {f"T{number}" for number in range(1, 16)} <= set(names[17:])
    assert all("`test_" in row for _, row in rows)
