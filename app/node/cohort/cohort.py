"""Cohort: the peers of one node, and their rounds: receive, answer, update, evaluate, offer.

Letters between peers of the node and letters from other nodes become one stack, so a rule never
knows which node hosts a peer. Legend: p = peers of this node, e = letters, s = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import (
    at,
    flatten,
    on,
    owned,
    put_rows,
    restored,
    rows_of,
    unflatten,
    unsound,
)
from coterie.app.node.cohort.attackers import Attackers
from coterie.app.node.cohort.copies import PublicCopies
from coterie.app.node.cohort.costs import Costs
from coterie.app.node.cohort.letter_checks import (
    malformed_models,
    oversized_answers,
    oversized_models,
    within_budget,
)
from coterie.app.node.cohort.letters import answer_letters, offer_letters
from coterie.app.node.cohort.offers import UNWRITTEN, Offers, sound_rows
from coterie.app.node.cohort.packing import (
    Piece,
    packed_offers,
    unpacked,
    unpacked_offers,
)
from coterie.app.node.cohort.part import TOGETHER, Part
from coterie.app.node.cohort.stacking import (
    Mail,
    all_answers,
    all_offers,
    heard_by,
    no_mail,
)
from coterie.app.wire.payload import (
    Foreign,
    LetterFormat,
    Precision,
    Readable,
    format_of,
    layout_of,
)
from coterie.clients.attack import Attack
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.privacy import ANSWER, OFFER, UPDATE
from coterie.clients.letter_options import LetterOptions
from coterie.clients.letters import Bools, Ints, Letters, no_letters, nobody
from coterie.clients.rule import Rule
from coterie.strategies.brokering import Round
from coterie.strategies.protocol import MATRIX, Edges, PeerMessage, Report, no_edges
from coterie.strategies.schedule import ByClock, Schedule


class Cohort:
    """All peers of a node, under one rule.

    If peers sleep, rule and engine compute only the rows of the participants; other rows do not
    change.

    Parameters
    ----------
    engine : Engine
        Engine of the hosted peers.
    rule : Rule
        Rule of the method.
    rounds : int
        Total number of rounds.
    precision : Precision
        Precision of letters.
    schedule : Schedule or None
        Availability of peers; None: all peers are always awake.
    attackers : Attackers or None
        Attackers of the run; None: no attackers.
    withheld : Sequence of int
        Peers whose letters reach no other peer.
    letters : LetterOptions
        Increments against public copies.
    keeps_all : bool
        Keep the models of every evaluation, with the measures that only the last one has otherwise.

    Attributes
    ----------
    state : State
        State of the rule.
    round : int
        Current round.
    offers : Offers
        Newest offers of hosted peers that are not too old.
    coming : Offers
        Offers of peers that finish in later rounds.
    elapsed : float
        Seconds on the virtual clock since the last reset.
    received : Letters
        Models received in this round.
    sent : Letters
        Answers given in this round.
    answered : bool
        True if this round's offers were received and answered.
    costs : Costs
        Costs of each peer.
    changed : ndarray of bool, (P,)
        True if the peer's state changed since the last checkpoint.
    copies : PublicCopies or None
        Public copies of models; None: offers are whole models.
    curves : dict of int to dict
        Peer -> figure data of its last evaluation.
    """

    def __init__(
        self,
        engine: Engine,
        rule: Rule[Any],
        rounds: int,
        precision: Precision = "full",
        schedule: Schedule | None = None,
        attackers: Attackers | None = None,
        *,
        withheld: Sequence[int] = (),
        letters: LetterOptions = LetterOptions(),  # noqa: B008
        keeps_all: bool = False,
    ) -> None:
        self.engine, self.rule, self.rounds = engine, rule, rounds
        self.precision: Precision = precision
        self.schedule = schedule or Schedule(engine.n, rounds)
        self._attackers = attackers or Attackers(Attack(), nobody(), rule)
        self._withheld = np.array(withheld, dtype=np.int64)
        self._keeps_all = keeps_all
        self._evaluated: dict[int, dict[str, Tensor]] = {}
        self.peers = engine.peers
        self._hosted = np.isin(np.arange(engine.n), self.peers)
        self.curves: dict[int, dict[str, Any]] = {}
        is_full = letters.scheme == "full"
        self.copies = None if is_full else PublicCopies(engine, letters, precision)
        self.restart()

    def restart(self) -> None:
        """Reset to the state before round 1."""
        self.state = self.rule.init()
        if not self.schedule.is_always:
            self.state = owned(self.state)
        self.round, self.elapsed, self.answered = 0, 0.0, False
        self.offers = self.coming = Offers()
        self.received = self.sent = no_letters()
        self._shown: tuple[int, Offers, Offers] | None = None
        self.changed = np.ones_like(self.peers, dtype=np.bool_)
        self.engine.n_gradients[:], self.engine.spent[:] = 0, 0
        self.costs = Costs.none(len(self.peers))
        if self.copies is not None:
            self.copies.restart()
        self._tell_schedule()

    def snapshot(self, rows: Ints) -> dict[str, Tensor]:
        """Return the complete state of some peers (local indices), by dotted name.

        Tensors have a row for each of these peers, offers a row for each peer with an offer.
        """
        spent = {"spent": torch.from_numpy(self.engine.spent)}
        parts = {"state": flatten(self.state), "costs": flatten(self.costs), "privacy": spent}
        if self.copies is not None:
            parts["copies"] = flatten(self.copies.state)
        tensors = {
            f"{part}.{name}": value[at(rows, value.device)]
            for part, stack in parts.items()
            for name, value in stack.items()
        }
        for kind, offers in (("offer", self.offers), ("coming", self.coming)):
            selected = offers.only(np.isin(offers.rows, rows))
            tensors |= packed_offers(kind, selected, self.peers)
        return tensors

    def restore(self, pieces: Iterable[Piece], letters: Mapping[str, Tensor] | None = None) -> None:
        """Restore the state of snapshots.

        Parameters
        ----------
        pieces : Iterable of Piece
            Parts of snapshots that together have each hosted peer once.
        letters : Mapping of str to Tensor or None
            `packed` letters of the round, if its offers were received and answered.
        """
        device = self.engine.device
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "costs": {}, "privacy": {}}
        if self.copies is not None:
            parts["copies"] = {}
        offers: dict[str, list[Offers]] = {"offer": [], "coming": []}
        for local, rows, tensors in pieces:
            for name, value in tensors.items():
                part, _, rest = name.partition(".")
                if part not in parts:
                    continue
                some, shape = value[at(rows)], (len(self.peers), *value.shape[1:])
                if some.shape == shape:  # no copy: equal models stay one, as before the snapshot
                    parts[part][rest] = some
                else:
                    parts[part].setdefault(rest, value.new_empty(shape))[on(local)] = some
            for kind, several in offers.items():
                several.append(unpacked_offers(tensors, kind, self.peers, local, device))
        self.offers, self.coming = (Offers.together(several) for several in offers.values())
        self.state = unflatten(self.state, parts["state"])
        self.costs = unflatten(self.costs, parts["costs"])
        if self.copies is not None:
            self.copies.state = unflatten(self.copies.state, parts["copies"])
        self.engine.n_gradients[:] = 0
        self.engine.spent[:] = parts["privacy"]["spent"].numpy()
        self.answered = letters is not None
        self.saved()
        self._tell_schedule()
        if letters is not None:
            self.received, self.sent = (
                unpacked(name, letters, device) for name in ("received", "sent")
            )

    def saved(self) -> None:
        """Track changes of states from here; if no peer sleeps, all change in each round."""
        self.changed[:] = self.schedule.is_always

    def begin(self, t: int) -> None:
        """Make the offers of round `t`, unless the run is over."""
        self.round, self.answered, self._shown = t, False, None
        if t > self.rounds:
            self.offers = Offers()
            return
        self.offers = self.offers.since(t - self.schedule.max_age)
        self._offer(self._rows(self.schedule.beginning(t)))
        self.received = no_letters()  # a sleeping peer receives nothing in this round
        self._release(t)

    def go_on(self, t: int) -> None:
        """Begin round `t` from an older state; its offers count as offers of round `t`."""
        awake, offers = self._rows(self.schedule.awake(t)), self.offers
        written = np.where(np.isin(offers.rows, awake), t, offers.written)
        self.round = t
        self.changed[:] = True
        self.offers = replace(offers, written=written)
        if t <= self.rounds:
            began = np.concatenate([offers.rows, self.coming.rows])
            self._offer(np.setdiff1d(self._rows(self.schedule.beginning(t)), began))
            self._release(t)

    def step(self, this: Round, mail: Mail = no_mail) -> tuple[Report, ...]:
        """Run a round, or the rest of it after `exchange`, and make the offers of the next round.

        Returns the reports if the round is evaluated, else an empty tuple.
        """
        if not self.answered:
            self.exchange(this, mail)
        self.update(this.t, mail("answer", self.answer_format(this.t)))
        self._pass_time(this.t)
        reports = self.evaluate(this.t) if this.evaluated else ()
        self.begin(this.t + 1)
        return reports

    def exchange(self, this: Round, mail: Mail = no_mail) -> None:
        """Run the first half of a round: receive offers, and answer those that need an answer."""
        self.round = this.t
        self.offers = self.offers.since(this.t - self.schedule.max_age)  # it may have slept
        self.receive(this.edges, mail("offer", self.offer_format()), this.ages)
        self.answer(this.t, this.edges[this.asked])
        self.received = self._reaching(self.received)
        self.answered = True

    def receive(
        self, edges: Edges, foreign: Foreign, ages: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Collect the round's offers; edges without a letter are dropped.

        Parameters
        ----------
        edges : Edges
            Edges of the round.
        foreign : Foreign
            Offers from other nodes.
        ages : Mapping of int to int
            Sender -> age of its offer in rounds, if it is not from this round.
        """
        shown = self._show()
        mine = self.peers[shown.rows]
        offers = all_offers(shown, mine, foreign, self.round, ages)
        sends = self._hosted & self.schedule.awake(self.round)  # waiting offers were sent earlier
        gone = edges[self._hosted[edges[:, 0]]]
        nbytes = self._offer_bytes(gone, sent=True)
        awake = sends[gone[:, 0]]
        self._count_bytes(self.costs.sent, gone[awake, 0], nbytes[awake])
        wrote = np.isin(np.arange(self.engine.n), offers.authors)
        wrote[mine[~shown.sound[1]]] = False  # a non-finite offer is refused, as on other nodes
        arrived = edges[self._hosted[edges[:, 1]] & wrote[edges[:, 0]]]
        nbytes = self._offer_bytes(arrived, sent=False)
        self._count_bytes(self.costs.received, arrived[:, 1], nbytes)
        rows_e = np.searchsorted(offers.authors, arrived[:, 0])
        self.received = replace(
            offers, senders=arrived[:, 0], recipients=arrived[:, 1], rows=rows_e
        )
        if self.engine.defence.norm and (large := oversized_models(self.received)).any():
            self._count_bytes(self.costs.refused, arrived[large, 1], 1)
            self.received = self.received.select(~large)
        if (wrong := malformed_models(self.engine, self.received)).any():
            self._count_bytes(self.costs.refused, self.received.recipients[wrong], 1)
            self.received = self.received.select(~wrong)
        self.sent = no_letters()

    def answer(self, t: int, asked: Edges) -> None:
        """Answer the received offers on the edges in `asked`."""
        n, received = self.engine.n, self.received
        wanted = np.isin(received.recipients * n + received.senders, asked[:, 1] * n + asked[:, 0])
        letters = received.select(wanted)
        if not len(letters):
            return
        part = self._part(self._rows(self.schedule.ending(t)))
        self.engine.enter(t, ANSWER)
        tensors = self._answers(part, t, letters)
        tensors = self._attackers.answers(t, letters, tensors)
        form = self.answer_format(t)
        self.sent = within_budget(self.engine, letters, tensors, form)
        self._count_bytes(self.costs.sent, self.sent.senders, form.nbytes)

    def _answers(self, part: Part, t: int, letters: Letters) -> Mapping[str, Tensor]:
        """Answer letters, those of withheld peers without a trace in the state.

        Returns
        -------
        Mapping of str to Tensor, (E, ...)
            Answers, a row per letter.
        """
        aside = np.isin(letters.senders, self._withheld)
        own, part = part, self._public(part)
        if not aside.any():
            state, tensors = part.answered(t, letters)
            self._store(own, self._kept(own, part, state))
            return tensors
        answers: dict[str, Tensor] = {}
        state = part.state
        for mask in (aside, ~aside):
            if mask.any():
                state, tensors = part.answered(t, letters.select(mask))
                for name, value in tensors.items():
                    shape = len(letters), *value.shape[1:]
                    rows = on(np.flatnonzero(mask), value.device)
                    answers.setdefault(name, value.new_empty(shape))[rows] = value
        self._store(own, own.state if aside.all() else self._kept(own, part, state))
        return answers

    def update(self, t: int, foreign: Foreign) -> None:
        """End round `t` with the answers of this node's peers and those from other nodes."""
        tensors, sound = sound_rows(self.sent.tensors)
        sent = replace(self.sent, tensors=tensors)
        form, here = self.answer_format(t), self._hosted[sent.recipients] & sound
        answers = all_answers(sent, here, foreign, form, self.engine.device)
        self._count_bytes(self.costs.received, answers.recipients, form.nbytes)
        if self.engine.defence.norm and (large := oversized_answers(answers)).any():
            self._count_bytes(self.costs.refused, answers.recipients[large], 1)
            answers = answers.select(~large)
        ending = self._rows(self.schedule.ending(t))
        shown = self._show()
        offered = np.ones(len(self.peers), dtype=np.bool_)
        offered[shown.rows] = shown.sound[1]
        if len(self._withheld):
            answers = self._reaching(answers)
            # An answer to a withheld letter depends on it, so its own author must not use it.
            sent = sent.select(~np.isin(sent.recipients, self._withheld))
        self.engine.enter(t, UPDATE)
        heard = self._attackers.heard
        asked = len(sent) + len(answers) > 0  # then reading the answers needs all peers
        for part in [self._part(ending)] if asked else self._parts(ending):
            # A rule that averages starts from its peer's copy; one that trains, from its model.
            averages = self.schedule.receives_on_waking
            public = self._public(part) if averages else part
            inbox = part.rule.inbox(t, heard(self.received), sent, heard(answers))
            state = part.rule.update(public.state, inbox)
            state = self._kept(part, public, state, damped=averages)
            self._take(part, state, torch.from_numpy(~offered[part.rows]))
        if not self._attackers.present:  # only they read the models again
            self.received = replace(self.received, tensors={})

    def _public(self, part: Part) -> Part:
        """Return a part whose peers have their public copies in place of their models."""
        if self.copies is None:
            return part
        shown = self._show()
        fresh = (shown.written == self.round) & shown.sound[1]
        fresh &= ~self._attackers.forging(self.peers[shown.rows])
        return part._replace(state=self.copies.shown(part.state, part.rows, shown, fresh))

    def _kept(self, own: Part, public: Part, state: Any, *, damped: bool = False) -> Any:
        """Return a state with what the peers have not sent, see `PublicCopies.kept`."""
        if self.copies is None:
            return state
        return self.copies.kept(own.state, public.state, state, damped=damped)

    def _offer_bytes(self, edges: Edges, *, sent: bool) -> Ints:
        """Return the cost (E,) of offers of hosted peers if `sent`, else of those to them."""
        stacks = self._show().stacks
        if self.copies is None or not stacks:
            return np.full(len(edges), self._format(stacks).nbytes)
        charge = self.copies.sending if sent else self.copies.receiving
        return charge(edges, self.copies.format(stacks))

    def _reaching(self, letters: Letters) -> Letters:
        """Return the letters from which rules learn, all but those of withheld peers."""
        if not len(self._withheld):
            return letters
        return letters.select(~np.isin(letters.senders, self._withheld))

    def _rows(self, of_n: Bools) -> Ints:
        """Return the local indices of the hosted peers in a mask (n,)."""
        return np.flatnonzero(of_n[self.peers])

    def _part(self, rows: Ints, *, idle: bool = False, reading: bool = False) -> Part:
        """Return the rule and the state of some hosted peers; see `Engine.narrowed`, `rows_of`."""
        if self.schedule.is_always:
            return Part(rows, self.engine, self.rule, self.state)
        engine = self.engine.narrowed(rows, idle=idle)
        return Part(
            rows, engine, self.rule.narrowed(engine), rows_of(self.state, rows, reading=reading)
        )

    def _store(self, part: Part, state: Any) -> None:
        """Store the next state of some peers, and add its gradients to their costs."""
        if self.schedule.is_always:
            self.state = state
        else:
            self.changed[part.rows] = True
            put_rows(self.state, part.rows, state)
        self.costs.n_gradients[part.rows] += part.engine.n_gradients
        part.engine.n_gradients[:] = 0

    def _take(self, part: Part, state: Any, bad_p: Tensor | None = None) -> None:
        """Store results, except those of peers whose model would be invalid.

        Parameters
        ----------
        part : Part
            Peers of the results.
        state : Any
            Their new state.
        bad_p : Tensor, (P,), or None
            Peers whose result is dropped in any case.
        """
        unsound_p = unsound(state)
        bad_p = unsound_p if bad_p is None else bad_p | unsound_p
        if bad_p.any():
            self.costs.unsound[part.rows[bad_p.numpy()]] += 1
            state = restored(part.state, state, bad_p)
        self._store(part, state)

    def _offer(self, rows: Ints) -> None:
        """Make the offers of some hosted peers for this round; they replace older offers."""
        if not len(rows):
            return
        part = self._part(rows)
        self.engine.enter(self.round, OFFER)
        state, stacks = part.rule.offer(part.state, self.round)
        self._take(part, state)
        stacks = self._attackers.offers(self.round, part.engine.peers, stacks, self.received)
        if self.copies is not None:
            stacks = self.copies.advance(rows, stacks, self.round)
        made = Offers.made(stacks, rows, self._due(rows), self._format(stacks))
        self.coming = self.coming.beside(made)

    def _release(self, t: int) -> None:
        """Publish the offers of peers that are ready in round `t`; they replace older offers."""
        due = self.coming.written <= t
        released, self.coming = self.coming.only(due), self.coming.only(~due)
        self.offers = self.offers.only(~np.isin(self.offers.rows, released.rows)).beside(released)

    def _due(self, rows: Ints) -> Ints:
        """Return the round of each new offer of some hosted peers."""
        schedule, t = self.schedule, self.round
        if not isinstance(schedule, ByClock):
            return np.full(len(rows), t)
        ready = schedule.done(t, self.costs.seconds(schedule.clock, self.peers[rows], rows))
        if schedule.base is None:
            self.costs.mark(rows)
        self.costs.ready[rows] = ready
        schedule.note(t - 1, self.peers[rows].tolist(), ready)
        return ready

    def _tell_schedule(self) -> None:
        """Synchronise a clock-driven schedule with the progress of these peers."""
        if isinstance(self.schedule, ByClock):
            last = np.zeros_like(self.peers)
            last[self.offers.rows] = self.offers.written
            self.schedule.recall(self.peers.tolist(), self.costs.ready, last)

    def _pass_time(self, t: int) -> None:
        """End the round on the virtual clock, and count the rounds in which peers were awake."""
        if not self.schedule.is_always:
            self.costs.awake[self._rows(self.schedule.awake(t))] += 1
        if not self.schedule.foresees:  # nothing else records which peers made no progress
            self.changed[:] = True
        self.elapsed += self.costs.pass_time(self.schedule, self.peers)

    def _show(self) -> Offers:
        """Return the offers of hosted peers, and the models of peers that end the round without.

        Nobody receives these models, but the rules expect them.
        """
        if self._shown is not None and self._shown[:2] == (self.round, self.offers):
            return self._shown[2]
        shown = self.offers
        missing = np.setdiff1d(self._rows(self.schedule.ending(self.round)), shown.rows)
        if len(missing) and not self.schedule.is_always:
            shown = Offers.together([shown, *map(self._unwritten, self._parts(missing, idle=True))])
        self._shown = self.round, self.offers, shown
        return shown

    def _unwritten(self, part: Part) -> Offers:
        _, stacks = part.rule.offer(part.state, self.round)
        never = np.full(len(part.rows), UNWRITTEN)
        return Offers.made(stacks, part.rows, never, self._format(stacks))

    def wants(self, t: int) -> Edges:
        """Return the edges (W, 2) that peers ending round `t` want, from peers with an offer."""
        if t > self.rounds:
            return no_edges()
        part = self._part(self._rows(self.schedule.ending(t)))
        wants = part.rule.edges(part.rule.wants(part.state, t)) if len(part.rows) else no_edges()
        return wants[self.schedule.offered(t)[wants[:, 0]] > 0] if self.schedule.foresees else wants

    def offer_format(self) -> Readable:
        """Return the format of this round's offers."""
        stacks = self._show().stacks
        if self.copies is None or not stacks:
            return self._format(stacks)
        return self.copies.reader(stacks)

    def _format(self, stacks: Mapping[str, Tensor]) -> LetterFormat:
        """Return the format of a letter with whole offers."""
        if self.copies is not None and stacks:
            return self.copies.format(stacks).key
        return format_of(layout_of(stacks), self.precision)

    def answer_format(self, t: int) -> LetterFormat:
        """Return the format of the answers of round `t`."""
        shapes = self.rule.answer_shapes(t)
        return format_of({k: (s, self.engine.dtype) for k, s in shapes.items()}, self.precision)

    def letter_bytes(self) -> tuple[int, int]:
        """Return the maximum size of an offer and of an answer in bytes, of all rounds."""
        first = self.peers[:1] - self.peers[0]
        engine = self.engine.narrowed(first, idle=True)
        _, stacks = self.rule.narrowed(engine).offer(rows_of(self.state, first), 1)
        sized = self._format(stacks) if self.copies is None else self.copies.format(stacks)
        answers = {self.answer_format(t).max_bytes for t in range(1, self.rounds + 1)}
        return sized.max_bytes, max(answers)

    def offer_letters(self, since: int) -> Iterator[PeerMessage]:
        """Yield the offers of rounds from `since` on, one letter per peer."""
        offers = self.offers.beside(self.coming)
        if self.copies is not None and offers.stacks:
            return self.copies.letters(offers, self.peers, since)
        return offer_letters(offers, self.peers, self._format(offers.stacks), since)

    def answer_letters(self, t: int) -> Iterator[PeerMessage]:
        """Yield the answers of round `t` to peers of other nodes."""
        return answer_letters(self.sent, ~self._hosted, self.answer_format(t), t)

    def evaluate(self, t: int) -> tuple[Report, ...]:
        """Evaluate the personal models of the available peers, each on its peer's data.

        The reported costs are those of a run that ends here: they include the making of personal
        models, which is not carried over, so costs do not depend on the number of evaluations.
        """
        slept, awake = not self.schedule.is_always, self.peers[self._rows(self.schedule.awake(t))]
        heard = None if self.engine.n <= MATRIX else heard_by(awake, self.received)
        curves = self.curves if t == self.rounds or self._keeps_all else None
        self._evaluated = {}
        models = self._evaluated if self._keeps_all else None
        return tuple(
            self._attackers.marked(report)
            for part in self._parts(self._rows(self.schedule.measured(t)), reading=True)
            for report in part.reports(t, self.costs, heard, curves, models, attendance=slept)
        )

    def models(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield personal models as named tensors, with all other tensors that prediction needs.

        Models kept at the last evaluation come first, then those of all other peers.
        """
        yield from self._evaluated.items()
        if not self._keeps_all or self.round > self.rounds:
            others = np.flatnonzero(~np.isin(self.peers, [*self._evaluated]))
            for part in self._parts(others, reading=True):
                yield from part.models()

    def _parts(self, rows: Ints, **how: bool) -> Iterator[Part]:
        """Yield `_part` of some hosted peers, in chunks if most peers sleep."""
        size = max(1, len(rows) if self.schedule.is_always else TOGETHER)
        for first in range(0, len(rows), size):
            yield self._part(rows[first : first + size], **how)

    def _count_bytes(self, account: Ints, peers: Ints, nbytes: int | Ints) -> None:
        np.add.at(account, np.searchsorted(self.peers, peers), nbytes)
