"""ClientApp, which Flower starts for every message; a deployed node forwards it to its worker."""

from __future__ import annotations

import sys

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from coterie.app import private_ray
from coterie.app.institution.process.job import Job
from coterie.app.institution.process.service import handle_request
from coterie.strategies.flower.stored import cut

_STATE = "coterie"

_ray = sys.modules.get("ray")
if "flwr.simulation" in sys.modules and (_ray is None or not _ray.is_initialized()):
    private_ray.stay_private()  # the process of a simulation imports this module, then starts Ray

app = ClientApp()


@app.train()
def handle(message: Message, context: Context) -> Message:
    """Answer a request in this process, or in the worker of a deployed node."""
    return answer(message, context)


def answer(message: Message, context: Context, *, forwards: bool = False) -> Message:
    """Answer a request, or return an error in one line; an actor of Ray `forwards` to its node."""
    state = context.state.get(_STATE)
    version = state["version"] if isinstance(state, ConfigRecord) else None
    job = Job(
        context.run_id,
        context.run_config,
        context.node_config,
        version if isinstance(version, int) else None,
        in_simulation(),
        int(str(context.node_config.get("partition-id", 0))),
    )
    respond = handle_request
    if forwards:
        from coterie.app.institution.process.actors import forward_request  # imports Ray

        respond = forward_request
    if not job.simulated and sys.platform == "linux":
        from coterie.app.institution.process import worker  # Linux only, not needed in a simulation

        worker.lift_limit()
        if job.node_config.get("worker", True):
            respond = worker.forward_request
    record, version = respond(message.content, job)
    if not job.simulated:
        for letter in record.array_records.values():
            for array in letter.values():
                cut(array)
    if version is not None:
        context.state[_STATE] = ConfigRecord({"version": version})
    return Message(record, reply_to=message)


def in_simulation() -> bool:
    """Return whether Flower's simulation runs this process, in an actor of Ray."""
    # A process cannot be changed by a configuration, so its author cannot decide this.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
