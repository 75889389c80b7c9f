"""Key pairs of a peer: Ed25519 for signatures, ML-KEM-768 with X25519 for encryption (HPKE)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

_BLOCK = re.compile(rb"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----\n?", re.DOTALL)
SIGN_BYTES = 32
_MLKEM_BYTES = 1184
SEAL_BYTES = _MLKEM_BYTES + 32


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of a peer, for encryption and signatures; ValueError if a key is not valid."""

    sign: bytes  # Ed25519 key, 32 bytes
    seal: bytes  # ML-KEM-768 key followed by X25519 key, 1216 bytes

    def __post_init__(self) -> None:
        _ = self.verifier, self.recipient

    @cached_property
    def verifier(self) -> Ed25519PublicKey:
        """Key that verifies the peer's signatures."""
        return Ed25519PublicKey.from_public_bytes(self.sign)

    @cached_property
    def recipient(self) -> MLKEM768X25519PublicKey:
        """Key that encrypts to the peer."""
        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(self.seal[:_MLKEM_BYTES]),
            X25519PublicKey.from_public_bytes(self.seal[_MLKEM_BYTES:]),
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of both keys."""
        return hashlib.sha256(self.sign + self.seal).digest()

    @property
    def fingerprint(self) -> str:
        """Digest for people to compare over another channel: 64 hex digits in groups of four."""
        return self.digest.hex(" ", 2)


@dataclass(frozen=True)
class PrivateKeys:
    """Private keys of a peer. They have no repr, so that they do not end up in a log."""

    _sign: Ed25519PrivateKey
    _mlkem: MLKEM768PrivateKey
    _x25519: X25519PrivateKey

    __repr__ = object.__repr__

    @classmethod
    def generate(cls) -> PrivateKeys:
        """Make fresh keys from the operating system's randomness."""
        return cls(
            Ed25519PrivateKey.generate(), MLKEM768PrivateKey.generate(), X25519PrivateKey.generate()
        )

    @classmethod
    def from_pem(cls, text: bytes) -> PrivateKeys:
        """Read the keys written by `pem`; ValueError unless there is exactly one of each kind."""
        private = [load_pem_private_key(block, None) for block in _BLOCK.findall(text)]
        kinds = (Ed25519PrivateKey, MLKEM768PrivateKey, X25519PrivateKey)
        if len(private) != len(kinds) or not all(map(isinstance, private, kinds)):
            raise ValueError("not an Ed25519, an ML-KEM-768 and an X25519 key, in this order")
        return cls(*private)  # type: ignore[arg-type]

    def pem(self) -> bytes:
        """Write the keys as three unencrypted PKCS #8 blocks."""
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        return b"".join(key.private_bytes(*form) for key in (self._sign, self._mlkem, self._x25519))

    @cached_property
    def public(self) -> PublicKeys:
        """Public keys that belong to these private keys."""
        mlkem, x25519 = self._mlkem.public_key(), self._x25519.public_key()
        return PublicKeys(
            self._sign.public_key().public_bytes_raw(),
            mlkem.public_bytes_raw() + x25519.public_bytes_raw(),
        )

    @cached_property
    def reader(self) -> MLKEM768X25519PrivateKey:
        """Key that decrypts messages to `public`."""
        return MLKEM768X25519PrivateKey(self._mlkem, self._x25519)

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message, 64 bytes."""
        return self._sign.sign(message)
