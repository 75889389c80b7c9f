"""Test the operators of increments: contraction, exact lengths, forged parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.app.wire.operators import OPERATORS, Operator, packed_indices, unpacked_indices
from coterie.app.wire.payload import PayloadError

SHAPES = [(20, 30), (20,), (4, 3, 5, 5), (7,)]
D = 600 + 20 + 300 + 7


def operator(name: str, ratio: float = 0.1) -> Operator:
    return OPERATORS[name](SHAPES, ratio)


def vector(seed: int, kind: str = "normal") -> Tensor:
    g = np.random.default_rng(seed)
    values = {
        "normal": g.standard_normal(D),
        "heavy": g.standard_cauchy(D),
        "scaled": g.standard_normal(D) * 10.0 ** g.integers(-6, 6, D),
        "sparse": np.where(g.random(D) < 0.02, 1.0, 0.0),
        "zero": np.zeros(D),
    }
    return torch.from_numpy(values[kind])


def sent(op: Operator, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
    parts, memory = op.encode(x, op.memory(x.dtype) if memory is None else memory)
    layout = op.layout(x.dtype)
    assert {k: (tuple(v.shape), v.dtype) for k, v in parts.items()} == dict(layout)
    return op.decode(parts, x.dtype), memory


def lost(x: Tensor, y: Tensor) -> float:
    """|x - Q(x)|^2 / |x|^2."""
    total = float(x.double().square().sum())
    return float((x.double() - y.double()).square().sum()) / total if total else 0.0


@pytest.mark.parametrize("kind", ["normal", "heavy", "scaled", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_contracts_by_k_of_d_and_is_exact_where_it_sends(
    kind: str, dtype: torch.dtype
) -> None:
    """The d - k smallest squares are at most their share (d - k) / d of all."""
    x, op = vector(0, kind).to(dtype), operator("top-k")
    y, _ = sent(op, x)
    k = round(0.1 * D)
    assert lost(x, y) <= 1 - k / D
    kept = y != 0
    assert torch.equal(y[kept], x[kept])
    assert kept.sum() <= k
    assert x.abs()[kept].amin() >= x.abs()[~kept].amax()


@pytest.mark.parametrize("kind", ["normal", "heavy", "scaled", "sparse"])
def test_sign_contracts_by_the_ratio_of_norms_in_each_tensor(kind: str) -> None:
    """|x - s sign(x)|^2 = |x|^2 - |x|_1^2 / d with s = |x|_1 / d, exactly, per tensor."""
    x, op = vector(1, kind), operator("sign")
    y, _ = sent(op, x)
    sizes = [math.prod(shape) for shape in SHAPES]
    for part, result in zip(x.split(sizes), y.split(sizes), strict=True):
        expected = part.square().sum() - part.abs().sum() ** 2 / len(part)
        if (part == 0).any():  # a zero is sent as the scale itself
            expected = (part - result).square().sum()
            assert float(expected) <= float(part.square().sum()) * (1 + 1e-12)
        np.testing.assert_allclose((part - result).square().sum(), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["normal", "heavy", "scaled", "sparse"])
def test_int4_contracts_by_a_third_at_least(kind: str) -> None:
    """In a block of 32 with step s, errors are at most s / 2 and the largest number above 3.5 s.

    So the error is at most 32 s^2 / 4 = 8 s^2, and the block's square at least 12.25 s^2.
    """
    x, op = vector(2, kind), operator("int4")
    y, _ = sent(op, x)
    for block, result in zip(x.split(32), y.split(32), strict=True):
        assert lost(block, result) <= 8 / 12.25
    if kind == "normal":
        assert lost(x, y) < 0.03


@pytest.mark.parametrize("kind", ["normal", "heavy", "scaled", "sparse"])
def test_low_rank_never_expands_and_its_warm_start_finds_the_largest_directions(kind: str) -> None:
    """P is orthonormal: |M - P P'M|^2 = |M|^2 - |P'M|^2. Warm starts are power iteration."""
    x, op = vector(3, kind), operator("low-rank", 0.2)
    y, memory = sent(op, x)
    assert lost(x, y) <= 1 + 1e-12
    for _ in range(300):
        y, memory = sent(op, x, memory)
    matrix, result = x[:600].view(20, 30), y[:600].view(20, 30)
    rank = int(0.2 * 600 / 50)
    singular = torch.linalg.svdvals(matrix)
    best = float(singular[rank:].square().sum() / singular.square().sum())
    assert lost(matrix, result) <= best + 1e-6
    assert lost(matrix, result) <= 1 - rank / 20 + 1e-12
    assert torch.equal(y[600:620], x[600:620])  # a vector is sent as it is


@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_to_send_is_nothing(name: str) -> None:
    y, memory = sent(operator(name), vector(0, "zero"))
    assert not y.any()
    y, _ = sent(operator(name), vector(0), memory)  # a warm start of zero recovers
    assert y.any()
    assert y.isfinite().all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # k = 93 values; indices of d = 927: l = floor(log2(927 / 93)) = 3 low bits each, and
        # 93 + (927 >> 3) + 1 = 209 high bits: ceil(279 / 8) + ceil(209 / 8) = 35 + 27.
        ("top-k", 93 * 4 + 35 + 27),
        # a bit per number and a float32 per tensor
        ("sign", 116 + 4 * 4),
        # half a byte per number and an exponent per block of 32
        ("int4", 464 + 29),
        # 20 x 30: rank floor(.1 * 600 / 50) = 1; 4 x 75: rank max(1, floor(.1 * 300 / 79)) = 1;
        # vectors of 20 and 7 in full
        ("low-rank", 4 * (50 + 79 + 27)),
    ],
)
def test_bytes_follow_the_formula_and_never_the_data(name: str, expected: int) -> None:
    op, layout = operator(name), operator(name).layout(torch.float32)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())
    assert size == expected
    for kind in ("normal", "heavy", "sparse", "zero"):
        sent(op, vector(0, kind).float())  # compares the layout


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 1000), (5, 5), (50, 1000), (333, 1000), (7, 8)])
def test_indices_survive_packing(k: int, d: int) -> None:
    g = np.random.default_rng(k)
    for _ in range(20):
        chosen = np.sort(g.choice(d, k, replace=False))
        packed = packed_indices(chosen, d)
        np.testing.assert_array_equal(unpacked_indices(packed, k, d), chosen)


@pytest.mark.parametrize("fill", [0, 255, 85, 1])
def test_forged_indices_are_refused_and_never_reach_outside(fill: int) -> None:
    """Another number of ones, an index twice, or one beyond the last number."""
    op = operator("top-k")
    parts, _ = op.encode(vector(0), op.memory(torch.float64))
    forged = {**parts, "indices": torch.full_like(parts["indices"], fill)}
    with pytest.raises(PayloadError, match="indices"):
        op.decode(forged, torch.float64)


def test_an_index_twice_is_refused() -> None:
    with pytest.raises(PayloadError, match="3 ascending ones below 10"):
        unpacked_indices(packed_indices(np.array([2, 2, 5]), 10), 3, 10)


def test_every_bit_flip_in_indices_is_refused_or_another_valid_choice() -> None:
    op = operator("top-k", 0.01)
    parts, _ = op.encode(vector(0), op.memory(torch.float64))
    raw = parts["indices"].numpy()
    for at in range(8 * len(raw)):
        flipped = raw.copy()
        flipped[at // 8] ^= 1 << at % 8
        forged: Mapping[str, Tensor] = {**parts, "indices": torch.from_numpy(flipped)}
        try:
            result = op.decode(forged, torch.float64)
        except PayloadError:
            continue
        assert result.shape == (D,)
        assert (result != 0).sum() == len(parts["values"])


@pytest.mark.parametrize("name", OPERATORS)
def test_reading_needs_no_matrix_product(name: str) -> None:
    """Decoding a transposed or strided copy of the parts gives the same bits."""
    op = operator(name)
    parts, _ = op.encode(vector(5).float(), op.memory(torch.float32))
    strided = {k: torch.stack([v, v], dim=-1)[..., 0] for k, v in parts.items()}
    a, b = op.decode(parts, torch.float32), op.decode(strided, torch.float32)
    assert torch.equal(a, b)
