"""Parse the arguments of a command: a preset and `key=value` items, as sources of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.app.config import defaults, parts, recipes, schema
from coterie.app.config.config import resolve
from coterie.app.config.keys import ConfigError, nearest
from coterie.app.config.root import ROOT
from coterie.app.config.settings import keys
from coterie.app.config.sources import Source, of_file
from coterie.ranges import Scalar


def read_items(
    items: Sequence[str], choices: Mapping[str, str] = {}, *, deployed: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the preset's name ("default" without one), and defaults < preset < overrides, flat."""
    # `choices` are names of parts by key, from other options of the command.
    name, sources = sources_of(items, choices)
    return name, resolve(sources, (), deployed=deployed).flat


def sources_of(
    items: Sequence[str], choices: Mapping[str, str] = {}
) -> tuple[str, tuple[Source, ...]]:
    """Return the preset's name, and the sources of a command's keys, with the preset's bases."""
    # A preset belongs to the user and may name code; files of a run directory may not.
    presets = [item for item in items if "=" not in item]
    if len(presets) > 1:
        raise ConfigError(f"one preset at a time, not {' and '.join(presets)}")
    texts = parts.pack_peer_models(
        dict(item.split("=", 1) for item in items if item not in presets)
    )
    of_plugins = {key: text for key, text in texts.items() if key.partition(".")[0] in parts.TABLES}
    typed = dict(read_pair(f"{key}={texts[key]}") for key in texts if key not in of_plugins)
    packed = {key: of_plugins.pop(key) for key in parts.TABLES if key in of_plugins}
    files = _chain(_preset_file(presets[0])) if presets else ()
    for source in files:
        recipes.check(source.keys.get("method"), source.keys)
    sources = (defaults.of_project(), *files, Source(typed), Source(choices))
    method = [source.keys["method"] for source in sources if "method" in source.keys][-1]
    recipes.check(method, typed)
    theirs = Source(parts.unpacked(packed)), Source(of_plugins, is_typed=True)
    return Path(presets[0]).stem if presets else "default", (*sources, *theirs)


def read_pair(item: str) -> tuple[str, Scalar]:
    """Return key and value of one `key=value`, without the options of plugins."""
    key, _, text = item.partition("=")
    if key not in keys():
        raise ConfigError(f"unknown key {schema.brief(key)}{nearest(key, keys())}")
    try:
        return key, keys()[key][1].read(text)
    except ValueError as error:
        raise ConfigError(f"{key}={schema.shortened(text)}: {error}") from None


def _chain(path: Path) -> tuple[Source, ...]:
    """Return a preset and the presets that it is based on, the last base first."""
    chain: tuple[Source, ...] = ()
    while True:
        source = of_file(path)
        own = {key: value for key, value in source.keys.items() if key != "base"}
        chain = (replace(source, keys=own), *chain)
        if "base" not in source.keys:
            return chain
        base = source.keys["base"]
        if not isinstance(base, str):
            raise ConfigError(f"{path}: base = {schema.brief(base)}: must be the name of a preset")
        if source.is_of_run:
            raise ConfigError(f"{path}: a run has all its keys, and its files name no base")
        try:
            path = _preset_file(base, path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: base: {error}") from None
        if path.resolve() in [each.file.resolve() for each in chain if each.file]:
            raise ConfigError(f"{path}: base: the preset is based on itself")


def _preset_file(preset: str, folder: Path = Path()) -> Path:
    """Return the file of a preset: a path from `folder`, or a name in `presets/`, .toml or not."""
    ours = ROOT / "presets"
    for path in (folder / preset, ours / preset, ours / f"{preset}.toml"):
        if path.is_file():
            return path
    if preset in keys():
        raise ConfigError(f"{preset} needs a value: {preset}=...")
    known = [str(path.relative_to(ours).with_suffix("")) for path in ours.rglob("*.toml")]
    raise ConfigError(f"no preset {preset}{nearest(preset, known)}")
