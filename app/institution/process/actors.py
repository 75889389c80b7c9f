"""Ray actors that keep the nodes of a simulation: a node stays in one process for a whole run.

Flower hands a message to any idle actor of its pool, which forwards it to the named actor of the
message's node. There are as many of these as Flower has actors, on the same machines: each keeps
an equal number of nodes, with their data and models, and one GPU if nodes have shares of GPUs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import ray
from flwr.app import RecordDict
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coterie.app.institution.process.job import Job
from coterie.app.institution.process.service import handle_request, keep_all_nodes


def forward_request(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    """Let the actor of the node execute a request, see `handle_request`; start it if needed."""
    number = int(str(job.node_config["partition-id"])) % len(_places())
    machine, gpu = _places()[number]
    actor = _actor(f"coterie-{job.run_id}-{number}", machine)
    result: tuple[RecordDict, int | None] = ray.get(
        actor.handle.remote(record, replace(job, gpu=gpu))
    )
    return result


@cache  # an actor ends with the handle of the process that started it
def _actor(name: str, machine: str) -> Any:
    """Return the actor of this name, which this process or another one starts on a machine."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # Ray sets it by the cores of an actor
    return ray.remote(_Actor).options(
        name=name, get_if_exists=True, num_cpus=0, max_restarts=-1, max_task_retries=1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        runtime_env={"env_vars": {"OMP_NUM_THREADS": threads}},
    ).remote()  # fmt: skip


class _Actor:
    """Process of some nodes."""

    def __init__(self) -> None:
        keep_all_nodes()

    def handle(self, record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
        return handle_request(record, job)


@cache
def _places() -> list[tuple[str, int]]:
    """Return machine and GPU of each of Flower's actors, all with the shares of this one."""
    shares = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    counts = {
        machine["NodeID"]: min(
            int(machine["Resources"].get(kind, 0) / share) for kind, share in shares.items()
        )
        for machine in ray.nodes()  # type: ignore[no-untyped-call]
        if machine["Alive"]
    }
    return [(machine, gpu) for machine in sorted(counts) for gpu in range(counts[machine])]
