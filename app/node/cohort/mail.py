"""Mail of a cohort: its letters as stacks, and as arrays on disk.

A letter has four shapes between two peers: named tensors of a rule or of a decoded payload
(`RemoteLetters`), a row of a stack (`Letters`), a `PeerMessage`, and the record of a transport. The
cohort and its wire write messages. An offer is a letter whose edges are not known yet.
Legend: s = rows of a stack, e = letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import finite, on
from coterie.app.wire.payload import LetterFormat, Readable, RemoteLetters
from coterie.clients.letters import Bools, Ints, Letters, no_letters
from coterie.strategies.protocol import Edges, Kind

Mail = Callable[[Kind, Readable], RemoteLetters]
"""Reads the letters of one kind from other nodes, in a given format."""
NEVER_SENT = -1
"""Stands for the round of a model that its peer has not sent to any other peer."""

_ON_DISK = ("senders", "recipients", "rows", "authors", "ages", "expired")


def no_mail(kind: Kind, form: Readable) -> RemoteLetters:
    """Return no letters: every peer is on this node."""
    return {}


# --- the offers of hosted peers: a row per author, no edges ------------------------------------


def offers_of(authors: Ints, tensors: Mapping[str, Tensor], written: Ints) -> Letters:
    """Return offers: a row (S, ...) of each author, ascending, and its round (S,)."""
    return replace(no_letters(), authors=authors, tensors=tensors, written=written)


def only(offers: Letters, kept: Bools) -> Letters:
    """Return the offers marked in `kept`, (S,); no copy of all or of none."""
    if kept.all():
        return offers
    if not kept.any():
        return no_letters()
    rows = np.flatnonzero(kept)
    tensors = {name: value[on(rows, value.device)] for name, value in offers.tensors.items()}
    return offers_of(offers.authors[kept], tensors, offers.written[kept])


def together(several: Sequence[Letters]) -> Letters:
    """Concatenate offers of different authors; no copy if only one has offers."""
    there = [offers for offers in several if len(offers.authors)]
    if len(there) < 2:
        return there[0] if there else no_letters()
    authors = np.concatenate([offers.authors for offers in there])
    order = np.argsort(authors, kind="stable")
    places, tensors = np.argsort(order), dict[str, Tensor]()
    for offers in there:  # copied once, into place: with many peers a second copy is expensive
        rows, places = np.split(places, [len(offers.authors)])
        for name, value in offers.tensors.items():
            shape = len(authors), *value.shape[1:]
            stack = tensors.setdefault(name, value.new_empty(shape))
            stack[on(rows, value.device)] = value
    written = np.concatenate([offers.written for offers in there])
    return offers_of(authors[order], tensors, written[order])


def zeroed(letters: Letters) -> tuple[Letters, Bools]:
    """Return letters with zeros in rows that are not finite, and a mask (S,) of the finite rows."""
    sound: Bools = np.ones(len(letters.authors), dtype=np.bool_)
    for value in letters.tensors.values():
        if value.is_floating_point() and value.numel():
            sound = sound & finite(value).numpy()
    if sound.all():
        return letters, sound
    tensors = {name: value.clone() for name, value in letters.tensors.items()}
    for value in tensors.values():
        value[on(np.flatnonzero(~sound), value.device)] = 0
    return replace(letters, tensors=tensors), sound


# --- stacks of the letters from here and from other nodes --------------------------------------


def delivered(
    own: Letters,
    sound: Bools,
    foreign: RemoteLetters,
    edges: Edges,
    t: int,
    ages: Mapping[int, int],
) -> Letters:
    """Return the offers that arrive along `edges` (E, 2); edges without a letter are dropped."""
    # `sound` (S,) marks the finite ones of `own`, the visible offers. `foreign` is emptied; `ages`
    # has the ages of its letters from earlier rounds.
    authors = np.array(sorted({*own.authors.tolist(), *(k for k, _ in foreign)}), dtype=np.int64)
    arrives = ~np.isin(authors, own.authors[~sound])
    stack, rows = dict(own.tensors), np.searchsorted(authors, own.authors)
    ages_s = np.array([ages.get(k, 0) for k in authors.tolist()], dtype=np.int64)
    ages_s[rows] = t - own.written
    if foreign:
        for name, value in own.tensors.items():
            stack[name] = value.new_empty((len(authors), *value.shape[1:]))
        for k, recipient in list(foreign):
            tensors = foreign.pop((k, recipient))  # its memory is free once it is copied
            row = int(np.searchsorted(authors, k))
            for name, value in stack.items():
                value[row] = tensors[name].to(value.device)
        for name, value in own.tensors.items():
            stack[name][on(rows, value.device)] = value
    edges = edges[np.isin(edges[:, 0], authors[arrives])]
    rows_e = np.searchsorted(authors, edges[:, 0])
    expired = own.authors[own.written == NEVER_SENT]
    return Letters(edges[:, 0], edges[:, 1], rows_e, authors, stack, ages_s, expired)


def returned(
    sent: Letters, here: Bools, foreign: RemoteLetters, form: LetterFormat, device: torch.device
) -> Letters:
    """Return the answers to hosted peers: those `here` (E,) of `sent`, and those of other nodes."""
    inside = np.flatnonzero(here)
    # If every answer stays on the node, the stack itself is used instead of a copy.
    rows = inside if len(inside) < len(sent) else slice(None)
    own = np.stack([sent.senders[inside], sent.recipients[inside]], axis=1)
    ends = np.concatenate([own, np.array(list(foreign), dtype=np.int64).reshape(-1, 2)])
    if not len(ends):
        return no_letters("answer")
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    stack: dict[str, Tensor] = {}
    for name in form.layout:
        parts = [sent[name][rows]] if len(inside) else []
        parts += [tensors[name].to(device)[None] for tensors in foreign.values()]
        stack[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    senders, recipients = ends[order].T
    return Letters(senders, recipients, order, ends[:, 0], stack, kind="answer")


def senders_to(peers: Ints, letters: Letters) -> dict[int, Ints]:
    """Return the senders that each peer has a letter from, and itself, ascending."""
    here, itself = np.isin(letters.recipients, peers), np.stack([peers, peers], axis=1)
    ends = np.concatenate([letters.ends[here][:, ::-1], itself])
    recipients, senders = np.unique(ends, axis=0).T
    first = np.searchsorted(recipients, peers)
    return dict(zip(peers.tolist(), np.split(senders, first[1:]), strict=len(peers) > 0))


# --- arrays on disk ----------------------------------------------------------------------------


class Piece(NamedTuple):
    """Rows of a snapshot, and the local indices in the cohort of the peers that they belong to."""

    own: Ints
    rows: Ints
    tensors: Mapping[str, Tensor]


def packed(name: str, letters: Letters) -> dict[str, Tensor]:
    """Return letters of a round under way as tensors by dotted name."""
    arrays = {k: np.ascontiguousarray(getattr(letters, k)) for k in _ON_DISK}
    tensors = {f"tensors.{k}": value for k, value in letters.tensors.items()}
    both = {k: torch.from_numpy(v) for k, v in arrays.items()} | tensors
    return {f"{name}.{k}": value for k, value in both.items()}


def unpacked(
    name: str,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    kind: Literal["offer", "answer"] = "offer",
) -> Letters:
    """Return the letters from the tensors of `packed`."""
    arrays = {k: tensors[f"{name}.{k}"].numpy() for k in _ON_DISK}
    stack = {k: value.to(device) for k, value in below(f"{name}.tensors", tensors).items()}
    return Letters(**arrays, tensors=stack, kind=kind)


def packed_offers(name: str, offers: Letters, authors: Ints) -> dict[str, Tensor]:
    """Return the offers of some authors as tensors, with their rounds; empty without offers."""
    offers = only(offers, np.isin(offers.authors, authors))
    if not len(offers.authors):
        return {}
    return {
        **{f"{name}.{k}": value for k, value in offers.tensors.items()},
        f"{name} of": torch.from_numpy(offers.written),
        f"{name} by": torch.from_numpy(offers.authors),
    }


def unpacked_offers(
    name: str, pieces: Iterable[Piece], peers: Ints, device: torch.device
) -> Letters:
    """Return the offers of hosted peers in the parts of snapshots that are theirs."""
    several = []
    for own, _, tensors in pieces:
        if f"{name} of" not in tensors:
            continue
        by, written = tensors[f"{name} by"].numpy(), tensors[f"{name} of"].numpy()
        kept = only(offers_of(by, below(name, tensors), written), np.isin(by, peers[own]))
        on_device = {k: value.to(device) for k, value in kept.tensors.items()}
        several.append(replace(kept, tensors=on_device))
    return together(several)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose dotted names begin with a prefix, by the rest of their names."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def is_offer(name: str) -> bool:
    """Return whether a tensor of a snapshot has a row per offer instead of a row per peer."""
    return name.startswith(("offer", "coming"))


def kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape of a row, and type, of all tensors of a snapshot but the offers."""
    rest = {name: value for name, value in tensors.items() if not is_offer(name)}
    return {name: (value.shape[1:], value.dtype) for name, value in rest.items()}
