"""Clearance: a node attacks its own letters; one that tells too much is held, and only that one.

Three hospitals send forests with leaves of single rows. At two of them the label follows from the
columns; at the third it is a coin, so that its forest can only memorise patients.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.cli.main import main
from coterie.app.institution.security import clearance
from coterie.app.institution.security.trust import KeysError, read_trust
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import POLICY, RUN, Institution, Relay, config_of, institutions

FORESTS = RUN | {
    "method": "mixture", "model": "forest", "num-server-rounds": 1, "table.split": "random",
    "forest.trees": 10, "forest.min-samples-leaf": 1, "forest.threshold-step": 0.0,
}  # fmt: skip
COIN = 2
"""Hospital whose labels are coins."""


def hospitals(directory: Path, rows: int = 160, **policy: Any) -> list[Institution]:
    """Return institutions with larger tables, and a policy with [clearance]."""
    nodes = institutions(directory, FORESTS)
    for node in nodes:
        draw = np.random.default_rng(10 + node.peer)
        x_nk = draw.normal(size=(rows, 2)).round(3)
        ill_n = draw.random(rows) < 0.5 if node.peer == COIN else x_nk.sum(axis=1) > 0
        with (Path(str(node.node_config["data-dir"])) / "data.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["a", "b", "y"])
            table.writerows([a, b, "yes" if y else "no"] for (a, b), y in zip(x_nk, ill_n, strict=True))
        node.set_policy(**{
            "methods": "mixture", "answers__min_examples": 1, "answers__threshold_step": 0.0,
            "clearance__action": "hold", "clearance__max_auc": 0.8,
        } | policy)  # fmt: skip
    return nodes


def played(nodes: list[Institution]) -> None:
    Broker(config_of(nodes[0]).strategy(), Relay(nodes), join_timeout=0).run()


def sheet_of(node: Institution) -> dict[str, Any]:
    sheet = clearance.read(node.home / "run")
    assert sheet is not None
    return sheet


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[Institution]:
    nodes = hospitals(tmp_path_factory.mktemp("hospitals"))
    played(nodes)
    return nodes


def test_only_the_memorising_tree_is_held(done: list[Institution]) -> None:
    for node in done:
        print((node.home / "run" / "clearance.md").read_text())
        (letter,) = sheet_of(node)["letters"]
        assert letter["verdict"] == ("held" if node.peer == COIN else "sent")
