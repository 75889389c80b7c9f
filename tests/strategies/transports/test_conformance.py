"""Conformance of all transports, see `checks`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strategies.transports import networks
from tests.strategies.transports.checks import (
    CHECKS,
    NETWORK_CHECKS,
    Check,
    Network,
    a_node_that_left_is_not_listed,
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with networks.simulation(tmp_path_factory.mktemp("simulation")) as network:
        yield network


@pytest.mark.parametrize("check", CHECKS)
def test_in_process(check: Check, tmp_path: Path) -> None:
    with networks.calls(tmp_path) as network:
        check(network)


@pytest.mark.parametrize("check", NETWORK_CHECKS)
def test_simulation(check: Check, simulated: Network) -> None:
    check(simulated)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("names", ["private", "public"])
def test_deployment(names: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A single test, so that only one process starts a deployment."""
    with networks.deployment(tmp_path, public=names == "public") as network:
        for check in NETWORK_CHECKS:
            if names == "public" and check is a_node_that_left_is_not_listed:
                continue  # it takes a minute, and concerns no such name
            with subtests.test(check.__name__):
                check(network)
