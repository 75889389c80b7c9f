"""Node: executes the relay's requests for the peers it hosts, and keeps state in between.

The complete state is on disk at the end of each request, because another process may handle the
next one; a version names the state that a request builds on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.config.preflight import check_method, check_nodes, problem_of
from coterie.app.config.schema import Scalar
from coterie.app.node.assembly import cohort_of, engine_of
from coterie.app.node.channel import Channel
from coterie.app.node.storage.checkpoints import CheckpointStore
from coterie.app.node.storage.models import ModelFiles
from coterie.app.runs import provenance
from coterie.app.trained import starts
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.network import ModelError
from coterie.clients.models.build import MAX_PARAMETERS, SizeError
from coterie.datasets.problem import Problem
from coterie.datasets.quality import survey
from coterie.errors import Error
from coterie.strategies.errors import StateError
from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import PeerMessage, Report, Request, Response, Stage

_log = logging.getLogger("coterie.data")


class Node:
    """Node with the peers `peers` (ascending) of a simulation, and the run directory."""

    # `gpu` is modulo the number of visible GPUs. `on_round` is called with the number of each round
    # that the node ends without the relay.

    _limits: Mapping[str, Scalar] | None = None
    """Policy of an institution, by key."""
    _max_parameters = MAX_PARAMETERS
    _doubts = False  # True: other institutions' letters, checked even without an attack
    _durable = False  # True: files survive a power failure
    _announced: tuple[int, ...] = ()
    """n_i of the hosted peers, if the method needs the n_i of all peers and others do not know."""

    def __init__(
        self,
        config: Config,
        peers: Sequence[int],
        directory: Path,
        *,
        gpu: int = 0,
        channel: Channel | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self.peers = tuple(int(peer) for peer in peers)
        self._config, self._directory, self._strategy = config, directory, config.strategy()
        self._gpu, self._on_round = gpu, on_round
        if len(self.peers) < config.peers:
            check_nodes(config)
        self._channel = channel or Channel(self.peers, config.schedule.max_age)
        self._is_same: bool | None = None  # as the run began; False: unknown, None: not checked
        problem = self._problem()
        self._names = dict(enumerate(problem.names))
        self._set_up(problem)

    def _problem(self) -> Problem:
        problem = problem_of(self._config)
        self._data = provenance.content_of(self._config, problem)
        return self._checked(problem)

    def _checked(self, problem: Problem) -> Problem:
        """Return the data as the peers, some of which may lie, train on it."""
        config = self._config
        check_method(config, problem)
        if config.privacy.kind != "none" and problem.groups is not None:
            rows = np.bincount(problem.groups[np.concatenate(problem.train.rows)]).max()
            _log.warning(
                "privacy: epsilon is that of a single row; a group (patient) has up to %d training "
                "rows, and up to that many times epsilon", rows,
            )  # fmt: skip
        lie = config.attack.row.data
        attackers = config.attack.attackers(config.peers, config.seed)
        return problem if lie is None else lie(problem, attackers, config.attack.power)

    def _set_up(self, problem: Problem) -> None:
        config, directory = self._config, self._directory
        # In a simulation of honest peers, received letters need no checks.
        doubts = self._doubts or config.attack.kind != "none"
        is_limited = doubts or config.defence.max_samples != "auto"
        self._believed = config.defence.believed if is_limited else np.asarray
        engine = self._engine(problem, doubts=doubts)
        engine.samples = self._believed(engine.samples)
        if config.start_from:
            engine.begin_from(starts.models(config, problem))
        rule = config.options.bind(engine, config.num_server_rounds)
        self._cohort = cohort_of(config, engine, rule, self._strategy.schedule, doubts=self._doubts)
        self._reads = 0
        if len(self.peers) < config.peers:
            self._reads = max(self._cohort.letter_bytes()) + self._channel.overhead
        self._quality = survey(problem, self.peers)
        self._models = ModelFiles(
            directory, config, problem, self.peers, type(rule), self._limits, self._quality,
            durable=self._durable,
        )  # fmt: skip
        self._checkpoints = CheckpointStore(
            directory / "nodes", self._cohort, config_digest_of(config), durable=self._durable
        )

    def _engine(self, problem: Problem, *, doubts: bool) -> Engine:
        try:
            return engine_of(
                self._config, problem, self.peers, doubts=doubts, gpu=self._gpu,
                max_parameters=self._max_parameters,
            )  # fmt: skip
        except SizeError as error:
            raise self._too_large(error) from None
        except ModelError as error:
            raise ConfigError(str(error)) from error

    def _too_large(self, error: SizeError) -> Error:
        return ConfigError(str(error))

    def handle(self, request: Request) -> Response:
        """Execute a request; StateError: its state is missing, or its relay is superseded."""
        # BusyError: another process uses the state. DamagedError, LedgerError: the memory of the
        # run or a ledger was changed by someone else.
        self._check_data(request)
        self._channel.begin(request)
        if request.stage == "start":
            self._checkpoints.take_over(request.attempt)
        elif not self._checkpoints.taken_over_by(request.attempt):
            raise StateError(
                f"peers {list(self.peers)} were restarted since: this request is of an earlier "
                "attempt at the run"
            )
        response = self._respond(request)
        refused = self._channel.finish()
        self._checkpoints.forget((request.committed, 0))
        if request.stage != "start":
            return replace(response, refused=refused)
        return replace(
            response,
            refused=refused,
            samples=self._announced,
            names=tuple(self._known_names().get(peer, "") for peer in self.peers),
            claims=self._channel.claims(),
            backend=self._cohort.engine.backend,
            reads=self._reads,
        )

    def _check_data(self, request: Request) -> None:
        if self._is_same is None:
            self._is_same = provenance.check(self._directory, self._data)

    def _respond(self, request: Request) -> Response:
        self._cohort.wire.request_keyframes(request.keyframes_wanted)
        stages: Mapping[Stage, Callable[[Request], Response]] = {
            "start": self._start, "answer": self._answer, "update": self._update,
            "local-rounds": self._run_local_rounds,
        }  # fmt: skip
        return stages[request.stage](request)

    def _known_names(self) -> Mapping[int, str]:
        return self._names

    def _start(self, request: Request) -> Response:
        """Continue from the newest state up to `request.round`, or start from the beginning."""
        t = request.round
        restored = self._checkpoints.resume(t)
        if restored is not None:
            self._cohort.go_on(t + 1)
            since = max(1, t + 1 - self._strategy.schedule.max_age)
            return replace(self._end(t, (), since), restored=restored)
        self._begin()
        reports = self._cohort.evaluate(t)
        self._cohort.begin(t + 1)
        return replace(self._end(t, reports), restored=-1)

    def _begin(self) -> None:
        self._checkpoints.restart()

    def _answer(self, request: Request) -> Response:
        """Run the first half of a round; respond with the answers to other nodes."""
        t = request.round
        self._checkpoints.recall((t - 1, 0))
        self._cohort.exchange(self._round(request), self._channel.read)
        self._checkpoints.save((t - 1, 1))
        letters = self._written(self._cohort.answer_letters(t))
        return Response(self.peers, letters, missing_from=self._cohort.wire.missing_from())

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
        ages = {sender: t - written for sender, written in self._channel.written.items()}
        return Round(t, request.edges, request.asked, self._strategy.is_evaluated(t), ages)

    def _end(self, t: int, reports: Sequence[Report], since: int = 0) -> Response:
        """Save the state; write the letters for round `t` + 1, the oldest of round `since`."""
        cohort, since = self._cohort, since or t + 1
        self._checkpoints.save((t, 0))
        offers: tuple[PeerMessage, ...] = ()
        if self._keeps_models(t, reports):
            self._models.write(t, cohort.models(), self._known_names(), reports, cohort.curves)
        if t < cohort.rounds and self._strategy.exchanges and len(self.peers) < cohort.engine.n:
            offers = self._written(cohort.offer_letters(since))
        # Peers that sleep until then state now which edges they want when they wake.
        wants = cohort.wants(self._strategy.schedule.next_ending(self.peers, t))
        elapsed, cohort.elapsed = cohort.elapsed, 0.0
        by_clock = not self._strategy.schedule.foresees
        ready = tuple(cohort.costs.ready.tolist()) if by_clock else ()
        return Response(
            self.peers, offers, wants, self._disclosed(reports), elapsed=elapsed, ready=ready,
            missing_from=cohort.wire.missing_from(),
        )  # fmt: skip

    def _keeps_models(self, t: int, reports: Sequence[Report]) -> bool:
        return t == self._cohort.rounds or (self._models.keeps_best and bool(reports))

    def _disclosed(self, reports: Sequence[Report]) -> tuple[Report, ...]:
        """Return the reports as the relay may see them."""
        return tuple(reports)

    def _written(self, letters: Iterable[PeerMessage]) -> tuple[PeerMessage, ...]:
        """Return the letters as they leave for the peers of other nodes that may read them."""
        written = (self._channel.write(letter, self._readers(letter)) for letter in letters)
        return tuple(letter for letter in written if letter is not None)

    def _readers(self, letter: PeerMessage) -> set[int]:
        if letter.recipient is not None:
            return {letter.recipient}
        neighbours: list[int] = np.flatnonzero(self._strategy.topology[letter.sender]).tolist()
        return set(neighbours) - set(self.peers)
