"""A node: does what the relay's requests say with the peers it hosts, and remembers in between.

The next message may be handled by another process, so everything a peer holds is on the node's
disk (`coterie.app.node.checkpoints`) at the end of each request; a version says what a request
builds on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.config.preflight import check_method, problem_of
from coterie.app.node.attackers import Attackers, deceived
from coterie.app.node.checked_rule import CheckedRule
from coterie.app.node.checkpoints import CheckpointStore
from coterie.app.node.cohort import Cohort
from coterie.app.node.faults import StateError
from coterie.app.node.part import predicts_as_saved
from coterie.app.node.tensor_file import write
from coterie.app.node.vetting import check_wanted
from coterie.app.runs import atomic
from coterie.app.security.accounts import Accounts
from coterie.app.security.approval import OWN
from coterie.app.security.channel import SecureChannel
from coterie.app.security.disclosure import limited, numbers_in, protected
from coterie.app.security.policy import AnswerPolicy, Policy, PolicyError
from coterie.app.security.run_check import check_counts, check_letters, is_own, max_parameters
from coterie.app.security.sealing import Sealing, simulated
from coterie.app.security.split import split_seed
from coterie.app.trained.about import About
from coterie.app.trained.card import as_json, as_markdown, card
from coterie.clients.defence import Defence
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.probe import ModelError
from coterie.clients.models.size import MAX_PARAMETERS, SizeError
from coterie.datasets.problem import Problem
from coterie.strategies.brokering import Round
from coterie.strategies.protocol import PeerMessage, Report, Request, Response

_log = logging.getLogger("coterie.node")


class NodeError(StateError):
    """A node cannot do what a request says; names peers, round and what is missing."""


class Node:
    """The peers `peers` of a run.

    Parameters
    ----------
    config : the run's configuration.
    peers : ids of the hosted peers, ascending.
    directory : the run directory on this node's disk.
    sealing : how letters are sealed; without, as the run's configuration wants it in a simulation.
    deployed : whether the node is deployed: data-dir is that of its one peer.
    policy : of the institution: what reports tell, and how much may be asked.
    on_round : called with the number of each round that the node ends without the relay.
    gpu : see `coterie.clients.engine.engine.Engine`; the number of a simulation's node.

    Raises
    ------
    ConfigError, DataError : this node's data do not fit the run, or are too few.
    """

    def __init__(
        self,
        config: Config,
        peers: Sequence[int],
        directory: Path,
        sealing: Sealing | None = None,
        *,
        deployed: bool = False,
        policy: Policy | None = None,
        on_round: Callable[[int], None] | None = None,
        gpu: int = 0,
    ) -> None:
        self._on_round = on_round
        self.peers = tuple(int(peer) for peer in peers)
        self._directory = directory
        self._strategy = config.strategy()
        own = directory.parent / OWN
        problem = problem_of(
            config, *((self.peers[0], split_seed(own, config)) if deployed else ())
        )
        check_method(config, problem)
        liars = config.attackers()
        problem = deceived(problem, config.attack, liars)
        self._policy = policy
        # A simulation of honest peers need not doubt what they say and send.
        doubts = deployed or config.attack.kind != "none"
        is_limited = doubts or config.defence.max_samples != "auto"
        self._believed = config.defence.believed if is_limited else np.asarray
        defence = replace(config.defence, norm=config.defence.norm and doubts)
        parts = {"train": problem.train, "test": problem.test, "validation": problem.validation}
        self._sizes_of = {
            peer: {name: len(part.rows[peer]) for name, part in parts.items()}
            for peer in self.peers
        }
        self._sizes = self._sizes_of[self.peers[0]]
        self._rarest = 0
        self._is_own = is_own(config.dataset)
        self._learns_graph = config.row.learns_graph
        if policy is not None and self._is_own:
            check_counts(policy, config, self._sizes)
            rarest = problem.rarest_class(self.peers[0])
            self._rarest = rarest if rarest >= policy.data.min_examples else 0
        # n_i of the hosted peers, if the node has to learn those of the others.
        sees_all = problem.samples.all() or not deployed
        self._announced = () if sees_all else tuple(problem.samples[list(self.peers)].tolist())
        engine = self._engine(config, problem, defence, gpu)
        engine.samples = self._believed(engine.samples)
        rounds = config.num_server_rounds
        rule = config.row.rule(engine, config.options, rounds)
        attackers = Attackers(config.attack, liars, rule)
        checked = CheckedRule(rule)
        schedule = self._strategy.schedule
        self._cohort = Cohort(engine, checked, rounds, config.payload, schedule, attackers)
        if policy is not None:
            check_letters(policy, self._bytes_a_round())
        refused = (
            ""
            if predicts_as_saved(type(rule))
            else (f"{config.method} predicts in a way of its own that its rule does not save")
        )
        self._about = {peer: About.of(config, problem, peer, refused) for peer in self.peers}
        self._protection = config.privacy, config.defence
        self._deployed = deployed
        self._checkpoints = CheckpointStore(
            directory / "nodes", self._cohort, config_digest_of(config), durable=deployed
        )
        sealing = sealing or simulated(config, self.peers, directory)
        self._accounts = accounts = None
        if deployed:
            limits = AnswerPolicy() if policy is None else policy.answers
            self._accounts = accounts = Accounts.of(directory, self.peers[0], limits)
        self._ledger = None if accounts is None else accounts.answers
        self._channel = SecureChannel(
            self.peers, directory, sealing, accounts, self._strategy.schedule.max_age
        )
        # A deployed peer is called as in the trust file; what its own data is called stays there.
        self._names = None if deployed else dict(enumerate(problem.names))

    def _engine(self, config: Config, problem: Problem, defence: Defence, gpu: int) -> Engine:
        """The models of the hosted peers, if they are not larger than the policy allows."""
        policy = self._policy
        try:
            return Engine(
                problem,
                config.network,
                config.model_options,
                self.peers,
                config.training,
                seed=config.seed,
                device=config.device,
                gpu=gpu,
                dtype=config.dtype,
                backend=config.engine.backend,
                mixed_precision=config.mixed_precision,
                tf32=config.tf32,
                channels_last=config.channels_last,
                topology=self._strategy.topology,
                defence=defence,
                staleness_discount=config.schedule.staleness_discount,
                mixing=config.mixing(),
                privacy=config.privacy,
                adaptation=config.adaptation,
                max_parameters=MAX_PARAMETERS if policy is None else max_parameters(policy, config),
            )
        except SizeError as error:
            if policy is None:
                raise ConfigError(str(error)) from None
            most = policy.limits.max_parameters
            raise PolicyError(
                f"limits.max-parameters = {most} refuses the network: {error}"
            ) from None
        except ModelError as error:
            raise ConfigError(str(error)) from error

    def _bytes_a_round(self) -> int:
        """Bytes of the letters that may come in a round: one or two from each neighbour."""
        cohort, method = self._cohort, self._strategy
        letters = [cohort.offer_format().max_bytes, cohort.answer_format(1).max_bytes]
        return sum(letters) * int(method.topology[list(self.peers)].sum(axis=1).max())

    def handle(self, request: Request) -> Response:
        """Do what a request says.

        Raises
        ------
        CheckpointError : the state that the request builds on is not on this node's disk.
        BusyError : another process is at work on the state.
        DamagedError, LedgerError : the memory of the run or a ledger was changed.
        NodeError : the relay that sent the request has been superseded.
        """
        if not self._deployed:
            return self._handle(request)
        lock = self._directory / "nodes" / f"state-{self.peers[0]:04d}.lock"
        with atomic.locked(lock, wait=False):
            return self._handle(request)

    def _handle(self, request: Request) -> Response:
        self._channel.begin(request)
        if request.stage == "start":
            self._checkpoints.take_over(request.attempt)
        elif not self._checkpoints.taken_over_by(request.attempt):
            raise NodeError(
                f"peers {list(self.peers)} were started anew since: this request is of an earlier "
                "attempt at the run"
            )
        if self._announced:
            if request.stage == "start" and not len(request.samples):
                claims = self._channel.claims()
                return Response(self.peers, samples=self._announced, claims=claims)
            self._cohort.engine.samples = self._samples(request)
        response = self._privately(request)
        refused = self._channel.finish()
        self._checkpoints.forget((request.committed, 0))
        if request.stage != "start":
            return replace(response, refused=refused)
        called = tuple(self._known_names().get(peer, "") for peer in self.peers)
        return replace(
            response,
            refused=refused,
            samples=self._announced,
            names=called,
            claims=self._channel.claims(),
            backend=self._cohort.engine.backend,
        )

    def _privately(self, request: Request) -> Response:
        """`_done`; where gradients are private, from draws of its own that nobody can repeat."""
        if self._accounts is not None and self._cohort.engine.guard is not None:
            privacy = self._accounts.privacy
            privacy.spent()  # a damaged ledger stops the request, whatever it costs
            guard = self._cohort.engine.draw_anew(secrets.randbits(64))
            guard.account = partial(privacy.account, request.round)
        return self._done(request)

    def _done(self, request: Request) -> Response:
        match request.stage:
            case "start":
                return self._start(request)
            case "answer":
                return self._answer(request)
            case "update":
                return self._update(request)
            case "local-rounds":
                return self._run_local_rounds(request)
            case "preflight":
                raise AssertionError

    def _known_names(self) -> Mapping[int, str]:
        return self._channel.names if self._names is None else self._names

    def _samples(self, request: Request) -> npt.NDArray[np.float64]:
        """(n,) n_i as the relay announces them, 0 of a peer that has not come yet; the own ones."""
        if len(request.samples) != self._cohort.engine.n:
            raise NodeError(f"{len(request.samples)} numbers of samples in a request")
        samples = request.samples.astype(np.float64)
        samples[list(self.peers)] = self._announced
        return self._believed(samples)  # the own ones too: all peers weigh alike

    def _start(self, request: Request) -> Response:
        """Go on from the newest state up to `request.round`, or begin afresh."""
        t = request.round
        standing = self._checkpoints.resume(t)
        if standing is not None:
            self._cohort.go_on(t + 1)
            since = max(1, t + 1 - self._strategy.schedule.max_age)
            return replace(self._end(t, (), since), standing=standing)
        self._checkpoints.restart()
        reports = self._cohort.evaluate(t)
        self._cohort.begin(t + 1)
        return replace(self._end(t, reports), standing=-1)

    def _answer(self, request: Request) -> Response:
        """Play the first half of a round; its answers to other nodes."""
        t = request.round
        self._checkpoints.recall((t - 1, 0))
        self._cohort.exchange(self._round(request), self._channel.read)
        self._checkpoints.save((t - 1, 1))
        return Response(self.peers, self._sealed(self._cohort.answer_letters(t)))

    def _update(self, request: Request) -> Response:
        """Play the second half of a round, or all of it where no peer here was asked."""
        t = request.round
        self._checkpoints.recall((t - 1, 1), (t - 1, 0))
        return self._end(t, self._cohort.step(self._round(request), self._channel.read))

    def _run_local_rounds(self, request: Request) -> Response:
        """Play some rounds without the relay: every peer is here."""
        self._checkpoints.recall((request.round - 1, 0))
        cohort, reports = self._cohort, list[Report]()
        for this in self._strategy.each_round(request.round, request.last, cohort.wants):
            reports += cohort.step(this)
            if self._on_round is not None:
                self._on_round(this.t)
        return self._end(request.last, reports)

    def _round(self, request: Request) -> Round:
        t = request.round
        # A recipient's wants are about offers, which may have been heard in order to answer them.
        done = self._cohort.answered and self._strategy.wanted_by == 1
        if self._policy is not None and not done:
            check_wanted(request, self._strategy, self.peers, self._cohort.wants(t))
        ages = {letter.sender: t - letter.round for letter in request.letters}
        return Round(t, request.edges, request.asked, self._strategy.is_evaluated(t), ages)

    def _end(self, t: int, reports: Sequence[Report], since: int = 0) -> Response:
        """Save what was reached, and write what the relay needs for round `t` + 1.

        Parameters
        ----------
        since : round of the oldest offers that it needs; that round itself without.
        """
        cohort, since = self._cohort, since or t + 1
        self._checkpoints.save((t, 0))
        offers: tuple[PeerMessage, ...] = ()
        if t == cohort.rounds:
            self._keep_models({report.peer: report for report in reports})
        elif self._strategy.exchanges and len(self.peers) < cohort.engine.n:
            offers = self._sealed(cohort.offer_letters(since))
        disclosed = tuple(map(self._disclosed, reports))
        # Peers that sleep until then say now what they want when they wake.
        wants = cohort.wants(self._strategy.schedule.next_ending(self.peers, t))
        elapsed, cohort.elapsed = cohort.elapsed, 0.0
        by_clock = not self._strategy.schedule.foresees
        ready = tuple(cohort.costs.ready.tolist()) if by_clock else ()
        return Response(self.peers, offers, wants, disclosed, elapsed=elapsed, ready=ready)

    def _keep_models(self, reports: Mapping[int, Report]) -> None:
        """Write each peer's model, and the card of one whose last round was played just now."""
        names, policy = self._known_names(), self._policy
        for peer, tensors in self._cohort.models():
            about = replace(self._about[peer], peer_name=names.get(peer) or f"peer {peer}")
            file = self._directory / "models" / f"peer-{peer:04d}.safetensors"
            write(file, tensors, about.strings(), durable=self._deployed)
            if peer in reports:
                found = card(
                    about, self._sizes_of[peer], reports[peer], names, policy,
                    self._cohort.curves.get(peer, {}), *self._protection,
                    has_examples="memory.keys" in tensors,
                )  # fmt: skip
                atomic.write(file.with_suffix(".json"), as_json(found))
                atomic.write(file.with_suffix(".md"), as_markdown(found))

    def _disclosed(self, report: Report) -> Report:
        """What the relay gets of a report; data that everybody has need no protection."""
        if self._policy is None:
            return report
        if not self._is_own:
            return limited(report, self._policy.reports.disclosure)
        reports = self._policy.reports
        told = protected(report, reports, self._sizes, self._rarest)
        weights: dict[int, float] = {}
        if self._learns_graph and reports.disclosure != "none":
            weights = {k: w for k, w in told.weight_by_peer.items() if k != told.peer}
        budget = reports.max_numbers_per_example * sum(self._sizes.values())
        if self._ledger is None or self._ledger.reporting(
            told.round, numbers_in(told), weights, budget
        ):
            return told
        _log.warning(
            "reports.max-numbers-per-example = %g is used up: no numbers are reported",
            reports.max_numbers_per_example,
            extra={"round": report.round},
        )
        return limited(told, "none")

    def _sealed(self, letters: Iterable[PeerMessage]) -> tuple[PeerMessage, ...]:
        """The letters, sealed for those peers of other nodes that may read them."""
        written = (self._channel.write(letter, self._readers(letter)) for letter in letters)
        return tuple(letter for letter in written if letter is not None)

    def _readers(self, letter: PeerMessage) -> set[int]:
        if letter.recipient is not None:
            return {letter.recipient}
        neighbours: list[int] = np.flatnonzero(self._strategy.topology[letter.sender]).tolist()
        return set(neighbours) - set(self.peers)
