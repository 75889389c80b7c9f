"""Keys as words: the error about them, the nearest known one, and TOML tables as dotted keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from coterie.errors import Error
from coterie.ranges import Scalar

FORMER = {"hold-out": "late-peers"}
"""Former name of a key -> its name."""
_SCHEMA = 'write mean and scale of the column into schema.toml, with table.scale = "schema"'
_HELPERS = "all peers that a target is linked to help it"
GONE: Mapping[str, tuple[Scalar, str]] = {
    "table.mean": ("", _SCHEMA),
    "table.std": ("", _SCHEMA),
    "wga.helpers": ("all", _HELPERS),
    "bias-correction.helpers": ("all", _HELPERS),
    "federated-clustering.radius": ("quantile", "set federated-clustering.quantile"),
    "all-for-one.smoothness": (0.0, "a learning-rate that is too large causes a warning"),
    "trust.warmup": (0, "train with method local, and go on with start-from"),
    "trust.similarity": ("validation", "pfedgraph compares parameters"),
    "channels-last": (False, "images on a CPU are channels-last, stacked models on a GPU are not"),
    "sam-radius": (0.0, "pass `gradient=` to `self.fit` in a method of your own"),
    "xgboost.min-child-weight": (1.0, "xgboost.min-samples-leaf bounds the rows of a leaf"),
    "text.bad-lines": ("refuse", "correct the lines that the error names"),
    **dict.fromkeys(
        ("small-world", "barabasi-albert", "hypercube", "torus", "erdos-renyi"),
        ("", 'set topology = "file" and write the edges of a networkx graph into topology-file'),
    ),
    "topology-probability": (0.5, "no topology has random edges of this kind any more"),
    "base": ("", 'set topology = "one-peer-exponential", or list rounds in topology-file'),
    "stale": ("", "extend coterie.AttackKind to repeat a letter"),
}
"""Removed key or value -> the default, which recorded runs have; the remedy."""
_SYNONYMS = {
    **FORMER,
    **dict.fromkeys(("clients", "num-clients", "num-supernodes", "nodes"), "peers"),
    **dict.fromkeys(("fraction-fit", "fraction-train", "participation"), "schedule.fraction"),
    **dict.fromkeys(("client-fraction", "clients-per-round"), "schedule.fraction"),
    **dict.fromkeys(("client-sampling", "partial-participation"), "schedule.kind"),
    "fraction-evaluate": "evaluate-peers",
    "aggregation": "defence.rule",
    "lr": "learning-rate",
    "target-epsilon": "privacy.budget",
}
"""Word of the field, or a former name -> the key."""


class ConfigError(Error):
    """Error in the user's configuration; the message is one line."""


def flatten(nested: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the flat dotted keys of a TOML document with at most one level of tables."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            if key == "model" and "name" in value:  # the name of the model: not a table
                value = {**value}
                flat["model"] = value.pop("name")
            flat |= {f"{key}.{inner}": scalar for inner, scalar in value.items()}
        else:
            flat[key] = value
    return flat


def of_keywords(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat dotted keys of Python's keywords, as in `partition__alpha=0.3`."""
    return flatten({key.replace("__", ".").replace("_", "-"): v for key, v in named.items()})


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the end of an error message with the word that was meant; empty if there is none."""
    if word in GONE:
        return f", which is gone: {GONE[word][1]}"
    words = list(words)
    synonym = _SYNONYMS.get(word.replace(" ", "-"))
    if synonym in words:
        return f', did you mean "{synonym}"?'
    parts = set(word.split("-"))
    whole = [known for known in words if parts <= set(known.rpartition(".")[2].split("-"))]
    whole.sort(key=lambda known: "." in known)
    same_ending = [known for known in words if known.rpartition(".")[2] == word.rpartition(".")[2]]
    likely = whole or difflib.get_close_matches(word, words, n=1) or same_ending
    return f', did you mean "{likely[0]}"?' if likely else ""
