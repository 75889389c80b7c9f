"""Tables of a page of docs/results that a study fills in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

END = "<!-- / -->"


def fill(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Replace the tables of a page: the lines between `<!-- NAME -->` and `<!-- / -->`.

    Without the page, nothing is written; a table without lines stays.
    """

    def table(match: re.Match[str]) -> str:
        lines = tables.get(match[1])
        return "\n".join([f"<!-- {match[1]} -->", "", *lines, "", END]) if lines else match[0]

    if page.exists():
        text = page.read_text(encoding="utf-8")
        text = re.sub(rf"<!-- ([\w -]+) -->\n.*?{END}", table, text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")
