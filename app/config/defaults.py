"""The `[tool.flwr.app.config]` section of pyproject.toml, written from the option dataclasses."""

from __future__ import annotations

import tomllib

import tomli_w

from coterie.app.config import parts, schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import ambiguous, flatten, keys, tables
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar

_HEADER = "[tool.flwr.app.config"


def of_project() -> dict[str, Scalar]:
    """Return every key with its value in the checkout's pyproject.toml, or else its default.

    Raises
    ------
    ConfigError
        A value is wrong, or a key unknown or missing.
    """
    file = ROOT / "pyproject.toml"
    if not file.is_file():  # installed from a wheel
        return flatten(tomllib.loads(section())["tool"]["flwr"]["app"]["config"])
    project = tomllib.loads(file.read_text(encoding="utf-8"))
    flat = flatten(project["tool"]["flwr"]["app"]["config"])
    try:
        Config.from_flat(flat)
        if missing := keys().keys() - flat.keys():
            raise ConfigError(f"no key {min(missing)}")
    except ConfigError as error:
        remedy = "`coterie defaults` rewrites that section"
        raise ConfigError(f"pyproject.toml: {error} ({remedy})") from None
    return flat


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
    dotted = {
        f"{table}.{key}": value
        for table in ambiguous()
        for key, value in schema.defaults(tables()[table]).items()
    }
    return schema.defaults(tables()[""]) | dotted | dict.fromkeys(parts.TABLES, "")


def written_into(pyproject: str) -> str:
    """Return `pyproject` with an updated section, which is the last of the file."""
    return pyproject[: pyproject.index(_HEADER)] + section()
