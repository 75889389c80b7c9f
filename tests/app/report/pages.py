"""Helpers for page tests: parsed HTML, and the DOM after the scripts ran in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.report import html, run_page
from coterie.app.runs.rundir import Floats, Run

TOUR = Path(__file__).with_name("tour.js")
_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Parsed parts of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.links: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and self.scripts and not self.scripts[-1][1]:
            self.scripts[-1] = (self.scripts[-1][0], data)
        else:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        """Data embedded in the page."""
        (text,) = [text for attrs, text in self.scripts if attrs.get("id") == "run"]
        content = json.loads(text)
        assert isinstance(content, dict)
        return content


def page_of(run: Run | Path) -> Path:
    """Write a run's page without its pictures, which take longer."""
    run = Run.read(run) if isinstance(run, Path) else run
    path = run.directory / "report.html"
    page = run_page.page(run, ["curves.png", "collaboration.png"])
    path.write_text(html.render(page.template, **page.content()), encoding="utf-8")
    return path


def decoded(text: str, nbytes: int, *shape: int) -> Floats:
    """Decode numbers written by `thinning.encode`."""
    kept = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, nbytes)
    padded = np.pad(kept, ((0, 0), (4 - nbytes, 0)))
    return padded.copy().view("<f4").astype(np.float64).reshape(shape or -1)


def toured(path: Path) -> str:
    """Return the DOM after tour.js used every control; assert that nothing failed."""
    html, script = path.read_text(encoding="utf-8"), TOUR.read_text(encoding="utf-8")
    copy = path.with_name("toured.html")
    copy.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    dom = in_a_browser(copy)
    assert 'data-toured="yes"' in dom
    assert re.search('data-error="[^"]*"', dom) is None
    return dom


def in_a_browser(path: Path) -> str:
    """Return the DOM after the page's scripts ran; skip the test without Chromium."""
    if _BROWSER is None:
        pytest.skip("no chromium")
    command = [
        _BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={path.parent / 'profile'}",
        *("--virtual-time-budget=2000", "--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
