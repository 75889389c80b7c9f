"""Ray cluster of several nodes on this machine, as a stand-in for several machines."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
each = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": int(sys.argv[3])}
head = {**each, "include_dashboard": False, "temp_dir": sys.argv[1] + "/ray"}
nodes = Cluster(initialize_head=True, head_node_args=head)
for _ in range(int(sys.argv[2]) - 1):
    nodes.add_node(**each)
print(nodes.address, flush=True)
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
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Sockets are in the folder: the path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place,
        subprocess.Popen(
            [sys.executable, "-c", _CLUSTER, place, str(count), str(store)],
            # The address is stored there: any ray.init() would take it from /tmp/ray.
            env={**os.environ, **secret, "RAY_TMPDIR": place},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as nodes,
    ):  # fmt: skip
        assert nodes.stdout is not None
        address = nodes.stdout.readline().strip()
        assert address, "Ray did not start"
        yield {**os.environ, **secret, "RAY_ADDRESS": address}
        nodes.communicate()
