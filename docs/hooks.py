"""MkDocs hooks: generated pages, tables of options and costs, formulas, links.

- `reference/keys.md` is generated from the docstrings of the option dataclasses, the API pages from
  the modules of each package, under their import names. docker/README.md and CONTRIBUTING.md become
  pages, too.
- On a method's page, `{{ costs }}` and `{{ options }}` are replaced by its row of methods/index.md
  and its part of the key reference.
- Formulas become MathML, which browsers render without a script.
- A link to a file of the repository that is not a page becomes plain text.

Build with `python -m mkdocs` in the repository root, from which the packages are imported.
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from griffe import Docstring, DocstringSectionKind
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from coterie.app.config import schema
from coterie.app.config.keys import TopLevel, tables
from coterie.app.config.registry import METHODS
from coterie.clients.models.options import MODELS
from coterie.clients.training import Training
from coterie.datasets.partition.kinds import KINDS
from coterie.datasets.table import DATASETS

ROOT = Path(__file__).parents[1]
OUTSIDE = {"docker/README.md": "consortium/docker.md", "CONTRIBUTING.md": "contributing.md"}
"""Files outside docs/ -> their pages."""

API = {
    "strategies": ("*.py", "relay/*.py", "flower/*.py"),
    "clients": ("*.py", "engine/*.py", "parts/*.py"),
    "datasets": ("*.py", "partition/*.py", "own/*.py"),
    "coterie": ("api.py", "results.py", "testing.py"),
    "app": ("config/*.py", "wire/*.py", "security/*.py", "node/*.py", "runs/*.py"),
}
"""Package -> patterns of the modules on its page."""

_GROUPS = {
    "Methods": ("method", {name: method.summary for name, method in METHODS.items()}),
    "Data sets": (
        "dataset",
        {name: f"{of.description}; needs {of.needs}" for name, of in DATASETS.items()},
    ),
    "Models": ("model", MODELS),
}
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
_PACKAGES = tempfile.TemporaryDirectory(prefix="coterie-reference-")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: MkDocsConfig) -> None:
    """Copy the packages to a folder where mkdocstrings finds them under their import names."""
    inside = Path(_PACKAGES.name) / "coterie"
    for package in ("coterie", *API):
        target = inside if package == "coterie" else inside / package
        ignored = shutil.ignore_patterns("__pycache__", "static", "templates")
        shutil.copytree(ROOT / package, target, ignore=ignored, dirs_exist_ok=True)
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [_PACKAGES.name]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"reference/keys.md": keys_page()}
    pages |= {f"reference/{package}.md": api_page(package) for package in API}
    pages |= {page: (ROOT / source).read_text("utf-8") for source, page in OUTSIDE.items()}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables of a method's page; remove links that do not lead to pages."""
    uri = page.file.src_uri
    name = posixpath.basename(uri).removesuffix(".md")
    if uri.startswith("methods/") and name in METHODS:
        markdown = markdown.replace("{{ costs }}", costs_table(name))
        markdown = markdown.replace("{{ options }}", options_table(name))
    sources = {page: source for source, page in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(uri, f"docs/{uri}"))
    return relinked(markdown, folder, posixpath.dirname(uri))


def on_page_content(page_html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_mathml, page_html)


def keys_page() -> str:
    """Return the page of all keys with type, default and description."""
    parts = [
        "# Keys of a run",
        "A key has a default; a preset overrides defaults, and `key=value` on the command line "
        "overrides both. A preset is a TOML file: its table `[cobo]` has the keys that start with "
        "`cobo.`, such as `cobo.gamma=0.1` on the command line. This page is generated from the "
        "dataclasses that parse the keys.",
        "## All runs",
        _rows("", TopLevel),
        "## Partition",
        "How the examples of a data set are divided among the peers: `partition.kind` and the "
        "keys of each kind.",
        _rows("partition", tables()["partition"]),
        _choices("partition.kind", {name: kind.description for name, kind in KINDS.items()}),
    ]
    parts += [
        "## Network",
        "These keys work with every network.",
        _rows("model", tables()["model"]),
        "## Plugins",
        "Options of methods, models, data sets and partitions of plugins are in the tables "
        "[method-options], [model-options], [dataset-options] and [partition-options]. `coterie "
        "list NAME` shows the options of an installed plugin; [Plugins](../extend.md) shows how to "
        "write one.",
    ]
    for title, (key, names) in _GROUPS.items():
        parts += [f"## {title}", _choices(key, names)]
        for name in names:
            if name in tables():
                parts += [f"### {name}", _rows(name, tables()[name])]
    return "\n\n".join(parts) + "\n"


def options_table(method: str) -> str:
    """Return the table of a method's option keys."""
    if method in tables():
        return _rows(method, tables()[method])
    return "None; only [the keys of all runs](../reference/keys.md)."


def costs_table(method: str) -> str:
    """Return a method's row of methods/index.md as a separate table."""
    lines = (ROOT / "docs" / "methods" / "index.md").read_text("utf-8").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| method | exchange |"))
    heads = _cells(lines[head])
    row = next(_cells(line) for line in lines[head:] if _cells(line)[:1] == [method])
    pairs = zip(heads[1:], row[1:], strict=True)
    return "\n".join(
        ["| | per peer and round |", "|---|---|", *(f"| {h} | {c} |" for h, c in pairs)]
    )


def api_page(package: str) -> str:
    """Return a page that lists the modules of a package for mkdocstrings."""
    paths = [path for pattern in API[package] for path in sorted((ROOT / package).glob(pattern))]
    modules = (path for path in paths if path.name != "__init__.py")
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules)
    prefix = "" if package == "coterie" else "coterie."
    lines = [f"# API: {prefix}{package}", *(f"::: {prefix}{name}" for name in names)]
    return "\n\n".join(lines) + "\n"


def relinked(markdown: str, folder: str, here: str) -> str:
    """Rewrite the links of a Markdown file for its page of the site.

    Parameters
    ----------
    markdown : str
        Content of the file.
    folder : str
        Folder of the file in the repository, from which its links start.
    here : str
        Folder of the page in the site.
    """

    def linked(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        page = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if page:
            target = posixpath.relpath(page, here or ".")
            return f"[{match['text']}]({target}{match['anchor'] or ''})"
        return match["text"] if (ROOT / path).exists() else match[0]

    return _LINK.sub(linked, markdown)


def descriptions(table: type) -> dict[str, str]:
    """Return the description of each field from the "Attributes" of a dataclass and its bases."""
    described: dict[str, str] = {}
    bases = [Training, TopLevel] if table is TopLevel else reversed(table.__mro__)
    for cls in bases:
        doc = Docstring(inspect.cleandoc(vars(cls).get("__doc__") or ""))
        for section in doc.parse("numpy"):
            if section.kind is not DocstringSectionKind.attributes:
                continue
            for each in section.value:
                text = " ".join(each.description.split())
                described |= dict.fromkeys(each.name.split(", "), text)
    return {field.name: described[field.name] for field in fields(table) if field.name in described}


def _rows(name: str, table: type) -> str:
    described, defaults = descriptions(table), schema.defaults(table)
    keys = schema.keys(table)
    names = {field: key for key, (field, _) in keys.items()}
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for key, (field, annotation) in keys.items():
        dotted = f"{name}.{key}" if name else key
        meaning = _sentence(
            re.sub(r"\w+_\w+", lambda word: names.get(word[0], word[0]), described[field])
        )
        kind, default = _type(annotation), schema.written(defaults[key])
        rows.append(f"| `{dotted}` | {kind} | `{default}` | {meaning} |")
    return "\n".join(rows)


def _choices(key: str, names: Mapping[str, str]) -> str:
    rows = (f"| `{name}` | {_sentence(text)} |" for name, text in names.items())
    return "\n".join([f"| `{key}` | |", "|---|---|", *rows])


def _sentence(text: str) -> str:
    return (text[0].upper() + text[1:]).replace("|", "\\|")


def _type(annotation: Any) -> str:
    if annotation in _TYPES:
        return _TYPES[annotation]
    if isinstance(annotation, str):
        return f'`"{annotation}"`'
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[-1])
    return ", ".join(dict.fromkeys(_type(part) for part in get_args(annotation)))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    return f'<span class="formula">{formula}</span>' if display == "block" else formula
