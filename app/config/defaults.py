"""The `[tool.flwr.app.config]` section of pyproject.toml, made from the option dataclasses.

`python -m coterie.app.config.defaults` writes it, in a checkout.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

import tomli_w

from coterie.app.config import parts, schema
from coterie.app.config.keys import ConfigError, flatten
from coterie.app.config.root import ROOT
from coterie.app.config.settings import ambiguous, keys, options_in, tables
from coterie.app.config.sources import Source
from coterie.ranges import Scalar

_HEADER = "[tool.flwr.app.config"
_REMEDY = " (python -m coterie.app.config.defaults rewrites that section)"


def of_project() -> Source:
    """Return every key with its value in the checkout's pyproject.toml, or else its default."""
    file = ROOT / "pyproject.toml"
    if not file.is_file():  # installed from a wheel
        return _parsed(section())
    source = _parsed(file.read_text(encoding="utf-8"))
    if missing := keys().keys() - source.keys.keys():
        raise ConfigError(f"pyproject.toml: no key {min(missing)}{_REMEDY}")
    return source


@lru_cache(1)
def _parsed(text: str) -> Source:
    flat = parts.unpacked(flatten(tomllib.loads(text)["tool"]["flwr"]["app"]["config"]))
    return Source(flat, Path("pyproject.toml"), text, remedy=_REMEDY)


def section() -> str:
    """Return every key with its default, one TOML table per option table."""
    blocks = []
    for table, options in tables().items():
        if table in ambiguous():
            continue
        header = f"{_HEADER}.{table}]" if table else f"{_HEADER}]"
        values = schema.defaults(options) if table else _top()
        blocks.append(f"{header}\n{tomli_w.dumps(values)}")
    return "\n".join(blocks)


def _top() -> dict[str, Scalar]:
    """Return the top-level keys, and the tables of plugins' options, which Flower must know."""
    top = {key: each.default for key, each in options_in("").items()}
    dotted = {
        f"{table}.{key}": value
        for table in ambiguous()
        for key, value in schema.defaults(tables()[table]).items()
    }
    return top | dotted | dict.fromkeys(parts.TABLES, "")


def written_into(pyproject: str) -> str:
    """Return `pyproject` with an updated section, which is the last of the file."""
    return pyproject[: pyproject.index(_HEADER)] + section()


if __name__ == "__main__":
    (ROOT / "pyproject.toml").write_text(
        written_into((ROOT / "pyproject.toml").read_text("utf-8")), encoding="utf-8"
    )
