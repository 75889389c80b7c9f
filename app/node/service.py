"""What a node does with a message: from a request's record to the record of the response.

Flower's process of a message calls this itself, or lets the node's worker do it
(`app.node.worker`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import RecordDict

from app.config.config import Config, ConfigError
from app.config.digest import config_digest_of
from app.config.keys import keys, paths, tables
from app.config.root import workplace
from app.config.schema import Scalar
from app.node import faults
from app.node.faults import StartError, StateError
from app.node.vetting import check_request
from app.runs import logs
from app.security import approval
from app.security.approval import ApprovalError
from app.security.policy import Policy, PolicyError, check_run, read_policy
from app.security.sealing import Sealing, deployed, peer_of
from app.security.trust import KeysError
from strategies.brokering import Brokering
from strategies.flower.records import decode_request, encode_fault, encode_response
from strategies.protocol import Request, Response
from strategies.relay.vetting import named
from strategies.schedule import Schedule

if TYPE_CHECKING:
    from app.node.node import Node

_NODES_IN_MEMORY = 4
_OURS = ("app", "strategies", "clients", "datasets")
_MOVED = "report"
"""What --node-config said before there were policies."""

_log = logging.getLogger("coterie.node")


@dataclass(frozen=True)
class Job:
    """What a message comes with.

    Attributes
    ----------
    run_id : Flower's number of the run.
    run_config, node_config : flat keys as Flower has them.
    version : round of the state that the last message left, None where there was none.
    simulated : whether Flower's simulation runs the node: what its process is, not what anybody
        says, decides (`app.client.in_simulation`).
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
        flat = dict(self.run_config)
        if not self.simulated:  # who submits a run has no say in which of a node's files are read
            own = {key: self.node_config.get(key, _default(key)) for key in (*paths(), "device")}
            flat |= {**own, "run-dir": "", "resume": False}
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
    """What went wrong, for the log here; the relay of a deployment gets a code.

    Parameters
    ----------
    error : it is being handled.
    where : fields of the log's line.
    """
    line = f"{type(error).__name__}: {error}"
    if type(error).__module__.partition(".")[0] in _OURS:
        _log.error("%s", line, extra=where)
    else:
        _log.exception("%s", line, extra=where)
    return encode_fault(line if job.simulated else f"{_who(job)}{faults.line_of(error)}")


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


def _respond(request: Request, job: Job) -> Response:
    config = job.config()
    peers = hosted(job, config.peers)
    if not peers:
        return Response(())
    if job.simulated:
        _require_state(request, job, peers, _strategy(config).schedule)
        return _node(config, peers, None, None).handle(request)
    if not _strategy(config).schedule.foresees:
        raise ConfigError("the virtual clock decides who is awake in simulations only")
    policy = admit(config, job.node_config)
    check_request(request, _strategy(config), peers)
    _require_state(request, job, peers, _strategy(config).schedule)
    sealing = deployed(config, job.node_config, peers[0], required=policy.sealing)
    return _node(config, peers, sealing, policy).handle(request)


def admit(config: Config, node_config: Mapping[str, Scalar]) -> Policy:
    """The institution's policy, which allows the run; the decision is written down.

    Raises
    ------
    ApprovalError, ConfigError, PolicyError : the run is refused. No data were read.
    StartError : the node was started without a policy.
    """
    if "policy" not in node_config:
        raise StartError(
            "this SuperNode has no policy: write one (python -m app policy init policy.toml) and "
            'start it with policy="FILE" in --node-config'
        )
    if _MOVED in node_config:
        raise StartError(f"{_MOVED} in --node-config is now disclosure in [reports] of the policy")
    file, directory = Path(str(node_config["policy"])), Path(config.run_dir)
    if directory.name == approval.OWN:
        raise ConfigError(f"no run may be called {approval.OWN}: that folder is the node's own")
    digest = config_digest_of(config).hex()
    try:
        policy = read_policy(file)  # again each time: the institution may have changed it
        check_run(policy, config)
        if policy.approval == "digest":
            approval.require_approval(directory.parent, directory.name, digest)
    except (ApprovalError, PolicyError) as error:
        approval.record(directory, config, digest, file, f"refused: {error}")
        raise
    approval.record(directory, config, digest, file, "allowed")
    return policy


def _who(job: Job) -> str:
    """The peer of a deployed node, if the way it was started says so."""
    with suppress(KeysError):
        peer = job.node_config.get("peer", peer_of(job.node_config))
        if type(peer) is int:
            return f"peer {peer}: "
    return ""


def _require_state(request: Request, job: Job, peers: tuple[int, ...], schedule: Schedule) -> None:
    before = request.round - 1
    if request.stage == "start" or job.version == before:
        return
    if job.version is None or not schedule.last_change(peers, before) <= job.version <= before:
        raise StateError(
            f"peers {list(peers)} stand at round {job.version}, the request builds on "
            f"{before}: a state update was lost, or the node restarted"
        )


@lru_cache(_NODES_IN_MEMORY)
def _node(
    config: Config, peers: tuple[int, ...], sealing: Sealing | None, policy: Policy | None
) -> Node:
    from app.node.node import Node  # here, so that a simulation's main process never loads torch

    return Node(
        config,
        peers,
        Path(config.run_dir),
        sealing,
        deployed=sealing is not None,
        policy=policy,
    )


@lru_cache(_NODES_IN_MEMORY)
def _strategy(config: Config) -> Brokering:
    return config.strategy()


@lru_cache(_NODES_IN_MEMORY)
def _parsed(run_id: int, flat: tuple[tuple[str, Scalar], ...], base: Path | None) -> Config:
    """The configuration of flat keys; a process parses that of a run once.

    Parameters
    ----------
    base : of a simulation, where relative paths start; a deployed node's stay as they are.
    """
    config = Config.from_flat(dict(flat))
    return (config if base is None else config.absolute(base)).located(str(run_id))


def _default(key: str) -> Scalar:
    table, name, _ = keys()[key]
    default: Scalar = getattr(tables()[table], name)
    return default
