"""Ray cluster of several nodes on this machine, as a stand-in for several machines."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
each = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": int(sys.argv[2])}
first, *others = [{"memory": int(size)} if int(size) else {} for size in sys.argv[3:]]
head = {**each, **first, "include_dashboard": False, "temp_dir": sys.argv[1] + "/ray"}
nodes = Cluster(initialize_head=True, head_node_args=head)
for other in others:
    last = nodes.add_node(**each, **other)
print(nodes.address, flush=True)
if sys.stdin.readline():
    nodes.remove_node(last, allow_graceful=False)
    sys.stdin.read()
nodes.shutdown()
"""


@contextmanager
def machines(count: int, store: int = 80 << 20) -> Iterator[dict[str, str]]:
    """Start `count` nodes with one core each and a secret; yield the environment of their users.

    Parameters
    ----------
    count : int
        Number of nodes.
    store : int
        Bytes of each node's object store.
    """
    with unequal_machines([0] * count, store) as (environment, _):
        yield environment


@contextmanager
def unequal_machines(
    memory: Sequence[int], store: int = 80 << 20
) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """Start a node per amount of memory, in bytes (0: as Ray finds it), as `machines` does.

    Yield the environment of their users, and a function that kills the last node.
    """
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Sockets are in the folder: the path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place,
        subprocess.Popen(
            [sys.executable, "-c", _CLUSTER, place, str(store), *map(str, memory)],
            # The address is stored there: any ray.init() would take it from /tmp/ray.
            env={**os.environ, **secret, "RAY_TMPDIR": place},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as nodes,
    ):  # fmt: skip
        assert nodes.stdout is not None
        address = nodes.stdout.readline().strip()
        assert address, "Ray did not start"

        def kill() -> None:
            assert nodes.stdin is not None
            nodes.stdin.write("\n")
            nodes.stdin.flush()

        yield {**os.environ, **secret, "RAY_ADDRESS": address}, kill
        nodes.communicate()
