"""The `[tool.flwr.app.config]` section of pyproject.toml, written from the option dataclasses."""

from __future__ import annotations

import tomllib

import tomli_w

from coterie.app.config import parts, schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import flatten, keys, tables
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar

_HEADER = "[tool.flwr.app.config"


def of_project() -> dict[str, Scalar]:
    """What pyproject.toml says: every key with its default, or with what a user made of it.

    Raises
    ------
    ConfigError
        A value is wrong, or a key unknown or missing.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    flat = flatten(project["tool"]["flwr"]["app"]["config"])
    try:
        Config.from_flat(flat)
        if missing := keys().keys() - flat.keys():
            raise ConfigError(f"no key {min(missing)}")
    except ConfigError as error:
        remedy = "`coterie defaults` writes that section anew"
        raise ConfigError(f"pyproject.toml: {error} ({remedy})") from None
    return flat


def section() -> str:
    """Every key with its default, one TOML table per option table."""
    blocks = []
    for table, options in tables().items():
        if table == "model":  # a name beside which no table can stand
            continue
        header = f"{_HEADER}.{table}]" if table else f"{_HEADER}]"
        values = schema.defaults(options) if table else _top()
        blocks.append(f"{header}\n{tomli_w.dumps(values)}")
    return "\n".join(blocks)


def _top() -> dict[str, Scalar]:
    """The keys of no table, and the tables of plugins' options, which Flower has to know."""
    model = schema.defaults(tables()["model"])
    of_model = {f"model.{key}": value for key, value in model.items()}
    return schema.defaults(tables()[""]) | of_model | dict.fromkeys(parts.TABLES, "")


def written_into(pyproject: str) -> str:
    """`pyproject` with the section brought up to date; the section is the last of the file."""
    return pyproject[: pyproject.index(_HEADER)] + section()
