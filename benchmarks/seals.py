"""Cost of sealing a letter: one encryption, a key per recipient, opening."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.path import milliseconds
from coterie.app.institution.security.keys import PrivateKeys, PublicKeys
from coterie.app.institution.security.seal import KEY, TAG, Scope, digest_of, seal, unseal
from coterie.strategies.protocol import PeerMessage

SIZES = (1_000, 250_000, 1_000_000, 40_000_000)
RECIPIENTS = (1, 10, 50)
_LETTER = 250_000  # bytes of a letter to several


@dataclass(frozen=True)
class Seal:
    """Milliseconds to seal for all recipients and to open for one; bytes that sealing adds."""

    megabytes: float
    recipients: int
    seal_ms: float
    open_ms: float
    added: int


def rows() -> Iterator[Seal]:
    """Measure letters of all sizes to one recipient, and one size to several."""
    sender, readers = (
        PrivateKeys.generate(),
        [PrivateKeys.generate() for _ in range(max(RECIPIENTS))],
    )
    scope = Scope("run", digest_of(b"config_digest"), "attempt")
    cases = [(size, 1) for size in SIZES] + [(_LETTER, many) for many in RECIPIENTS[1:]]
    for size, many in cases:
        letter = PeerMessage("offer", 0, None, 1, size, os.urandom(size))
        public = {peer: keys.public for peer, keys in enumerate(readers[:many], start=1)}
        yield _row(letter, scope, sender, public, readers[0])


def _row(
    letter: PeerMessage,
    scope: Scope,
    own: PrivateKeys,
    public: Mapping[int, PublicKeys],
    reader: PrivateKeys,
) -> Seal:
    sealed, _ = seal(letter, scope, own, public)
    payload = sealed.payload
    assert isinstance(payload, bytes)

    def opened() -> bytes:
        return unseal(sealed, scope, 1, reader, own.public, digest_of(payload))

    assert opened() == letter.payload
    repeats = 5 if letter.nbytes > 10_000_000 else 50
    return Seal(
        letter.nbytes / 1e6,
        len(public),
        milliseconds(lambda: seal(letter, scope, own, public), repeats),
        milliseconds(opened, repeats),
        TAG + len(public) * KEY,
    )
