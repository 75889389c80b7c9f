"""Node of an institution: one peer, its own data, and limits that the institution sets."""

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
from coterie.app.config.preflight import problem_of, scale_of
from coterie.app.institution.requests.vetting import check_wanted
from coterie.app.institution.scale import Memory, SharedScale
from coterie.app.institution.security.accounts import Accounts
from coterie.app.institution.security.approval import OWN
from coterie.app.institution.security.channel import SecureChannel
from coterie.app.institution.security.clearance import Gate
from coterie.app.institution.security.disclosure import Reports
from coterie.app.institution.security.policy import AnswerPolicy, Policy, PolicyError
from coterie.app.institution.security.run_check import (
    check_letters,
    check_own_data,
    is_own,
    max_parameters,
)
from coterie.app.institution.security.sealing import Sealing, simulated
from coterie.app.institution.security.split import data_key, split_seed
from coterie.app.node.cohort import clearance
from coterie.app.node.cohort.clearance import Measured
from coterie.app.node.node import Node
from coterie.app.runs import atomic, provenance, quality
from coterie.clients.models.build import SizeError
from coterie.datasets import account
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.quality import warnings
from coterie.errors import Error
from coterie.strategies.errors import StateError
from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import PeerMessage, Report, Request, Response

_log = logging.getLogger("coterie.data")


def simulated_node(
    config: Config,
    peers: Sequence[int],
    directory: Path,
    *,
    gpu: int = 0,
    sealing: Sealing | None = None,
) -> Node:
    """Return a node of a simulation; letters are sealed with `sealing`, or if the run says so."""
    if sealing is None and config.sealing is not True:
        return Node(config, peers, directory, gpu=gpu)
    sealing = sealing or simulated(config, peers, directory)
    channel = SecureChannel(peers, directory, sealing, max_age=config.schedule.max_age)
    return Node(config, peers, directory, gpu=gpu, channel=channel)


class InstitutionNode(Node):
    """Node at an institution; `sealing` None: plain letters, `policy` None: no limits."""

    _channel: SecureChannel
    _doubts = True
    _durable = True

    def __init__(
        self,
        config: Config,
        peers: Sequence[int],
        directory: Path,
        sealing: Sealing | None = None,
        policy: Policy | None = None,
        *,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        if config.start_from:  # the relay's word: no path to open
            raise ConfigError("start-from is for simulations")
        if config.clearance:
            raise ConfigError("clearance is for simulations: a policy has [clearance]")
        self._policy = policy
        self._reports: Reports | None = None
        if policy is not None:
            self._limits = policy.flat()
            self._max_parameters = max_parameters(policy, config)
        limits = policy.answers if policy else AnswerPolicy()
        self._accounts = Accounts.of(directory, peers[0], limits)
        sealing = sealing or simulated(config, peers, directory)
        max_age = config.schedule.max_age
        channel = SecureChannel(peers, directory, sealing, self._accounts, max_age)
        super().__init__(config, peers, directory, channel=channel, on_round=on_round)

    # --- data, models and letters within the policy

    def _problem(self) -> Problem:
        """Load this peer's data, divided by its secret, and check their size."""
        config, policy, peer = self._config, self._policy, self.peers[0]
        own = self._directory.parent / OWN
        if config.row.pools:
            raise ConfigError(
                f"{config.method} trains on the data of all peers, which only a simulation has in "
                "one place: choose another method"
            )
        problem = problem_of(config, peer, split_seed(own, config))
        problem = replace(problem, files=provenance.keyed(problem.files, data_key(own)))
        self._data = provenance.content_of(config, problem, peer)
        problem = self._checked(problem)
        if policy is not None:
            check_own_data(policy, config, problem, peer)
            sizes, rarest = problem.sizes(peer, in_groups=True), problem.rarest_class(peer)
            answers, own_data = self._accounts.answers, is_own(config.dataset)
            self._reports = Reports(policy, sizes, rarest, answers, own=own_data)
        table = problem.table
        self._cells = None if table is None else table.cells[problem.train.rows[peer]]
        self._scale: SharedScale | None = None
        if scale_of(config) == "common":
            self._scale = SharedScale(config, problem, peer, self._directory, policy)
            problem = self._scale.problem
        return problem

    def _set_up(self, problem: Problem) -> None:
        """Build engine and cohort; again when the common scale is known."""
        sees_all = problem.samples.all()
        self._announced = () if sees_all else tuple(problem.samples[list(self.peers)].tolist())
        super()._set_up(problem)
        policy, self._gate = self._policy, None
        if policy is not None and policy.clearance.action != "none":
            self._gate = Gate(policy, self._config, self._directory, self.peers[0])
        accounts = account.lines(account.named(problem.accounts, problem.names))
        self._files = *accounts, *problem.left_out
        if self._policy is not None and len(self.peers) < self._config.peers:
            # one or two letters from each neighbour
            degree = int(self._strategy.topology[list(self.peers)].sum(axis=1).max())
            check_letters(self._policy, sum(self._cohort.letter_bytes()) * degree)

    def _too_large(self, error: SizeError) -> Error:
        if self._policy is None:
            return super()._too_large(error)
        most = self._policy.limits.max_parameters
        return PolicyError(f"limits.max-parameters = {most} refuses the network: {error}")

    def _keeps_models(self, t: int, reports: Sequence[Report]) -> bool:
        """Also those of each evaluated round: this node may be away at the end."""
        return super()._keeps_models(t, reports) or (t > 0 and bool(reports))

    # --- requests

    def handle(self, request: Request) -> Response:
        lock = self._directory / "nodes" / f"state-{self.peers[0]:04d}.lock"
        with atomic.locked(lock, wait=False):
            return super().handle(request)

    def _check_data(self, request: Request) -> None:
        """Refuse to continue a run on other data; the relay does not learn which files changed."""
        if self._is_same is not None or (request.stage == "start" and not request.round):
            return
        try:
            self._is_same = provenance.check(self._directory, self._data, self.peers[0])
        except DataError as error:
            _log.error("%s", error)
            raise DataError("the data of this peer changed since the run began") from None

    def _respond(self, request: Request) -> Response:
        is_given = self._take_statistics(request)
        if self._announced:
            if request.stage == "start" and not (len(request.samples) and is_given):
                return self._announcement()
            self._cohort.engine.samples = self._samples(request)
        if self._cohort.engine.guard is not None:  # private gradients draw by a secret seed
            privacy = self._accounts.privacy
            privacy.spent()  # a damaged ledger stops every request, even one without cost
            guard = self._cohort.engine.reseed(secrets.randbits(128))
            guard.account = partial(privacy.account, request.round)
        return super()._respond(request)

    def _announcement(self) -> Response:
        """Respond to the first "start" with what the other nodes need for theirs."""
        letters: tuple[PeerMessage, ...] = ()
        if self._scale is not None:
            letters = self._written([self._scale.letter()])
            if self._gate is not None:
                self._gate.require_sent("statistics")
            self._scale.require_readers(letters)
        return Response(self.peers, letters)

    def _take_statistics(self, request: Request) -> bool:
        """Read the statistics of a request; return False if the node still waits for them."""
        if self._scale is None:
            return True
        letters = self._channel.read("statistics", self._scale.form)
        if letters and self._scale.combine(letters, request.samples):
            self._set_up(self._scale.problem)
        return self._scale.is_known

    def _samples(self, request: Request) -> npt.NDArray[np.float64]:
        """Return n_i of all peers, (n,): hosted, or announced by the relay; 0: not yet joined."""
        if len(request.samples) != self._cohort.engine.n:
            raise StateError(f"{len(request.samples)} numbers of samples in a request")
        samples = request.samples.astype(np.float64)
        samples[list(self.peers)] = self._announced
        return self._believed(samples)  # hosted peers included: all peers have equal weights

    def _known_names(self) -> Mapping[int, str]:
        return self._channel.names  # of the trust file: the name in the data stays local

    def _start(self, request: Request) -> Response:
        """Also write the quality of this peer's data and log its warnings; both stay here."""
        file = quality.file_of(self.peers[0])
        quality.write(self._directory, self._quality, file=file)
        for line in (*self._files, *warnings(self._quality, (), "schema", file)):
            _log.warning("data quality: %s", line)
        response = super()._start(request)
        if not self._is_same:
            _log.warning(provenance.UNKNOWN)
        return response

    def _begin(self) -> None:
        provenance.write(self._directory, self._data)
        self._is_same = True
        super()._begin()

    def _round(self, request: Request) -> Round:
        # Wants of a recipient concern offers, which may have been read already to answer them.
        done = self._cohort.answered and self._strategy.wanted_by == 1
        if self._policy is not None and not done:
            check_wanted(request, self._strategy, self.peers, self._cohort.wants(request.round))
        return super()._round(request)

    def _disclosed(self, reports: Sequence[Report]) -> tuple[Report, ...]:
        limits = self._reports
        return tuple(reports if limits is None else map(limits.disclosed, reports))

    def _written(self, letters: Iterable[PeerMessage]) -> tuple[PeerMessage, ...]:
        """Return the letters that leave, after each was measured by its sender if it is due."""
        gate, peer = self._gate, self.peers[0]
        if gate is None:
            return super()._written(letters)
        names, rounds = self._channel.names, self._config.num_server_rounds

        def passes(letter: PeerMessage) -> bool:
            to = [names.get(k, f"peer {k}") for k in sorted(self._readers(letter))]
            schedule, later = self._strategy.schedule, range(letter.round + 1, rounds + 1)
            is_last = not any(schedule.awake(t)[peer] for t in later)
            return gate.passes(letter, to, partial(self._measured, letter), is_last=is_last)

        written = super()._written(filter(passes, letters))
        guard, privacy = self._cohort.engine.guard, None
        if guard is not None:
            privacy = {"epsilon": float(guard.epsilon()[0]), "delta": self._config.privacy.delta}
        gate.write(self._channel.keys_of(peer), names.get(peer, ""), privacy)
        return written

    def _measured(self, letter: PeerMessage) -> Measured:
        """Return what a letter tells, see `coterie.app.node.cohort.clearance`."""
        cohort = self._cohort
        of = cohort.engine, cohort.state
        if letter.kind == "statistics":
            assert self._scale is not None
            return {"fewest": self._scale.fewest}
        if letter.kind == "offer":
            measured = clearance.of_offers(*of, cohort.offers).get(letter.sender, {})
            if cohort.offers.tensors.keys() & clearance.SUMS:
                rows, _, groups = cohort.engine.training_rows(0)
                rows = rows if self._cells is None else self._cells
                changed = Memory(self._directory.parent / OWN).changed(rows, groups)
                known = filter(None, (measured.get("fewest"), changed))
                measured["fewest"] = min(known, default=None)
            return measured
        assert letter.recipient is not None
        sent = cohort.sent.select(cohort.sent.recipients == letter.recipient)
        return clearance.of_answers(*of, sent, cohort.received)[letter.sender, letter.recipient]

    def _readers(self, letter: PeerMessage) -> set[int]:
        if letter.kind == "statistics":
            return set(range(self._config.peers)) - set(self.peers)
        return super()._readers(letter)
