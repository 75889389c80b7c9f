"""Parse the arguments of a command: a preset and `key=value` items, as flat keys."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.app.config import defaults, parts, recipes, schema
from coterie.app.config.keys import ConfigError, flatten, keys, locate, nearest
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar

_BYTES = 1 << 23
"""Maximum bytes of a TOML file."""
_BESIDE = ("progress.json", "metrics.jsonl", "decisions.jsonl", "split.json", "nodes", "relay")
"""Files and folders that mark a folder as a run directory; it has at least one of them."""
BEFORE: dict[str, dict[str, Scalar]] = {
    "table": {"table.scale": "own", "table.split": "plain", "table.fold": 0}
}
"""Data set -> values of keys that runs recorded before there were these keys."""


def read_items(
    items: Sequence[str], choices: Mapping[str, str] = {}, *, deployed: bool = False
) -> tuple[str, dict[str, Scalar]]:
    """Return the preset's name ("default" without one), and defaults < preset < overrides, flat.

    The key `base` of a preset names another preset, whose keys it overrides. A preset belongs to
    the user and may name code, as a script may; a file of a run directory may come from anywhere
    and may name only code that the user names too.

    Parameters
    ----------
    choices : Mapping of str to str
        Names of parts by key, from other options of the command.
    deployed : bool
        True if the run is on other machines, which use installed code only.

    Raises
    ------
    ConfigError
        If an item is neither a preset nor a valid `key=value`, or a name is not allowed. No code
        was loaded.
    """
    presets = [item for item in items if "=" not in item]
    if len(presets) > 1:
        raise ConfigError(f"one preset at a time, not {' and '.join(presets)}")
    flat = parts.unpacked(defaults.of_project())
    texts = dict(item.split("=", 1) for item in items if item not in presets)
    of_plugins = {key: text for key, text in texts.items() if key.partition(".")[0] in parts.TABLES}
    chain = _chain(_preset_file(presets[0])) if presets else {}
    for keys_of_file in chain.values():
        flat |= keys_of_file
    values = {key: _value(key, text, {}) for key, text in texts.items() if key not in of_plugins}
    flat |= {**values, **choices}
    recipes.check(flat["method"], values)
    if deployed:
        parts.refuse_modules(flat)
    users = [each for path, each in chain.items() if not is_of_run(path)]
    words = [str(value) for each in (*users, values, choices) for value in each.values()]
    for path in filter(is_of_run, chain):
        parts.refuse_unnamed(flat, words, path, "")
    theirs = parts.plugin_tables(flat)  # option tables of the chosen plugins
    for path, keys_of_file in chain.items():
        recipes.check(keys_of_file.get("method"), keys_of_file)
        needed = {key: value for key, value in keys_of_file.items() if key in parts.used(flat)}
        _check(path, needed, theirs)
    flat |= parts.unpacked(
        {
            key: text if key in parts.TABLES else _value(key, text, theirs)
            for key, text in of_plugins.items()
        }
    )
    return Path(presets[0]).stem if presets else "default", flat


def read_pair(item: str) -> tuple[str, Scalar]:
    """Return key and value of one `key=value`, without the options of plugins.

    Raises
    ------
    ConfigError
        The key is unknown or the value of the wrong type.
    """
    key, _, text = item.partition("=")
    return key, _value(key, text, {})


def _chain(path: Path) -> dict[Path, dict[str, Scalar]]:
    """Return file -> keys of a preset and of the presets it is based on, the last base first.

    Raises
    ------
    ConfigError
        A file is not TOML, or a base does not exist, is based on itself or is named by the file of
        a run directory.
    """
    chain: dict[Path, dict[str, Scalar]] = {}
    while True:
        flat = _toml(path)
        base = flat.pop("base", None)
        chain = {path: flat, **chain}
        if base is None:
            return chain
        if not isinstance(base, str):
            raise ConfigError(f"{path}: base = {schema.brief(base)}: must be the name of a preset")
        if is_of_run(path):
            raise ConfigError(f"{path}: a run has all its keys, and its files name no base")
        try:
            path = _preset_file(base, path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: base: {error}") from None
        if path.resolve() in map(Path.resolve, chain):
            raise ConfigError(f"{path}: base: the preset is based on itself")


def _preset_file(preset: str, folder: Path = Path()) -> Path:
    """Return the file of a preset: a path, or a name in `presets/` with or without .toml.

    Parameters
    ----------
    folder : Path
        Base of a relative path.

    Raises
    ------
    ConfigError
        If there is no such file.
    """
    ours = ROOT / "presets"
    for path in (folder / preset, ours / preset, ours / f"{preset}.toml"):
        if path.is_file():
            return path
    if preset in keys():
        raise ConfigError(f"{preset} needs a value: {preset}=...")
    known = [str(path.relative_to(ours).with_suffix("")) for path in ours.rglob("*.toml")]
    raise ConfigError(f"no preset {preset}{nearest(preset, known)}")


def is_of_run(path: Path) -> bool:
    """Return whether a file lies in a run directory."""
    return any((path.parent / name).exists() for name in _BESIDE)


def read_toml(path: Path, named: Collection[str] = ()) -> dict[str, Scalar]:
    """Read the flat keys of a TOML file of a run directory.

    Parameters
    ----------
    named : Collection of str
        Parts that the user has named and the file may name; see `parts.refuse_unnamed`.

    Raises
    ------
    ConfigError
        It is not TOML, has an unknown key, or names code that the user has not named.
    """
    flat = _toml(path)
    parts.refuse_unnamed(flat, named, path)
    _check(path, flat, parts.plugin_tables(flat))
    return flat


def _toml(path: Path) -> dict[str, Scalar]:
    """Read a TOML file without checking its keys: the command line may choose other plugins."""
    if not path.is_file() or path.stat().st_size > _BYTES:
        raise ConfigError(f"{path} is not a file of at most {_BYTES // 2**20} MiB")
    try:
        nested: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    flat = parts.unpacked(flatten(nested))
    return BEFORE.get(str(flat.get("dataset")), {}) | flat if is_of_run(path) else flat


def _check(path: Path, flat: Mapping[str, Scalar], theirs: Mapping[str, type]) -> None:
    """Refuse unknown keys of a file.

    Raises
    ------
    ConfigError
        Names the first one.
    """
    try:
        for key in flat:
            locate(key, theirs)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _value(key: str, text: str, theirs: Mapping[str, type]) -> Scalar:
    """Return the value of `key=text`.

    Raises
    ------
    ConfigError
        The key is unknown or the value of the wrong type.
    """
    _, _, annotation = locate(key, theirs)
    try:
        return schema.read(text, annotation)
    except ValueError as error:
        raise ConfigError(f"{key}={text}: {error}") from None
