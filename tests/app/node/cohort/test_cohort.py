"""Test a cohort: letters of hosted peers and of other nodes are stacked together."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.app.node.cohort.cohort import HostedPeers
from coterie.app.node.cohort.mail import Mail
from coterie.app.wire.payload import LetterFormat, Readable, RemoteLetters
from coterie.clients.engine.engine import Engine
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Letters
from coterie.clients.rule import Rule, State
from coterie.clients.training import Training
from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import Edges, Kind
from tests.problems import classification

N, ROUNDS = 4, 3


class Listening(Rule[State]):
    """Shows its model, answers with it plus the answerer's number, and keeps what it saw."""

    seen: ClassVar[deque[Inbox]] = deque(maxlen=1)

    def offer(self, s: State, t: int) -> tuple[State, Mapping[str, Tensor]]:
        return s, {"x": s.x + t}

    def answer(self, s: State, asked: Inbox) -> Mapping[str, Tensor]:
        who = torch.from_numpy(asked.offers.recipients)[:, None]
        return {"g": asked.offers.each("x") + 1000 * who}

    def update(self, s: State, inbox: Inbox) -> State:
        self.seen.append(inbox)
        return s


def cohort_of(peers: list[int]) -> HostedPeers:
    problem = classification([6, 7, 8, 9])
    engine = Engine(problem, "linear", None, peers, Training(), dtype="float64", device="cpu")
    rule = Listening().bind(engine, ROUNDS)
    cohort = HostedPeers(engine, rule, ROUNDS)
    cohort.state = State(engine.tensor(np.add.outer(np.array(peers), np.zeros(engine.d))), {}, {})
    cohort.begin(1)
    return cohort


def edges_of(*edges: tuple[int, int]) -> Edges:
    return np.array(sorted(edges, key=lambda e: (e[1], e[0])), dtype=np.int64).reshape(-1, 2)


def read(letters: Letters, name: str) -> dict[tuple[int, int], float]:
    """(sender, recipient) -> first number of the letter."""
    ends = zip(letters.senders.tolist(), letters.recipients.tolist(), strict=True)
    return dict(zip(ends, letters.each(name)[:, 0].tolist(), strict=True)) if len(letters) else {}


def seen(cohort: HostedPeers) -> tuple[Letters, Letters, Letters]:
    assert isinstance(cohort.rule, Listening)
    rule: Any = cohort.rule
    (inbox,) = rule.seen
    return inbox.offers, inbox.sent, inbox.answers


ALL = edges_of(*((k, i) for i in range(N) for k in range(N) if k != i))


def foreign_offers(cohort: HostedPeers, *authors: int) -> RemoteLetters:
    return {(k, None): {"x": torch.full((cohort.engine.d,), k + 1.0).double()} for k in authors}


def test_a_round_is_trained_without_the_offers_of_the_last_one() -> None:
    cohort = cohort_of([0, 1])
    lives = weakref.ref(cohort.offers.tensors["x"])
    cohort.step(Round(1, ALL, np.zeros(len(ALL), dtype=np.bool_), False, {}))
    cohort.rule.seen.clear()  # type: ignore[attr-defined]
    assert lives() is None


def test_hosted_peers_hear_the_same_wherever_the_others_are() -> None:
    """Own and foreign offers lie in one stack, in order of their authors."""
    whole = cohort_of([0, 1, 2, 3])
    whole.receive(ALL, {})
    everybody = read(whole.received, "x")
    assert everybody == {(k, i): k + 1.0 for k, i in ALL.tolist()}
    for peers, others in (([1], [0, 2, 3]), ([0, 3], [1, 2]), ([1, 2, 3], [0])):
        part = cohort_of(peers)
        part.receive(ALL, foreign_offers(part, *others))
        assert part.received.authors.tolist() == [0, 1, 2, 3]
        expected = {ends: value for ends, value in everybody.items() if ends[1] in peers}
        assert read(part.received, "x") == expected
        ends = list(
            zip(part.received.recipients.tolist(), part.received.senders.tolist(), strict=True)
        )
        assert ends == sorted(ends)


def test_a_missing_letter_is_left_out_and_only_its_sender_has_paid() -> None:
    part = cohort_of([0, 3])
    part.receive(ALL, foreign_offers(part, 1))  # that of 2 was lost
    assert sorted(read(part.received, "x")) == [(0, 3), (1, 0), (1, 3), (3, 0)]
    model = part.engine.d * 8
    assert part.costs.sent.tolist() == [3 * model, 3 * model]
    assert part.costs.received.tolist() == [2 * model, 2 * model]


def test_letters_are_dropped_when_they_are_not_needed_any_more() -> None:
    """Payloads when they are in the stack, and the stack when the peers have learnt from it."""
    part = cohort_of([0, 3])
    foreign = foreign_offers(part, 1, 2)
    part.receive(ALL, foreign)
    assert not foreign
    assert len(part.received.tensors["x"]) == N
    part.update(1, {})
    assert not part.received.tensors
    assert sorted(set(part.received.senders.tolist())) == [0, 1, 2, 3]


def test_own_offers_are_in_the_stack_even_if_nobody_hears_them() -> None:
    part = cohort_of([1, 2])
    part.receive(edges_of(), {})
    assert part.received.authors.tolist() == [1, 2]
    assert part.received["x"][:, 0].tolist() == [2.0, 3.0]
    assert not len(part.received)
    assert not part.costs.sent.any()
    assert not part.costs.received.any()


def test_only_asked_edges_are_answered() -> None:
    part = cohort_of([0, 3])
    part.receive(ALL, foreign_offers(part, 1, 2))
    part.answer(1, edges_of((1, 0), (0, 3), (2, 1)))  # 1 asks 0; 0 asks 3, here; 2 asks 1, not here
    assert read(part.sent, "g") == {(0, 1): 2.0, (3, 0): 3001.0}


def test_answers_from_here_and_elsewhere_come_in_order_of_recipient_and_sender() -> None:
    part = cohort_of([0, 3])
    part.receive(ALL, foreign_offers(part, 1, 2))
    part.answer(1, ALL)
    size = part.engine.d
    foreign: RemoteLetters = {
        (k, i): {"g": torch.full((size,), 10.0 * k + i).double()} for k in (2, 1) for i in (3, 0)
    }
    part.update(1, foreign)
    _, sent, answers = seen(part)
    assert list(read(answers, "g")) == [(1, 0), (2, 0), (3, 0), (0, 3), (1, 3), (2, 3)]
    assert list(read(answers, "g").values()) == [10, 20, 3001, 4, 13, 23]
    assert len(sent) == 6
    model = size * 8
    assert part.costs.sent.tolist() == [6 * model] * 2
    assert part.costs.received.tolist() == [6 * model] * 2


def test_a_round_without_letters_is_a_round() -> None:
    part = cohort_of([0, 3])
    part.receive(edges_of(), {})
    part.answer(1, edges_of())
    part.update(1, {})
    offers, sent, answers = seen(part)
    assert (len(offers), len(sent), len(answers)) == (0, 0, 0)


def test_answers_of_an_earlier_round_are_gone() -> None:
    part = cohort_of([0, 3])
    part.receive(ALL, foreign_offers(part, 1, 2))
    part.answer(1, ALL)
    part.update(1, {})
    part.begin(2)
    part.receive(edges_of((0, 3)), {})
    part.update(2, {})
    offers, sent, answers = seen(part)
    assert read(offers, "x") == {(0, 3): 2.0}
    assert (len(sent), len(answers)) == (0, 0)


def mail_of(part: HostedPeers, kinds: list[Kind]) -> Mail:
    """Letters of peers 1 and 2 to a cohort of 0 and 3; notes which kinds it reads."""
    size = part.engine.d
    ends = [(k, i) for k in (1, 2) for i in (0, 3)]
    answers: RemoteLetters = {
        (k, i): {"g": torch.full((size,), 10.0 * k + i).double()} for k, i in ends
    }
    foreign = {"offer": foreign_offers(part, 1, 2), "answer": answers}

    def mail(kind: Kind, form: Readable) -> RemoteLetters:
        kinds.append(kind)
        assert isinstance(form, LetterFormat)
        assert form.nbytes == 8 * size
        return foreign[kind]

    return mail


def test_a_round_in_two_messages_is_the_round_in_one() -> None:
    """The first half and then the rest, or the whole, read the same letters once each."""
    this = Round(1, ALL, np.ones(len(ALL), dtype=np.bool_), evaluated=True)
    results = []
    for halves in (True, False):
        part, kinds = cohort_of([0, 3]), list[Kind]()
        mail = mail_of(part, kinds)
        if halves:
            part.exchange(this, mail)
            assert part.answered
            assert kinds == ["offer"]
        reports = part.step(this, mail)
        assert kinds == ["offer", "answer"]
        assert not part.answered
        assert [(report.round, report.peer) for report in reports] == [(1, 0), (1, 3)]
        offers, sent, answers = seen(part)
        assert part.offers.tensors["x"][:, 0].tolist() == [2.0, 5.0]  # of round 2
        results.append((read(offers, "x"), read(sent, "g"), read(answers, "g"), reports))
    assert results[0] == results[1]


def test_a_cohort_writes_letters_to_peers_of_other_nodes() -> None:
    part = cohort_of([0, 3])
    offers = list(part.offer_letters(1))
    assert [(p.kind, p.sender, p.recipient, p.round) for p in offers] == [
        ("offer", 0, None, 1), ("offer", 3, None, 1),
    ]  # fmt: skip
    this = Round(1, ALL, np.ones(len(ALL), dtype=np.bool_), evaluated=False)
    part.exchange(this, mail_of(part, []))
    answers = list(part.answer_letters(1))
    assert sorted((p.sender, p.recipient) for p in answers) == [(0, 1), (0, 2), (3, 1), (3, 2)]
    for form, letters in ((part.offer_format(), offers), (part.answer_format(1), answers)):
        assert isinstance(form, LetterFormat)
        assert {letter.nbytes for letter in letters} == {form.nbytes} == {part.engine.d * 8}
    for letter in answers:
        assert isinstance(letter.payload, bytes)
        g = part.answer_format(1).decode(letter.payload)["g"]
        assert letter.recipient is not None
        assert g[0] == letter.recipient + 1 + 1000 * letter.sender


@pytest.mark.parametrize("t", [1, ROUNDS, ROUNDS + 1])
def test_nothing_is_shown_after_the_last_round(t: int) -> None:
    part = cohort_of([0, 3])
    part.begin(t)
    assert bool(part.offers.tensors) == (t <= ROUNDS)


def test_a_restart_forgets_the_costs() -> None:
    part = cohort_of([0, 3])
    part.receive(ALL, {})
    part.engine.n_gradients += 5
    part.restart()
    for account in (part.costs.sent, part.costs.received, part.costs.n_gradients):
        assert not account.any()
    part.engine.n_gradients += 7  # not yet moved from the engine's meter
    first = part.evaluate(0)[0]
    assert first.metrics["gradient_evaluations"] == 7
    assert first.metrics["validation_loss"] is None
    assert first.weights == (1.0, 0.0, 0.0, 0.0)
