"""A node: carries out the relay's requests with the peers it hosts, and remembers in between.

The next message may be handled by another process, so everything a peer holds is on the node's
disk (`app.node.checkpoints`) at the end of each request; a version number says what an request
builds on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from app.config.config import Config
from app.config.preflight import check_method, problem_of
from app.config.registry import METHODS
from app.node.checkpoints import CheckpointStore, Version, flatten, pack, unflatten, unpack, write
from app.node.cohort import Cohort, Costs
from app.security.disclosure import Disclosure, limited
from app.security.inbox import Inbox
from app.security.mailroom import Mailroom
from app.security.sealing import Sealing, simulated
from app.wire.payload import encode, layout_of, nbytes
from clients.engine.engine import Engine
from strategies.protocol import PeerMessage, Report, Request, Response


class NodeError(RuntimeError):
    """A node cannot carry out an request; names peers, round and what is missing."""


class Node:
    """The peers `peers` of a run.

    Parameters
    ----------
    config : the run's configuration.
    peers : ids of the hosted peers, ascending.
    directory : the run directory on this node's disk.
    sealing : how letters are sealed; without, as the run's configuration wants it in a simulation.
    deployed : whether the node is deployed: data-dir is that of its one peer.
    disclosure : what its reports tell.

    Raises
    ------
    ConfigError, DataError : this node's data does not fit the run.
    """

    def __init__(
        self,
        config: Config,
        peers: Sequence[int],
        directory: Path,
        sealing: Sealing | None = None,
        *,
        deployed: bool = False,
        disclosure: Disclosure = "all",
    ) -> None:
        self.peers = tuple(int(peer) for peer in peers)
        self._directory = directory
        self._strategy = config.strategy()
        problem = problem_of(config, self.peers[0] if deployed else None)
        check_method(config, problem)
        self._disclosure: Disclosure = disclosure
        # n_i of the hosted peers, if the node has to learn those of the others.
        sees_all = problem.samples.all() or not deployed
        self._announced = () if sees_all else tuple(problem.samples[list(self.peers)].tolist())
        engine = Engine(
            problem,
            config.network,
            config.model_options,
            self.peers,
            config.training,
            seed=config.seed,
            device=config.device,
            dtype=config.dtype,
            mixed_precision=config.mixed_precision,
            channels_last=config.channels_last,
            topology=self._strategy.topology,
        )
        rounds = config.num_server_rounds
        rule = METHODS[config.method].rule(engine, config.options, rounds)
        self._cohort = Cohort(engine, rule, rounds, config.payload)
        self._checkpoints = CheckpointStore(directory / "nodes", self.peers)
        # What the cohort in memory is, if it is whole, and the files that say the same.
        self._version: tuple[Version, object] | None = None
        sealing = sealing or simulated(config, self.peers, directory)
        self._mailroom = Mailroom(self.peers, directory, sealing)

    def handle(self, request: Request) -> Response:
        """Carry out an request.

        Raises
        ------
        NodeError : the state that the request builds on is not on this node's disk, or the relay
            that gave it has been superseded.
        """
        self._mailroom.begin(request)
        inbox = Inbox(request, self.peers, self._mailroom, self._cohort.precision)
        if request.stage == "start":
            self._checkpoints.take_over(request.attempt)
        elif not self._checkpoints.taken_over_by(request.attempt):
            raise NodeError(
                f"peers {list(self.peers)} were started anew since: this request is of an earlier "
                "attempt at the run"
            )
        if self._announced:
            if request.stage == "start" and not len(request.samples):
                return Response(self.peers, samples=self._announced)
            self._cohort.engine.samples = self._samples(request)
        match request.stage:
            case "start":
                response = replace(self._start(request), samples=self._announced)
            case "answer":
                response = self._answer(request, inbox)
            case "update":
                response = self._update(request, inbox)
            case "local-rounds":
                response = self._run_local_rounds(request)
        inbox.refuse_rest()
        self._checkpoints.forget(before=(request.committed, 0))
        return replace(response, refused=tuple(inbox.refused))

    def _samples(self, request: Request) -> npt.NDArray[np.float64]:
        """(n,) n_i as the relay tells them, 0 of a peer that has not come yet; the own ones."""
        if len(request.samples) != self._cohort.engine.n:
            raise NodeError(f"{len(request.samples)} numbers of samples in an request")
        samples = request.samples.astype(np.float64)
        samples[list(self.peers)] = self._announced
        return samples

    def _start(self, request: Request) -> Response:
        """Go on from the newest state up to `request.round`, or begin afresh."""
        t = request.round
        self._checkpoints.forget(after=(t, 0))  # also answers to a round that will be played again
        known = [v for v in self._checkpoints.versions() if v[1] == 0] if t else []
        if known:
            self._recall(known[-1])
            return self._close(t, ())
        self._version = None
        self._cohort.restart()
        reports = self._cohort.evaluate(t)
        self._cohort.begin(t + 1)
        return self._close(t, reports)

    def _answer(self, request: Request, inbox: Inbox) -> Response:
        t, cohort = request.round, self._cohort
        self._recall((t - 1, 0))
        cohort.receive(request.edges, inbox.open("offer", layout_of(cohort.offers)))
        cohort.answer(t, request.edges[request.asked])
        self._keep((t - 1, 1))
        size = nbytes(cohort.answer_layout(t), cohort.precision)
        ends = zip(cohort.sent.senders.tolist(), cohort.sent.recipients.tolist(), strict=True)
        letters = (
            self._mailroom.close(
                PeerMessage(
                    "answer", k, i, t, size, encode(cohort.sent.tensors, row, cohort.precision)
                ),
                (i,),
            )
            for row, (k, i) in enumerate(ends)
            if i not in self.peers
        )
        return Response(self.peers, tuple(filter(None, letters)))

    def _update(self, request: Request, inbox: Inbox) -> Response:
        t, cohort = request.round, self._cohort
        answered = (t - 1, 1)
        if answered in self._checkpoints.versions():
            self._recall(answered)
        else:
            self._recall((t - 1, 0))
            cohort.receive(request.edges, inbox.open("offer", layout_of(cohort.offers)))
        cohort.update(t, inbox.open("answer", cohort.answer_layout(t)))
        reports = cohort.evaluate(t) if self._strategy.is_evaluated(t) else ()
        cohort.begin(t + 1)
        return self._close(t, reports)

    def _run_local_rounds(self, request: Request) -> Response:
        """Run a stretch of rounds without the relay: every peer is here."""
        cohort = self._cohort
        self._recall((request.round - 1, 0))
        reports: list[Report] = []
        for this in self._strategy.each_round(
            request.round, request.last, lambda t: cohort.rule.wants(cohort.state, t)
        ):
            cohort.receive(this.edges, {})
            cohort.answer(this.t, this.edges[this.asked])
            cohort.update(this.t, {})
            if this.evaluated:
                reports += cohort.evaluate(this.t)
            cohort.begin(this.t + 1)
        return self._close(request.last, reports)

    def _close(self, t: int, reports: Iterable[Report]) -> Response:
        """Keep what was reached, and write what the relay needs for round `t` + 1."""
        cohort = self._cohort
        wants = cohort.rule.wants(cohort.state, t + 1)
        self._keep((t, 0))
        letters: list[PeerMessage | None] = []
        if t == cohort.rounds:
            for peer, tensors in cohort.models().items():
                write(self._directory / "models" / f"peer-{peer:04d}.safetensors", tensors)
        elif self._strategy.exchanges and len(self.peers) < cohort.engine.n:
            precision = cohort.precision
            size = nbytes(layout_of(cohort.offers), precision)
            letters = [
                self._mailroom.close(
                    PeerMessage(
                        "offer", peer, None, t + 1, size, encode(cohort.offers, p, precision)
                    ),
                    self._abroad(peer),
                )
                for p, peer in enumerate(self.peers)
            ]
        told = tuple(limited(report, self._disclosure) for report in reports)
        return Response(self.peers, tuple(filter(None, letters)), wants, told)

    def _abroad(self, peer: int) -> set[int]:
        """The peers of other nodes that may hear `peer` at all."""
        heard_by: list[int] = np.flatnonzero(self._strategy.topology[peer]).tolist()
        return set(heard_by) - set(self.peers)

    def _keep(self, version: Version) -> None:
        cohort = self._cohort
        stacks = {f"state.{name}": value for name, value in flatten(cohort.state).items()}
        stacks |= {f"offer.{name}": value for name, value in cohort.offers.items()}
        stacks |= {f"costs.{name}": value for name, value in flatten(cohort.costs).items()}
        letters = (
            pack("received", cohort.received) | pack("sent", cohort.sent) if version[1] else {}
        )
        self._checkpoints.save(version, stacks, letters)
        self._version = version, self._checkpoints.fingerprint(version)

    def _recall(self, version: Version) -> None:
        """Stand where `version` was kept. The cohort is in flux until the next `_keep`.

        What is in memory counts only while the files are those that were written with it: another
        process of this node may have begun again in the meantime.
        """
        if version not in self._checkpoints.versions():
            raise NodeError(
                f"peers {list(self.peers)} have no state of round {version[0]} in "
                f"{self._directory}: it was lost, or this node joined later"
            )
        if self._version != (version, self._checkpoints.fingerprint(version)):
            self._read(version)
        self._version = None

    def _read(self, version: Version) -> None:
        cohort, device = self._cohort, self._cohort.engine.device
        stacks, letters = self._checkpoints.load(version)
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "offer": {}, "costs": {}}
        for name, value in stacks.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        cohort.state = unflatten(cohort.state, parts["state"])
        cohort.offers = {name: value.to(device) for name, value in parts["offer"].items()}
        cohort.engine.n_gradients[:] = parts["costs"]["n_gradients"].numpy()
        sent, received = (parts["costs"][name].numpy() for name in ("sent", "received"))
        cohort.costs = Costs(sent, received, cohort.engine.n_gradients)
        if version[1]:
            cohort.received, cohort.sent = (
                unpack(n, letters, device) for n in ("received", "sent")
            )
