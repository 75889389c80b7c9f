"""One attacker of six that scales what it sends: `python -m studies.hostile_scale [METHOD ...]`.

Each method on digits whose labels are permuted by cluster, 30 samples a peer, 30 rounds. The
attacker sends r + s (y - r) in place of y, where r is the mean of what it heard (`attack.kind =
"scale"`, s its strength); the last column is one that says it has a thousand times its examples.
Shown is the mean accuracy of the honest peers, without the checks of letters and with them: "a > b"
is `defence.norm = false`, `defence.max-samples = 0` against the defaults. About four minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from app.config.config import Config
from app.config.registry import METHODS
from app.config.schema import Scalar
from app.runners import inline

STRENGTHS = (10.0, 30.0, 100.0, 300.0, 900.0)
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "peers": 6, "partition.samples-per-peer": 30, "num-server-rounds": 30,
    "evaluate-every": 30, "device": "cpu",
}  # fmt: skip
VALIDATION: Mapping[str, Scalar] = {"partition.validation": 0.2}
OFF: Mapping[str, Scalar] = {"defence.norm": False, "defence.max-samples": 0}
NONE: Mapping[str, Scalar] = {}


def accuracy(method: str, **attack: Scalar) -> float:
    """Mean test accuracy of peers 1 to 5 at the end of a run."""
    flat = {**COMMON, "method": method, **(VALIDATION if METHODS[method].validates else NONE)}
    flat |= {f"attack.{key}": value for key, value in attack.items() if "." not in key}
    flat |= {key: value for key, value in attack.items() if "." in key}
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = Config.from_flat({**flat, "out": directory, "name": "run"}).located("")
        inline.run(config)
        rows = map(json.loads, Path(config.run_dir, "metrics.jsonl").read_text().splitlines())
        honest = [row["test_accuracy"] for row in rows if row["round"] and row["peer"] != 0]
    return float(np.mean(honest))


def main() -> None:
    """Print the table, a method at a time."""
    heads = ("honest", *(f"{s:g}" for s in STRENGTHS), "samples")
    print("| method | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for method in sys.argv[1:] or METHODS:
        cells = [f"{accuracy(method, **OFF):.3f} > {accuracy(method):.3f}"]
        attacks: list[dict[str, Scalar]] = [{"kind": "scale", "strength": s} for s in STRENGTHS]
        for attack in [*attacks, {"kind": "samples"}]:
            lie = {**attack, "peers": "0"}
            cells.append(f"{accuracy(method, **lie, **OFF):.3f} > {accuracy(method, **lie):.3f}")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
