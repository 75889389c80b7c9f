"""Test where actors of Ray keep the nodes of a simulation."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from coterie.app.institution.process import actors
from coterie.app.runners.cluster import Machine
from coterie.app.runners.superlink import backend_config


@pytest.mark.parametrize(("nodes", "per_gpu"), [(4, 1), (6, 1), (8, 2), (20, 4)])
def test_all_gpus_of_two_machines_are_in_use(
    nodes: int, per_gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many actors as Flower has, and equally many on each of four GPUs."""
    machines = [Machine(8, 2, 0), Machine(8, 2, 0)]
    resources = backend_config(nodes, machines)["client_resources"]
    listed: list[dict[str, Any]] = [
        {"NodeID": str(k), "Alive": True, "Resources": {"CPU": m.cpus, "GPU": m.gpus}}
        for k, m in enumerate(machines)
    ]
    listed.append({"NodeID": "gone", "Alive": False, "Resources": {}})

    class Here:
        get_assigned_resources = staticmethod(
            lambda: {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
        )

    monkeypatch.setattr(ray, "nodes", lambda: listed)
    monkeypatch.setattr(ray, "get_runtime_context", Here)
    actors._places.cache_clear()
    used = [(machine, gpu % 2) for machine, gpu in actors._places()[:nodes]]
    actors._places.cache_clear()
    assert {used.count(gpu) for gpu in used} == {per_gpu}
    assert len(set(used)) == 4
