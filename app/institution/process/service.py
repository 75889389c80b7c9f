"""Handle a message to a node, in Flower's process or the worker: from record to record."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import RecordDict

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.process import readiness
from coterie.app.institution.process.job import Job, hosted
from coterie.app.institution.requests import faults
from coterie.app.institution.requests.faults import StartError
from coterie.app.institution.requests.vetting import check_request
from coterie.app.institution.security import approval
from coterie.app.institution.security.approval import ApprovalError
from coterie.app.institution.security.files import close, closed
from coterie.app.institution.security.policy import Policy, PolicyError, read_policy
from coterie.app.institution.security.run_check import check_run
from coterie.app.institution.security.sealing import Sealing, deployed, peer_of
from coterie.app.institution.security.trust import KeysError
from coterie.app.runs import logs
from coterie.app.runs.progress import ERROR_LOG
from coterie.datasets.table import forget_plugins
from coterie.errors import Error, PartError, is_full_disk, is_users, line_of
from coterie.strategies.errors import StateError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.flower.records import decode_request, encode_fault, encode_response
from coterie.strategies.names import is_name
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.vetting import named
from coterie.strategies.schedule import Schedule

if TYPE_CHECKING:
    from coterie.app.node.node import Node

_NODES_IN_MEMORY = 4
_UNCHANGED = ("preflight", "answer")
"""Stages that leave a node's state in the same round."""
_MOVED = "report"
"""Keys of --node-config before there were policies."""

_log = logging.getLogger("coterie.node")


class Nodes:
    """Cache of up to `limit` nodes that this process keeps between messages, with their state."""

    def __init__(self, limit: int = _NODES_IN_MEMORY) -> None:
        self.limit = limit
        self._nodes: dict[tuple[object, ...], Node] = {}

    def simulated(self, config: Config, peers: tuple[int, ...], gpu: int) -> Node:
        """Return the node of these peers in a simulation; one that is not kept reads its disk."""
        from coterie.app.institution.node import simulated_node  # imports torch

        make = partial(simulated_node, config, peers, Path(config.run_dir), gpu=gpu)
        return self._kept((config, peers, gpu), make)

    def deployed(
        self,
        config: Config,
        peers: tuple[int, ...],
        sealing: Sealing | None = None,
        policy: Policy | None = None,
        *,
        starts: bool = False,
    ) -> Node:
        """Return the node of an institution in a run; one that `starts` reads its data again."""
        from coterie.app.institution.node import InstitutionNode  # imports torch

        key = config, peers, sealing, policy
        if starts:
            forget_plugins()
            self._nodes.pop(key, None)
        make = partial(InstitutionNode, config, peers, Path(config.run_dir), sealing, policy)
        return self._kept(key, make)

    def _kept(self, key: tuple[object, ...], make: Callable[[], Node]) -> Node:
        node = self._nodes.pop(key, None)
        self._nodes[key] = node or make()
        while len(self._nodes) > self.limit:
            del self._nodes[next(iter(self._nodes))]
        return self._nodes[key]


_nodes = Nodes()


def keep_all_nodes() -> None:
    """Keep any number of nodes in this process from now on."""
    _nodes.limit = sys.maxsize


def handle_request(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    """Execute a request; return its response or fault, and the round of the resulting state."""
    if job.simulated:
        return _handle(record, job)
    logs.begin()
    with closed():
        return _handle(record, job)


def _handle(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    where: dict[str, object] = {"run": job.run_id}
    began = time.monotonic()
    try:
        request = decode_request(record)
        record.clear()  # each letter's memory is free once the node has opened it
        where |= {"round": request.round, "stage": request.stage, "letters": len(request.letters)}
        if request.keyframes_wanted:
            _log.info(
                "the relay asks for keyframes",
                extra=where | {"keyframes-wanted": named(request.keyframes_wanted)},
            )
        response = _respond(request, job)
        encoded = encode_response(response, request)
    except Exception as error:
        return fault(error, job, where), job.version
    where |= {"peers": named(response.peers), "refused": len(response.refused)}
    _log.info("done", extra=where | {"seconds": round(time.monotonic() - began, 3)})
    for line in response.refused:
        _log.warning("%s", line, extra=where)
    return encoded, job.version if request.stage in _UNCHANGED else request.last


def fault(error: Exception, job: Job, where: Mapping[str, object]) -> RecordDict:
    """Log an error with the fields `where` and return it; a deployment's relay gets a code."""
    is_expected = isinstance(error, Error) and error.__cause__ is None
    is_full = is_full_disk(error)
    is_part = isinstance(error, PartError) or (not isinstance(error, Error) and is_users(error))
    line = line_of(error)
    _log.error("%s", line, extra=where, exc_info=not is_expected)
    if is_part and not is_full:
        with suppress(Error, OSError):
            run_dir = Path(job.config().run_dir)
            (run_dir / ERROR_LOG).write_text(traceback.format_exc(), encoding="utf-8")
    if job.simulated:
        return encode_fault(line, is_final=is_part or is_full)
    return encode_fault(f"{_who(job)}{faults.line_of(error)}")


def _respond(request: Request, job: Job) -> Response:
    config = job.config()
    peers = hosted(job, config.peers)
    if not peers:
        return Response(())
    if job.simulated:
        _require_state(request, job, peers, _strategy(config).schedule)
        return _nodes.simulated(config, peers, job.gpu).handle(request)
    approval.note_contact(Path(config.run_dir).parent)
    if request.stage == "preflight":
        return readiness.answer(request, job)
    policy = admit(config, job.node_config)
    strategy = _strategy(config)  # built late: its memory grows with the number of pairs of peers
    if not strategy.schedule.foresees:
        raise ConfigError("the virtual clock decides who is awake in simulations only")
    check_request(request, strategy, peers)
    _require_state(request, job, peers, strategy.schedule)
    sealing = deployed(config, job.node_config, peers[0], required=policy.sealing)
    starts = request.stage == "start" and not len(request.samples)  # again once these are known
    return _nodes.deployed(config, peers, sealing, policy, starts=starts).handle(request)


def admit(config: Config, node_config: Mapping[str, Scalar]) -> Policy:
    """Return the institution's policy if it allows the run, and record the decision."""
    if "policy" not in node_config:
        raise StartError(
            "this SuperNode has no policy: write one (coterie policy init policy.toml) and "
            'start it with policy="FILE" in --node-config'
        )
    if _MOVED in node_config:
        raise StartError(f"{_MOVED} in --node-config is now disclosure in [reports] of the policy")
    file, directory = Path(str(node_config["policy"])), Path(config.run_dir)
    if directory.name.casefold() == approval.OWN:
        raise ConfigError(f"no run may have the name {approval.OWN}: the node uses that folder")
    digest = config_digest_of(config).hex()
    for folder in (directory, directory.parent / approval.OWN):  # of versions before this one
        close(folder)
    content = file.read_bytes() if file.is_file() else None  # what is used is what is recorded
    try:
        policy = read_policy(file, content)  # again each time: the institution may have changed it
        check_run(policy, config)
        if policy.approval == "digest":
            approval.require_approval(directory.parent, directory.name, digest)
    except (ApprovalError, PolicyError) as error:
        approval.record(directory, config, digest, content, f"refused: {error}")
        raise
    approval.record(directory, config, digest, content, "allowed")
    return policy


def _who(job: Job) -> str:
    """Return the prefix "peer K (NAME): " of a deployed node if --node-config names its peer."""
    with suppress(KeysError):
        peer = job.node_config.get("peer", peer_of(job.node_config))
        if type(peer) is int:
            name = str(job.node_config.get("name", ""))
            return f"peer {peer} ({name}): " if is_name(name) else f"peer {peer}: "
    return ""


def _require_state(request: Request, job: Job, peers: tuple[int, ...], schedule: Schedule) -> None:
    before = request.round - 1
    if request.stage == "start" or job.version == before:
        return
    if job.version is None or not schedule.last_change(peers, before) <= job.version <= before:
        raise StateError(
            f"peers {list(peers)} have the state of round {job.version}, the request needs that of "
            f"round {before}: a state update was lost, or the node restarted"
        )


@lru_cache(_NODES_IN_MEMORY)
def _strategy(config: Config) -> ExchangePlan:
    return config.strategy()
