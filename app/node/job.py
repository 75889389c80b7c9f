"""What comes with a message to a node: the run's configuration and the node's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from coterie.app.config import parts
from coterie.app.config.config import Config
from coterie.app.config.keys import locate, tables
from coterie.app.config.root import workplace
from coterie.app.config.schema import Scalar
from coterie.app.node.faults import StartError
from coterie.app.security.sealing import peer_of

_RUNS_IN_MEMORY = 4


@dataclass(frozen=True)
class Job:
    """What a message comes with.

    Attributes
    ----------
    run_id : Flower's number of the run.
    run_config, node_config : flat keys as Flower has them.
    version : round of the state that the last message left, None where there was none.
    simulated : whether Flower's simulation runs the node: what its process is, not what anybody
        says, decides (`coterie.app.client.in_simulation`).
    """

    run_id: int
    run_config: Mapping[str, Scalar]
    node_config: Mapping[str, Scalar]
    version: int | None
    simulated: bool = False

    def config(self) -> Config:
        """The run's configuration on this node.

        Raises
        ------
        ConfigError
            It is wrong.
        """
        flat = parts.unpacked(self.run_config)
        if not self.simulated:  # who submits a run has no say in which of a node's files are read
            parts.refuse_modules(flat)  # before anything is loaded
            theirs = parts.plugin_tables(flat)
            own = {
                key: self.node_config.get(key, _default(key, theirs))
                for key in (*parts.paths(theirs), "device")
            }
            flat |= {**own, "run-dir": "", "resume": False, "preflight": False}
        return _parsed(self.run_id, tuple(flat.items()), workplace() if self.simulated else None)


def hosted(job: Job, peers: int) -> tuple[int, ...]:
    """Ids of the peers that a node hosts, of `peers` in all.

    A simulated node has an equal share of them, which may be none; the configuration of a deployed
    one names its peer.

    Raises
    ------
    StartError
        It does not.
    """
    node_config = job.node_config
    if job.simulated:
        shares = np.array_split(np.arange(peers), int(str(node_config["num-partitions"])))
        return tuple(int(peer) for peer in shares[int(str(node_config["partition-id"]))])
    peer = node_config["peer"] if "peer" in node_config else peer_of(node_config)
    if type(peer) is not int or not 0 <= peer < peers:
        raise StartError(
            f"this SuperNode says peer = {peer!r}; start it with --node-config 'peer=K', "
            f"K from 0 to {peers - 1}, or with a name that its trust file has"
        )
    return (peer,)


@lru_cache(_RUNS_IN_MEMORY)
def _parsed(run_id: int, flat: tuple[tuple[str, Scalar], ...], base: Path | None) -> Config:
    """The configuration of flat keys; a process parses that of a run once.

    Parameters
    ----------
    base : of a simulation, where relative paths start; a deployed node's stay as they are.
    """
    config = Config.from_flat(dict(flat))
    return (config if base is None else config.absolute(base)).located(str(run_id))


def _default(key: str, theirs: Mapping[str, type]) -> Scalar:
    table, name, _ = locate(key, theirs)
    default: Scalar = getattr({**tables(), **theirs}[table], name, "")
    return default
