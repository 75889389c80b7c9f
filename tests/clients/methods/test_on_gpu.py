"""Whole runs on a pretended GPU: methods, attacks, defences, privacy, payloads; the CPU's numbers.

Two nodes, so that models and answers travel as letters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.registry import METHODS
from coterie.clients.attack import ATTACKS
from coterie.clients.defence import RULES
from tests.inline import Run, run
from tests.pretended_gpu import PretendedGpu
from tests.test_table import DIGITS, NEEDS

COMMON: dict[str, Any] = {
    **DIGITS, "peers": 4, "num-server-rounds": 2, "evaluate-every": 2, "batch-size": 5,
    "local-steps": 2, "learning-rate": 0.05, "momentum": 0.5, "dtype": "float64",
}  # fmt: skip
NETWORK = {"model": "mlp", "mlp.hidden": "6"}
WORLDS: dict[str, dict[str, Any]] = {
    **{f"method {name}": {"method": name, **NEEDS.get(name, {})} for name in METHODS},
    **{
        f"attack {kind}": {"method": method, "attack.kind": kind, "attack.peers": "1"}
        for kind, method in zip([*ATTACKS][1:], ["fedavg", "cobo"] * 9, strict=False)
    },
    **{
        f"defence {rule}": {"method": method, "defence.rule": rule}
        for rule, method in zip([*RULES][1:], ["fedavg", "cobo"] * 9, strict=False)
    },
    "nearest-neighbour mixing": {"defence.rule": "krum", "defence.nnm": True, "method": "fedavg"},
    "private": {"method": "cobo", "privacy.kind": "examples"},
    "private convolutions": {"method": "fedavg", "privacy.kind": "examples", "model": "lenet"},
    **{
        f"payload {kind}": {"method": "cobo", "payload": kind}
        for kind in ("float16", "bfloat16", "int8")
    },
    "adam": {"method": "fedavg", "optimizer": "adam", "momentum": 0.0},
    "weight decay": {"method": "ditto", "weight-decay": 0.1},
    "personal layers": {"method": "fedavg", "model.personal": "head", **NETWORK},
    "adapters": {"method": "fedavg", "model.lora-rank": 2, **NETWORK},
    "batch norm": {"method": "fedavg", "model": "tests.kit:normed"},
}


@pytest.mark.some(8)
@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_a_run_gives_the_cpus_numbers(world: str, tmp_path: Path) -> None:
    flat = {**COMMON, **WORLDS[world], "device": "auto"}
    expected = run({**flat, "device": "cpu"}, tmp_path / "cpu", 2)
    with PretendedGpu() as gpu:
        result = run(flat, tmp_path / "gpu", 2)
    assert gpu.counts["operations"] > 100
    assert numbers(result).keys() == numbers(expected).keys()
    for key, value in numbers(expected).items():
        np.testing.assert_allclose(numbers(result)[key], value, rtol=1e-8, atol=1e-10)


def numbers(of: Run) -> dict[tuple[int, int], list[float]]:
    return {
        key: [np.nan if v is None else v for v in (*report.metrics.values(), *report.weights)]
        for key, report in of.reports.items()
    }
