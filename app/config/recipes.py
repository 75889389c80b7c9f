"""Recipes: methods of the literature that are a built-in method with the keys of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coterie.app.config import schema
from coterie.app.config.keys import ConfigError, flatten, nearest
from coterie.app.config.schema import Scalar

_FOLDER = Path(__file__).resolve().parents[2] / "recipes"


@dataclass(frozen=True)
class Recipe:
    """Recipe: a file of `recipes/`."""

    title: str  # name of the method in its paper
    summary: str
    reference: str  # paper, with the algorithm
    note: str  # readings, and what the paper leaves to the user
    keys: Mapping[str, Scalar]  # flat; `method` is the built-in method
    missing: str = ""  # why the method cannot be run exactly; empty if it can


@lru_cache
def recipes() -> Mapping[str, Recipe]:
    """Return name -> recipe."""
    made = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        made[path.stem] = Recipe(**{**table, "keys": flatten(table.get("keys", {}))})
    return made


def keys_of(name: Scalar | None) -> Mapping[str, Scalar]:
    """Return the keys that the recipe `name` sets; empty for other names."""
    recipe = recipes().get(str(name))
    return {} if recipe is None else recipe.keys


def expand(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the keys that a recipe named by `method` stands for; none for a method."""
    name = flat.get("method")
    if isinstance(name, str) and (recipe := recipes().get(name)) is not None:
        if recipe.missing:
            raise ConfigError(f"{recipe.title} cannot be run exactly: {recipe.missing}")
        return {**recipe.keys, "recipe": name}
    if name := flat.get("recipe"):
        if str(name) not in recipes():
            raise ConfigError(f"unknown recipe {schema.brief(name)}{nearest(str(name), recipes())}")
        check(str(name), flat)
    return {}


def check(name: Scalar | None, chosen: Mapping[str, Scalar]) -> None:
    """Refuse keys that contradict the recipe `name`; other names are ignored."""
    for key, value in keys_of(name).items():
        if key in chosen and chosen[key] != value and chosen[key] != name:
            raise ConfigError(
                f"{key} = {schema.written(chosen[key])}: the recipe {name} has {key} = "
                f"{schema.written(value)}; leave {key} out, or set method to a method and its keys"
            )
