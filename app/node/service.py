"""What a node does with a message: from a request's record to the record of the response.

Flower's process of a message calls this itself, or lets the node's worker do it
(`app.node.worker`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import RecordDict

from app.config.config import Config
from app.config.root import workplace
from app.config.schema import Scalar
from app.runs import logs
from app.security.disclosure import Disclosure, disclosure_of
from app.security.sealing import Sealing, deployed, peer_of
from strategies.flower.records import decode_request, encode_fault, encode_response
from strategies.protocol import Request, Response
from strategies.relay.vetting import named

if TYPE_CHECKING:
    from app.node.node import Node

_NODES_OWN = {"out": Config.out, "data-dir": Config.data_dir, "device": Config.device}
"""What a deployed node takes from --node-config only, and the values it has without."""
_NODES_IN_MEMORY = 4
_OURS = ("app", "strategies", "clients", "datasets")

_log = logging.getLogger("coterie.node")


@dataclass(frozen=True)
class Job:
    """What a message comes with.

    Attributes
    ----------
    run_id : Flower's number of the run.
    run_config, node_config : flat keys as Flower has them.
    version : round of the state that the last message left, None where there was none.
    """

    run_id: int
    run_config: Mapping[str, Scalar]
    node_config: Mapping[str, Scalar]
    version: int | None

    @property
    def simulated(self) -> bool:
        """Whether Flower's simulation made the node."""
        return _simulated(self.node_config)

    def config(self) -> Config:
        """The run's configuration on this node.

        Raises
        ------
        ConfigError
            It is wrong.
        """
        flat = dict(self.run_config)
        if not self.simulated:  # who submits a run has no say in where an institution's files lie
            flat |= {key: self.node_config.get(key, value) for key, value in _NODES_OWN.items()}
            flat |= {"run-dir": "", "resume": False}
        return _parsed(self.run_id, tuple(flat.items()), workplace() if self.simulated else None)


def handle_request(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    """Do what a request says; its response or fault, and the round of the state that it leaves."""
    if not job.simulated:
        logs.begin()
    where: dict[str, object] = {"run": job.run_id}
    began = time.monotonic()
    try:
        request = decode_request(record)
        where |= {"round": request.round, "stage": request.stage, "letters": len(request.letters)}
        response = _respond(request, job)
        encoded = encode_response(response, request)
    except Exception as error:
        return fault(error, job, where), job.version
    where |= {"peers": named(response.peers), "refused": len(response.refused)}
    _log.info("done", extra=where | {"seconds": round(time.monotonic() - began, 3)})
    for line in response.refused:
        _log.warning("%s", line, extra=where)
    return encoded, job.version if request.stage == "answer" else request.last


def fault(error: Exception, job: Job, where: Mapping[str, object]) -> RecordDict:
    """What went wrong, as one line for the relay and a log here.

    A deployed node sends only lines that were written for this, and of its paths the last name:
    what libraries say may name its files or quote its data.

    Parameters
    ----------
    error : it is being handled.
    where : fields of the log's line.
    """
    ours = type(error).__module__.partition(".")[0] in _OURS
    line = f"{type(error).__name__}: {error}"
    if ours:
        _log.error("%s", line, extra=where)
    else:
        _log.exception("%s", line, extra=where)
    if job.simulated:
        return encode_fault(line)
    paths = [Path(value) for value in job.node_config.values() if isinstance(value, str)]
    for path in sorted(paths, key=lambda path: -len(str(path))):  # one may lie in another
        line = line.replace(str(path), path.name) if path.name else line
    return encode_fault(line if ours else f"{type(error).__name__}, see the log of this node")


def hosted(node_config: Mapping[str, object], peers: int) -> tuple[int, ...]:
    """Ids of the peers that this node hosts, of `peers` in all.

    A simulated node has an equal share of them, which may be none; the configuration of a deployed
    one names its peer.

    Raises
    ------
    ServiceError
        It does not.
    """
    if _simulated(node_config):
        shares = np.array_split(np.arange(peers), int(str(node_config["num-partitions"])))
        return tuple(int(peer) for peer in shares[int(str(node_config["partition-id"]))])
    peer = node_config["peer"] if "peer" in node_config else peer_of(node_config)
    if type(peer) is not int or not 0 <= peer < peers:
        raise ServiceError(
            f"this SuperNode says peer = {peer!r}; start it with --node-config 'peer=K', "
            f"K from 0 to {peers - 1}, or with a name that its trust file has"
        )
    return (peer,)


def _simulated(node_config: Mapping[str, object]) -> bool:
    """Flower's simulation gives a node these two keys and no others."""
    return node_config.keys() == {"partition-id", "num-partitions"}


class ServiceError(ValueError):
    """A node cannot do what a message asks for; one line says why."""


def _respond(request: Request, job: Job) -> Response:
    config = job.config()
    peers = hosted(job.node_config, config.peers)
    if not peers:
        return Response(())
    if request.stage != "start" and job.version != request.round - 1:
        raise ServiceError(
            f"peers {list(peers)} stand at round {job.version}, the request builds on "
            f"{request.round - 1}: a state update was lost, or the node restarted"
        )
    if job.simulated:
        return _node(config, peers, None, "all").handle(request)
    disclosure = disclosure_of(job.node_config.get("report", "all"))
    sealing = deployed(job.run_config, job.node_config, peers[0])
    return _node(config, peers, sealing, disclosure).handle(request)


@lru_cache(_NODES_IN_MEMORY)
def _node(
    config: Config, peers: tuple[int, ...], sealing: Sealing | None, disclosure: Disclosure
) -> Node:
    from app.node.node import Node  # here, so that a simulation's main process never loads torch

    return Node(
        config,
        peers,
        Path(config.run_dir),
        sealing,
        deployed=sealing is not None,
        disclosure=disclosure,
    )


@lru_cache(_NODES_IN_MEMORY)
def _parsed(run_id: int, flat: tuple[tuple[str, Scalar], ...], base: Path | None) -> Config:
    """The configuration of flat keys; a process parses that of a run once.

    Parameters
    ----------
    base : of a simulation, where relative paths start; a deployed node's stay as they are.
    """
    config = Config.from_flat(dict(flat))
    return (config if base is None else config.absolute(base)).located(str(run_id))
