"""The peers of one node and one round of theirs: receive, answer, update, evaluate, offer.

Letters between peers of the node and letters from other nodes become one stack, so a rule never
knows who hosts whom. Legend: p = peers of this node, e = letters, s = rows of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.node.arrays import restored, unsound
from app.node.attackers import Attackers
from app.node.letter_checks import only_sound, oversized
from app.wire.payload import Foreign, LetterFormat, Precision, format_of, layout_of
from clients.engine.data import SplitName
from clients.engine.engine import Engine, Scores
from clients.engine.privacy import ANSWER, OFFER, UPDATE
from clients.letters import Bools, Ints, Letters
from clients.measures import MEASURES
from clients.rule import Rule
from strategies.brokering import Round
from strategies.protocol import Edges, Kind, PeerMessage, Report

Mail = Callable[[Kind, LetterFormat], Foreign]
"""Reads the letters of one kind that came from other nodes, each of that format."""


def no_mail(kind: Kind, form: LetterFormat) -> Foreign:
    """Nothing comes from other nodes: every peer is here."""
    return {}


@dataclass
class Costs:
    """What each hosted peer has spent so far, (P,) each.

    Attributes
    ----------
    sent, received : payload bytes, wherever the other peer is hosted.
    n_gradients : examples differentiated; the engine counts them.
    unsound : results that were not finite, in whose place the old model stayed.
    refused : models received that were far too large.
    spent : (P, A) privacy; the engine counts it.
    """

    sent: Ints
    received: Ints
    n_gradients: Ints
    unsound: Ints
    refused: Ints
    spent: npt.NDArray[np.float64]


class Cohort:
    """All peers of a node under one rule.

    Attributes
    ----------
    state : what the rule keeps.
    offers : name -> (P, ...), what the peers show in the round that has begun.
    received, sent : models received and answers given in this round.
    answered : whether this round's offers were received, and those that ask for it answered.
    costs : what each peer has spent.
    curves : peer -> what can be drawn of its last evaluation.
    """

    def __init__(
        self,
        engine: Engine,
        rule: Rule[Any],
        rounds: int,
        precision: Precision = "full",
        attackers: Attackers | None = None,
    ) -> None:
        self.engine, self.rule, self.rounds = engine, rule, rounds
        self.precision: Precision = precision
        self._attackers = attackers
        self.peers = engine.peers
        self._hosted = np.zeros(engine.n, dtype=np.bool_)
        self._hosted[self.peers] = True
        self.curves: dict[int, dict[str, Any]] = {}
        self.restart()

    def restart(self) -> None:
        """Forget everything and stand before round 1."""
        self.state = self.rule.init()
        self.offers: Mapping[str, Tensor] = {}
        self.received = self.sent = no_letters()
        self.answered = False
        self._looked_at: tuple[Mapping[str, Tensor], Mapping[str, Tensor], Bools] | None = None
        none = np.zeros_like(self.peers)
        self.engine.n_gradients[:] = 0
        self.engine.spent[:] = 0
        self.costs = Costs(
            none, none.copy(), self.engine.n_gradients, none.copy(), none.copy(), self.engine.spent
        )

    def begin(self, t: int) -> None:
        """Make the offers of round `t`, unless the run is over."""
        self.offers, self.answered = {}, False
        if t <= self.rounds:
            self.engine.enter(t, OFFER)
            state, offers = self.rule.offer(self.state, t)
            self._take(state)
            if self._attackers is not None:
                offers = self._attackers.offers(t, offers, self.received)
            self.offers = format_of(layout_of(offers), self.precision).rounded(offers)

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
        self.receive(this.edges, mail("offer", self.offer_format()))
        self.answer(this.t, this.edges[this.asked])
        self.answered = True

    def receive(self, edges: Edges, foreign: Foreign) -> None:
        """Put the round's offers together; an edge whose letter is missing is left out."""
        authors = np.array(sorted({*self.peers.tolist(), *(k for k, _ in foreign)}), dtype=np.int64)
        offers, sound = self._sound_offers()  # one that is not is refused, here as elsewhere
        stack = dict(offers)
        if foreign:
            rows = torch.from_numpy(np.searchsorted(authors, self.peers))
            for name, own in offers.items():
                stack[name] = own.new_empty((len(authors), *own.shape[1:]))
                stack[name][rows.to(own.device)] = own
                for (k, _), tensors in foreign.items():
                    stack[name][int(np.searchsorted(authors, k))] = tensors[name].to(own.device)
        nbytes = self.offer_format().nbytes
        self._count_bytes(self.costs.sent, edges[self._hosted[edges[:, 0]], 0], nbytes)
        wrote = np.zeros_like(self._hosted)
        wrote[authors] = True
        wrote[self.peers[~sound]] = False
        came = edges[self._hosted[edges[:, 1]] & wrote[edges[:, 0]]]
        self._count_bytes(self.costs.received, came[:, 1], nbytes)
        rows_e = np.searchsorted(authors, came[:, 0])
        self.received = Letters(came[:, 0], came[:, 1], rows_e, authors, stack)
        if self.engine.defence.norm:
            kept = ~oversized(self.received, self.peers)
            np.add.at(self.costs.refused, np.searchsorted(self.peers, came[~kept, 1]), 1)
            self.received = self.received.select(kept)
        self.sent = no_letters()

    def answer(self, t: int, asked: Edges) -> None:
        """Answer those of the received offers whose edge is asked."""
        wanted = np.zeros((self.engine.n, self.engine.n), dtype=np.bool_)
        wanted[asked[:, 0], asked[:, 1]] = True
        letters = self.received.select(wanted[self.received.senders, self.received.recipients])
        if not len(letters):
            return
        self.engine.enter(t, ANSWER)
        self.state, tensors = self.rule.answer(self.state, t, letters)
        if self.engine.guard is not None and self.engine.guard.exhausted.any():
            paid = ~self.engine.guard.exhausted[np.searchsorted(self.peers, letters.recipients)]
            letters = letters.select(paid)
            tensors = {name: value[torch.from_numpy(paid)] for name, value in tensors.items()}
        if self._attackers is not None:
            tensors = self._attackers.answers(t, letters, tensors)
        form, rows = self.answer_format(t), np.arange(len(letters))
        answerers, owners = letters.recipients, letters.senders
        self.sent = Letters(answerers, owners, rows, answerers, form.rounded(tensors))
        self._count_bytes(self.costs.sent, answerers, form.nbytes)

    def update(self, t: int, foreign: Foreign) -> None:
        """End round `t` with the answers of this node's peers and those from other nodes."""
        given, sound = only_sound(self.sent.tensors)
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
        offered = np.broadcast_to(self._sound_offers()[1], self.peers.shape)
        self.engine.enter(t, UPDATE)
        state = self.rule.update(self.state, t, self.received, sent, answers)
        self._take(state, torch.from_numpy(~offered))

    def _sound_offers(self) -> tuple[Mapping[str, Tensor], Bools]:
        """See `letter_checks.only_sound`; looked at once for the offers of a round."""
        if self._looked_at is None or self._looked_at[0] is not self.offers:
            self._looked_at = self.offers, *only_sound(self.offers)
        return self._looked_at[1:]

    def _take(self, state: Any, bad_p: Tensor | None = None) -> None:
        """Let a state be the next one, but for the peers whose result no model can be made of.

        Parameters
        ----------
        bad_p : (P,) whose result counts as such whatever it is.
        """
        found_p = unsound(state)
        bad_p = found_p if bad_p is None else bad_p | found_p
        if bad_p.any():
            self.costs.unsound[bad_p.numpy()] += 1
            state = restored(self.state, state, bad_p)
        self.state = state

    def wants(self, t: int) -> Edges:
        """(W, 2) the edges that the peers want in round `t`."""
        return self.rule.wants(self.state, t)

    def offer_format(self) -> LetterFormat:
        """The format of this round's offers."""
        return format_of(layout_of(self.offers), self.precision)

    def answer_format(self, t: int) -> LetterFormat:
        """The format of the answers of round `t`."""
        shapes = self.rule.answer_shapes(t)
        return format_of({k: (s, self.engine.dtype) for k, s in shapes.items()}, self.precision)

    def offer_letters(self, t: int) -> Iterator[PeerMessage]:
        """The offers of round `t`, one letter for each peer."""
        form = self.offer_format()
        for row, k in enumerate(self.peers.tolist()):
            yield PeerMessage("offer", k, None, t, form.nbytes, form.encode(self.offers, row))

    def answer_letters(self, t: int) -> Iterator[PeerMessage]:
        """The answers of round `t` that go to peers of other nodes."""
        form, sent = self.answer_format(t), self.sent
        for row in np.flatnonzero(~self._hosted[sent.recipients]).tolist():
            k, i = int(sent.senders[row]), int(sent.recipients[row])
            yield PeerMessage("answer", k, i, t, form.nbytes, form.encode(sent.tensors, row))

    def evaluate(self, t: int) -> tuple[Report, ...]:
        """Measure every personal model on its peer's own data.

        The costs reported are those of a run that ends here: making the personal models is among
        them but is not carried over, so they do not depend on how often one measures.
        """
        splits: tuple[SplitName, ...] = ("test", "validation", "train")
        columns: dict[str, list[Any]] = {}
        n_gradients = self.costs.n_gradients.copy()
        personal = self.rule.personal(self.state)
        measured: dict[int, dict[str, float]] = {}
        for split in splits:
            if split == "test" and t == self.rounds:
                (losses, accuracies), measured = self._measured(personal)
            else:
                losses, accuracies = self.rule.evaluate(personal, split)
            columns[f"{split}_loss"] = losses.tolist()
            columns[f"{split}_accuracy"] = accuracies.tolist()
        columns["bytes_sent"] = self.costs.sent.tolist()
        columns["bytes_received"] = self.costs.received.tolist()
        columns["gradient_evaluations"] = self.costs.n_gradients.tolist()
        self.costs.n_gradients[:] = n_gradients
        if self.engine.guard is not None:
            columns["epsilon"] = self.engine.guard.epsilon().tolist()
        columns |= {name: value.tolist() for name, value in self.rule.metrics(self.state).items()}
        counts = {"unsound_results": self.costs.unsound, "refused_models": self.costs.refused}
        marks = [{k: int(v[p]) for k, v in counts.items() if v[p]} for p in range(len(self.peers))]
        if self._attackers is not None:
            for p in np.flatnonzero(self._attackers.hosted):
                marks[p]["attacker"] = 1
        weights = self.rule.weights(self.state)
        return tuple(
            Report(
                t,
                int(peer),
                {k: v[p] if math.isfinite(v[p]) else None for k, v in columns.items()}
                | marks[p]
                | {k: v if math.isfinite(v) else None for k, v in measured.get(p, {}).items()},
                tuple(weights[p].tolist()),
            )
            for p, peer in enumerate(self.peers)
        )

    def _measured(self, personal: Any) -> tuple[Scores, dict[int, dict[str, float]]]:
        """The scores on test data, and by row the measures that the last report has beside."""
        engine = self.engine
        if engine.kind not in MEASURES:
            return self.rule.evaluate(personal, "test"), {}
        scores, predicted = engine.recorded(lambda: self.rule.evaluate(personal, "test"))
        measured, (measure, curves) = {}, MEASURES[engine.kind]
        shard = engine.data.shards["test"]
        for p, count in enumerate(shard.lengths_p.tolist()):
            if predicted is not None and count and scores.losses[p].isfinite():
                own = predicted[p, :count].numpy(), shard.targets_pn[p, :count].cpu().numpy()
                measured[p] = measure(*own)
                self.curves[int(self.peers[p])] = curves(*own)
        return scores, measured

    def models(self) -> dict[int, dict[str, Tensor]]:
        """Each peer's personal model, as named tensors, with what else its prediction needs."""
        state = self.rule.personal(self.state)
        named = self.engine.network.named(state.x) | state.buffers
        beside = self.rule.saved(state)
        return {
            int(peer): {name: value[p] for name, value in named.items()} | dict(beside[p])
            for p, peer in enumerate(self.peers)
        }

    @property
    def predicts_as_saved(self) -> bool:
        """Whether the files of `models` say all of how the rule's predictions are made."""
        rule = type(self.rule)
        return rule.evaluate is Rule.evaluate or rule.saved is not Rule.saved

    def _count_bytes(self, account: Ints, peers: Ints, nbytes: int) -> None:
        np.add.at(account, np.searchsorted(self.peers, peers), nbytes)


def no_letters() -> Letters:
    """Nothing came."""
    none: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    return Letters(none, none, none, none, {})
