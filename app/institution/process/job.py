"""Context of a message to a node: the configurations of the run and of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from coterie.app.config import parts
from coterie.app.config.config import Config
from coterie.app.config.root import workplace
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import known_keys
from coterie.app.institution.requests.faults import StartError
from coterie.app.institution.security.sealing import peer_of

_RUNS_IN_MEMORY = 4


@dataclass(frozen=True)
class Job:
    """Context of a message."""

    run_id: int  # Flower's ID of the run
    run_config: Mapping[str, Scalar]  # flat keys
    node_config: Mapping[str, Scalar]  # flat keys
    version: int | None  # round of the state after the last message; None before the first
    simulated: bool = False
    """The node runs in Flower's simulation; determined from the process, not from the message
    (`coterie.app.client.in_simulation`)."""
    gpu: int = 0
    """Index of the node's GPU in a simulation, modulo the number of visible GPUs."""

    def config(self) -> Config:
        """Return the run's configuration on this node."""
        flat = parts.unpacked(self.run_config)
        if not self.simulated:  # the submitter of a run must not choose the files that a node reads
            parts.refuse_modules(flat)  # before anything is loaded
            local = {
                key: self.node_config.get(key, "" if option.default is MISSING else option.default)
                for key, (_, option) in known_keys(flat).items()
                if option.is_path or option.scope == "site"
            }
            flat |= {**local, "run-dir": "", "resume": False, "preflight": False}
        return _parsed(self.run_id, tuple(flat.items()), workplace() if self.simulated else None)


def hosted(job: Job, peers: int) -> tuple[int, ...]:
    """Return the peers that a node hosts: the one of its configuration, or an equal share."""
    node_config = job.node_config
    if job.simulated:
        shares = np.array_split(np.arange(peers), int(str(node_config["num-partitions"])))
        return tuple(int(peer) for peer in shares[int(str(node_config["partition-id"]))])
    peer = node_config["peer"] if "peer" in node_config else peer_of(node_config)
    if type(peer) is not int or not 0 <= peer < peers:
        raise StartError(
            f"this SuperNode has peer = {peer!r}; start it with --node-config 'peer=K', "
            f"K from 0 to {peers - 1}, or with a name that its trust file has"
        )
    return (peer,)


@lru_cache(_RUNS_IN_MEMORY)
def _parsed(run_id: int, flat: tuple[tuple[str, Scalar], ...], base: Path | None) -> Config:
    """Parse a run's flat keys, once per process; `base`: base of relative paths in a simulation."""
    config = Config.from_flat(dict(flat))
    return (config if base is None else config.absolute(base)).located(str(run_id))
