"""The peers of one node and one round of theirs: receive, answer, update, evaluate, offer.

Letters between peers of the node and letters from other nodes become one stack, so a rule never
knows who hosts whom. Legend: p = peers of this node, e = letters, s = rows of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from app.node.arrays import owned, put_rows, restored, rows_of, unsound
from app.node.offers import UNWRITTEN, Offers, sound_rows
from app.wire.payload import Foreign, LetterFormat, Precision, format_of, layout_of
from clients.engine.data import SplitName
from clients.engine.engine import Engine
from clients.letters import Bools, Ints, Letters, nobody
from clients.rule import Rule
from strategies.brokering import Round
from strategies.protocol import Edges, Kind, PeerMessage, Report, no_edges
from strategies.schedule import Schedule

Mail = Callable[[Kind, LetterFormat], Foreign]
"""Reads the letters of one kind that came from other nodes, each of that format."""


def no_mail(kind: Kind, form: LetterFormat) -> Foreign:
    """Nothing comes from other nodes: every peer is here."""
    return {}


_TOGETHER = 512
"""Peers whose models are measured or written side by side where most of them sleep."""


class _Part(NamedTuple):
    """Some hosted peers by local index, and their engine, rule and state."""

    rows: Ints
    engine: Engine
    rule: Rule[Any]
    state: Any


@dataclass
class Costs:
    """What each hosted peer has spent so far, (P,) each.

    Attributes
    ----------
    sent, received : payload bytes, wherever the other peer is hosted.
    n_gradients : examples differentiated; the engine counts them.
    unsound : results that were not finite, in whose place the old model stayed.
    """

    sent: Ints
    received: Ints
    n_gradients: Ints
    unsound: Ints


class Cohort:
    """All peers of a node under one rule.

    Where a schedule lets peers sleep, a round is computed by the rule and the engine narrowed to
    those who take part; the others' rows stand still.

    Parameters
    ----------
    schedule : who is awake in which round; without, everybody always.

    Attributes
    ----------
    state : what the rule keeps.
    round : the round that has begun.
    offers : the newest offers of hosted peers, as far as they may still be heard.
    received, sent : models received and answers given in this round.
    answered : whether this round's offers were received, and those that ask for it answered.
    costs : what each peer has spent.
    changed : (P,) whose state is no longer what was saved last.
    """

    def __init__(
        self,
        engine: Engine,
        rule: Rule[Any],
        rounds: int,
        precision: Precision = "full",
        schedule: Schedule | None = None,
    ) -> None:
        self.engine, self.rule, self.rounds = engine, rule, rounds
        self.precision: Precision = precision
        self.schedule = schedule or Schedule(engine.n, rounds)
        self.peers = engine.peers
        self._hosted = np.zeros(engine.n, dtype=np.bool_)
        self._hosted[self.peers] = True
        self.restart()

    def restart(self) -> None:
        """Forget everything and stand before round 1."""
        self.state = self.rule.init()
        if not self.schedule.is_always:
            self.state = owned(self.state)
        self.round = 0
        self.offers = Offers()
        self.received = self.sent = no_letters()
        self.answered = False
        self._shown: tuple[int, Offers, Offers] | None = None
        self.changed = np.ones_like(self.peers, dtype=np.bool_)
        none = np.zeros_like(self.peers)
        self.engine.n_gradients[:] = 0
        n_gradients = self.engine.n_gradients if self.schedule.is_always else none.copy()
        self.costs = Costs(none, none.copy(), n_gradients, none.copy())

    def begin(self, t: int) -> None:
        """Make the offers of round `t`, unless the run is over."""
        self.round, self.answered = t, False
        if t > self.rounds:
            self.offers = Offers()
            return
        self.offers = self.offers.only(self.offers.written >= t - self.schedule.max_age)
        self._offer(self._rows(self.schedule.awake(t)))

    def go_on(self, t: int) -> None:
        """Begin round `t` from an older state: what was offered then counts as of now."""
        awake, offers = self._rows(self.schedule.awake(t)), self.offers
        written = np.where(np.isin(offers.rows, awake), t, offers.written)
        self.round = t
        self.changed[:] = True
        self.offers = replace(offers, written=written)
        if t <= self.rounds:
            self._offer(np.setdiff1d(awake, offers.rows))

    def step(self, this: Round, mail: Mail = no_mail) -> tuple[Report, ...]:
        """Play a round, or what is left of it after `exchange`, and make the next one's offers.

        Returns
        -------
        The reports, if the round is evaluated.
        """
        if not self.answered:
            self.exchange(this, mail)
        self.update(this.t, mail("answer", self.answer_format(this.t)))
        reports = self.evaluate(this.t) if this.evaluated else ()
        self.begin(this.t + 1)
        return reports

    def exchange(self, this: Round, mail: Mail = no_mail) -> None:
        """Play the first half of a round: receive offers, and answer those that ask for it."""
        self.round = this.t
        self.receive(this.edges, mail("offer", self.offer_format()), this.ages)
        self.answer(this.t, this.edges[this.asked])
        self.answered = True

    def receive(
        self, edges: Edges, foreign: Foreign, ages: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Put the round's offers together; an edge whose letter is missing is left out.

        Parameters
        ----------
        ages : sender -> rounds since its letter was written, where that is not this round.
        """
        shown = self._show()
        mine, (offers, sound) = self.peers[shown.rows], shown.sound
        authors = np.array(sorted({*mine.tolist(), *(k for k, _ in foreign)}), dtype=np.int64)
        stack, at = dict(offers), np.searchsorted(authors, mine)
        ages_s = np.array([ages.get(k, 0) for k in authors.tolist()], dtype=np.int64)
        ages_s[at] = self.round - shown.written
        if foreign:
            rows = torch.from_numpy(at)
            for name, own in offers.items():
                stack[name] = own.new_empty((len(authors), *own.shape[1:]))
                stack[name][rows.to(own.device)] = own
                for (k, _), tensors in foreign.items():
                    stack[name][int(np.searchsorted(authors, k))] = tensors[name].to(own.device)
        nbytes = self.offer_format().nbytes
        sends = self._hosted & self.schedule.awake(self.round)  # what waited was sent before
        self._count_bytes(self.costs.sent, edges[sends[edges[:, 0]], 0], nbytes)
        wrote = np.zeros_like(self._hosted)
        wrote[authors] = True
        wrote[mine[~sound]] = False  # refused, here as elsewhere
        came = edges[self._hosted[edges[:, 1]] & wrote[edges[:, 0]]]
        self._count_bytes(self.costs.received, came[:, 1], nbytes)
        rows_e = np.searchsorted(authors, came[:, 0])
        expired = mine[shown.written == UNWRITTEN]
        self.received = Letters(came[:, 0], came[:, 1], rows_e, authors, stack, ages_s, expired)
        self.sent = no_letters()

    def answer(self, t: int, asked: Edges) -> None:
        """Answer those of the received offers whose edge is asked."""
        n, received = self.engine.n, self.received
        wanted = np.isin(received.recipients * n + received.senders, asked[:, 1] * n + asked[:, 0])
        letters = received.select(wanted)
        if not len(letters):
            return
        part = self._part(self._rows(self.schedule.ending(t)))
        state, tensors = part.rule.answer(part.state, t, letters)
        self._store(part, state)
        form, rows = self.answer_format(t), np.arange(len(letters))
        answerers, owners = letters.recipients, letters.senders
        self.sent = Letters(answerers, owners, rows, answerers, form.rounded(tensors))
        self._count_bytes(self.costs.sent, answerers, form.nbytes)

    def update(self, t: int, foreign: Foreign) -> None:
        """End round `t` with the answers of this node's peers and those from other nodes."""
        given, sound = sound_rows(self.sent.tensors)
        sent = replace(self.sent, tensors=given)
        inside = np.flatnonzero(self._hosted[sent.recipients] & sound)
        # Where every answer stays on the node, theirs is the stack itself and not a copy.
        at = inside if len(inside) < len(sent) else slice(None)
        ends = np.concatenate(
            [
                np.stack([sent.senders[inside], sent.recipients[inside]], axis=1),
                np.array(list(foreign), dtype=np.int64).reshape(-1, 2),
            ]
        )
        order = np.lexsort((ends[:, 0], ends[:, 1]))
        answers, form = no_letters(), self.answer_format(t)
        if len(ends):
            stack = {}
            for name in form.layout:
                parts = [sent[name][at]] if len(inside) else []
                parts += [t_[name].to(self.engine.device)[None] for t_ in foreign.values()]
                stack[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
            senders, recipients = ends[order].T
            answers = Letters(senders, recipients, order, ends[:, 0], stack)
        self._count_bytes(self.costs.received, answers.recipients, form.nbytes)
        part = self._part(self._rows(self.schedule.ending(t)))
        if not len(part.rows):
            return
        shown = self._show()
        offered = np.ones(len(self.peers), dtype=np.bool_)
        offered[shown.rows] = shown.sound[1]
        state = part.rule.update(part.state, t, self.received, sent, answers)
        self._take(part, state, torch.from_numpy(~offered[part.rows]))

    def _rows(self, of_n: Bools) -> Ints:
        """Local index of the hosted ones of some peers, given as a mask (n,)."""
        return np.flatnonzero(of_n[self.peers])

    def _part(self, rows: Ints, *, idle: bool = False) -> _Part:
        """The rule and the state of some hosted peers; see `Engine.narrowed`."""
        if self.schedule.is_always:
            return _Part(rows, self.engine, self.rule, self.state)
        engine = self.engine.narrowed(rows, idle=idle)
        return _Part(rows, engine, self.rule.narrowed(engine), rows_of(self.state, rows))

    def _store(self, part: _Part, state: Any) -> None:
        """Let a state be the next one of some peers, and put what it cost on their bill."""
        if part.engine is self.engine:
            self.state = state
            return
        self.changed[part.rows] = True
        put_rows(self.state, part.rows, state)
        self.costs.n_gradients[part.rows] += part.engine.n_gradients
        part.engine.n_gradients[:] = 0

    def _take(self, part: _Part, state: Any, bad_p: Tensor | None = None) -> None:
        """`_store`, but for the peers whose result no model can be made of.

        Parameters
        ----------
        bad_p : (P,) whose result counts as such whatever it is.
        """
        found_p = unsound(state)
        bad_p = found_p if bad_p is None else bad_p | found_p
        if bad_p.any():
            self.costs.unsound[part.rows[bad_p.numpy()]] += 1
            state = restored(part.state, state, bad_p)
        self._store(part, state)

    def _offer(self, rows: Ints) -> None:
        """Make the offers of this round of some hosted peers, in the place of older ones."""
        if not len(rows):
            return
        part = self._part(rows)
        state, stacks = part.rule.offer(part.state, self.round)
        self._take(part, state)
        older = self.offers.only(~np.isin(self.offers.rows, rows))
        self.offers = older.beside(self._written(stacks, rows, self.round))

    def _show(self) -> Offers:
        """What hosted peers show in this round: the offers, and the models of those who wake.

        These were written for nobody, but the rules expect them.
        """
        if self._shown is not None and self._shown[:2] == (self.round, self.offers):
            return self._shown[2]
        shown = self.offers
        missing = np.setdiff1d(self._rows(self.schedule.ending(self.round)), shown.rows)
        if len(missing) and not self.schedule.is_always:
            part = self._part(missing, idle=True)
            _, stacks = part.rule.offer(part.state, self.round)
            shown = shown.beside(self._written(stacks, missing, UNWRITTEN))
        self._shown = self.round, self.offers, shown
        return shown

    def _written(self, stacks: Mapping[str, Tensor], rows: Ints, t: int) -> Offers:
        """Offers as they travel."""
        rounded = format_of(layout_of(stacks), self.precision).rounded(stacks)
        return Offers(rounded, rows, np.full(len(rows), t))

    def wants(self, t: int) -> Edges:
        """(W, 2) the edges that the peers who will end round `t` want in it."""
        part = self._part(self._rows(self.schedule.ending(t)))
        return part.rule.wants(part.state, t) if len(part.rows) else no_edges()

    def offer_format(self) -> LetterFormat:
        """The format of this round's offers."""
        return self._show().format(self.precision)

    def answer_format(self, t: int) -> LetterFormat:
        """The format of the answers of round `t`."""
        shapes = self.rule.answer_shapes(t)
        return format_of({k: (s, self.engine.dtype) for k, s in shapes.items()}, self.precision)

    def offer_letters(self, since: int) -> Iterator[PeerMessage]:
        """The offers of rounds from `since` on, one letter for each peer."""
        offers, form = self.offers, self.offers.format(self.precision)
        for row, (local, t) in enumerate(zip(offers.rows, offers.written.tolist(), strict=True)):
            if t >= since:
                k, payload = int(self.peers[local]), form.encode(offers.stacks, row)
                yield PeerMessage("offer", k, None, t, form.nbytes, payload)

    def answer_letters(self, t: int) -> Iterator[PeerMessage]:
        """The answers of round `t` that go to peers of other nodes."""
        form, sent = self.answer_format(t), self.sent
        for row in np.flatnonzero(~self._hosted[sent.recipients]).tolist():
            k, i = int(sent.senders[row]), int(sent.recipients[row])
            yield PeerMessage("answer", k, i, t, form.nbytes, form.encode(sent.tensors, row))

    def evaluate(self, t: int) -> tuple[Report, ...]:
        """Measure the personal models of those who are there, each on its peer's own data.

        The costs reported are those of a run that ends here: making the personal models is among
        them but is not carried over, so they do not depend on how often one measures.
        """
        rows, reports = self._rows(self.schedule.measured(t)), list[Report]()
        size = len(rows) if self.schedule.is_always else _TOGETHER
        for first in range(0, len(rows), max(size, 1)):
            reports += self._measured(t, self._part(rows[first : first + size]))
        return tuple(reports)

    def _measured(self, t: int, part: _Part) -> Iterator[Report]:
        splits: tuple[SplitName, ...] = ("test", "validation", "train")
        columns: dict[str, list[Any]] = {}
        spent, before = part.engine.n_gradients, part.engine.n_gradients.copy()
        personal = part.rule.personal(part.state)
        for split in splits:
            losses, accuracies = part.rule.evaluate(personal, split)
            columns[f"{split}_loss"] = losses.tolist()
            columns[f"{split}_accuracy"] = accuracies.tolist()
        columns["bytes_sent"] = self.costs.sent[part.rows].tolist()
        columns["bytes_received"] = self.costs.received[part.rows].tolist()
        total = self.costs.n_gradients[part.rows]
        columns["gradient_evaluations"] = (
            total if part.engine is self.engine else total + spent
        ).tolist()
        spent[:] = before
        columns |= {name: value.tolist() for name, value in part.rule.metrics(part.state).items()}
        unsound_p = self.costs.unsound[part.rows].tolist()
        refused = [{"unsound_results": k} if k else {} for k in unsound_p]
        weights = part.rule.weights(part.state)
        for p, peer in enumerate(self.peers[part.rows].tolist()):
            metrics = {k: v[p] if math.isfinite(v[p]) else None for k, v in columns.items()}
            yield Report(t, peer, metrics | refused[p], tuple(weights[p].tolist()))

    def models(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each peer's personal model, as named parameters and buffers."""
        size = len(self.peers) if self.schedule.is_always else _TOGETHER
        for first in range(0, len(self.peers), size):
            part = self._part(np.arange(first, min(first + size, len(self.peers))))
            state = part.rule.personal(part.state)
            named = self.engine.network.named(state.x) | state.buffers
            for p, row in enumerate(part.rows):
                yield int(self.peers[row]), {name: value[p] for name, value in named.items()}

    def _count_bytes(self, account: Ints, peers: Ints, nbytes: int) -> None:
        np.add.at(account, np.searchsorted(self.peers, peers), nbytes)


def no_letters() -> Letters:
    """Nothing came."""
    return Letters(nobody(), nobody(), nobody(), nobody(), {})
