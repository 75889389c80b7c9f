"""Model card: training data, collaborators and measurements; it stays beside the model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from coterie.app.config import schema
from coterie.app.trained.about import About
from coterie.clients.defence import Defence
from coterie.clients.diagnostics import MEASURES
from coterie.clients.privacy import Privacy
from coterie.datasets.quality import ColumnQuality, shortened
from coterie.strategies.protocol import Report

_LEAST = 1e-6  # minimum weight of a collaborator
_COLUMNS = 500  # maximum number of columns, of more those with findings
_NAMED = 50  # maximum number of collaborators, largest weights first
_QUALITY = ("column", "kind", "missing", "distinct", "code", "code_share", "drift", "finding")
_JSON = json.JSONEncoder(allow_nan=False)
_VERSIONS = {name: version(name) for name in ("torch", "numpy")}


def card(
    about: About,
    sizes: Mapping[str, int],
    report: Report,
    names: Mapping[int, str],
    policy: Mapping[str, Any] | None,
    curves: Mapping[str, Any],
    privacy: Privacy,
    defence: Defence,
    qualities: Sequence[ColumnQuality],
    finding: str = "",
    groups: Mapping[str, int] | None = None,
    *,
    has_examples: bool,
    model_of: Callable[[int, str], str] | None = None,
    clearance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of the card; of `qualities` no values of single rows, such as a range.

    `report` is the last one, before a `policy` (None in a simulation) limits it, `curves` has
    figure data; `has_examples`: the model file contains training examples. `model_of`: model of a
    peer by number and name, if they differ. `clearance`: the sheet of an institution, if any.
    """
    listed = [
        {name: _finite(getattr(column, name)) for name in _QUALITY}
        for column in shortened(qualities, _COLUMNS)
    ]
    # null if epsilon is infinite
    spent = schema.values(privacy) | {"epsilon": _finite(report.metrics.get("epsilon"))}
    dice = zip(about.class_names()[1:], curves["dice"], strict=True) if "dice" in curves else ()
    return {
        "peer": about.peer,
        "name": about.peer_name,
        "round": report.round,
        "method": about.method,
        "method_options": dict(about.method_options),
        "model": model_of(about.peer, about.peer_name) if model_of else about.model,
        "dataset": about.dataset,
        "task": about.task,
        "classes": list(about.classes),
        "columns": list(about.columns),
        **({"fill": "median"} if about.dataset_options.get("missing") == "median" else {}),
        "examples": dict(sizes),
        **({"groups": dict(groups)} if groups else {}),
        "data": about.data,
        **{k: v for k, v in (("finding", finding), ("data_quality", listed)) if v},
        **_collaborators(about.peer, report, names, model_of),
        "metrics": {name: _finite(value) for name, value in report.metrics.items()},
        "reported_to_the_relay": "all" if policy is None else policy["reports.disclosure"],
        "policy": policy,
        "holds_training_examples": has_examples,
        **({"privacy": spent} if privacy.kind != "none" else {}),
        **({"clearance": clearance} if clearance else {}),
        **({"defence": schema.values(defence)} if defence.rule != "none" else {}),
        "config_digest": about.config_digest,
        "versions": _VERSIONS,
        **({"diagnostics": curves["diagnostics"]} if "diagnostics" in curves else {}),
        **({"dice": {f"dice_{k}": round(v, 4) for k, v in dice}} if "dice" in curves else {}),
        **_limited(curves, names),
    }


def _collaborators(
    own: int, report: Report, names: Mapping[int, str], model_of: Callable[[int, str], str] | None
) -> dict[str, Any]:
    """Return the peers with the largest weights in a peer's model, and its own weight."""
    weights_k = np.array(report.weights)
    peers_k = np.array(report.columns or np.arange(len(weights_k)))
    others_k = np.flatnonzero((weights_k > _LEAST) & (peers_k != own))
    named_k = others_k[np.argsort(-weights_k[others_k], kind="stable")][:_NAMED]
    return {
        "collaborators_in_all": len(others_k),
        "collaborators": [
            {"peer": peer, "name": names.get(peer) or f"peer {peer}", "weight": weight}
            | ({"model": model_of(peer, names.get(peer, ""))} if model_of else {})
            for peer, weight in zip(
                peers_k[named_k].tolist(), weights_k[named_k].tolist(), strict=True
            )
        ],
        "own_weight": _finite(next(iter(weights_k[peers_k == own].tolist()), None)),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(content: Mapping[str, Any]) -> str:
    """Return the card as JSON."""
    lines = (f"{json.dumps(key)}: {_JSON.encode(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_markdown(content: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    examples, groups = (
        ", ".join(f"{count} for {part}" for part, count in content.get(key, {}).items())
        for key in ("examples", "groups")
    )
    of = f"of {content['rounds']} " if "rounds" in content else ""
    used = [
        ("method", f"{content['method']}, {content['round']} {of}rounds"),
        ("network", content["model"]),
        ("learns", f"{content['task']} from {content['dataset']}"),
        ("columns", ", ".join(content["columns"])),
        ("cuts" if content["task"] == "survival" else "classes", ", ".join(content["classes"])),
        ("own examples", examples),
        ("groups of examples", groups),
        ("finding", content.get("finding", "")),
        ("robust rule", content.get("defence", {}).get("rule", "")),
    ]
    used = [(name, value) for name, value in used if value]
    others = [
        (f"{each['name']} ({each['model']})" if "model" in each else each["name"],
         f"{each['weight']:.3g}")
        for each in content["collaborators"]
    ]  # fmt: skip
    measured = [
        (name, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for name, value in (content["metrics"] | content.get("dice", {})).items()
        if value is not None
    ]
    parts = [
        f"# Model of {content['name']}",
        _table(("", ""), used),
        "## Collaborators\n\nWeight of each other peer's letters as of the last round.",
        _table(("peer", "weight"), others) if others else "None: the peer trained alone.",
        *_limited_section(content) + _quality_section(content.get("data_quality", [])),
        "## Measurements\n\nOn the peer's own test examples; costs are sums over the run.",
        _table(("", ""), measured),
        *_diagnostics_section(content),
        "## Privacy\n\n" + "\n\n".join(_privacy(content)),
        f"Configuration {content['config_digest'][:16]}; data {content['data'][:16] or '-'}; "
        + ", ".join(f"{name} {number}" for name, number in content["versions"].items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _privacy(content: Mapping[str, Any]) -> list[str]:
    """Return paragraphs on what the model file and the reports may say of single examples."""
    privacy = [
        "The file holds no example of the training data, but a model may remember some: give it "
        "only to people who may have the data."
    ]
    if content["holds_training_examples"]:
        privacy = [
            "The file holds the features and the label of each of the peer's training examples: it "
            "is as confidential as the data."
        ]
    if "privacy" in content:
        epsilon, delta = content["privacy"]["epsilon"], content["privacy"]["delta"]
        privacy.append(
            f"Differential privacy of single training examples: epsilon "
            f"{'infinite' if epsilon is None else f'{epsilon:.3g}'} at delta {delta:g}, over all "
            "gradients of the peer, including answers to others; measurements are not covered."
        )
    if "clearance" in content:
        letters = content["clearance"]["letters"]
        sent = sum(each["verdict"].startswith("sent") for each in letters)
        privacy.append(
            f"This node attacked {len(letters)} of its letters before they left, and {sent} of "
            "them left: clearance.md has what was measured."
        )
    if content.get("diagnostics", {}).get("threshold") is not None:
        digits = ", rounded to two decimals" if "privacy" in content else ""
        privacy.append(
            "The threshold in the file is the mean of two validation examples' predicted "
            f"probabilities{digits}. It is not covered by differential privacy."
        )
    if "fill" in content:
        privacy.append(
            "The file holds the median of each column with missing cells: it can be one patient's "
            "value."
        )
    if content["policy"] is None:
        privacy.append("No policy: a simulation, in which every measurement was reported.")
    else:
        disclosed = content["reported_to_the_relay"]
        privacy.append(f"Reports to the relay, as the policy allows: {disclosed}, rounded.")
    return privacy


_OF_CARD = ("diagnostics", "dice", "limited")
"""Data of figures that stand in sections of the card."""


def _limited(curves: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the examples on which peers' scores were limited, and the other figure data."""
    limited = [
        {"name": names.get(author) or f"peer {author}", "rows": rows, "decided": decided}
        for author, (rows, decided) in sorted(curves.get("limited", {}).items())
    ]
    rest = {k: curve for k, curve in curves.items() if k not in _OF_CARD}
    return ({"limited": limited} if limited else {}) | {"curves": rest}


def _limited_section(content: Mapping[str, Any]) -> list[str]:
    limited = content.get("limited", [])
    if not limited:
        return []
    text = (
        "Test examples on which a peer's scores were beyond the range that chose its weight, and "
        "limited to it, and those of them that it would have decided alone otherwise."
    )
    rows = [(each["name"], f"{each['rows']:,}", f"{each['decided']:,}") for each in limited]
    return [f"## Limits\n\n{text}", _table(("peer", "limited", "decided alone"), rows)]


def _quality_section(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    if not columns:
        return []
    rows = [
        (_cell(each["column"]), f"{100 * each['missing']:.0f} %", _cell(each["finding"]))
        for each in columns
    ]
    return [
        "## Data quality\n\nAll rows of the peer. The run directory has ranges and means.",
        _table(("column", "missing", "finding"), rows),
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _diagnostics_section(content: Mapping[str, Any]) -> list[str]:
    diagnostics = content.get("diagnostics")
    if diagnostics is None:
        return []
    classes = content["classes"] or ["0", "1"]
    rows = diagnostics["measures"]
    if "c_index" in rows:
        text = (
            f"{diagnostics['positives']} of {diagnostics['examples']} test examples have the event."
            " C-index (Harrell) with its 95 % interval; equal risks count 1/2."
        )
        return [f"## Survival\n\n{text}", _table(("", ""), [("C-index", shown(rows["c_index"]))])]
    head: tuple[str, ...] = ("", "at 0.5")
    chosen = diagnostics["at_threshold"]
    if diagnostics["threshold"] is not None:
        head = (*head, f"at {diagnostics['threshold']:.3g}")
    table = [
        (MEASURES[name], shown(estimate), *([shown(chosen.get(name))] if chosen else []))
        for name, estimate in rows.items()
    ]
    text = (
        f"{diagnostics['positives']} of {diagnostics['examples']} test examples are positive "
        f"({classes[1]}). Values with 95 % intervals; predicted positive above the threshold; "
        "O/E: observed positives over the sum of their predicted probabilities."
    )
    if chosen:
        text += " The second threshold was chosen on validation examples (Youden)."
    parts = [f"## Diagnostic accuracy\n\n{text}", _table(head, table)]
    if diagnostics["temperature"] is not None:
        parts.append(
            f"Temperature {diagnostics['temperature']:.3g}, fitted on validation examples, changes "
            f"the Brier score to {shown(diagnostics['recalibrated']['brier'])}."
        )
    return parts


def shown(estimate: Sequence[float | None] | None) -> str:
    """Write a value with its interval, "0.84 (0.71 to 0.92)"; empty where undefined."""
    if estimate is None or estimate[0] is None:
        return ""
    value, low, high = estimate
    return f"{value:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
