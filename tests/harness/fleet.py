"""Many SuperNodes in one process: `python -m tests.harness.fleet ADDRESS CA.crt DIRECTORY NODES`.

A SuperNode with its executor takes 0.3 GB, so fifty do not fit on a small machine. These speak
Flower's protocol as a SuperNode does (TLS, heartbeats, a poll every 3 s) from one thread each, and
handle requests with the app's own code, sealed letters and all. Private names of flwr are here.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from pathlib import Path

from flwr.app import Message
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from coterie.app.config.schema import Scalar
from coterie.app.institution.process import service
from coterie.app.institution.process.job import Job
from tests.harness.deployment import write_policy

_POLL = 3.0  # as Flower's SuperNode
_one_at_a_time = threading.Lock()


def serve(address: str, authority: str, node_config: dict[str, Scalar]) -> None:
    """Be one SuperNode until the process ends."""
    versions: dict[int, int | None] = {}
    configs: dict[int, dict[str, Scalar]] = {}
    with http_request_response(address, False, authority) as connection:
        node, receive, send, get_run, get_fab, pull, push, confirm = connection
        while True:
            request = receive()
            if request is None:
                time.sleep(_POLL)
                continue
            header, tree = request
            run_id = header.metadata.run_id
            if run_id not in configs:
                run = get_run(run_id)
                configs[run_id] = dict(
                    get_fused_config_from_fab(get_fab(run.fab_hash, run_id).content, run)
                )
            message = pull_and_inflate_object_from_tree(
                tree, partial(pull, run_id), partial(confirm, run_id), return_type=Message
            )
            message.metadata.__dict__["_message_id"] = header.metadata.message_id
            job = Job(run_id, configs[run_id], node_config, versions.get(run_id))
            with _one_at_a_time:
                began = time.monotonic()
                record, versions[run_id] = service.handle_request(message.content, job)
                TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node
                reply = Message(record, reply_to=message)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                objects = {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}
                seconds = time.monotonic() - began
            wanted, session = send(reply, get_object_tree(reply), seconds)
            for object_id in wanted:
                push(run_id, session, object_id, objects[object_id])


def main(address: str, authority: str, directory: Path, nodes: int) -> None:
    """Be all of them."""
    service._nodes = service.Nodes(nodes)
    letters, policy = directory / "letters", write_policy(directory / "policy.toml")
    threads = []
    for peer in range(nodes):
        name = f"node-{peer}"
        config: dict[str, Scalar] = {
            "name": name, "keys": f"{letters / name}.key", "trust": f"{letters / 'trust.toml'}",
            "out": str(directory / name), "device": "cpu", "worker": False,
            "policy": str(policy),
        }  # fmt: skip
        threads.append(threading.Thread(target=serve, args=(address, authority, config)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
