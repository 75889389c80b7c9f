"""The pages: the list of all runs, a run, a comparison; each made anew when its files changed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from coterie.app.dashboard.library import Entry, Group, Library, refuse_links
from coterie.app.report import comparison, comparison_page, html, run_page
from coterie.app.runs import files, units
from coterie.app.runs.progress import last_seen
from coterie.app.runs.rundir import Run, RunReader

_HERE = Path(__file__).parent
_KEPT = 8
"""Pages, of those last shown, whose runs stay in memory."""
_SHARE = 0.1
"""The most of a processor's time that a page may take: the runs need it."""
_LEAST_SECONDS = 1.0

_SCRIPTS = ("plain", "run", "comparison")
STATIC: Mapping[str, tuple[str, Callable[[], str]]] = {
    "report.css": ("text/css", partial(html.style, "style.css")),
    "dashboard.css": ("text/css", partial(html.style, _HERE / "static" / "dashboard.css")),
    **{
        f"{name}.js": ("text/javascript", partial(html.script, _HERE / "static" / f"{name}.js"))
        for name in _SCRIPTS
    },
}
"""What pages load, and how it is made: the only files that are served."""


@dataclass
class _Shown:
    """A page that was shown, and what it takes to show it again.

    Attributes
    ----------
    lock : one makes it, others wait.
    version, page : of which state, and the page; empty before the first.
    cost : seconds that making it took.
    readers : of its runs, by key.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    version: str = ""
    page: str = ""
    cost: float = 0.0
    readers: dict[str, RunReader] = field(default_factory=dict)


class Pages:
    """Makes the pages of a library. Its methods may be called from several threads."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._environment = html.environment(_HERE / "templates")
        self._environment.filters |= {
            name: getattr(units, name) for name in ("percent", "number", "size", "plural")
        }
        self._lock = threading.Lock()
        self._shown = OrderedDict[tuple[str, str], _Shown]()

    def version(self, kind: str, key: str) -> str:
        """Differs whenever the page has something new to show."""
        shelf = self._library.look()
        if kind == "list":
            groups = [f"{g.key} {g.state} {g.finished} {g.total}" for g in shelf.groups.values()]
            return _digest([*groups, *(entry.standing for entry in shelf.runs.values())])
        found = shelf.groups.get(key) if kind == "comparison" else shelf.entry(key)
        return _digest([found.version] if found else [])

    def page(self, kind: str, key: str) -> str:
        """The HTML of a page, of which one may be made while another is asked for."""
        with self._lock:
            shown = self._shown.setdefault((kind, key), _Shown())
            self._shown.move_to_end((kind, key))
            if len(self._shown) > _KEPT:
                self._shown.popitem(last=False)
        with shown.lock:
            version = self.version(kind, key)
            if version != shown.version:
                began = time.thread_time()
                shown.page = self._made(kind, key, version, shown.readers)
                shown.version, shown.cost = version, time.thread_time() - began
            return shown.page

    def pause(self, kind: str, key: str) -> float:
        """How long to wait before the page is looked at again, in seconds."""
        shown = self._shown.get((kind, key))
        return max(_LEAST_SECONDS, shown.cost / _SHARE if shown else 0.0)

    def _made(self, kind: str, key: str, version: str, readers: dict[str, RunReader]) -> str:
        try:
            return self._rendered(version, *self._content(kind, key, readers))
        except Exception as error:  # whatever a damaged file does to a page, the others go on
            lines = str(error).splitlines() or [type(error).__name__]
            return self._rendered(version, *_message(key, f"This cannot be shown: {lines[0]}"))

    def _rendered(self, version: str, template: str, content: Mapping[str, Any]) -> str:
        page = template.partition(".")[0]
        return self._environment.get_template(template).render(
            page=page, version=version, **content
        )

    def _content(
        self, kind: str, key: str, readers: dict[str, RunReader]
    ) -> tuple[str, dict[str, Any]]:
        """The template of a page and what it says."""
        shelf = self._library.look()
        if kind == "list":
            title = f"Runs in {self._library.root}"
            groups, runs = list(shelf.groups.values()), list(shelf.runs.values())
            content = {"title": title, "groups": groups, "runs": runs}
            return "list.html.j2", {**content, "watched": str(self._library.root)}
        if kind == "comparison" and (group := shelf.groups.get(key)):
            return _comparison(group, readers)
        if kind == "run" and (entry := shelf.entry(key)):
            return _run(entry, readers)
        return _message(key, f"There is no such {kind} any more.")


def _run(entry: Entry, readers: dict[str, RunReader]) -> tuple[str, dict[str, Any]]:
    if entry.state == "damaged":
        return _message(entry.key, f"This run cannot be shown: {entry.why}")
    run = _read(entry, readers)
    content = run_page.content(run)
    if entry.goes_on:
        content["notice"] = ""
    elif entry.state == "stopped":
        content["notice"] = "This run was stopped; the numbers are those until then."
    return "live_run.html.j2", {
        **content,
        "entry": entry,
        "progress": run.progress,
        "present": _attendance(run),
    }


def _comparison(group: Group, readers: dict[str, RunReader]) -> tuple[str, dict[str, Any]]:
    """The comparison of the runs of which something has been measured."""
    measured: dict[str, list[Run]] = {}
    for entry in group.runs:
        if entry.state != "damaged" and len((run := _read(entry, readers)).rounds):
            measured.setdefault(str(run.config["method"]), []).append(run)
    if not measured:
        return "begun_comparison.html.j2", {"title": group.name, "group": group}
    failed = {entry.name: entry.why for entry in group.runs if entry.state == "failed"}
    rows = comparison.rows(measured, _settings(group.directory / "tuning.csv"))
    content = comparison_page.content(rows, group.name, failed)
    return "live_comparison.html.j2", {**content, "group": group}


def _settings(tuning: Path) -> dict[str, dict[str, Any]]:
    """Method -> the settings that its trials led to; empty where there were none."""
    content = files.text(tuning.parent, tuning.name)
    if content is None:
        return {}
    chosen = [row for row in csv.DictReader(io.StringIO(content)) if row["chosen"] == "1"]
    return {row["method"]: json.loads(row["settings"]) for row in chosen}


class _Peer(NamedTuple):
    """Whether a peer takes part: "awake", "late", "missing" or "expected", and when it last did."""

    name: str
    state: str
    round: int | None = None
    seen: float | None = None


def _attendance(run: Run) -> list[_Peer]:
    seen, made = last_seen(run.progress), list[_Peer]()
    for peer, name in enumerate(run.names):
        if peer not in seen:
            made.append(_Peer(name, "expected"))
            continue
        t, at = seen[peer]
        behind = run.progress["round"] - t
        made.append(_Peer(name, ("awake", "late", "missing")[min(max(behind, 0), 2)], t, at))
    return made


def _read(entry: Entry, readers: dict[str, RunReader]) -> Run:
    refuse_links(entry.directory)
    return readers.setdefault(entry.key, RunReader(entry.directory)).read()


def _message(key: str, text: str) -> tuple[str, dict[str, Any]]:
    return "message.html.j2", {"title": key, "text": text}


def _digest(parts: Sequence[object]) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
