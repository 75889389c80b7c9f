"""A node that lies: `python -m tests.fuzz.replies [N]` forges N replies, 20,000 by default.

Three nodes of one number a peer (tests/strategies/toy_node.py) behind the wire's encoding, of which
one forges nine of ten replies: runs for each kind of exchange, each played again with that node
honest, but for what the relay refused. The run must end, keep nothing that the node's own peers did
not say of themselves, and leave the others' metrics as they are then, to the byte.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord

from coterie.strategies.errors import WireError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.flower.records import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Wanted, WantedAnswers, WantedHelp
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.broker import Broker
from tests.encoded import Encoded
from tests.fuzz.forging import forged
from tests.strategies.relay.runs import Notes, make, toys
from tests.strategies.toy_node import ToyNode

OTHERS, HOSTILE, LAST = ([2, 3], [4]), [0, 1], 2


@dataclass
class Liar:
    """A node whose replies are forged as records, nine times of ten."""

    node: ToyNode
    g: random.Random
    honest: list[Response] = field(default_factory=list)
    lies: int = 0

    def handle(self, request: Request) -> Response:
        self.honest.append(self.node.handle(decode_request(encode_request(request))))
        if lies := self.g.random() < 0.9:
            record = forged(self.honest[-1], request, self.node.strategy.peers, self.g)
        else:
            record = encode_response(self.honest[-1], request)
        self.lies += lies
        try:
            response = decode_response(record, request)
        except WireError as error:
            raise ValueError(f"not a response: {error}") from None
        if isinstance(response, str):
            raise ValueError(response)
        return response


@dataclass
class Replayed:
    """Honest twin of a node that repeats only the parts of its responses that the relay kept."""

    node: ToyNode
    kept: list[Response | None]
    calls: int = 0

    def handle(self, request: Request) -> Response:
        response = Encoded(self.node).handle(request)
        kept = self.kept[self.calls]
        self.calls += 1
        if kept is None:
            raise ValueError("refused")
        ends = {(letter.kind, letter.sender, letter.recipient) for letter in kept.letters}
        letters = [x for x in response.letters if (x.kind, x.sender, x.recipient) in ends]
        kept = replace(kept, letters=tuple(letters), refused=())
        return replace(kept, reports=response.reports)


class Watched(Broker):
    """A relay that notes what it keeps of the last node's responses."""

    kept: list[Response | None]

    def _exchange(self, requests: Mapping[int, Request]) -> dict[int, Response]:
        responses = super()._exchange(requests)
        if LAST in requests:
            self.kept.append(responses.get(LAST))
        return responses

    def _add(self, node: int, request: Request, response: Response) -> bool:
        added = super()._add(node, request, response)
        if node == LAST and not added:
            self.kept[-1] = None
        return added


def play(strategy: ExchangePlan, node: Liar | Replayed) -> tuple[Notes, list[Response | None]]:
    """A run with this node among others: its record, and what the relay kept of the node."""
    notes = Notes()
    transport = InProcessTransport([*map(Encoded, toys(strategy, *OTHERS)), node])
    relay = Watched(strategy, transport, notes, join_timeout=0.0, quorum=3)
    relay.kept = []
    relay.run()
    return notes, relay.kept


def lines(notes: Notes) -> list[str]:
    """Return the reports of honest peers, as JSON."""
    return [json.dumps(vars(r)) for r in notes.reports if r.peer not in HOSTILE]


def assert_honest(kept: Response, honest: Response, strategy: ExchangePlan) -> None:
    """Assert that the relay keeps only what the node's own peers report about themselves."""
    assert set(kept.peers) <= set(honest.peers)
    assert set(map(str, kept.letters)) <= set(map(str, honest.letters))
    written = {(x.sender, x.recipient): x.payload for x in honest.letters}
    for letter in kept.letters:
        assert isinstance(letter.payload, ArrayRecord)
        assert letter.payload["payload"].data == written[letter.sender, letter.recipient]
    assert len(kept.reports) == len({(r.round, r.peer) for r in kept.reports})
    for report in kept.reports:
        assert report.peer in HOSTILE
        assert report.metrics.keys() <= strategy.metrics
    if strategy.wanted_by is None:
        assert not len(kept.wants)
    else:
        assert set(kept.wants[:, strategy.wanted_by].tolist()) <= set(HOSTILE)


def attack(kind: type[ExchangePlan], rounds: int, seed: int) -> int:
    """Carry out a run with a hostile node and without; return the number of forgeries."""
    strategy = make(kind, rounds=rounds, evaluate_every=3)
    liar = Liar(ToyNode(strategy, HOSTILE), random.Random(seed))
    notes, kept = play(strategy, liar)
    assert notes.ledgers[-1].round == rounds
    assert sum(relayed is None for relayed in kept) > len(kept) / 10
    for relayed, honest in zip(kept, liar.honest, strict=True):
        if relayed is not None:
            assert_honest(relayed, honest, strategy)
    assert all(len(line) <= 600 and line.isprintable() for line in printed(notes))
    expected, _ = play(strategy, Replayed(ToyNode(strategy, HOSTILE), kept))
    assert lines(notes) == lines(expected)
    return liar.lies


def printed(notes: Notes) -> list[str]:
    """Return the refusals and faults in logs and files."""
    return [line for commit in notes.commits for line in (*commit.refused, *commit.faults)]


KINDS: tuple[type[ExchangePlan], ...] = (Everyone, Wanted, WantedAnswers, WantedHelp, Pairs)


def main(lies: int) -> None:
    """Forge so many replies at least."""
    logging.disable(logging.CRITICAL)  # what the relay says of each
    count = seed = 0
    while count < lies:
        count += sum(attack(kind, 100, seed) for kind in KINDS)
        seed += 1
    print(f"{count} forged replies in {seed * len(KINDS)} runs: all ended, nobody else was touched")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
