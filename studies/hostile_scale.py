"""One attacker of six that scales what it sends: `python -m studies.hostile_scale [METHOD ...]`.

Each method on digits whose labels are permuted by cluster, 30 samples per peer, 30 rounds. The
attacker sends r + s (y - r) instead of y, where r is the mean of what it received (`attack.kind =
"scale"`, s its strength). With s = 1 it is honest, but the checks are on, as in a deployment. In
the last column it claims a thousand times its examples. "a > b" is the mean accuracy of the other
peers without checks (`defence.norm = false`, `defence.max-samples = 0`) and with the defaults.
About fifteen minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.runners import inline

STRENGTHS = (1.0, 10.0, 30.0, 100.0, 300.0, 900.0)
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "peers": 6, "partition.samples-per-peer": 30, "num-server-rounds": 30,
    "evaluate-every": 30, "device": "cpu",
}  # fmt: skip
VALIDATION: Mapping[str, Scalar] = {"partition.validation": 0.2}
OFF: Mapping[str, Scalar] = {"defence.norm": False, "defence.max-samples": 0}
NONE: Mapping[str, Scalar] = {}


def accuracy(method: str, **attack: Scalar) -> float:
    """Return the mean test accuracy of peers 1 to 5 at the end of a run."""
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
    """Print the table, method by method."""
    heads = ("honest", *(f"{s:g}" for s in STRENGTHS[1:]), "samples")
    print("| method | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for method in sys.argv[1:] or METHODS:
        cells: list[str] = []
        attacks: list[dict[str, Scalar]] = [{"kind": "scale", "strength": s} for s in STRENGTHS]
        attacks.append({"kind": "samples"})
        for attack in attacks:
            lie: dict[str, Scalar] = {**attack, "peers": "0"}
            cells.append(f"{accuracy(method, **lie, **OFF):.3f} > {accuracy(method, **lie):.3f}")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
