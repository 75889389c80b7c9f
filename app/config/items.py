"""What a command line says of a run: a preset and `key=value` items, as flat keys."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.config import defaults, schema
from app.config.keys import ConfigError, flatten, keys, locate, nearest
from app.config.root import ROOT
from app.config.schema import Scalar


def read_items(items: Sequence[str]) -> tuple[str, dict[str, Scalar]]:
    """The preset's name ("default" without one), and defaults < preset < overrides as flat keys.

    Raises
    ------
    ConfigError
        An item is neither a preset nor a valid `key=value`.
    """
    presets = [item for item in items if "=" not in item]
    if len(presets) > 1:
        raise ConfigError(f"one preset at a time, not {' and '.join(presets)}")
    flat = defaults.of_project()
    for preset in presets:
        flat |= read_toml(_preset_file(preset))
    for item in items:
        if item not in presets:
            flat |= _override(item)
    return Path(presets[0]).stem if presets else "default", flat


def _preset_file(preset: str) -> Path:
    """The file of a preset: a path, or one under `presets/` with or without .toml.

    Raises
    ------
    ConfigError
        There is no such file.
    """
    ours = ROOT / "presets"
    for path in (Path(preset), ours / preset, ours / f"{preset}.toml"):
        if path.is_file():
            return path
    if preset in keys():
        raise ConfigError(f"{preset} wants a value: {preset}=...")
    known = [str(path.relative_to(ours).with_suffix("")) for path in ours.rglob("*.toml")]
    raise ConfigError(f"no preset {preset}{nearest(preset, known)}")


def read_toml(path: Path) -> dict[str, Scalar]:
    """Flat keys of a TOML file.

    Raises
    ------
    ConfigError
        It is not TOML, or has a key that is none.
    """
    try:
        nested: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    flat = flatten(nested)
    try:
        for key in flat:
            locate(key)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return flat


def _override(item: str) -> dict[str, Scalar]:
    """The key and value of `key=value`.

    Raises
    ------
    ConfigError
        The key is unknown or the value of the wrong type.
    """
    key, _, text = item.partition("=")
    _, _, annotation = locate(key)
    try:
        return {key: schema.read(text, annotation)}
    except ValueError as error:
        raise ConfigError(f"{item}: {error}") from None
