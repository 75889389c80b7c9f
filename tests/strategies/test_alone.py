"""strategies/ works without other packages and, except strategies/flower, without Flower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(("coterie", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted((ROOT / "strategies").rglob("*.py"))
]
RUN = """
import importlib, sys

for name in {blocked!r}:
    sys.modules[name] = None  # its import raises ImportError
for name in {modules!r}:
    importlib.import_module(name)

from coterie.strategies.plans import Everyone
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.relay.broker import Broker
from coterie.strategies.topology import TOPOLOGIES, Setting
from tests.strategies.toy_node import ToyNode

ring = TOPOLOGIES["ring"].matrix(Setting(3))
strategy = Everyone(peers=3, rounds=4, seed=0, topology=ring, evaluate_every=2)
nodes = [ToyNode(strategy, [0, 1]), ToyNode(strategy, [2])]
print(sorted(Broker(strategy, InProcessTransport(nodes)).run()))
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("blocked", "modules"),
    [
        (["coterie.app", "coterie.clients", "coterie.datasets"], MODULES),
        (
            ["coterie.app", "coterie.clients", "coterie.datasets", "flwr"],
            [name for name in MODULES if not name.startswith("coterie.strategies.flower")],
        ),
    ],
    ids=["the project", "the project and Flower"],
)
def test_strategies_run_without(blocked: list[str], modules: list[str]) -> None:
    code = RUN.format(blocked=blocked, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[0, 2, 4]\n", done.stderr
