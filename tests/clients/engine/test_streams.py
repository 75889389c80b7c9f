"""Random streams: one for each (seed, peer, round, purpose, partner)."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from coterie.clients.engine.streams import Purpose, stream

KEYS = list(product((0, 1, 2**40), (0, 1, 99), (0, 1, 10**6), Purpose, (0, 1, 2**32 - 1)))


def test_a_stream_is_a_function_of_its_key() -> None:
    for key in KEYS[::50]:
        assert np.array_equal(stream(*key).random(10), stream(*key).random(10))


def test_streams_of_different_keys_differ() -> None:
    drawn = {stream(*key).random(4).tobytes() for key in KEYS}
    assert len(drawn) == len(KEYS)


def test_a_secret_seed_counts_with_128_bits() -> None:
    draws = {stream(seed, 3, 1, Purpose.PRIVACY).random(4).tobytes() for seed in
             (5, 5 + 2**64, 5 + 2**127, 5 + 2**128 - 2**64)}  # fmt: skip
    assert len(draws) == 4


def test_neighbouring_streams_are_not_correlated() -> None:
    """The correlation of N independent pairs is below 6 / sqrt(N) (six standard deviations)."""
    count = 4000
    keys = [(0, 0, 0, Purpose.START, 0), (1, 0, 0, Purpose.START, 0), (0, 1, 0, Purpose.START, 0)]
    keys += [(0, 0, 1, Purpose.START, 0), (0, 0, 0, Purpose.TRAIN, 0), (0, 0, 0, Purpose.START, 1)]
    draws = [stream(*key).standard_normal(count) for key in keys]
    for one, other in combinations(draws, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(count)


def test_a_long_stream_does_not_run_into_another() -> None:
    """2^20 draws stay in the counter's lower words, which no key uses."""
    g = stream(0, 0, 0, Purpose.TRAIN)
    g.integers(2**62, size=2**20)
    after = g.integers(2**62, size=8)
    others = [stream(0, 0, t, p).integers(2**62, size=8) for t, p in product(range(4), Purpose)]
    assert not any(np.isin(after, other).any() for other in others)


def test_purposes_have_numbers_of_their_own() -> None:
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose.__members__)
