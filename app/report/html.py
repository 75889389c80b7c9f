"""Render a page from its template: one HTML file that opens offline and fetches nothing."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import [^;]+ from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def render(template: str, **values: object) -> str:
    """Fill a template of templates/ with escaped texts; `data` becomes JSON for the scripts."""
    return _ENVIRONMENT.get_template(template).render(values)


def script(entry: str | Path) -> Markup:
    """Bundle a module of static/ and its imports into one script; top-level names are unique."""
    joined: dict[Path, str] = {}

    def join(path: Path) -> None:
        if path not in joined:
            text = path.read_text(encoding="utf-8")
            for match in _IMPORT.finditer(text):
                join((path.parent / match[1]).resolve())
            joined[path] = _EXPORT.sub("", _IMPORT.sub("", text))

    join((STATIC / entry).resolve())
    return Markup("\n".join(joined.values()))


def style(name: str | Path) -> Markup:
    """Return a style sheet of static/."""
    return Markup((STATIC / name).read_text(encoding="utf-8"))


def small_units(quantity: str) -> Markup:
    """Set the units in "1 min 13 s" or "88.6 %" smaller than the numbers."""
    return Markup(
        re.sub(r"(?<=\d) ([^\W\d]+|%)", r"<small>&nbsp;\1</small>", str(escape(quantity)))
    )


def environment(*folders: Path) -> Environment:
    """Return the Jinja environment; templates in `folders` may extend the reports' templates."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"script": script, "style": style}
    environment.filters["small_units"] = small_units
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


_ENVIRONMENT = environment()
