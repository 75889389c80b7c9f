"""Node without torch, whose peers have a model of one number and all kinds of exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.protocol import Edges, PeerMessage, Report, Request, Response, no_edges

NBYTES = 8


@dataclass
class ToyNode:
    """Node with the update x_i <- x_i / 2 + (sum of models) / 10 + (sum of answers) / 100 + round.

    The answer of k to x_i is x_i * (k + 1) + x_k. Peer i requests the model, or the answer, of peer
    (i + t) mod n in round t. Sums run in order of the sender, as on every node.
    """

    strategy: ExchangePlan
    peers: Sequence[int]
    before: Callable[[Request], None] = lambda request: None
    requests: list[Request] = field(default_factory=list)
    versions: dict[int, dict[int, float]] = field(default_factory=dict)
    received: dict[int, dict[int, float]] = field(default_factory=dict)
    evaluated: int = 0

    def handle(self, request: Request) -> Response:
        self.requests.append(request)
        self.before(request)
        stages = {
            "start": self._start,
            "answer": self._answer,
            "update": self._update,
            "local-rounds": self._run_local_rounds,
        }
        return stages[request.stage](request)

    def _start(self, request: Request) -> Response:
        known = [t for t in self.versions if t <= request.round] if request.round else []
        if not known:
            self.versions = {request.round: {peer: 1.0 + peer for peer in self.peers}}
            return self._close(request.round, [request.round])
        self.versions[request.round] = self.versions[max(known)]
        return self._close(request.round, [])

    def _answer(self, request: Request) -> Response:
        self.received = self._receive(request)
        asked = request.edges[request.asked]
        answers = self._answers(request.round, asked, self.received)
        letters = [
            PeerMessage("answer", k, i, request.round, NBYTES, np.float64(value).tobytes())
            for (i, k), value in answers.items()
            if i not in self.peers
        ]
        return Response(tuple(self.peers), tuple(letters))

    def _update(self, request: Request) -> Response:
        t = request.round
        if not self.received:
            self.received = self._receive(request)
        answers = self._answers(t, request.edges[request.asked], self.received)
        for letter in request.letters:
            if letter.kind == "answer":
                assert letter.recipient is not None
                assert letter.recipient in self.peers
                assert (letter.recipient, letter.sender) not in answers
                answers[letter.recipient, letter.sender] = _opened(letter)
        self._step(t, self.received, answers)
        self.received = {}
        return self._close(t, [t] if self.strategy.is_evaluated(t) else [])

    def _run_local_rounds(self, request: Request) -> Response:
        reports: tuple[Report, ...] = ()
        for this in self.strategy.each_round(request.round, request.last, self._wants):
            received = self._receive(Request("update", this.t, this.t, this.edges, this.asked))
            self._step(this.t, received, self._answers(this.t, this.edges[this.asked], received))
            reports += self._close(this.t, [this.t] if this.evaluated else []).reports
        return Response(tuple(self.peers), (), self._wants(request.last + 1), reports)

    def _receive(self, request: Request) -> dict[int, dict[int, float]]:
        """Return the received models by recipient and sender."""
        x = self.versions[request.round - 1]
        edges = request.edges.tolist()
        foreign = {p.sender: _opened(p) for p in request.letters if p.kind == "offer"}
        assert all(s in self.peers or r in self.peers for s, r in edges)
        assert foreign.keys() == {s for s, r in edges if r in self.peers} - x.keys()
        models = x | foreign
        return {peer: {s: models[s] for s, r in edges if r == peer} for peer in self.peers}

    def _answers(
        self, t: int, asked: Edges, received: dict[int, dict[int, float]]
    ) -> dict[tuple[int, int], float]:
        """Return the answers of the hosted peers, by (owner, answerer)."""
        x = self.versions[t - 1]
        ends = [(i, k) for i, k in asked.tolist() if k in self.peers]
        return {(i, k): received[k][i] * (k + 1) + x[k] for i, k in ends}

    def _step(
        self, t: int, received: dict[int, dict[int, float]], answers: dict[tuple[int, int], float]
    ) -> None:
        x = self.versions[t - 1]
        self.versions[t] = {
            i: x[i] / 2
            + sum(value for _, value in sorted(received[i].items())) / 10
            + sum(value for (owner, _), value in sorted(answers.items()) if owner == i) / 100
            + t
            for i in self.peers
        }

    def _close(self, t: int, evaluated: Sequence[int]) -> Response:
        n, x = self.strategy.peers, self.versions[t]
        letters = [
            PeerMessage("offer", i, None, t + 1, NBYTES, np.float64(x[i]).tobytes())
            for i in self.peers
            if t < self.strategy.rounds and self.strategy.exchanges
        ]
        reports = [
            Report(t, i, {"test_loss": x[i], "test_accuracy": None}, (0.0,) * i + (1.0,) * (n - i))
            for t in evaluated
            for i in self.peers
        ]
        return Response(tuple(self.peers), tuple(letters), self._wants(t + 1), tuple(reports))

    def _wants(self, t: int) -> Edges:
        n = self.strategy.peers
        wanted_by = self.strategy.wanted_by
        if wanted_by is None or t % n == 0:
            return no_edges()
        ends = [((i + t) % n, i) for i in self.peers]
        wants = np.array(ends, dtype=np.int64).reshape(-1, 2)
        return wants if wanted_by else wants[:, ::-1]


def _opened(letter: PeerMessage) -> float:
    assert isinstance(letter.payload, bytes)
    return float(np.frombuffer(letter.payload, dtype=np.float64)[0])
