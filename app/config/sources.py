"""Sources of keys, as they wrote them: pyproject.toml, a preset, the command line, a program."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.app.config import limits, schema
from coterie.app.config.keys import FORMER, GONE, ConfigError, flatten
from coterie.app.config.parts import unpacked
from coterie.ranges import Option, Scalar

_BYTES = 1 << 23
"""Maximum bytes of a TOML file."""
_BESIDE = ("progress.json", "metrics.jsonl", "decisions.jsonl", "split.json")
"""Files that mark a folder as a run directory, which has at least one of them."""
BEFORE: dict[str, dict[str, Scalar]] = {
    "": {"evaluate-peers": "participants"},
    "table": {"table.scale": "own", "table.split": "plain", "table.fold": 0},
}
"""Data set ("": any) -> values of keys for runs recorded before there were these keys."""


@dataclass(frozen=True)
class Source:
    """Flat dotted keys of one source, as it wrote them."""

    keys: Mapping[str, Any]
    file: Path | None = None
    text: str = field(default="", repr=False)  # of the file
    is_typed: bool = False  # on the command line: values are text
    is_of_run: bool = False  # a file of a run directory, which may come from anywhere
    naming: str = ""  # option by which the user names code in it; "": the key itself
    remedy: str = ""

    def value(self, key: str, option: Option) -> Scalar:
        """Return the value of a key, converted and checked."""
        raw = self.keys[key]
        try:
            value = option.read(raw) if self.is_typed else option.take(raw)
            limits.check(key, value)
        except ValueError as error:
            typed = f"{key}={schema.shortened(str(raw))}"
            shown = typed if self.is_typed else f"{key} = {schema.brief(raw)}"
            raise self.refusal(key, f"{shown}: {error}") from None
        return value

    def refusal(self, key: str, message: str) -> ConfigError:
        """Return the error about a key, with its file and line."""
        return ConfigError(f"{self._place(key)}{message}{self.remedy}")

    def _place(self, key: str) -> str:
        if self.file is None:
            return ""
        table = ""
        for number, line in enumerate(self.text.splitlines(), 1):  # TOML's reader has no lines
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                table = header[1].strip().removeprefix("tool.flwr.app.config").strip(".")
            elif name := re.match(r"\s*([\w.\"'-]+)\s*=", line):
                words = table, re.sub("[\"']", "", name[1])
                if ".".join(filter(None, words)) in (key, f"{key}.name"):
                    return f"{self.file}:{number}: "
        return f"{self.file}: "


def of_program(keys: Mapping[str, Any]) -> Source:
    """Return the source of keys that a program or Flower passes."""
    return Source(unpacked(keys))


def of_file(path: Path) -> Source:
    """Read a TOML file without checking its keys: the command line may choose other plugins."""
    if not path.is_file() or path.stat().st_size > _BYTES:
        raise ConfigError(f"{path} is not a file of at most {_BYTES // 2**20} MiB")
    try:
        text = path.read_text(encoding="utf-8-sig")
        flat = unpacked(flatten(tomllib.loads(text)))
    except (ValueError, RecursionError) as error:
        how = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise ConfigError(f"{path} is not TOML: {error}{how}") from None
    of_run = any((path.parent / name).exists() for name in _BESIDE)
    before = BEFORE[""] | BEFORE.get(str(flat.get("dataset")), {}) if of_run else {}
    if of_run:
        flat = {
            FORMER.get(key, key): value
            for key, value in flat.items()
            if key not in GONE or GONE[key][0] != value
        }
        if flat.get("table.split") == "by-class":  # its former name
            flat["table.split"] = "random"
    return Source(before | flat, path, text, is_of_run=of_run)


def of_record(path: Path) -> Source:
    """Read the configuration that a run recorded: the user names its code with --part."""
    return replace(of_file(path), is_of_run=True, naming="--part ")
