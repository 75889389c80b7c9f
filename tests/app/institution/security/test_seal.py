"""Sealed letters: who can open them, and what happens to everything that was touched."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.seal import (
    _SUITE,
    KEY,
    TAG,
    Scope,
    SealError,
    digest_of,
    seal,
    unseal,
)
from coterie.strategies.protocol import PeerMessage

PEERS = [PrivateKeys.generate() for _ in range(4)]
SCOPE = Scope("trial", b"config_digest", "attempt")
PAYLOAD = bytes(range(256)) * 4
OFFER = PeerMessage("offer", 0, None, 5, 1000, PAYLOAD)
ANSWER = PeerMessage("answer", 0, 1, 5, 1000, PAYLOAD)


def sealed(letter: PeerMessage = OFFER, *, to: tuple[int, ...] = (1, 2), about: bytes = b"") -> Any:
    return seal(letter, SCOPE, PEERS[0], {p: PEERS[p].public for p in to}, about)[0]


def opened(letter: PeerMessage, reader: int = 1, scope: Scope = SCOPE, **changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "own": PEERS[reader],
        "sender": PEERS[0].public,
        "digest": digest_of(letter.payload),  # type: ignore[arg-type]
    }
    return unseal(letter, scope, reader, **arguments | changes)


def test_every_recipient_reads_what_was_written_and_nobody_else() -> None:
    letter = sealed()
    assert [opened(letter, reader) for reader in (1, 2)] == [PAYLOAD, PAYLOAD]
    with pytest.raises(SealError, match="no key for peer 3"):
        opened(letter, 3)


def test_a_model_for_many_is_encrypted_once() -> None:
    one, three = sealed(to=(1,)), sealed(to=(1, 2, 3))
    assert len(one.payload) == len(three.payload) == len(PAYLOAD) + TAG
    assert {len(key) for key in three.keys.values()} == {KEY}
    assert len(three.keys) == 3
    assert three.only_for([2]).keys == {2: three.keys[2]}
    assert three.only_for([2]).payload is three.payload
    assert opened(three.only_for([2]), 2) == PAYLOAD


def test_sealing_and_opening_make_one_copy_of_a_letter() -> None:
    letter = replace(OFFER, payload=bytes(2**22), nbytes=2**22)
    content = 2**22 + TAG
    peaks, results = list[int](), list[Any]()
    for step in (lambda: sealed(letter), lambda: opened(results[0])):
        tracemalloc.start()
        results.append(step())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert results[1] == letter.payload
    assert content < peaks[0] < 1.1 * content
    assert 2**22 < peaks[1] < 1.1 * content


def test_the_plain_text_is_nowhere_in_a_sealed_letter() -> None:
    letter = sealed()
    for part in (letter.payload, *letter.keys.values()):
        assert not any(PAYLOAD[k : k + 8] in part for k in range(256))


def test_no_key_and_no_key_stream_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for the same payload in the same round, as after a crash and a restart."""
    drawn: list[tuple[bytes, bytes]] = []

    class Watched:
        generate_key = staticmethod(ChaCha20Poly1305.generate_key)

        def __init__(self, key: bytes) -> None:
            self.key, self.cipher = key, ChaCha20Poly1305(key)

        def encrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
            drawn.append((self.key, nonce))
            return self.cipher.encrypt(nonce, data, bound)

    monkeypatch.setattr("coterie.app.institution.security.seal.ChaCha20Poly1305", Watched)
    letters = [sealed(replace(OFFER, payload=bytes(64))) for _ in range(50)]
    assert len(set(drawn)) == len({key for key, _ in drawn}) == 50
    assert len({letter.payload for letter in letters}) == 50
    assert len({letter.keys[1][64:] for letter in letters}) == 50  # each HPKE context is new, too


BOUND: list[tuple[str, Callable[[], bytes]]] = [
    ("run", lambda: opened(sealed(), scope=replace(SCOPE, run="other"))),
    ("config_digest", lambda: opened(sealed(), scope=replace(SCOPE, config_digest=b"other"))),
    ("attempt", lambda: opened(sealed(), scope=replace(SCOPE, attempt="other"))),
    (
        "run and attempt",
        lambda: opened(sealed(), scope=Scope("trialattempt", b"config_digest", "")),
    ),
    ("kind", lambda: opened(replace(sealed(), kind="answer", recipient=1))),
    ("later round", lambda: opened(replace(sealed(), round=6))),
    ("older round", lambda: opened(replace(sealed(), round=4))),
    ("sender", lambda: opened(replace(sealed(), sender=3))),
    ("size", lambda: opened(replace(sealed(), nbytes=1001))),
    ("payload", lambda: opened(replace(sealed(), payload=sealed().payload))),
    ("truncated", lambda: opened(replace(sealed(), payload=sealed().payload[:-1]))),
    ("extended", lambda: opened(replace(sealed(), payload=sealed().payload + b"x"))),
    ("empty", lambda: opened(replace(sealed(), payload=b""))),
    ("sender's keys", lambda: opened(sealed(), sender=PEERS[3].public)),
    ("recipient's keys", lambda: opened(sealed(), own=PEERS[2])),
    ("signing key alone", lambda: opened(sealed(), own=half_of(PEERS[1], PEERS[2]))),
]


def half_of(one: PrivateKeys, other: PrivateKeys) -> PrivateKeys:
    """Keys that sign as another, and read as `one`."""
    return PrivateKeys(other._sign, one._mlkem, one._x25519)


@pytest.mark.parametrize("change", [c for _, c in BOUND], ids=[name for name, _ in BOUND])
def test_a_letter_opens_only_as_what_it_was_sealed(change: Callable[[], bytes]) -> None:
    with pytest.raises(SealError):
        change()


def test_a_key_for_one_recipient_does_not_open_for_another() -> None:
    letter = sealed()
    with pytest.raises(SealError, match="not sealed by peer 0 for peer 2"):
        opened(replace(letter, keys={2: letter.keys[1]}), 2)
    other = sealed()  # the same model again
    with pytest.raises(SealError):
        opened(replace(letter, keys=other.keys))


def test_a_recipient_cannot_address_a_sender_s_letter_to_a_third() -> None:
    """Peer 1 may read the letter and knows its key, but cannot forge one for peer 3."""
    letter = sealed(to=(1,))
    again, _ = seal(replace(letter, keys={}), SCOPE, PEERS[1], {3: PEERS[3].public})
    forged = replace(letter, keys=again.keys)
    with pytest.raises(SealError, match="not sealed by peer 0"):
        opened(forged, 3)


def test_a_letter_does_not_come_back_to_its_sender() -> None:
    """A letter from 0 to 1 is not accepted as one from 1 to 0, although both know its key."""
    letter = sealed(to=(1,))
    with pytest.raises(SealError):
        opened(
            replace(letter, sender=1, keys={0: letter.keys[1]}),
            0,
            own=PEERS[0],
            sender=PEERS[1].public,
        )


def test_an_answer_belongs_to_the_model_it_is_about() -> None:
    letter = sealed(ANSWER, to=(1,), about=b"model")
    assert opened(letter, about=b"model") == PAYLOAD
    for other in (b"", b"another model"):
        with pytest.raises(SealError, match="not a reply to our message"):
            opened(letter, about=other)


@pytest.mark.parametrize("size", [0, 1, KEY - 1, KEY + 1, 2 * KEY])
def test_a_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(SealError, match=f"a key of {size} bytes"):
        opened(replace(sealed(), keys={1: bytes(size)}))


@given(st.data())
def test_one_changed_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    letter = sealed()
    parts = {"payload": letter.payload, "key": letter.keys[1]}
    part = data.draw(st.sampled_from(sorted(parts)))
    at = data.draw(st.integers(0, 8 * len(parts[part]) - 1))
    content = bytearray(parts[part])
    content[at // 8] ^= 1 << at % 8
    parts[part] = bytes(content)
    with pytest.raises(SealError):
        opened(replace(letter, payload=parts["payload"], keys={1: parts["key"]}))


def test_a_signed_letter_that_is_badly_sealed_is_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dishonest trusted peer signs invalid keys, or keys of another payload."""
    for key in (b"", bytes(31), bytes(32), bytes(64)):
        with monkeypatch.context() as patch:
            patch.setattr("coterie.app.institution.security.seal._SUITE", Sneaky(key))
            letter = sealed(to=(1,))
        with pytest.raises(SealError):
            opened(letter)


class Sneaky:
    """A suite that sends another content key than it was given."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def encrypt(self, _: bytes, public: Any, info: bytes) -> bytes:
        return _SUITE.encrypt(self.key, public, info=info)
