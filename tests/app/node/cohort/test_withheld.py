"""Withheld peers: their letters have no influence on others, under every method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.registry import METHODS
from tests.inline import Run, run
from tests.kit import digits, stacked
from tests.test_table import REFUSES, ROUNDS, configuration

METHOD_NAMES = [name for name, row in METHODS.items() if name not in REFUSES and not row.pools]
ALONE = ("local", "fedrep", "federated-clustering")
"""Methods under which peer 1 learns from nobody here: no letters, no shared layer, no cluster."""
COSTS = ("bytes_sent", "bytes_received", "gradient_evaluations")


def moved(flat: dict[str, Any], peer: int) -> None:
    """Move the minimum of a peer's loss, in the file of a quadratic problem."""
    path = Path(flat["quadratic.file"])
    problem = json.loads(path.read_text())
    for table in ("centre", "validation_centre"):
        problem[table][peer] = [value + 3.0 for value in problem[table][peer]]
    path.write_text(json.dumps(problem))


def measured(result: Run, peers: list[int]) -> dict[tuple[int, str], list[float]]:
    return {
        (t, name): result.metric(name, t)[peers].tolist()
        for t in result.rounds
        for name in result.reports[t, 0].metrics
        if name not in COSTS
    }


@pytest.mark.some(7)
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_other_peers_do_not_depend_on_a_withheld_peer(method: str, tmp_path: Path) -> None:
    flat = configuration(method, "quadratic", tmp_path) | {"withhold": "1"}
    before = run(flat, tmp_path / "before")
    moved(flat, 1)
    after = run(flat, tmp_path / "after")
    assert str(measured(before, [0, 2, 3])) == str(measured(after, [0, 2, 3]))
    assert measured(before, [1]) != measured(after, [1])


@pytest.mark.some(7)
@pytest.mark.parametrize("method", [name for name in METHOD_NAMES if name not in ALONE])
def test_a_withheld_peer_still_receives(method: str, tmp_path: Path) -> None:
    flat = configuration(method, "quadratic", tmp_path) | {"withhold": "1", "topology": "full"}
    alone = run(flat | {"withhold": "0,1,2,3"}, tmp_path / "alone")
    helped = run(flat, tmp_path / "helped")
    losses = [result.metric("test_loss", ROUNDS)[1] for result in (alone, helped)]
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_hosting_does_not_matter(tmp_path: Path) -> None:
    for method in ("fedavg", "cobo", "federico"):
        flat = configuration(method, "quadratic", tmp_path) | {"withhold": "0,2"}
        one = run(flat, tmp_path / f"{method}-one")
        many = run(flat, tmp_path / f"{method}-many", 4)
        a, b = (result.metric("test_loss", ROUNDS) for result in (one, many))
        assert np.allclose(a, b, rtol=1e-10), method


def test_peers_train_alone_if_all_letters_are_withheld(tmp_path: Path) -> None:
    alone = run(digits("local"), tmp_path / "local")
    withheld = run(digits("fedavg", withhold="0,1,2"), tmp_path / "fedavg")
    assert np.allclose(stacked(alone), stacked(withheld), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", ["x", "1,", "-1", "8", "0,99"])
def test_peers_that_do_not_exist_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="withhold"):
        Config.from_flat({"peers": 8, "withhold": value})
