"""Rounds of the relay: a loop over requests and responses, independent of transport and models.

A round is at most two exchanges: "answer" with the nodes that host recipients of asked edges, then
"update" with all nodes. A node that fails or is late is dropped, the round continues without its
peers' edges, and the node is invited back ("start") together with the next "update". A round in
which all nodes fail is repeated once there is a quorum; if it happens twice, the run ends.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coterie.strategies.errors import DesertedError, RelayError
from coterie.strategies.exchange_plan import ExchangePlan, Round
from coterie.strategies.protocol import (
    Kind,
    PeerMessage,
    Report,
    Request,
    Response,
    Stage,
    Transport,
    has_keyframe,
)
from coterie.strategies.relay.commit import Commit, Ledger, Recorder, means
from coterie.strategies.relay.delivery import Hosts, answer_requests, deliverable, update_requests
from coterie.strategies.relay.roster import Proof, Roster
from coterie.strategies.relay.vetting import fault_of, named, one_line, vetted
from coterie.strategies.schedule import ByClock

_log = logging.getLogger("coterie.relay")
_JOIN_PAUSE = 0.1
_JOIN_STRIKES = 2
_JOIN_AGAIN = 10.0
_BREAKS = 100
_STATISTICS = 1 << 20
"""Maximum bytes of a letter of statistics, which precedes what a node states about letters."""
_WAITS = re.compile(r"peer (\d+)(?: \(([\w.-]{1,64})\))?: approval: ")
"""Beginning of the answer of a node whose institution has not approved the run."""
Waiting = Callable[[Sequence[str], Sequence[str], float], None]
"""Function that is told who has not approved the run, which further peers have no node, and the
seconds that are left."""


class Broker:
    """Relay of one run.

    `recorder` receives a commit after every round, `ledger` is the progress of an interrupted run.
    The relay waits `join_timeout` seconds for all peers before the first round, and later for a
    `quorum`: the minimum number of peers for a round to begin (0: all in the first round, then
    any). `deployed`: it invites a node whose set-up fails again until then, since people may repair
    it; otherwise its second failure ends a run that needs it. `patience` evaluated rounds without a
    smaller mean validation loss end the run (0: none). `proves` verifies a node's claims to its
    peers; without, the first node to claim a peer hosts it. `waits`: see `Waiting`.
    """

    def __init__(
        self,
        strategy: ExchangePlan,
        transport: Transport,
        recorder: Recorder | None = None,
        ledger: Ledger | None = None,
        join_timeout: float = 600,
        quorum: int = 0,
        *,
        deployed: bool = False,
        patience: int = 0,
        proves: Proof | None = None,
        waits: Waiting | None = None,
    ) -> None:
        self._strategy = strategy
        self._transport = transport
        self._recorder = recorder
        self._ledger = ledger = replace(ledger or Ledger())
        ledger.ended = ledger.ended or (-1,) * strategy.peers
        ledger.awake = ledger.awake or (0,) * strategy.peers
        self._join_timeout = join_timeout
        self._quorum = quorum
        self._deployed = deployed
        self._patience = patience
        self._attempt = secrets.token_hex(8)
        self._roster = Roster(strategy.peers, proves)
        self._reports: list[Report] = []
        self._refused: list[str] = []
        self._latest_faults: list[str] = []  # for error messages
        self._faults: list[str] = []  # since the last commit
        self._waits = waits
        self._unapproved: dict[int, tuple[int, str]] = {}  # node -> its peer, and a name for it
        self._means: dict[int, dict[str, float]] = {}
        self._missing_from: frozenset[int] = frozenset()  # peers whose keyframes are needed
        self._keyframes: Counter[int] = Counter()  # keyframes on request, by peer

    def run(self) -> dict[int, dict[str, float]]:
        """Run all rounds; return the mean metrics of each evaluated round."""
        # RelayError: a peer is hosted by no node, there is no quorum, or no node is left.
        self._gather(all_peers=True)
        if self._ledger.round == 0:
            self._commit(0)
        deserted = -1
        while (first := self._ledger.round + 1) <= self._strategy.rounds:
            if 0 < self._patience <= self._ledger.stale:
                _log.info("no better validation loss: stopped early", extra={"round": first - 1})
                break
            if self._too_few():
                self._gather(all_peers=False)
            try:
                self._run_rounds(first, self._strategy.next_evaluated(first))
            except DesertedError as error:
                if deserted == error.round:
                    raise
                deserted = error.round
                self._reports.clear()
        return self._means

    def _run_rounds(self, first: int, last: int) -> None:
        """Run rounds up to `last`, which is evaluated, or until too few peers are left."""
        if len(self._roster.hosts) == 1 and not self._roster.missing:
            self._delegate(first, last)
            return
        for this in self._strategy.each_round(first, last, lambda t: self._roster.wants):
            self._play(this)
            self._commit(this.t)
            if self._too_few():
                return

    def _gather(self, *, all_peers: bool) -> None:
        """Wait until all peers, or at least a quorum, are hosted; at most `join_timeout`."""
        t, roster = self._ledger.round, self._roster
        minimum = self._quorum or (roster.peers if all_peers else 1)
        deadline = time.monotonic() + self._join_timeout
        strikes: Counter[int] = Counter()
        waits: dict[int, float] = {}  # node -> time of the next invitation
        while True:
            reachable = set(self._transport.nodes())
            for gone in roster.hosts.keys() - reachable:
                # Before round 1 it may return under another id; later its peers stay bound.
                (roster.forget if all_peers else roster.drop)(gone)
            missing, n_hosted = roster.missing, len(roster.hosted)
            if not missing or (n_hosted >= minimum and not all_peers):
                break
            self._tell(missing, deadline - time.monotonic())
            requests = {
                node: request
                for node, request in self._invitations(t).items()
                if waits.get(node, 0.0) <= time.monotonic()
                and (self._deployed or strikes[node] < _JOIN_STRIKES)
            }
            if not requests:
                if time.monotonic() <= deadline:
                    time.sleep(_JOIN_PAUSE)
                    continue
                if n_hosted < minimum:
                    line = f"round {t}, start: no node hosts peers {roster.listed(missing)}"
                    raise RelayError("; ".join([line, *self._latest_faults]), t, "start")
                where = {"round": t, "stage": "start", "peers": named(missing)}
                _log.warning("no node hosts these peers; continuing without them", extra=where)
                break
            responses = self._exchange(requests)
            added = {
                node
                for node, response in responses.items()
                if self._add(node, requests[node], response)
            }
            failed = requests.keys() - added
            strikes.update(failed)
            if self._deployed:
                waits |= dict.fromkeys(failed, time.monotonic() + _JOIN_AGAIN)
            # A second failure is permanent; a quorum may not need that node.
            elif max(strikes.values(), default=0) >= _JOIN_STRIKES and not self._quorum:
                raise RelayError(self._latest_faults[-1], t, "start")
        self._tell(frozenset(), 0.0)
        if roster.samples.any() and all_peers:
            self._send_samples(t)
        if t:
            self._reports.clear()  # recorded before the restart

    def _tell(self, missing: frozenset[int], left: float) -> None:
        """Tell `waits` for whom a deployed relay waits, at most `left` seconds."""
        if self._waits is None or not self._deployed:
            return
        known = dict(self._unapproved.values()) if missing else {}
        names = self._roster.names
        others = [names.get(peer, f"peer {peer}") for peer in sorted(missing - known.keys())]
        self._waits(sorted(known.values()), others, left)

    def _send_samples(self, t: int) -> None:
        """Start nodes that see only their own data again, now that all n_i are known."""
        # RelayError: some peers have sent statistics, and others have not.
        roster = self._roster
        if t == 0 and roster.statistics and (lacking := roster.missing):
            raise RelayError(
                f"round 0, start: the common scale needs statistics of all peers, but no node "
                f"hosts peers {roster.listed(lacking)}: wait for them, or set table.scale = "
                '"schema"',
                t,
                "start",
            )
        requests = self._starts(t, roster.hosts)
        for node, response in self._exchange(requests).items():
            self._keep(node, response)
            self._check_progress(requests[node], response)
        self._require_nodes(t, "start")

    def _delegate(self, first: int, last: int) -> None:
        request = Request("local-rounds", first, last)
        for node, response in self._exchange(dict.fromkeys(self._roster.hosts, request)).items():
            self._keep(node, response)
            self._ledger.virtual_seconds += response.elapsed
        self._require_nodes(first, "local-rounds")
        self._commit(last)

    def _play(self, this: Round) -> None:
        """Run one round: deliver offers, collect answers, and let the peers update."""
        roster, schedule = self._roster, self._strategy.schedule
        offers = roster.offers_of(this.t, schedule.max_age)
        this = deliverable(this, roster.hosts, offers)
        asking = answer_requests(this, roster.hosts, offers)
        answers: list[PeerMessage] = []
        if asking:
            responses = self._exchange(asking)
            answers = [letter for response in responses.values() for letter in response.letters]
            self._require_nodes(this.t, "answer")
            this = deliverable(this, roster.hosts, offers)
        all_due = this.evaluated and self._strategy.evaluates_all and not self._deployed
        changes = schedule.changes(this.t) | all_due
        hosts = {node: peers for node, peers in roster.hosts.items() if changes[[*peers]].any()}
        requests = update_requests(this, hosts, offers, answers, served=asking.keys())
        wanted = self._keyframes_wanted(this.t, hosts)
        requests = {
            node: replace(request, keyframes_wanted=tuple(sorted(wanted.intersection(hosts[node]))))
            for node, request in requests.items()
        }
        if roster.missing:
            requests |= self._invitations(this.t)
        seconds = [0.0]
        for node, response in self._exchange(requests).items():
            if requests[node].stage == "update":
                self._keep(node, response)
                seconds.append(response.elapsed)
            else:
                self._add(node, requests[node], response)
        self._ledger.virtual_seconds += schedule.elapsed(np.array(seconds))
        self._missing_from -= wanted  # their keyframes are on the way
        self._require_nodes(this.t, "update")

    def _keyframes_wanted(self, t: int, hosts: Hosts) -> set[int]:
        """Return the peers of some nodes whose next offer must be a keyframe."""
        here = self._missing_from.intersection(peer for peers in hosts.values() for peer in peers)
        wanted = {peer for peer in here if has_keyframe(t, self._keyframes[peer])}
        self._missing_from = frozenset()
        self._keyframes.update(wanted)
        if wanted:
            line = "asked for keyframes: other nodes cannot read these peers' increments"
            _log.warning(line, extra={"round": t, "peers": named(wanted)})
        return wanted

    def _commit(self, t: int) -> None:
        self._note_presence(t)
        ledger = self._ledger
        ledger.round = t
        by_peer = {(report.round, report.peer): report for report in self._reports}
        reports = tuple(by_peer[key] for key in sorted(by_peer))
        if self._strategy.schedule.clock is not None:
            more = {"virtual_seconds": ledger.virtual_seconds}
            reports = tuple(replace(each, metrics={**each.metrics, **more}) for each in reports)
        for evaluated in sorted({report.round for report in reports}):
            self._means[evaluated] = means(r for r in reports if r.round == evaluated)
            if (loss := self._means[evaluated].get("validation_loss")) is not None:
                ledger.stale += 1
                if ledger.best_loss is None or loss < ledger.best_loss:
                    ledger.best_loss, ledger.stale = loss, 0
        refused, faults = tuple(self._refused), tuple(self._faults)
        present = frozenset(peer for peer, ended in enumerate(ledger.ended) if ended == t)
        if self._recorder is not None:
            roster = self._roster
            about = dict(roster.names), frozenset(roster.backends), dict(roster.owners)
            self._recorder.round(Commit(replace(ledger), reports, refused, present, faults, *about))
        counts = {"messages": ledger.messages, "bytes": ledger.nbytes, "refused": len(refused)}
        _log.info("committed", extra={"round": t, "present": len(present), **counts})
        self._reports, self._refused, self._faults = [], [], []

    def _note_ready(self, request: Request, response: Response) -> None:
        """Record in a schedule by the clock when peers will be ready."""
        schedule = self._strategy.schedule
        if not (isinstance(schedule, ByClock) and response.ready):
            return
        if request.stage == "start":
            last = {
                letter.sender: letter.round
                for letter in response.letters
                if letter.round <= request.round + 1
            }
            rounds = [last.get(peer, 0) for peer in response.peers]
            schedule.recall(response.peers, response.ready, rounds)
        else:
            schedule.note(request.last, response.peers, response.ready)

    def _note_presence(self, t: int) -> None:
        """Record which peers ended round `t` or were awake since the last commit."""
        schedule, roster = self._strategy.schedule, self._roster
        awake, ended = np.array(self._ledger.awake), np.array(self._ledger.ended)
        hosted = np.isin(np.arange(roster.peers), list(roster.hosted))
        for s in range(self._ledger.round + 1, t + 1):
            awake += hosted & schedule.awake(s)
        ended[hosted & schedule.changes(t)] = t
        self._ledger.awake, self._ledger.ended = tuple(awake.tolist()), tuple(ended.tolist())

    def _invitations(self, t: int) -> dict[int, Request]:
        """Return a "start" for each reachable node that may join but does not take part yet."""
        known = self._roster.hosts.keys() | self._roster.without_peers
        return self._starts(t, sorted(set(self._transport.nodes()) - known))

    def _starts(self, t: int, nodes: Iterable[int]) -> dict[int, Request]:
        statistics_for = self._roster.statistics_for
        return {node: Request("start", t, t, letters=statistics_for(node)) for node in nodes}

    def _exchange(self, requests: Mapping[int, Request]) -> dict[int, Response]:
        """Send requests and return the vetted responses; drop the nodes that fail."""
        roster, ledger = self._roster, self._ledger
        samples = roster.samples if roster.samples.any() else np.empty(0, dtype=np.int64)
        requests = {
            node: replace(request, committed=ledger.round, attempt=self._attempt, samples=samples)
            for node, request in self._without_large(requests).items()
        }
        outcome = self._transport.exchange(requests)
        ledger.messages += len(requests)
        responses: dict[int, Response] = {}
        for node, request in requests.items():
            ledger.nbytes += sum(letter.nbytes for letter in request.letters)
            ledger.sealing += sum(len(k) for each in request.letters for k in each.keys.values())
            response = outcome.get(node, "no response")
            if isinstance(response, str):
                self._fault(node, request, response)
                continue
            ledger.messages += 1
            if fault := fault_of(response, request, roster.hosts.get(node, ()), roster.peers):
                self._fault(node, request, fault)
                continue
            responses[node], refused = vetted(
                response, request, self._strategy, deployed=self._deployed
            )
            self._note_ready(request, responses[node])
            self._missing_from |= {*responses[node].missing_from}
            for line in refused:
                _log.warning("%s", line, extra={"round": request.round, "stage": request.stage})
            self._refused += refused
        return responses

    def _without_large(self, requests: Mapping[int, Request]) -> dict[int, Request]:
        """Remove letters that are larger than their node reads, with one line for each letter."""
        result, large = {}, dict[tuple[Kind, int, int], list[int]]()
        for node, request in requests.items():
            limit = self._roster.reads.get(node, math.inf)
            limit = _STATISTICS if request.stage == "start" else limit
            for letter in request.letters:
                if letter.nbytes > limit:
                    ends = letter.kind, letter.sender, letter.nbytes
                    large.setdefault(ends, []).extend(self._roster.hosts.get(node, ()))
            letters = tuple(letter for letter in request.letters if letter.nbytes <= limit)
            result[node] = replace(request, letters=letters)
        for (kind, sender, nbytes), peers in large.items():
            t = max(request.round for request in requests.values())
            line = f"round {t}: the relay refused the {kind} of peer {sender}: {nbytes} bytes are "
            readers = f"peers {named(peers)} read" if peers else "a new node reads"
            line = one_line(f"{line}more than {readers}")
            _log.warning("%s", line)
            self._refused.append(line)
        return result

    def _add(self, node: int, request: Request, response: Response) -> bool:
        """Let a new or returning node take part, unless the roster objects."""
        self._unapproved.pop(node, None)
        if objection := self._roster.objection(node, response, self._attempt):
            self._fault(node, request, objection)
            return False
        self._roster.add(node, response)
        self._reports += response.reports
        self._check_progress(request, response)
        return True

    def _keep(self, node: int, response: Response) -> None:
        self._roster.keep(node, response)
        self._reports += response.reports

    def _check_progress(self, request: Request, response: Response) -> None:
        """Record peers that restarted from an older state than they had reached."""
        restored = response.restored
        if restored is None:
            return
        # Round 0 trains nothing: its state is the initial state.
        lost = [peer for peer in response.peers if self._ledger.ended[peer] > max(restored, 0)]
        if lost:
            state = "the initial state" if restored < 0 else f"their state of round {restored}"
            reached = max(self._ledger.ended[peer] for peer in lost)
            line = (
                f"round {request.round}: peers {self._roster.listed(lost)} restarted from {state}; "
                f"later progress, up to round {reached}, is lost"
            )
            _log.warning("%s", line)
            self._ledger.breaks = (*self._ledger.breaks, line)[-_BREAKS:]

    def _fault(self, node: int, request: Request, reason: str) -> None:
        """Drop a node that failed, and record the reason."""
        peers, reason = self._roster.drop(node), one_line(reason)
        where = {"round": request.round, "stage": request.stage, "peers": named(peers)}
        _log.warning("%s; continuing without this node", reason, extra={**where, "node": node})
        self._unapproved.pop(node, None)
        origin = f"peers {self._roster.listed(peers)}" if peers else f"node {node}"
        fault = f"round {request.round}, {request.stage}: {origin}: {reason}"
        self._latest_faults = [*self._latest_faults[-2:], fault]
        if match := _WAITS.match(reason):
            self._unapproved[node] = int(match[1]), match[2] or f"peer {match[1]}"
        else:
            self._faults.append(fault)

    def _require_nodes(self, t: int, stage: Stage) -> None:
        if not self._roster.hosts:
            raise DesertedError(f"{self._latest_faults[-1]}; no node is left", t, stage)

    def _too_few(self) -> bool:
        return len(self._roster.hosted) < max(1, self._quorum)
