"""Encryption and signature of letters: only recipients can read, only the sender can write.

The payload is encrypted once, with ChaCha20-Poly1305 under a key drawn for this letter alone (so
its nonce may be zero). For each recipient that key is encrypted with HPKE (RFC 9180, base mode,
ML-KEM-768 with X25519), and the whole is signed with Ed25519. What a letter is tied to, its
*header*, is never sent: both ends build it from what they know,

    protocol, run, config_digest, attempt, kind, round, sender, recipient, size of the tensors,
    digests of the keys of sender and recipient, digest of the encrypted payload,

so a letter opens only where all of these agree. The signature covers header and encrypted key; the
header is also HPKE's `info`. An answer is tied to the model it is about in the same way: the digest
of the plain offer is associated data of its payload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from coterie.app.institution.security.keys import PrivateKeys, PublicKeys
from coterie.errors import Error
from coterie.strategies.protocol import PeerMessage

_PROTOCOL = b"coterie letter 1"
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_CONTENT_KEY = 32
_SIGNATURE = 64
_ONCE = bytes(12)
"""The nonce under a key that encrypts one payload."""
TAG = 16
"""Bytes that encryption adds to a payload."""
KEY = _SIGNATURE + KEM.MLKEM768_X25519.enc_length() + _CONTENT_KEY + TAG
"""Bytes of the signed, encrypted key for one recipient."""


class SealError(Error, ValueError):
    """A letter cannot be opened; the message has the reason, as far as the reader can know."""


@dataclass(frozen=True)
class Scope:
    """Context to which all letters of an attempt at a run are bound."""

    run: str
    config_digest: bytes  # digest of the peers' configuration
    attempt: str  # token of the relay's process


def digest_of(content: bytes) -> bytes:
    """Return the SHA-256 of `content`."""
    return hashlib.sha256(content).digest()


def seal(
    letter: PeerMessage,
    scope: Scope,
    own: PrivateKeys,
    recipients: Mapping[int, PublicKeys],
    about: bytes = b"",
) -> tuple[PeerMessage, bytes]:
    """Encrypt and sign a plain letter for some peers; return it with the digest of its payload."""
    # `about` is the digest of the plain letter that this letter answers.
    assert isinstance(letter.payload, bytes)
    assert not letter.keys
    content_key = ChaCha20Poly1305.generate_key()
    bound = _header(letter, scope, about)
    payload = ChaCha20Poly1305(content_key).encrypt(_ONCE, letter.payload, bound)
    digest = digest_of(payload)
    keys = {}
    for recipient, theirs in recipients.items():
        header = _header(letter, scope, recipient, own.public.digest, theirs.digest, digest)
        wrapped = _SUITE.encrypt(content_key, theirs.recipient, info=header)
        keys[recipient] = own.sign(header + wrapped) + wrapped
    return replace(letter, payload=payload, keys=keys), digest


def unseal(
    letter: PeerMessage,
    scope: Scope,
    recipient: int,
    own: PrivateKeys,
    sender: PublicKeys,
    digest: bytes,
    about: bytes = b"",
) -> bytes:
    """Verify and decrypt a letter of `sender`, whose payload has this digest, else SealError."""
    # `about`: digest of the plain letter that it must answer. Which part is wrong is unknown,
    # because the header is not sent.
    key = letter.keys.get(recipient)
    if key is None:
        raise SealError(f"holds no key for peer {recipient}")
    if len(key) != KEY:
        raise SealError(f"holds a key of {len(key)} bytes, not {KEY}")
    assert isinstance(letter.payload, bytes)
    signature, wrapped = key[:_SIGNATURE], key[_SIGNATURE:]
    header = _header(letter, scope, recipient, sender.digest, own.public.digest, digest)
    try:
        sender.verifier.verify(signature, header + wrapped)
    except InvalidSignature:
        raise SealError(
            f"was not sealed by peer {letter.sender} for peer {recipient} in this run, attempt and "
            "round, or was altered"
        ) from None
    try:
        content_key = _SUITE.decrypt(wrapped, own.reader, info=header)
        bound = _header(letter, scope, about)
        return ChaCha20Poly1305(content_key).decrypt(_ONCE, letter.payload, bound)
    except (InvalidTag, ValueError):
        raise SealError(
            "has a valid signature, but decryption failed: wrong key, or not a reply to our message"
        ) from None


def _header(letter: PeerMessage, scope: Scope, *more: bytes | int) -> bytes:
    return framed(
        _PROTOCOL,
        scope.run,
        scope.config_digest,
        scope.attempt,
        letter.kind,
        letter.round,
        letter.sender,
        letter.nbytes,
        *more,
    )


def framed(*parts: bytes | int | str) -> bytes:
    """Join parts, each after its length, so that different lists have different results."""
    written = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in written)
