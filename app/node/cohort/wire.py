"""Wire: the last filter of a cohort. It fixes the format, the cost and the messages of letters.

`Wire` sends whole letters in the precision of the run. `Increments` sends offers as increments
against what every reader has (letters.scheme): each peer i has a public copy xhat_i of its model,
the same for all readers and itself. Its letter is an operator Q of the difference, and
xhat_i <- xhat_i + Q(x_i - xhat_i). The first letter, and the next one after a loss, have the whole
copy. A rule computes with copies only, and its owner gets back what it has not sent:

    x_i <- x_i + gamma (u_i(xhat) - xhat_i),  u_i = the rule's update, gamma = damping.

For averages this is CHOCO-SGD (Koloskova et al., ICML 2019; ICLR 2020). A rule whose rounds end in
training trains its peer's own model instead. On one node a reader that has missed letters is
charged for the missed increments, or for the whole copy if that is cheaper; a reader on another
node asks for a keyframe, which has it. Legend: p = hosted peers, n = all peers, e = letters,
s = rows of a stack, d = parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort import mail
from coterie.app.node.cohort.arrays import finite, flatten, on, unflatten
from coterie.app.node.cohort.filters import Answer, LetterFilter, Tensors, Update
from coterie.app.node.cohort.members import Part
from coterie.app.wire.increments import MODEL, Copy, IncrementFormat, increment_format
from coterie.app.wire.operators import OPERATORS
from coterie.app.wire.payload import LetterFormat, Precision, Readable, format_of, layout_of
from coterie.clients.engine.engine import Engine
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Ints, LetterOptions, Letters
from coterie.errors import Error
from coterie.strategies.protocol import Edges, PeerMessage, has_keyframe


class Wire(LetterFilter):
    """Whole letters in the precision of the run."""

    def __init__(self, precision: Precision = "full") -> None:
        self.precision: Precision = precision

    def send(self, letters: Letters, t: int) -> Letters:
        return self.rounded(letters)

    def rounded(self, letters: Letters) -> Letters:
        """Return letters as their readers see them."""
        return replace(letters, tensors=self.whole(letters).rounded(letters.tensors))

    def whole(self, letters: Letters) -> LetterFormat:
        """Return the format of a letter with a row of a stack."""
        return format_of(layout_of(letters.tensors), self.precision)

    def reader(self, offers: Letters) -> Readable:
        """Return the format in which offers from other nodes are read."""
        return self.whole(offers)

    def messages(self, offers: Letters, first: int) -> Iterator[PeerMessage]:
        """Yield the offers of rounds from `first` on."""
        form = self.whole(offers)
        for row, (k, t) in enumerate(zip(offers.authors.tolist(), offers.written, strict=True)):
            if t >= first:
                payload = form.encode(offers.tensors, row)
                yield PeerMessage("offer", k, None, int(t), form.nbytes, payload)

    def cost(self, offers: Letters, edges: Edges, *, sent: bool) -> Ints:
        """Return the bytes (E,) of offers along edges from hosted peers if `sent`, else to them."""
        return np.full(len(edges), self.whole(offers).nbytes)

    def request_keyframes(self, peers: Iterable[int]) -> None:
        """Make the next offers of some hosted peers readable alone, if they were not too many."""

    def missing_from(self) -> tuple[int, ...]:
        """Return the peers of other nodes whose whole model this node needs, once each."""
        return ()

    def foreign_copies(self) -> dict[str, Tensor] | None:
        """Return what this node must remember of other nodes' letters; None if nothing."""
        return None

    def remember(self, tensors: Tensors) -> None:
        """Continue from the tensors of `foreign_copies`."""


class OfferError(Error):
    """Offer without a model that increments could compress."""


@dataclass
class Copies:
    """State of the public copies of hosted peers."""

    x: Tensor  # (P, d)
    memory: Tensor  # (P, m), of the operator
    version: Ints  # (P,), number of letters in each copy
    sent: Ints  # (P, n), version of each hosted peer's copy that each peer was sent last; 0: none
    received: Ints  # (P, n), version of each peer's copy that each hosted peer received last
    asked: Ints  # (P,), number of keyframes that each peer has sent on request


class Increments(Wire):
    """Offers as increments; `forging` are the peers whose offers are not of their own models."""

    def __init__(
        self, engine: Engine, options: LetterOptions, precision: Precision, forging: Ints
    ) -> None:
        super().__init__(precision)
        self._engine, self._damping, self._forging = engine, options.damping, forging
        self._operator = OPERATORS[options.operator](engine.network.shapes, options.ratio)
        self._wanted: set[int] = set()
        self.restart()

    # --- public copies and the rule

    def answer(self, compute: Answer, part: Part, letters: Letters) -> tuple[Any, Tensors]:
        public = self._public(part)
        after, tensors = compute(public, letters)
        return self._with_unsent(part.state, public.state, after), tensors

    def update(self, compute: Update, part: Part, inbox: Inbox) -> Any:
        """Average from the peers' copies, damped, or train from their own models."""
        if not part.averages:
            return compute(part, inbox)
        public = self._public(part)
        after = compute(public, inbox)
        if self._damping < 1:
            after = replace(after, x=public.state.x.lerp(after.x, self._damping))
        return self._with_unsent(part.state, public.state, after)

    def _public(self, part: Part) -> Part:
        """Return a part with the copies in place of the models that its peers offer honestly."""
        at = np.flatnonzero(part.fresh & ~np.isin(part.engine.peers, self._forging))
        if not len(at):
            return part
        x_pd, device = part.state.x.clone(), part.state.x.device
        x_pd[on(at, device)] = self.state.x[on(part.rows[at], device)]
        return part._replace(state=replace(part.state, x=x_pd))

    def _with_unsent(self, own: Any, public: Any, after: Any) -> Any:
        """Return the state after a transition with what was not sent: own - public."""
        rest_pd = own.x - public.x
        return replace(after, x=torch.where(rest_pd == 0, after.x, after.x + rest_pd))

    # --- offers

    def send(self, letters: Letters, t: int) -> Letters:
        """Add an increment to the copies of the offers' authors; the offers become the copies."""
        return self.rounded(letters if letters.kind == "answer" else self._advanced(letters, t))

    def _advanced(self, offers: Letters, t: int) -> Letters:
        """Return offers with the next copies; non-finite models stay, as nobody reads them."""
        form, state, x_sd = self._form(offers), self.state, offers[MODEL]
        after_sd, sound = form.first.rounded(offers.tensors)[MODEL].clone(), finite(x_sd).tolist()
        for s, p in enumerate(np.searchsorted(self._engine.peers, offers.authors).tolist()):
            self._parts.pop(p, None)
            if not sound[s]:
                continue
            if state.version[p] and form.is_shorter:
                before_d = state.x[p]
                parts, memory_m = self._operator.encode(x_sd[s] - before_d, state.memory[p])
                parts = form.rounded(parts)
                copy_d = before_d + self._operator.decode(parts, x_sd.dtype).to(before_d.device)
                if bool(copy_d.isfinite().all()):
                    after_sd[s], state.memory[p] = copy_d, memory_m
                    self._parts[p] = parts
            state.x[p] = after_sd[s]
            state.version[p] += 1
            is_wanted = p in self._parts and int(self._engine.peers[p]) in self._wanted
            if is_wanted and has_keyframe(t, int(state.asked[p])):
                state.asked[p] += 1
                del self._parts[p]
        self._wanted.clear()
        return replace(offers, tensors={**offers.tensors, MODEL: after_sd})

    def whole(self, letters: Letters) -> LetterFormat:
        if letters.kind == "answer" or not letters.tensors:
            return super().whole(letters)
        return self._form(letters).key

    def _form(self, offers: Letters) -> IncrementFormat:
        layout = layout_of(offers.tensors)
        if layout.get(MODEL, ((), None))[0] != (self._engine.d,):
            raise OfferError(
                'letters.scheme = "increments": the method does not offer the model of each peer '
                'as "x"; set letters.scheme = "full"'
            )
        return increment_format(tuple(layout.items()), self._operator, self.precision)

    def reader(self, offers: Letters) -> Readable:
        if not offers.tensors:
            return super().reader(offers)
        return Reader(self, self._form(offers))

    def messages(self, offers: Letters, first: int) -> Iterator[PeerMessage]:
        if not offers.tensors:
            return
        form = self._form(offers)
        rows = np.searchsorted(self._engine.peers, offers.authors).tolist()
        for row, (p, t) in enumerate(zip(rows, offers.written.tolist(), strict=True)):
            if t < first:
                continue
            version, parts = int(self.state.version[p]), self._parts.get(p)
            payload = form.encode(offers.tensors, row, version, parts)
            used = form.increment if parts else form.whole(version)
            yield PeerMessage("offer", int(offers.authors[row]), None, t, used.nbytes, payload)

    def cost(self, offers: Letters, edges: Edges, *, sent: bool) -> Ints:
        """Return the bytes (E,) of the increments that each reader lacks, and note its version."""
        if not offers.tensors:
            return super().cost(offers, edges, sent=sent)
        form, peers, state = self._form(offers), self._engine.peers, self.state
        versions_n = np.zeros(self._engine.n, dtype=np.int64)
        versions_n[peers] = state.version
        for peer, copy in self.foreign.items():
            versions_n[peer] = copy.version
        senders, recipients = edges.T
        known_pn, own, other = (
            (state.sent, senders, recipients) if sent else (state.received, recipients, senders)
        )
        at = np.searchsorted(peers, own), other
        pairs_e2 = np.stack([versions_n[senders], known_pn[at]], axis=1)
        known_pn[at] = versions_n[senders]
        return np.array([form.nbytes(*pair) for pair in pairs_e2.tolist()], dtype=np.int64)

    def request_keyframes(self, peers: Iterable[int]) -> None:
        self._wanted |= set(peers)

    def missing_from(self) -> tuple[int, ...]:
        missing = tuple(sorted(self.missing))
        self.missing.clear()
        return missing

    # --- what lasts

    def restart(self) -> None:
        peers, n = len(self._engine.peers), self._engine.n
        like = self._engine.tensor(np.zeros((1, self._engine.d)))
        memory_m = self._operator.memory(like.dtype).to(like.device)
        zeros = np.zeros((peers, n), dtype=np.int64)
        self.state = Copies(
            like.repeat(peers, 1), memory_m.repeat(peers, 1), zeros[:, 0].copy(), zeros,
            zeros.copy(), zeros[:, 0].copy(),
        )  # fmt: skip
        self.foreign: dict[int, Copy] = {}
        self.missing: set[int] = set()
        self._parts: dict[int, dict[str, Tensor]] = {}

    def saved(self) -> dict[str, Tensor]:
        return {f"copies.{name}": value for name, value in flatten(self.state).items()}

    def restore(self, tensors: Tensors) -> None:
        self.state = unflatten(self.state, mail.below("copies", tensors))

    def foreign_copies(self) -> dict[str, Tensor] | None:
        return {f"foreign.{peer}.{copy.version}": copy.x for peer, copy in self.foreign.items()}

    def remember(self, tensors: Tensors) -> None:
        """Continue from foreign copies; increments that were not sent yet are not kept."""
        ends = {name: name.split(".")[1:] for name in tensors}
        self.foreign = {
            int(peer): Copy(int(version), tensors[name]) for name, (peer, version) in ends.items()
        }
        self._parts, self.missing = {}, set()


@dataclass(frozen=True)
class Reader:
    """Decoder of offers from other nodes, which updates the copies of their authors."""

    wire: Increments
    form: IncrementFormat

    @property
    def max_bytes(self) -> int:
        return self.form.max_bytes

    def decode(self, payload: bytes, sender: int) -> Mapping[str, Tensor]:
        """Decode an offer; note that a keyframe is needed where it does not fit the copy."""
        before = self.wire.foreign.get(sender, Copy(0, torch.zeros(0)))
        try:
            tensors, after = self.form.decode(payload, before, sender)
        except Exception:  # of any kind: a decoder's fault is the letter's
            self.wire.missing.add(sender)
            raise
        self.wire.foreign[sender] = after
        return tensors
