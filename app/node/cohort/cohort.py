"""Cohort: the peers of one node, and their rounds: offer, answer, update.

Letters between peers of the node and letters from other nodes become one stack, so a rule never
knows which node hosts a peer. All that happens to letters on their way is in the cohort's filters
(`coterie.app.node.cohort.filters`). Legend: p = peers of this node, e = letters, s = rows of a
stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from coterie.app.node.cohort import clearance
from coterie.app.node.cohort import mail as post
from coterie.app.node.cohort.arrays import rows_of
from coterie.app.node.cohort.filters import (
    Budget,
    LetterFilter,
    LetterFilters,
    SizeCheck,
    Tensors,
    WellFormed,
)
from coterie.app.node.cohort.mail import NEVER_SENT, Mail, Piece, no_mail, offers_of
from coterie.app.node.cohort.members import Members, Part
from coterie.app.node.cohort.wire import Wire
from coterie.app.wire.payload import LetterFormat, Readable, RemoteLetters, format_of
from coterie.clients.engine import tuning
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.privacy import ANSWER, OFFER, UPDATE
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Bools, Floats, Ints, Letters, no_letters
from coterie.clients.rule import Rule
from coterie.strategies.exchange_plan import Round
from coterie.strategies.protocol import MATRIX, Edges, PeerMessage, Report, no_edges
from coterie.strategies.schedule import ByClock, Schedule


class Visible(NamedTuple):
    """Offers of hosted peers as readers see them."""

    offers: Letters  # with zeros for numbers that are not finite
    sound: Bools  # (S,), the finite ones
    of: tuple[int, Letters]  # round and offers that they were made of


class HostedPeers(Members):
    """All peers of a node, under one rule, with `filters` between the rule and the `wire`."""

    # `keeps_all`: keep the models of every evaluation, with the measures of the last one.
    # `evaluates_all`: sleeping peers are evaluated, too. `in_pairs`: all peers are here and awake,
    # and the rule compares pairs of answers, which are computed in blocks and not kept.

    def __init__(
        self,
        engine: Engine,
        rule: Rule[Any],
        rounds: int,
        filters: Sequence[LetterFilter] = (),
        wire: Wire | None = None,
        schedule: Schedule | None = None,
        *,
        keeps_all: bool = False,
        evaluates_all: bool = False,
        measures_letters: bool = False,
        in_pairs: bool = False,
    ) -> None:
        schedule = schedule or Schedule(engine.n, rounds)
        super().__init__(
            engine, rule, rounds, schedule, keeps_all=keeps_all, evaluates_all=evaluates_all
        )
        self.wire, self._in_pairs = wire or Wire(), in_pairs
        self._measures_letters = measures_letters
        library = engine.library
        is_mixed = library is not None and library.is_mixed  # kinds of models differ in size
        checks: list[LetterFilter] = [SizeCheck()] if engine.defence.norm and not is_mixed else []
        if library is not None:
            checks.append(WellFormed(library))
        self.filters = LetterFilters([*filters, *checks, Budget(engine), self.wire])
        self._hosted = np.isin(np.arange(engine.n), self.peers)
        self.restart()

    def restart(self) -> None:
        super().restart()
        self.elapsed = 0.0  # seconds on the virtual clock since someone reset it
        self.offers = no_letters()  # newest offers of hosted peers that are not too old
        self.received = no_letters()  # models of this round, with tensors until it has ended
        self.sent = no_letters("answer")  # answers of this round
        self.products = dict[str, Floats]()  # of both ends' answers, instead of them: `in_pairs`
        self.answered = False  # this round's offers were received and answered
        self._visible: Visible | None = None
        self.filters.restart()

    # --- a round: offer, answer, update

    def step(self, this: Round, mail: Mail = no_mail) -> tuple[Report, ...]:
        """Run a round, or the rest of it after `exchange`; return its reports if evaluated."""
        if not self.answered:
            self.exchange(this, mail)
        self.update(this.t, mail("answer", self.answer_format(this.t)))
        self._end(this.t)
        reports = self.evaluate(this.t) if this.evaluated else ()
        self.begin(this.t + 1)
        return reports

    def begin(self, t: int) -> None:
        """Make the offers of round `t`, unless the run is over."""
        self.round, self.answered, self._visible = t, False, None
        if t > self.rounds:
            self.offers = no_letters()
            return
        oldest = t - self.schedule.max_age
        self.offers = post.only(self.offers, self.offers.written >= oldest)
        self._publish(self._offer(self.rows(self.schedule.beginning(t))), t)
        self.received = no_letters()  # a sleeping peer receives nothing in this round

    def exchange(self, this: Round, mail: Mail = no_mail) -> None:
        """Run the first half of a round: receive offers, and answer those that need an answer."""
        self.round = this.t
        oldest = this.t - self.schedule.max_age  # it may have slept
        self.offers = post.only(self.offers, self.offers.written >= oldest)
        self.receive(this.edges, mail("offer", self.offer_format()), this.ages)
        asked = this.edges[this.asked]
        for block in self._blocks(asked) if self._in_pairs else [asked]:
            self.answer(this.t, block)
            if self._in_pairs:
                self._compare(this.t)
        self.received = self.filters.visible(self.rule.inbox(this.t, self.received)).offers
        self.answered = True

    def _offer(self, rows: Ints) -> Letters:
        """Return the offers of some hosted peers for this round, as they leave."""
        if not len(rows):
            return no_letters()
        part, t = self.part(rows), self.round
        self.engine.enter(t, OFFER)
        state, tensors = part.rule.offer(part.state, t)
        self.accept(part, state)
        return self.filters.send(offers_of(part.engine.peers, tensors, np.full(len(rows), t)), t)

    def receive(
        self, edges: Edges, foreign: RemoteLetters, ages: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Collect the round's offers along its edges, (E, 2), with the `ages` of older ones."""
        own, sound, _ = self.visible_offers()
        leaving = edges[self._hosted[edges[:, 0]]]
        nbytes = self.wire.cost(own, leaving, sent=True)
        # An offer that waits for readers was paid for when its author was awake.
        paid = self.schedule.awake(self.round)[leaving[:, 0]]
        self.count(self.costs.sent, leaving[paid, 0], nbytes[paid])
        arriving = edges[self._hosted[edges[:, 1]]]
        offers = post.delivered(own, sound, foreign, arriving, self.round, ages)
        nbytes = self.wire.cost(own, offers.ends, sent=False)
        self.count(self.costs.received, offers.recipients, nbytes)
        self.received, self.sent = self._let_in(offers), no_letters("answer")
        self.products = {}

    def answer(self, t: int, asked: Edges) -> None:
        """Answer the received offers on the edges in `asked`, (A, 2)."""

        def by_rule(part: Part, letters: Letters) -> tuple[Any, Tensors]:
            inbox = part.rule.inbox(t, letters)
            state = part.rule.receive(part.state, inbox)
            return state, part.rule.answer(state, inbox)

        n, received = self.engine.n, self.received
        wanted = np.isin(received.recipients * n + received.senders, asked[:, 1] * n + asked[:, 0])
        letters = received.select(wanted)
        if not len(letters):
            return
        part = self._on_show(self.part(self.rows(self.schedule.ending(t))))
        self.engine.enter(t, ANSWER)
        state, tensors = self.filters.answer(by_rule, part, letters)
        self.write_rows(part, state)
        asked_by, rows = letters.recipients, np.arange(len(letters))
        answers = Letters(asked_by, letters.senders, rows, asked_by, tensors, kind="answer")
        self.sent = self.filters.send(answers, t)
        self.count(self.costs.sent, self.sent.senders, self.answer_format(t).nbytes)

    def update(self, t: int, foreign: RemoteLetters) -> None:
        """End round `t` with the answers of hosted peers and those from other nodes."""

        def by_rule(part: Part, inbox: Inbox) -> Any:
            return part.rule.update(part.state, replace(inbox, engine=part.engine))

        inbox = replace(self._returned(t, foreign), products=self.products)
        own, sound, _ = self.visible_offers()
        lost = np.isin(self.peers, own.authors[~sound])  # their offers were not finite
        self.engine.enter(t, UPDATE)
        ending = self.rows(self.schedule.ending(t))
        asked = len(inbox.sent) + len(inbox.answers) > 0  # then reading the answers needs all peers
        for part in [self.part(ending)] if asked else self.parts(ending):
            state = self.filters.update(by_rule, self._on_show(part), inbox)
            self.accept(part, state, lost[part.rows])
        self.received = replace(inbox.offers, tensors={})

    def _returned(self, t: int, foreign: RemoteLetters) -> Inbox:
        """Return the inbox of round `t` with answers of hosted peers and those of other nodes."""
        form, (sent, sound) = self.answer_format(t), post.zeroed(self.sent)
        here = self._hosted[sent.recipients] & sound
        answers = post.returned(sent, here, foreign, form, self.engine.device)
        self.count(self.costs.received, answers.recipients, form.nbytes)
        return self.filters.visible(self.rule.inbox(t, self.received, sent, self._let_in(answers)))

    def _blocks(self, asked: Edges) -> Iterator[Edges]:
        """Yield the edges of whole pairs, a few with answers of limited size at a time."""
        low_e, high_e = np.sort(asked, axis=1).T
        pair_e = np.unique(low_e * self.engine.n + high_e, return_inverse=True)[1]
        nbytes = 2 * self.answer_format(self.round).nbytes
        pairs = max(1, tuning.ANSWER_BYTES.on(self.engine.device) // nbytes)
        for first in range(0, 1 + pair_e.max(initial=-1), pairs):
            yield asked[(first <= pair_e) & (pair_e < first + pairs)]

    def _compare(self, t: int) -> None:
        """Keep of the answers what both ends of a pair compute from them, and nothing else."""
        inbox = self._returned(t, {})
        for name in inbox.answers.tensors:
            self.products[name] = self.products.get(name, 0.0) + inbox.exchanged(name)
        self.sent = no_letters("answer")

    def _let_in(self, letters: Letters) -> Letters:
        """Return the letters that pass the filters; count the others as refused."""
        passed = self.filters.receive(letters, self.round)
        if len(passed) < len(letters):
            self.count(self.costs.refused, letters.recipients, 1)
            self.count(self.costs.refused, passed.recipients, -1)
        return passed

    def _publish(self, made: Letters, t: int) -> None:
        """Show new offers of hosted peers instead of their older ones."""
        older = post.only(self.offers, ~np.isin(self.offers.authors, made.authors))
        self.offers = post.together([older, made])

    def _end(self, t: int) -> None:
        """End the round on the virtual clock, and count the rounds in which peers were awake."""
        if not self.schedule.is_always:
            self.costs.awake[self.rows(self.schedule.awake(t))] += 1
        self.elapsed += self.costs.pass_time(self.schedule, self.peers)

    def evaluate(self, t: int) -> tuple[Report, ...]:
        """Return the reports of the available peers, see `Members.reports`."""
        awake = self.peers[self.rows(self.schedule.awake(t))]
        heard = post.senders_to(awake, self.received) if self.engine.n > MATRIX else None
        reports = tuple(map(self.filters.report, self.reports(t, heard)))
        if not self._measures_letters:
            return reports
        risks = clearance.in_reports(self.engine, self.state, self.offers, self.sent)
        return tuple(replace(r, metrics={**r.metrics, **risks[r.peer]}) for r in reports)

    def go_on(self, t: int) -> None:
        """Begin round `t` from an older state; its offers count as offers of round `t`."""
        awake = self.schedule.awake(t)[self.offers.authors]
        self.round = t
        self.changed[:] = True
        self.offers = replace(self.offers, written=np.where(awake, t, self.offers.written))
        if t <= self.rounds:
            begun = np.searchsorted(self.peers, self._begun())
            rows = np.setdiff1d(self.rows(self.schedule.beginning(t)), begun)
            self._publish(self._offer(rows), t)

    def _begun(self) -> Ints:
        return self.offers.authors

    # --- offers, wants and messages

    def visible_offers(self) -> Visible:
        """Return the hosted peers' offers, or models of those without, which nobody receives."""
        if self._visible is None or self._visible.of != (self.round, self.offers):
            several, ending = [self.offers], self.rows(self.schedule.ending(self.round))
            missing = np.setdiff1d(ending, np.searchsorted(self.peers, self.offers.authors))
            for part in [] if self.schedule.is_always else self.parts(missing, idle=True):
                _, tensors = part.rule.offer(part.state, self.round)
                never = np.full(len(part.rows), NEVER_SENT)
                several.append(self.wire.rounded(offers_of(part.engine.peers, tensors, never)))
            self._visible = Visible(*post.zeroed(post.together(several)), (self.round, self.offers))
        return self._visible

    def _on_show(self, part: Part) -> Part:
        """Return a part that knows which of its peers have a finite offer of this round."""
        own, sound, _ = self.visible_offers()
        fresh = np.isin(part.engine.peers, own.authors[sound & (own.written == self.round)])
        return part._replace(fresh=fresh, averages=self.schedule.receives_on_waking)

    def wants(self, t: int) -> Edges:
        """Return the edges (W, 2) that peers ending round `t` want, from peers with an offer."""
        if t > self.rounds:
            return no_edges()
        part = self.part(self.rows(self.schedule.ending(t)))
        wants = part.rule.edges(part.rule.wants(part.state, t)) if len(part.rows) else no_edges()
        return wants[self.schedule.offered(t)[wants[:, 0]] > 0] if self.schedule.foresees else wants

    def offer_format(self) -> Readable:
        return self.wire.reader(self.visible_offers().offers)

    def answer_format(self, t: int) -> LetterFormat:
        shapes, dtype = self.rule.answer_shapes(t), self.engine.dtype
        return format_of({name: (s, dtype) for name, s in shapes.items()}, self.wire.precision)

    def letter_bytes(self) -> tuple[int, int]:
        """Return the maximum size of an offer and of an answer in bytes, of all rounds."""
        first = self.peers[:1] - self.peers[0]
        engine = self.engine.narrowed(first, idle=True)
        _, tensors = self.rule.narrowed(engine).offer(rows_of(self.state, first), 1)
        answers = {self.answer_format(t).max_bytes for t in range(1, self.rounds + 1)}
        return self.wire.reader(offers_of(engine.peers, tensors, first)).max_bytes, max(answers)

    def offer_letters(self, first: int) -> Iterator[PeerMessage]:
        """Yield the offers of rounds from `first` on, one letter per peer."""
        return self.wire.messages(self.offers, first)

    def answer_letters(self, t: int) -> Iterator[PeerMessage]:
        """Yield the answers of round `t` to peers of other nodes."""
        form, sent = self.answer_format(t), self.sent
        for row in np.flatnonzero(~self._hosted[sent.recipients]).tolist():
            k, i = int(sent.senders[row]), int(sent.recipients[row])
            yield PeerMessage("answer", k, i, t, form.nbytes, form.encode(sent.tensors, row))

    # --- checkpoints

    def snapshot(self, rows: Ints) -> dict[str, Tensor]:
        """Return the complete state of some peers (local indices), by dotted name."""
        tensors = self.packed(self.filters.saved(), rows)
        return tensors | post.packed_offers("offer", self.offers, self.peers[rows])

    def restore(self, pieces: Sequence[Piece], letters: Tensors | None = None) -> None:
        """Restore snapshots that together have each peer once, and an answered round's letters."""
        device = self.engine.device
        self.filters.restore(self.unpack(pieces))
        self.offers = post.unpacked_offers("offer", pieces, self.peers, device)
        self.answered = letters is not None
        if letters is not None:
            self.received = post.unpacked("received", letters, device)
            self.sent = post.unpacked("sent", letters, device, "answer")


class ClockedPeers(HostedPeers):
    """Cohort whose peers work for as long as their machines and links need, see `ByClock`."""

    schedule: ByClock

    def restart(self) -> None:
        super().restart()
        self.coming = no_letters()  # offers of peers that are ready in later rounds
        self._tell_schedule()

    def _publish(self, made: Letters, t: int) -> None:
        """Let offers wait until their authors are ready; show those that are due."""
        if len(made.authors):
            self.coming = post.together([self.coming, self._timed(made)])
        due = self.coming.written <= t
        super()._publish(post.only(self.coming, due), t)
        self.coming = post.only(self.coming, ~due)

    def _timed(self, made: Letters) -> Letters:
        """Return new offers with the rounds in which their authors are ready."""
        schedule, t, rows = self.schedule, self.round, np.searchsorted(self.peers, made.authors)
        ready = schedule.done(t, self.costs.seconds(schedule.clock, made.authors, rows))
        if schedule.base is None:  # else the count starts again at the end of the round
            self.costs.mark(rows)
        self.costs.ready[rows] = ready
        schedule.note(t - 1, made.authors.tolist(), ready)
        return offers_of(made.authors, made.tensors, ready)

    def _begun(self) -> Ints:
        return np.concatenate([self.offers.authors, self.coming.authors])

    def _end(self, t: int) -> None:
        super()._end(t)
        self.changed[:] = True  # nothing else records which peers made no progress

    def offer_letters(self, first: int) -> Iterator[PeerMessage]:
        return self.wire.messages(post.together([self.offers, self.coming]), first)

    def snapshot(self, rows: Ints) -> dict[str, Tensor]:
        coming = post.packed_offers("coming", self.coming, self.peers[rows])
        return super().snapshot(rows) | coming

    def restore(self, pieces: Sequence[Piece], letters: Tensors | None = None) -> None:
        super().restore(pieces, letters)
        self.coming = post.unpacked_offers("coming", pieces, self.peers, self.engine.device)
        self._tell_schedule()

    def _tell_schedule(self) -> None:
        """Synchronise the schedule with the progress of these peers."""
        last = np.zeros_like(self.peers)
        last[np.searchsorted(self.peers, self.offers.authors)] = self.offers.written
        self.schedule.recall(self.peers.tolist(), self.costs.ready, last)
