"""Keys that decide the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.app.config import schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import result_keys
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import keys
from tests.inline import run
from tests.kit import digits, stacked

RUNS: dict[str, dict[str, Any]] = {
    "local": {"dtype": "float64"},
    "fedavg": {"attack.kind": "sign-flip", "attack.share": 0.3, "partition.kind": "iid"},
    "fedavg-ft": {"learning-rate-schedule": "cosine", "topology": "ring", "defence.rule": "median"},
}
"""Runs with different features on, by method."""
OF_PROCESSES = {
    "out",
    "run-dir",
    "name",
    "resume",
    "preflight",
    "sealing",
    "title",
    "track",
    "trust",
}
"""Keys of the place, which have no other value in a test."""
SWITCHES = {"attack.kind", "clock.profile", "letters.scheme", "privacy.kind", "schedule.kind"}
"""Keys that are left out with their value "off", and not with others."""


def others(key: str, value: Scalar) -> list[Scalar]:
    """Return other values of a key, some of which may be refused."""
    names = [name for name in keys()[key][1].kinds if isinstance(name, str)]
    numbers = [1, 2, 3] if isinstance(value, int) else [0.25, 0.5, 2.0]
    texts = ["even", "1-2", "0:5-1:5", "fc", "0", "*"]
    tried = names or (texts if isinstance(value, str) else numbers)
    return [each for each in tried if each != value]


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", RUNS)
def test_keys_that_do_not_decide_change_no_model(method: str, tmp_path: Path) -> None:
    flat = digits(method, **RUNS[method])
    config = Config.from_flat(flat)
    expected, changed = stacked(run(flat, tmp_path / "run")), 0
    for key in sorted(config.flat().keys() - result_keys(config).keys() - OF_PROCESSES - SWITCHES):
        for number, value in enumerate(others(key, config.flat()[key])):
            try:
                result = run({**flat, key: value}, tmp_path / f"{key}-{number}")
            except ConfigError:
                continue
            assert stacked(result).equal(expected), f"{key} = {value}"
            changed += 1
            break
    assert changed > 5


def test_all_other_keys_decide() -> None:
    config = Config.from_flat(digits("fedavg"))
    assert result_keys(config).keys() >= {
        "method", "momentum", "learning-rate", "mixing", "partition.clusters", "payload",
        "defence.norm", "mlp.hidden", "model.frozen", "withhold",
    }  # fmt: skip
    assert result_keys(config)["model"] == "mlp", '"auto" is resolved'
    assert "learning-rate-decay-every" not in result_keys(config)
    assert "learning-rate-decay-every" in result_keys(
        Config.from_flat(digits("fedavg", **{"learning-rate-schedule": "inverse-time"}))
    )
    assert schema.defaults(type(config.letters)).keys().isdisjoint(result_keys(config))
