"""MkDocs hooks: pages made from the code, tables of options and costs, formulas, links.

- `reference/keys.md` is written from the docstrings of the option dataclasses, and the pages of the
  API from the modules of each package; docker/README.md and CONTRIBUTING.md become pages too.
- On a page of a method `{{ costs }}` and `{{ options }}` stand for its row of methods/index.md and
  for its part of the key reference.
- Formulas become MathML, which browsers render without a script.
- A link to a file of the repository that is no page keeps its text and loses its target.

Build with `python -m mkdocs` in the repository root: the packages are imported from there.
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from app.config import schema
from app.config.keys import TopLevel, tables
from app.config.registry import METHODS
from clients.models.options import MODELS
from clients.training import Training
from datasets.partition.kinds import KINDS
from datasets.table import DATASETS

ROOT = Path(__file__).parents[1]
BROUGHT = {"docker/README.md": "consortium/docker.md", "CONTRIBUTING.md": "contributing.md"}
"""Files outside docs/ that are pages."""

API = {
    "strategies": ("*.py", "relay/*.py", "flower/*.py"),
    "clients": ("*.py", "engine/*.py", "parts/*.py"),
    "datasets": ("*.py", "partition/*.py", "own/*.py"),
    "coterie": ("api.py", "results.py", "testing.py"),
    "app": ("config/*.py", "wire/*.py", "security/*.py", "node/*.py", "runs/*.py"),
}
"""Package -> the modules on its page, as patterns."""

_GROUPS = {
    "Methods": ("method", {name: method.summary for name, method in METHODS.items()}),
    "Data sets": (
        "dataset",
        {name: f"{of.description}; needs {of.needs}" for name, of in DATASETS.items()},
    ),
    "Models": ("model", MODELS),
}
_ATTRIBUTE = re.compile(r"^(\w[\w, ]*) : (.*)((?:\n    .*)*)", re.M)
_TYPE_OF = re.compile(r"(bool|int|float|str|\{.*\}|[A-Z]\w+)( \| .*)?")
"""Type of an attribute, as against the first line of a description without one."""
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made = {"reference/keys.md": keys_page()}
    made |= {f"reference/{package}.md": api_page(package) for package in API}
    made |= {page: (ROOT / source).read_text("utf-8") for source, page in BROUGHT.items()}
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in a method's tables; keep only links that lead to pages."""
    uri = page.file.src_uri
    name = posixpath.basename(uri).removesuffix(".md")
    if uri.startswith("methods/") and name in METHODS:
        markdown = markdown.replace("{{ costs }}", costs_table(name))
        markdown = markdown.replace("{{ options }}", options_table(name))
    sources = {page: source for source, page in BROUGHT.items()}
    folder = posixpath.dirname(sources.get(uri, f"docs/{uri}"))
    return relinked(markdown, folder, posixpath.dirname(uri))


def on_page_content(page_html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_mathml, page_html)


def keys_page() -> str:
    """Every key of a run with its type, default and meaning."""
    parts = [
        "# Keys of a run",
        "Defaults < preset < `key=value` on the command line. A preset is a TOML file in which a "
        "table `[cobo]` holds the keys that start with `cobo.`; the command line writes them "
        "`cobo.gamma=0.1`. This page is generated from the dataclasses that parse the keys.",
        "## Every run",
        _rows("", TopLevel),
        "## Partition",
        "How the examples of a data set are divided among the peers: `partition.kind` and the "
        "keys of each kind.",
        _rows("partition", tables()["partition"]),
        _choices("partition.kind", {name: kind.description for name, kind in KINDS.items()}),
    ]
    parts += [
        "## Network",
        "What is done with the network, whatever it is.",
        _rows("model", tables()["model"]),
        "## Plugins",
        "Options of methods, models, data sets and partitions that are not built in stand in "
        "[method-options], [model-options], [dataset-options] and [partition-options]: `python -m "
        "app list NAME` shows those of an installed one, [Own methods and networks](../extend.md) "
        "how to write one.",
    ]
    for title, (key, names) in _GROUPS.items():
        parts += [f"## {title}", _choices(key, names)]
        for name in names:
            if name in tables():
                parts += [f"### {name}", _rows(name, tables()[name])]
    return "\n\n".join(parts) + "\n"


def options_table(method: str) -> str:
    """The option keys of a method."""
    if method in tables():
        return _rows(method, tables()[method])
    return "None: only [the keys of every run](../reference/keys.md)."


def costs_table(method: str) -> str:
    """The row of a method in methods/index.md, as a table of its own."""
    lines = (ROOT / "docs" / "methods" / "index.md").read_text("utf-8").splitlines()
    found = next(i for i, line in enumerate(lines) if line.startswith("| method | exchange |"))
    heads = _cells(lines[found])
    row = next(_cells(line) for line in lines[found:] if _cells(line)[:1] == [method])
    pairs = zip(heads[1:], row[1:], strict=True)
    return "\n".join(["| | a peer, a round |", "|---|---|", *(f"| {h} | {c} |" for h, c in pairs)])


def api_page(package: str) -> str:
    """A page that names the modules of a package for mkdocstrings."""
    paths = [path for pattern in API[package] for path in sorted((ROOT / package).glob(pattern))]
    modules = (path for path in paths if path.name != "__init__.py")
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules)
    return "\n\n".join([f"# API: {package}", *(f"::: {name}" for name in names)]) + "\n"


def relinked(markdown: str, folder: str, here: str) -> str:
    """Links as they have to be on a page of the site.

    Parameters
    ----------
    folder : of the Markdown file in the repository, which its links start from.
    here : folder of the page in the site.
    """

    def linked(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        page = BROUGHT.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if page:
            target = posixpath.relpath(page, here or ".")
            return f"[{match['text']}]({target}{match['anchor'] or ''})"
        return match["text"] if (ROOT / path).exists() else match[0]

    return _LINK.sub(linked, markdown)


def descriptions(table: type) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields from its "Attributes", bases included."""
    texts: dict[str, str] = {}
    bases = [Training, TopLevel] if table is TopLevel else reversed(table.__mro__)
    for cls in bases:
        doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
        _, _, attributes = doc.partition("Attributes\n----------\n")
        for names, kind, text in _ATTRIBUTE.findall(attributes):
            described = text if _TYPE_OF.fullmatch(kind) else f"{kind} {text}"
            texts |= {name.strip(): " ".join(described.split()) for name in names.split(",")}
    return {field.name: texts[field.name] for field in fields(table) if field.name in texts}


def _rows(name: str, table: type) -> str:
    said, defaults = descriptions(table), schema.defaults(table)
    keys = schema.keys(table)
    names = {field: key for key, (field, _) in keys.items()}
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for key, (field, annotation) in keys.items():
        dotted = f"{name}.{key}" if name else key
        meaning = _sentence(
            re.sub(r"\w+_\w+", lambda word: names.get(word[0], word[0]), said[field])
        )
        kind, default = _type(annotation), schema.written(defaults[key])
        rows.append(f"| `{dotted}` | {kind} | `{default}` | {meaning} |")
    return "\n".join(rows)


def _choices(key: str, names: Mapping[str, str]) -> str:
    rows = (f"| `{name}` | {_sentence(said)} |" for name, said in names.items())
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
