"""Node: executes the relay's requests for the peers it hosts, and keeps state in between.

Another process may handle the next message, so the complete state of a peer is on the node's
disk (`coterie.app.node.storage.checkpoints`) at the end of each request; a version names the
state that a request builds on.
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
from coterie.app.config.preflight import check_method, check_nodes, problem_of, scale_of
from coterie.app.institution.requests.faults import StateError
from coterie.app.institution.requests.vetting import check_wanted
from coterie.app.institution.scale import SharedScale
from coterie.app.institution.security.accounts import Accounts
from coterie.app.institution.security.approval import OWN
from coterie.app.institution.security.channel import SecureChannel
from coterie.app.institution.security.disclosure import Reports
from coterie.app.institution.security.policy import AnswerPolicy, PolicyError
from coterie.app.institution.security.run_check import (
    check_letters,
    check_own_data,
    is_own,
    max_parameters,
)
from coterie.app.institution.security.seal import TAG
from coterie.app.institution.security.sealing import simulated
from coterie.app.institution.security.split import data_key, split_seed
from coterie.app.node.assembly import cohort_of, engine_of
from coterie.app.node.cohort.attackers import deceived
from coterie.app.node.place import ALONE, Deployed, Place, Simulated
from coterie.app.node.storage.checkpoints import CheckpointStore
from coterie.app.node.storage.models import ModelFiles
from coterie.app.runs import atomic, provenance, quality
from coterie.app.trained import starts
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.network import ModelError
from coterie.clients.models.size import MAX_PARAMETERS, SizeError
from coterie.datasets import account
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.quality import survey, warnings
from coterie.strategies.brokering import Round
from coterie.strategies.protocol import PeerMessage, Report, Request, Response

_log = logging.getLogger("coterie.data")


class Node:
    """Node with the peers `peers` (ascending) of a run, and its run directory on this node's disk.

    `place` is a simulation, or an institution with its keys and policy; `on_round` is called with
    the number of each round that the node ends without the relay. ConfigError, DataError: this
    node's data do not fit the run, or are too few.
    """

    def __init__(
        self,
        config: Config,
        peers: Sequence[int],
        directory: Path,
        place: Place = ALONE,
        *,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self._on_round = on_round
        self.peers = tuple(int(peer) for peer in peers)
        self._place, self._directory, self._strategy = place, directory, config.strategy()
        deployed = place if isinstance(place, Deployed) else None
        self._policy = None if deployed is None else deployed.policy
        if config.start_from and deployed is not None:  # the relay's word: no path to open
            raise ConfigError("start-from is for simulations")
        if len(self.peers) < config.peers:
            check_nodes(config)
        problem = self._problem(config, deployed)
        self._own_peer = None if deployed is None else self.peers[0]
        self._data = provenance.content_of(config, problem, self._own_peer)
        self._is_same: bool | None = None  # as the run began; False: unknown, None: not checked
        self._scale: SharedScale | None = None
        if deployed is not None and scale_of(config) == "common":
            self._scale = SharedScale(config, problem, self.peers[0], directory, self._policy)
            problem = self._scale.problem
        self._config = config
        self._set_up(problem)
        self._accounts = self._accounts_of(directory) if deployed is not None else None
        self._reports = self._reports_of(config, problem)
        sealing = place.sealing or simulated(config, self.peers, directory)
        self._channel = SecureChannel(
            self.peers, directory, sealing, self._accounts, self._strategy.schedule.max_age
        )
        # A deployed peer has its name from the trust file; the name in its data stays local.
        self._names = dict(enumerate(problem.names)) if deployed is None else None

    def _set_up(self, problem: Problem) -> None:
        """Build engine and cohort; a deployed node does so again when the scale is known."""
        config, directory = self._config, self._directory
        deployed = isinstance(self._place, Deployed)
        # In a simulation of honest peers, received letters need no checks.
        doubts = deployed or config.attack.kind != "none"
        is_limited = doubts or config.defence.max_samples != "auto"
        self._believed = config.defence.believed if is_limited else np.asarray
        # n_i of the hosted peers, if the method needs the n_i of all peers.
        sees_all = problem.samples.all() or not deployed
        self._announced = () if sees_all else tuple(problem.samples[list(self.peers)].tolist())
        engine = self._engine(config, problem, doubts=doubts)
        engine.samples = self._believed(engine.samples)
        if config.start_from:
            engine.begin_from(starts.models(config, problem))
        rule = config.options.bind(engine, config.num_server_rounds)
        self._cohort = cohort_of(config, engine, rule, self._strategy.schedule)
        self._reads = self._largest_letter() if len(self.peers) < config.peers else 0
        self._quality = survey(problem, self.peers)
        self._files = account.lines(account.named(problem.accounts, problem.names))
        self._models = ModelFiles(
            directory, config, problem, self.peers, type(rule),
            None if self._policy is None else self._policy.flat(), self._quality,
            durable=deployed,
        )  # fmt: skip
        self._checkpoints = CheckpointStore(
            directory / "nodes", self._cohort, config_digest_of(config), durable=deployed
        )

    def _problem(self, config: Config, deployed: Deployed | None) -> Problem:
        """Load the data; a deployed node divides it by its secret and checks the minimum size."""
        if deployed is None:
            problem = problem_of(config)
        elif config.row.pools:
            raise ConfigError(
                f"{config.method} trains on the data of all peers, which only a simulation has in "
                "one place: choose another method"
            )
        else:
            secret = split_seed(self._directory.parent / OWN, config)
            problem = problem_of(config, self.peers[0], secret)
            key = data_key(self._directory.parent / OWN)
            problem = replace(problem, files=provenance.keyed(problem.files, key))
        check_method(config, problem)
        attackers = config.attack.attackers(config.peers, config.seed)
        problem = deceived(problem, config.attack, attackers)
        if self._policy is not None:
            check_own_data(self._policy, config, problem, self.peers[0])
        if config.privacy.kind != "none" and problem.groups is not None:
            rows = np.bincount(problem.groups[np.concatenate(problem.train.rows)]).max()
            _log.warning(
                "privacy: epsilon is that of a single row; a group (patient) has up to %d training "
                "rows, and up to that many times epsilon", rows,
            )  # fmt: skip
        return problem

    def _accounts_of(self, directory: Path) -> Accounts:
        limits = AnswerPolicy() if self._policy is None else self._policy.answers
        return Accounts.of(directory, self.peers[0], limits)

    def _reports_of(self, config: Config, problem: Problem) -> Reports | None:
        """Return the limits of reports; None without limits."""
        if self._policy is None or self._accounts is None:
            return None
        peer = self.peers[0]
        return Reports(
            self._policy, problem.sizes(peer, in_groups=True), problem.rarest_class(peer),
            self._accounts.answers, own=is_own(config.dataset),
        )  # fmt: skip

    def _engine(self, config: Config, problem: Problem, *, doubts: bool) -> Engine:
        """Build the models of the hosted peers; refuse networks larger than the policy allows."""
        policy = self._policy
        try:
            return engine_of(
                config, problem, self.peers, doubts=doubts,
                gpu=self._place.gpu if isinstance(self._place, Simulated) else 0,
                max_parameters=MAX_PARAMETERS if policy is None else max_parameters(policy, config),
            )  # fmt: skip
        except SizeError as error:
            if policy is None:
                raise ConfigError(str(error)) from None
            most = policy.limits.max_parameters
            raise PolicyError(
                f"limits.max-parameters = {most} refuses the network: {error}"
            ) from None
        except ModelError as error:
            raise ConfigError(str(error)) from error

    def _largest_letter(self) -> int:
        """Return the maximum size of a letter in bytes; refuse letters beyond the policy."""
        offer, answer = self._cohort.letter_bytes()
        if self._policy is not None:  # one or two letters from each neighbour
            degree = int(self._strategy.topology[list(self.peers)].sum(axis=1).max())
            check_letters(self._policy, (offer + answer) * degree)
        return max(offer, answer) + TAG

    def handle(self, request: Request) -> Response:
        """Execute a request.

        StateError: the state that the request builds on is not on this node's disk, or the relay
        that sent it has been superseded. BusyError: another process uses the state. DamagedError,
        LedgerError: the memory of the run or a ledger was changed by someone else.
        """
        if isinstance(self._place, Simulated):
            return self._handle(request)
        lock = self._directory / "nodes" / f"state-{self.peers[0]:04d}.lock"
        with atomic.locked(lock, wait=False):
            return self._handle(request)

    def _handle(self, request: Request) -> Response:
        self._check_data(request)
        self._channel.begin(request)
        is_given = self._take_statistics(request)
        if request.stage == "start":
            self._checkpoints.take_over(request.attempt)
        elif not self._checkpoints.taken_over_by(request.attempt):
            raise StateError(
                f"peers {list(self.peers)} were restarted since: this request is of an earlier "
                "attempt at the run"
            )
        self._cohort.wire.owe(request.owed)
        if self._announced:
            if request.stage == "start" and not (len(request.samples) and is_given):
                return self._announcement()
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
            reads=self._reads,
        )

    def _announcement(self) -> Response:
        """Respond to the first "start" with what the other nodes need for theirs."""
        letters: tuple[PeerMessage, ...] = ()
        if self._scale is not None:
            letters = self._sealed([self._scale.letter()])
            self._scale.require_readers(letters)
        claims, refused = self._channel.claims(), self._channel.finish()
        return Response(
            self.peers, letters, samples=self._announced, claims=claims, refused=refused
        )

    def _take_statistics(self, request: Request) -> bool:
        """Read the statistics of a request; return False if the node still waits for them."""
        if self._scale is None:
            return True
        letters = self._channel.read("statistics", self._scale.form)
        if letters and self._scale.combine(letters, request.samples):
            self._set_up(self._scale.problem)
        return self._scale.is_known

    def _privately(self, request: Request) -> Response:
        """Run `_done`; private gradients draw from a generator with a secret seed."""
        if self._accounts is not None and self._cohort.engine.guard is not None:
            privacy = self._accounts.privacy
            privacy.spent()  # a damaged ledger stops every request, even one without cost
            guard = self._cohort.engine.reseed(secrets.randbits(128))
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
        """Return n_i of all peers, (n,): hosted, or announced by the relay; 0: not yet joined."""
        if len(request.samples) != self._cohort.engine.n:
            raise StateError(f"{len(request.samples)} numbers of samples in a request")
        samples = request.samples.astype(np.float64)
        samples[list(self.peers)] = self._announced
        return self._believed(samples)  # hosted peers included: all peers have equal weights

    def _start(self, request: Request) -> Response:
        """Continue from the newest state up to `request.round`, or start from the beginning."""
        t = request.round
        if isinstance(self._place, Deployed):
            self._keep_quality()
        restored = self._checkpoints.resume(t)
        if restored is None and self._own_peer is not None:
            provenance.write(self._directory, self._data)
            self._is_same = True
        elif self._own_peer is not None and not self._is_same:
            _log.warning(provenance.UNKNOWN)
        if restored is not None:
            self._cohort.go_on(t + 1)
            since = max(1, t + 1 - self._strategy.schedule.max_age)
            return replace(self._end(t, (), since), restored=restored)
        self._checkpoints.restart()
        reports = self._cohort.evaluate(t)
        self._cohort.begin(t + 1)
        return replace(self._end(t, reports), restored=-1)

    def _check_data(self, request: Request) -> None:
        """Refuse to continue a run on other data; the relay does not learn which files changed."""
        begins = self._own_peer is not None and request.stage == "start" and not request.round
        if begins or self._is_same is not None:
            return
        try:
            self._is_same = provenance.check(self._directory, self._data, self._own_peer)
        except DataError as error:
            if self._own_peer is None:
                raise
            _log.error("%s", error)
            raise DataError("the data of this peer changed since the run began") from None

    def _keep_quality(self) -> None:
        """Write the quality of this peer's data and log its warning; both stay on this machine."""
        file = quality.file_of(self.peers[0])
        quality.write(self._directory, self._quality, file=file)
        for line in (*self._files, *warnings(self._quality, (), "schema", file)):
            _log.warning("data quality: %s", line)

    def _answer(self, request: Request) -> Response:
        """Run the first half of a round; respond with the answers to other nodes."""
        t = request.round
        self._checkpoints.recall((t - 1, 0))
        self._cohort.exchange(self._round(request), self._channel.read)
        self._checkpoints.save((t - 1, 1))
        letters = self._sealed(self._cohort.answer_letters(t))
        return Response(self.peers, letters, gaps=self._cohort.wire.gaps())

    def _update(self, request: Request) -> Response:
        """Run the second half of a round, or all of it if no peer here has to answer."""
        t = request.round
        self._checkpoints.recall((t - 1, 1), (t - 1, 0))
        return self._end(t, self._cohort.step(self._round(request), self._channel.read))

    def _run_local_rounds(self, request: Request) -> Response:
        """Run several rounds without the relay: every peer is on this node."""
        self._checkpoints.recall((request.round - 1, 0))
        cohort, reports = self._cohort, list[Report]()
        for this in self._strategy.each_round(request.round, request.last, cohort.wants):
            reports += cohort.step(this)
            if self._on_round is not None:
                self._on_round(this.t)
        return self._end(request.last, reports)

    def _round(self, request: Request) -> Round:
        t = request.round
        # Wants of a recipient concern offers, which may have been read already to answer them.
        done = self._cohort.answered and self._strategy.wanted_by == 1
        if self._policy is not None and not done:
            check_wanted(request, self._strategy, self.peers, self._cohort.wants(t))
        ages = {sender: t - written for sender, written in self._channel.written.items()}
        return Round(t, request.edges, request.asked, self._strategy.is_evaluated(t), ages)

    def _end(self, t: int, reports: Sequence[Report], since: int = 0) -> Response:
        """Save the state, and write the letters that the relay needs for round `t` + 1.

        `since` is the round of the oldest offers that it needs; 0: only those of round `t` + 1.
        """
        cohort, since = self._cohort, since or t + 1
        self._checkpoints.save((t, 0))
        offers: tuple[PeerMessage, ...] = ()
        if t == cohort.rounds or (self._models.keeps_best and reports):
            self._models.write(t, cohort.models(), self._known_names(), reports, cohort.curves)
        if t < cohort.rounds and self._strategy.exchanges and len(self.peers) < cohort.engine.n:
            offers = self._sealed(cohort.offer_letters(since))
        limit = self._reports
        disclosed = tuple(reports if limit is None else map(limit.disclosed, reports))
        # Peers that sleep until then state now which edges they want when they wake.
        wants = cohort.wants(self._strategy.schedule.next_ending(self.peers, t))
        elapsed, cohort.elapsed = cohort.elapsed, 0.0
        by_clock = not self._strategy.schedule.foresees
        ready = tuple(cohort.costs.ready.tolist()) if by_clock else ()
        return Response(
            self.peers, offers, wants, disclosed, elapsed=elapsed, ready=ready,
            gaps=cohort.wire.gaps(),
        )  # fmt: skip

    def _sealed(self, letters: Iterable[PeerMessage]) -> tuple[PeerMessage, ...]:
        """Return the letters, sealed for the peers of other nodes that may read them."""
        written = (self._channel.write(letter, self._readers(letter)) for letter in letters)
        return tuple(letter for letter in written if letter is not None)

    def _readers(self, letter: PeerMessage) -> set[int]:
        if letter.recipient is not None:
            return {letter.recipient}
        if letter.kind == "statistics":
            return set(range(self._config.peers)) - set(self.peers)
        neighbours: list[int] = np.flatnonzero(self._strategy.topology[letter.sender]).tolist()
        return set(neighbours) - set(self.peers)
