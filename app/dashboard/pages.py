"""Pages of the dashboard: list of runs, run, comparison; rendered again when files change."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coterie.app.dashboard.library import Entry, Group, Library, refuse_links
from coterie.app.report import comparison_page, html, run_page
from coterie.app.report.comparison import Comparison
from coterie.app.runs import units
from coterie.app.runs.progress import RunState
from coterie.app.runs.rundir import Run, RunReader

_HERE = Path(__file__).parent
_CACHED_PAGES = 8
"""Number of recent pages whose runs stay in memory."""
_MAX_SHARE = 0.1
"""Maximum share of a core's time for a page; the rest is for the runs."""
_MIN_SECONDS = 1.0

_SCRIPTS = ("plain", "run", "comparison")
STATIC: Mapping[str, tuple[str, Callable[[], str]]] = {
    "report.css": ("text/css", partial(html.style, "style.css")),
    "dashboard.css": ("text/css", partial(html.style, _HERE / "static" / "dashboard.css")),
    **{
        f"{name}.js": ("text/javascript", partial(html.script, _HERE / "static" / f"{name}.js"))
        for name in _SCRIPTS
    },
}
"""Static files that are served: name -> media type and a function that returns the content."""


@dataclass
class _CachedPage:
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by the thread that renders
    version: str = ""  # "" before the first rendering
    page: str = ""  # HTML
    cost: float = 0.0  # processor seconds of the last rendering
    readers: dict[str, RunReader] = field(default_factory=dict)  # readers of its runs, by key


class Pages:
    """Renders the pages of a library. Thread-safe."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._environment = html.environment(_HERE / "templates")
        self._environment.filters |= {
            name: getattr(units, name) for name in ("percent", "number", "size", "plural")
        }
        self._lock = threading.Lock()
        self._cached = OrderedDict[tuple[str, str], _CachedPage]()

    def version(self, kind: str, key: str) -> str:
        """Return the version of a page; it changes whenever the page does."""
        scan = self._library.scan()
        if kind == "list":
            groups = [f"{g.key} {g.state} {g.finished} {g.total}" for g in scan.groups.values()]
            return _digest([*groups, *(entry.row for entry in scan.runs.values())])
        subject = scan.groups.get(key) if kind == "comparison" else scan.entry(key)
        return _digest([subject.version] if subject else [])

    def page(self, kind: str, key: str) -> str:
        """Return the HTML of a page. Different pages can be rendered at the same time."""
        with self._lock:
            cached = self._cached.setdefault((kind, key), _CachedPage())
            self._cached.move_to_end((kind, key))
            if len(self._cached) > _CACHED_PAGES:
                self._cached.popitem(last=False)
        with cached.lock:
            version = self.version(kind, key)
            if version != cached.version:
                began = time.thread_time()
                cached.page = self._render_or_explain(kind, key, version, cached.readers)
                cached.version, cached.cost = version, time.thread_time() - began
            return cached.page

    def pause(self, kind: str, key: str) -> float:
        """Return the seconds to wait before the next check of a page's version."""
        cached = self._cached.get((kind, key))
        return max(_MIN_SECONDS, cached.cost / _MAX_SHARE if cached else 0.0)

    def _render_or_explain(
        self, kind: str, key: str, version: str, readers: dict[str, RunReader]
    ) -> str:
        try:
            return self._render(version, *self._content(kind, key, readers))
        except Exception as error:  # a damaged file must not affect other pages
            lines = str(error).splitlines() or [type(error).__name__]
            return self._render(version, *_message(key, f"Cannot show this {kind}: {lines[0]}"))

    def _render(self, version: str, template: str, content: Mapping[str, Any]) -> str:
        page = template.partition(".")[0]
        return self._environment.get_template(template).render(
            page=page, version=version, **content
        )

    def _content(
        self, kind: str, key: str, readers: dict[str, RunReader]
    ) -> tuple[str, dict[str, Any]]:
        """Return the template of a page and its values."""
        scan = self._library.scan()
        if kind == "list":
            title = f"Runs in {self._library.root}"
            groups, runs = list(scan.groups.values()), list(scan.runs.values())
            content = {"title": title, "groups": groups, "runs": runs}
            return "list.html.j2", {**content, "watched": str(self._library.root)}
        if kind == "comparison" and (group := scan.groups.get(key)):
            return _comparison(group, readers)
        if kind == "run" and (entry := scan.entry(key)):
            return _run(entry, readers)
        return _message(key, f"This {kind} does not exist.")


def _run(entry: Entry, readers: dict[str, RunReader]) -> tuple[str, dict[str, Any]]:
    if entry.state.status == "damaged":
        return _message(entry.key, f"Cannot show this run: {entry.state.error}")
    run = _read(entry, readers)
    content = run_page.page(run).content()
    if entry.state.is_active:
        content["notice"] = ""
    elif entry.state.status == "stopped":
        content["notice"] = "This run was stopped; the page shows the rounds until then."
    return "live_run.html.j2", {
        **content,
        "entry": entry,
        "progress": run.progress,
        "present": RunState(run.progress).peers(run.names),
    }


def _comparison(group: Group, readers: dict[str, RunReader]) -> tuple[str, dict[str, Any]]:
    """Return the comparison of the runs that have measurements."""
    whole = [entry for entry in group.runs if entry.state.status != "damaged"]
    runs = {entry.name: run for entry in whole if len((run := _read(entry, readers)).rounds)}
    if not runs:
        return "begun_comparison.html.j2", {"title": group.name, "group": group}
    failed = {
        entry.name: entry.state.error for entry in group.runs if entry.state.status == "failed"
    }
    content = comparison_page.page(Comparison.of(group.directory, runs, failed)).content()
    return "live_comparison.html.j2", {**content, "group": group}


def _read(entry: Entry, readers: dict[str, RunReader]) -> Run:
    refuse_links(entry.directory)
    return readers.setdefault(entry.key, RunReader(entry.directory)).read()


def _message(key: str, text: str) -> tuple[str, dict[str, Any]]:
    return "message.html.j2", {"title": key, "text": text}


def _digest(parts: Sequence[object]) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
