"""The relay's rounds: a loop over requests and responses that knows no transport and no model.

One round is at most two exchanges: "answer" with the nodes that host recipients of asked edges,
then "update" with everybody. A node that fails or is late is dropped, the round goes on without
its peers' edges, and the node is invited back ("start") beside the next "update". A round that
nobody survives is played again once there is a quorum; if nobody survives it twice, the run ends.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies.brokering import Brokering, Round
from strategies.errors import DesertedError, RelayError, RosterError
from strategies.protocol import (
    Edges,
    PeerMessage,
    Report,
    Request,
    Response,
    Stage,
    Transport,
    no_edges,
)
from strategies.relay.commit import Commit, Ledger, Recorder, means
from strategies.relay.delivery import answer_requests, deliverable, update_requests
from strategies.relay.vetting import fault_of, named, vetted

_log = logging.getLogger("coterie.relay")
_JOIN_PAUSE = 0.1
_JOIN_STRIKES = 2


class Broker:
    """One run of the relay's loop."""

    def __init__(
        self,
        rule: Brokering,
        transport: Transport,
        recorder: Recorder | None,
        ledger: Ledger,
        join_timeout: float,
        quorum: int = 0,
    ) -> None:
        self._rule = rule
        self._transport = transport
        self._recorder = recorder
        self._ledger = ledger
        self._join_timeout = join_timeout
        self._quorum = quorum
        self._attempt = secrets.token_hex(8)
        self._samples = np.zeros(rule.peers, dtype=np.int64)  # as far as announced
        self._messages = ledger.messages
        self._nbytes = ledger.nbytes
        self._sealing = ledger.sealing
        self._hosts: dict[int, tuple[int, ...]] = {}  # node -> peers, of those that take part
        self._hosts_none: set[int] = set()
        self._offers: dict[int, PeerMessage] = {}  # by peer, for the next round
        self._wants: dict[int, Edges] = {}  # by node, for the next round
        self._reports: list[Report] = []
        self._refused: list[str] = []
        self._faults: list[str] = []  # the latest, for error messages
        self._untold: list[str] = []  # those since the last commit
        self._means: dict[int, dict[str, float]] = {}

    def run(self) -> dict[int, dict[str, float]]:
        """Run all rounds; the mean metrics of each evaluated one.

        Raises
        ------
        RelayError
            A peer is hosted by no node or by two, there is no quorum, or no node is left.
        """
        self._gather(everybody=True)
        if self._ledger.round == 0:
            self._commit(0)
        deserted = -1
        while (first := self._ledger.round + 1) <= self._rule.rounds:
            if self._too_few():
                self._gather(everybody=False)
            try:
                self._run_rounds(first, self._rule.next_evaluated(first))
            except DesertedError as error:
                if deserted == error.round:
                    raise
                deserted = error.round
                self._reports.clear()
        return self._means

    def _run_rounds(self, first: int, last: int) -> None:
        """Run rounds up to an evaluated one, or until peers have to be waited for."""
        if len(self._hosts) == 1 and not self._missing():
            self._delegate(first, last)
            return
        for this in self._rule.each_round(first, last, lambda t: self._all_wants()):
            self._play(this)
            self._commit(this.t)
            if self._too_few():
                return

    def _gather(self, *, everybody: bool) -> None:
        """Wait until every peer is hosted, or at least a quorum; both only for so long."""
        t = self._ledger.round
        enough = self._quorum or (self._rule.peers if everybody else 1)
        deadline = time.monotonic() + self._join_timeout
        strikes: Counter[int] = Counter()
        while True:
            here = set(
                self._transport.nodes()
            )  # a node may leave again before the others have come
            for gone in self._hosts.keys() - here:
                self._drop(gone)
            missing = self._missing()
            there = self._rule.peers - len(missing)
            if not missing or (there >= enough and not everybody):
                break
            requests = {
                node: request
                for node, request in self._invitations(t).items()
                if strikes[node] < _JOIN_STRIKES
            }
            if not requests:
                if time.monotonic() <= deadline:
                    time.sleep(_JOIN_PAUSE)
                    continue
                why = f"round {t}, start: no node hosts peers {named(missing)}"
                if there < enough:
                    raise RosterError("; ".join([why, *self._faults]), t, "start")
                where = {"round": t, "stage": "start", "peers": named(missing)}
                _log.warning("no node hosts them; going on without", extra=where)
                break
            responses = self._exchange(requests)
            for node, response in responses.items():
                if twice := self._hosted() & set(response.peers):
                    why = f"round {t}, start: two nodes host peers {named(twice)}"
                    raise RosterError(why, t, "start")
                self._welcome(node, response)
            strikes.update(requests.keys() - responses.keys())
            # Of the set-up, not the moment; a quorum may do without such a node.
            if max(strikes.values(), default=0) >= _JOIN_STRIKES and not self._quorum:
                raise RelayError(self._faults[-1], t, "start")
        if self._samples.any() and everybody:
            self._introduce(t)
        if t:
            self._reports.clear()  # recorded before the restart

    def _introduce(self, t: int) -> None:
        """Start nodes that see only their own data again, now that all n_i are known."""
        request = Request("start", t, t)
        for node, response in self._exchange(dict.fromkeys(self._hosts, request)).items():
            self._take(node, response)
        self._somebody(t, "start")

    def _delegate(self, first: int, last: int) -> None:
        """Let the node that hosts all peers run some rounds alone, the last one evaluated."""
        request = Request("local-rounds", first, last)
        for node, response in self._exchange(dict.fromkeys(self._hosts, request)).items():
            self._take(node, response)
        self._somebody(first, "local-rounds")
        self._commit(last)

    def _play(self, this: Round) -> None:
        """Deliver offers, collect answers, and let everybody update."""
        offers, self._offers = self._offers, {}
        this = deliverable(this, self._hosts, offers)
        to_ask = answer_requests(this, self._hosts, offers)
        answers: list[PeerMessage] = []
        if to_ask:
            responses = self._exchange(to_ask)
            answers = [letter for response in responses.values() for letter in response.letters]
            self._somebody(this.t, "answer")
            this = deliverable(this, self._hosts, offers)
        requests = update_requests(this, self._hosts, offers, answers, served=to_ask.keys())
        if self._missing():
            requests |= self._invitations(this.t)
        for node, response in self._exchange(requests).items():
            if requests[node].stage == "update":
                self._take(node, response)
            elif twice := self._hosted() & set(response.peers):
                self._fault(node, requests[node], f"peers {named(twice)} are hosted elsewhere")
            else:
                self._welcome(node, response)
        self._somebody(this.t, "update")

    def _commit(self, t: int) -> None:
        self._ledger = Ledger(t, self._messages, self._nbytes, self._sealing)
        by_peer = {(report.round, report.peer): report for report in self._reports}
        reports = tuple(by_peer[key] for key in sorted(by_peer))
        for evaluated in sorted({report.round for report in reports}):
            self._means[evaluated] = means(r for r in reports if r.round == evaluated)
        refused, faults = tuple(self._refused), tuple(self._untold)
        present = frozenset(self._hosted())
        if self._recorder is not None:
            self._recorder.round(Commit(self._ledger, reports, refused, present, faults))
        _log.info(
            "committed",
            extra={
                "round": t,
                "present": len(present),
                "messages": self._messages,
                "bytes": self._nbytes,
                "refused": len(refused),
            },
        )
        self._reports, self._refused, self._untold = [], [], []

    def _invitations(self, t: int) -> dict[int, Request]:
        """A "start" for each reachable node that does not take part but may."""
        strangers = set(self._transport.nodes()) - self._hosts.keys() - self._hosts_none
        request = Request("start", t, t)
        return dict.fromkeys(sorted(strangers), request)

    def _exchange(self, requests: Mapping[int, Request]) -> dict[int, Response]:
        """Send the requests; nodes that fail are dropped, the others' responses come back."""
        samples = self._samples if self._samples.any() else np.empty(0, dtype=np.int64)
        requests = {
            node: replace(
                request, committed=self._ledger.round, attempt=self._attempt, samples=samples
            )
            for node, request in requests.items()
        }
        outcome = self._transport.exchange(requests)
        self._messages += len(requests)
        responses: dict[int, Response] = {}
        for node, request in requests.items():
            self._nbytes += sum(letter.nbytes for letter in request.letters)
            self._sealing += sum(len(k) for letter in request.letters for k in letter.keys.values())
            response = outcome.get(node, "no response")
            if isinstance(response, str):
                self._fault(node, request, response)
                continue
            self._messages += 1
            if fault := fault_of(response, request, self._hosts.get(node, ()), self._rule.peers):
                self._fault(node, request, fault)
                continue
            responses[node], refused = vetted(response, request, self._rule.peers)
            for line in refused:
                _log.warning("%s", line, extra={"round": request.round, "stage": request.stage})
            self._refused += refused
        return responses

    def _take(self, node: int, response: Response) -> None:
        """Keep the reports, and offers and wants for the next round, of a node that took part."""
        self._reports += response.reports
        self._offers |= {letter.sender: letter for letter in response.letters}
        self._wants[node] = response.wants

    def _welcome(self, node: int, response: Response) -> None:
        if response.peers:
            if response.samples:
                self._samples[list(response.peers)] = response.samples
            self._hosts[node] = response.peers
            self._hosts = dict(sorted(self._hosts.items(), key=lambda item: item[1]))
            self._take(node, response)
        else:
            self._hosts_none.add(node)

    def _fault(self, node: int, request: Request, why: str) -> None:
        """Go on without a node."""
        peers = self._drop(node)
        who = f"peers {named(peers)}" if peers else f"node {node}"
        where = {
            "round": request.round,
            "stage": request.stage,
            "peers": named(peers),
            "node": node,
        }
        _log.warning("%s; going on without", why, extra=where)
        fault = f"round {request.round}, {request.stage}: {who}: {why}"
        self._faults = [*self._faults[-2:], fault]
        self._untold.append(fault)

    def _drop(self, node: int) -> tuple[int, ...]:
        self._wants.pop(node, None)
        return self._hosts.pop(node, ())

    def _somebody(self, t: int, stage: Stage) -> None:
        if not self._hosts:
            raise DesertedError(f"{self._faults[-1]}; no node is left", t, stage)

    def _hosted(self) -> set[int]:
        """The peers whose node takes part."""
        return {peer for peers in self._hosts.values() for peer in peers}

    def _missing(self) -> set[int]:
        """The peers whose node does not take part."""
        return set(range(self._rule.peers)) - self._hosted()

    def _too_few(self) -> bool:
        """Whether a round cannot begin before more peers have come."""
        return len(self._hosted()) < max(1, self._quorum)

    def _all_wants(self) -> Edges:
        return np.concatenate([no_edges(), *self._wants.values()])
