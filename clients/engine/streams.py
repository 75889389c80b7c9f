"""Random streams: every draw belongs to a peer, a round and a purpose, never to a process.

A counter-based generator (Philox) makes this exact: the key holds (seed, peer), the upper words
of the counter hold (round, purpose, partner). Streams never overlap, need no state between
rounds, and do not depend on the assignment of peers to nodes or on the order of replies.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

FOLDS = 5
"""Number of fits of a library without a fold of the rows, each with its own draws."""


class Purpose(IntEnum):
    """Purpose of a stream; distinct numbers, so that no two uses share a draw."""

    START = 0  # initial model
    TRAIN = 1  # minibatches and dropout of own training
    ANSWER = 2  # minibatches and dropout of answers at other peers' models
    CHOICE = 3  # choice of collaborators
    ESTIMATE = 4  # minibatches of similarity estimates
    EXTRA = 5  # a second, independent training minibatch
    TUNE = 6  # minibatches that personalise a shared model
    ATTACK = 7  # choice of attackers, and the noise of their letters
    PRIVACY = 8  # noise of private gradients
    LIBRARY = 9  # a library's fit (partner 0), and its fits without a fold of the rows


def stream(
    seed: int, peer: int, round_: int, purpose: Purpose, partner: int = 0
) -> np.random.Generator:
    """Return the generator of (seed, peer, round, purpose, partner)."""
    # `partner` separates the answers that one peer gives to several others in one round. A seed of
    # more than 64 bits, as of secret noise, counts with 128.
    assert 0 <= partner < 2**32
    counter = np.array([0, 0, (int(purpose) << 32) | partner, round_], dtype=np.uint64)
    high = (max(seed, 0) >> 64) + peer
    key = _Key(np.array([seed & (2**64 - 1), high & (2**64 - 1)], dtype=np.uint64))
    bits = np.random.Philox(key, counter=counter)  # type: ignore[arg-type]  # numpy's stubs lag
    return np.random.Generator(bits)


class _Key(ISeedSequence):
    """Pass Philox its key as `key=` does, but without gathering entropy."""

    def __init__(self, key: npt.NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return self._key
