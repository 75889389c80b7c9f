"""Public copies: increments against what every reader already has (letters.scheme).

Each peer i has a public copy xhat_i of its model, the same for all readers and itself. Its letter
is an operator Q of the difference, and xhat_i <- xhat_i + Q(x_i - xhat_i). The first letter, and
the next one after a loss, have the whole copy. Rules read copies only, also instead of the hosted
peers' own models, and the cohort returns to the owner what it has not sent:

    x_i <- x_i + gamma (u_i(xhat) - xhat_i),  u_i = the rule's update, gamma = damping.

For averages this is CHOCO-SGD (Koloskova et al., ICML 2019; ICLR 2020). A rule whose rounds end in
training instead trains its peer's own model with what it has read. On one node, a reader that
has missed letters is charged for the missed increments, or for the whole copy if that is cheaper. A
reader on another node that has missed one asks for a key letter, which has it.

Legend: p = hosted peers, n = all peers, e = letters, s = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import finite, on
from coterie.app.node.cohort.offers import Offers
from coterie.app.wire.increments import MODEL, Copy, IncrementFormat, increment_format
from coterie.app.wire.operators import OPERATORS
from coterie.app.wire.payload import Precision, layout_of
from coterie.clients.engine.engine import Engine
from coterie.clients.letter_options import LetterOptions
from coterie.clients.letters import Bools, Ints
from coterie.errors import Error
from coterie.strategies.protocol import Edges, PeerMessage, has_key_letter

_FOREIGN = "foreign"


class OfferError(Error):
    """Offer without a model that increments could compress."""


@dataclass
class Copies:
    """State of the public copies of hosted peers.

    Attributes
    ----------
    x : Tensor, (P, d)
        Public copies.
    memory : Tensor, (P, m)
        Memory of the operator.
    version : ndarray of int, (P,)
        Number of letters in each copy.
    sent : ndarray of int, (P, n)
        Version of each hosted peer's copy that each peer was sent last; 0: none.
    received : ndarray of int, (P, n)
        Version of each peer's copy that each hosted peer has received last; 0: none.
    asked : ndarray of int, (P,)
        Number of key letters that each peer has sent on request.
    """

    x: Tensor
    memory: Tensor
    version: Ints
    sent: Ints
    received: Ints
    asked: Ints


class PublicCopies:
    """Public copies of the hosted peers, and those of other nodes' peers as far as known.

    Parameters
    ----------
    engine : Engine
        Engine of the hosted peers.
    options : LetterOptions
        Operator and damping.
    precision : Precision
        Precision of letters.

    Attributes
    ----------
    state : Copies
        Copies of hosted peers, saved with their state.
    foreign : dict of int to Copy
        Copies of peers of other nodes, by peer.
    gaps : set of int
        Peers of other nodes whose key letter is missing, since the last response.
    """

    def __init__(self, engine: Engine, options: LetterOptions, precision: Precision) -> None:
        self._engine, self._damping, self._precision = engine, options.damping, precision
        self._operator = OPERATORS[options.operator](engine.network.shapes, options.ratio)
        self._owed: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """Reset to the state before round 1."""
        peers, n, d = len(self._engine.peers), self._engine.n, self._engine.d
        like = self._engine.tensor(np.zeros((1, d)))
        memory_m = self._operator.memory(like.dtype).to(like.device)
        zeros = np.zeros((peers, n), dtype=np.int64)
        self.state = Copies(
            like.repeat(peers, 1), memory_m.repeat(peers, 1), zeros[:, 0].copy(), zeros,
            zeros.copy(), zeros[:, 0].copy(),
        )  # fmt: skip
        self.foreign: dict[int, Copy] = {}
        self.gaps: set[int] = set()
        self._parts: dict[int, dict[str, Tensor]] = {}

    def format(self, stacks: Mapping[str, Tensor]) -> IncrementFormat:
        """Return the format of letters with a row of some offers."""
        layout = layout_of(stacks)
        if layout.get(MODEL, ((), None))[0] != (self._engine.d,):
            raise OfferError(
                'letters.scheme = "increments": the method does not offer the model of each peer '
                'as "x"; set letters.scheme = "full"'
            )
        return increment_format(tuple(layout.items()), self._operator, self._precision)

    def advance(self, rows: Ints, stacks: Mapping[str, Tensor], t: int) -> Mapping[str, Tensor]:
        """Add an increment to the copies of some peers; return their offers with the copies.

        A model that is not finite is returned as it is: it is never sent.

        Parameters
        ----------
        rows : ndarray of int
            Local indices of the peers.
        stacks : Mapping of str to Tensor
            Their offers, with their models.
        t : int
            Round of the offers.
        """
        form, state, x_sd = self.format(stacks), self.state, stacks[MODEL]
        after_sd, sound = form.first.rounded(stacks)[MODEL].clone(), finite(x_sd).tolist()
        for s, p in enumerate(rows.tolist()):
            self._parts.pop(p, None)
            if not sound[s]:
                continue
            if state.version[p] and form.is_shorter:
                before_d = state.x[p]
                parts, memory_m = self._operator.encode(x_sd[s] - before_d, state.memory[p])
                parts = form.rounded(parts)
                added_d = self._operator.decode(parts, x_sd.dtype).to(before_d.device)
                copy_d = before_d + added_d
                if bool(copy_d.isfinite().all()):
                    after_sd[s], state.memory[p] = copy_d, memory_m
                    self._parts[p] = parts
            state.x[p] = after_sd[s]
            state.version[p] += 1
            owed = p in self._parts and int(self._engine.peers[p]) in self._owed
            if owed and has_key_letter(t, int(state.asked[p])):
                state.asked[p] += 1
                del self._parts[p]
        self._owed.clear()
        return {**stacks, MODEL: after_sd}

    def owe(self, peers: Iterable[int]) -> None:
        """Make the next letters of some hosted peers key letters, if there were not too many."""
        self._owed |= set(peers)

    def shown(self, state: Any, rows: Ints, shown: Offers, fresh_s: Bools) -> Any:
        """Return the state of some peers with the copies they offered in place of their models.

        Parameters
        ----------
        rows : ndarray of int
            Local indices of the peers.
        shown : Offers
            Offers of hosted peers.
        fresh_s : ndarray of bool, (S,)
            Offers of this round, of honest peers.
        """
        _, at, offers = np.intersect1d(rows, shown.rows[fresh_s], return_indices=True)
        if not len(at):
            return state
        x_pd, device = state.x.clone(), state.x.device
        x_pd[on(at, device)] = shown.stacks[MODEL][on(np.flatnonzero(fresh_s)[offers], device)]
        return replace(state, x=x_pd)

    def kept(self, own: Any, public: Any, after: Any, *, damped: bool) -> Any:
        """Return the state after a transition with what was not sent: own - public.

        Parameters
        ----------
        own, public : State
            State before the transition, with the peers' models and with their copies.
        after : State
            State after the transition, which started at `public`.
        damped : bool
            The transition is an average: damp it.
        """
        x_pd, rest_pd = after.x, own.x - public.x
        if damped and self._damping < 1:
            x_pd = public.x.lerp(x_pd, self._damping)
        return replace(after, x=torch.where(rest_pd == 0, x_pd, x_pd + rest_pd))

    def letters(self, offers: Offers, peers: Ints, since: int) -> Iterator[PeerMessage]:
        """Yield offers as increments, or as key letters for lack of them; see `offer_letters`."""
        form = self.format(offers.stacks)
        for row, (p, t) in enumerate(zip(offers.rows.tolist(), offers.written, strict=True)):
            if t >= since:
                parts = self._parts.get(p)
                payload = form.encode(offers.stacks, row, int(self.state.version[p]), parts)
                used = form.increment if parts else form.whole(int(self.state.version[p]))
                yield PeerMessage("offer", int(peers[p]), None, int(t), used.nbytes, payload)

    def reader(self, stacks: Mapping[str, Tensor]) -> Reader:
        """Return the reader of letters from other nodes."""
        return Reader(self, self.format(stacks))

    def sending(self, edges: Edges, form: IncrementFormat) -> Ints:
        """Return the cost (E,) of letters of hosted peers, and note their versions."""
        rows, to = np.searchsorted(self._engine.peers, edges[:, 0]), edges[:, 1]
        return _charged(self.state.sent, rows, to, self.state.version[rows], form)

    def receiving(self, edges: Edges, form: IncrementFormat) -> Ints:
        """Return the cost (E,) of letters to hosted peers, and note their versions."""
        peers, senders = self._engine.peers, edges[:, 0]
        versions = np.zeros(self._engine.n, dtype=np.int64)
        versions[peers] = self.state.version
        for peer, copy in self.foreign.items():
            versions[peer] = copy.version
        rows = np.searchsorted(peers, edges[:, 1])
        return _charged(self.state.received, rows, senders, versions[senders], form)

    def packed(self) -> dict[str, Tensor]:
        """Return the copies of other nodes' peers as tensors by dotted name."""
        return {f"{_FOREIGN}.{peer}.{copy.version}": copy.x for peer, copy in self.foreign.items()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the copies of `packed`; increments of hosted peers are not kept."""
        ends = {name: name.split(".")[1:] for name in tensors}
        self.foreign = {
            int(peer): Copy(int(version), tensors[name]) for name, (peer, version) in ends.items()
        }
        self._parts, self.gaps = {}, set()


@dataclass(frozen=True)
class Reader:
    """Decoder of offers from other nodes, which updates the copies of their authors."""

    copies: PublicCopies
    form: IncrementFormat

    @property
    def max_bytes(self) -> int:
        """Maximum size of a payload."""
        return self.form.max_bytes

    def decode(self, payload: bytes, sender: int) -> Mapping[str, Tensor]:
        """Decode an offer; note a gap if a key letter is needed.

        Raises
        ------
        PayloadError
            It is not valid, or not an increment to the copy on this node.
        """
        none = Copy(0, torch.zeros(0))
        before = self.copies.foreign.get(sender, none)
        try:
            tensors, after = self.form.decode(payload, before, sender)
        except Exception:
            self.copies.gaps.add(sender)
            raise
        self.copies.foreign[sender] = after
        return tensors


def _charged(
    known_pn: Ints, rows: Ints, columns: Ints, version_e: Ints, form: IncrementFormat
) -> Ints:
    """Return the cost of letters (E,) given the versions that readers have; note the new ones."""
    pairs_e2 = np.stack([version_e, known_pn[rows, columns]], axis=1)
    known_pn[rows, columns] = version_e
    return np.array([form.nbytes(*pair) for pair in pairs_e2.tolist()], dtype=np.int64)
