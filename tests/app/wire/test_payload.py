"""Test payloads: exact round trips; everything else is refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from coterie.app.wire.payload import LetterFormat, PayloadError, layout_of
from coterie.app.wire.quantise import Layout

LAYOUT: Layout = {
    "x": ((2, 3), torch.float32),
    "count": ((), torch.int64),
    "scale": ((4,), torch.float64),
}
FORM = LetterFormat(LAYOUT)


def stack(seed: int = 0) -> dict[str, Tensor]:
    """Three peers' tensors."""
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(3, 2, 3, generator=g),
        "count": torch.randint(100, (3,), generator=g),
        "scale": torch.randn(3, 4, generator=g, dtype=torch.float64),
    }


def test_encoding_makes_one_copy_of_a_letter_and_decoding_none() -> None:
    size = 2**22
    form = LetterFormat({"x": ((size,), torch.uint8)})
    tensors = {"x": torch.arange(2 * size, dtype=torch.uint8).view(2, size)}
    tracemalloc.start()
    try:
        payload = form.encode(tensors, 1)
        assert size < tracemalloc.get_traced_memory()[1] < 1.1 * size
    finally:
        tracemalloc.stop()
    start = np.frombuffer(payload, dtype=np.uint8).ctypes.data
    assert start < form.decode(payload)["x"].data_ptr() < start + len(payload)


def with_header(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_letter_is_read_as_it_was_written(row: int) -> None:
    tensors = stack()
    assert layout_of(tensors) == LAYOUT
    payload = FORM.encode(tensors, row)
    result = FORM.decode(payload)
    assert result.keys() == tensors.keys()
    for name, value in result.items():
        assert torch.equal(value, tensors[name][row])
    assert FORM.nbytes == 2 * 3 * 4 + 8 + 4 * 8
    assert FORM.nbytes < len(payload) <= FORM.nbytes + 512
    assert len(payload) <= FORM.max_bytes


def test_finite_numbers_whose_sum_is_not_are_a_letter() -> None:
    tensors = {"x": torch.full((1, 100), 3e38)}
    form = LetterFormat(layout_of(tensors))
    assert torch.equal(form.decode(form.encode(tensors, 0))["x"], tensors["x"][0])


def test_an_empty_letter_is_a_letter() -> None:
    form = LetterFormat({})
    assert form.decode(form.encode({}, 0)) == {}
    assert form.nbytes == 0


def test_only_one_peers_row_is_written() -> None:
    """A view of one row must not carry the rows beside it."""
    tensors = {"x": torch.arange(1000.0).view(4, 250)}
    assert len(LetterFormat(layout_of(tensors)).encode(tensors, 1)) < 250 * 4 + 200


def changed(**changes: Tensor | None) -> bytes:
    tensors: Mapping[str, Tensor | None] = {k: v[0] for k, v in stack().items()} | changes
    return save({name: value for name, value in tensors.items() if value is not None})


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (changed(x=None), "expected"),
        (changed(y=torch.ones(1)), "expected"),
        (changed(x=torch.ones(3, 2)), "expected"),
        (changed(x=torch.ones(6)), "expected"),
        (changed(x=torch.ones(2, 3, dtype=torch.float64)), "expected"),
        (changed(x=torch.ones(2, 3, dtype=torch.float16)), "expected"),
        (changed(x=torch.ones(2, 3, dtype=torch.int32)), "expected"),
        (changed(x=torch.ones(1000, 3)), "expected"),
        (changed(x=torch.full((2, 3), torch.nan)), "not finite"),
        (changed(x=torch.full((2, 3), torch.inf)), "not finite"),
        (changed(scale=torch.tensor([0, 0, 0, -torch.inf]).double()), "not finite"),
        (changed()[:-1], "not safetensors"),
        (changed() + b"\0", "not safetensors"),
        (b"", "not safetensors"),
        (b"\0" * 8, "not safetensors"),
        (b"\xff" * 64, "not safetensors"),
        (with_header(b"{", b""), "not safetensors"),
        (with_header({"x": {"dtype": "F32", "shape": [2, 3]}}, b""), "not safetensors"),
        (with_header({"x": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 24]}},
                     b"\0" * 24), "not safetensors"),
        (with_header({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 2**62]}},
                     b"\0" * 24), "not safetensors"),
        (with_header({"x": {"dtype": "O", "shape": [3], "data_offsets": [0, 24]}},
                     b"\0" * 24), "not safetensors"),
    ],
)  # fmt: skip
def test_what_is_no_letter_of_this_run_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        FORM.decode(payload)


@pytest.mark.parametrize(
    "dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "BF16", "U16", "U32", "U64", "C64", "BOOL"]
)
def test_other_number_formats_are_refused(dtype: str) -> None:
    """Also those that this version of torch or safetensors cannot read at all."""
    header = {"x": {"dtype": dtype, "shape": [24], "data_offsets": [0, 24]}}
    with pytest.raises(PayloadError):
        FORM.decode(with_header(header, b"\0" * 24))


def test_a_pickle_is_refused_unopened() -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("it was unpickled",)

    with pytest.raises(PayloadError):
        FORM.decode(pickle.dumps(Bomb()))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_mutated_letter_is_refused_or_still_has_the_layout(data: st.DataObject) -> None:
    """Mutated bytes give a PayloadError, or finite tensors of the right layout."""
    payload = bytearray(FORM.encode(stack(), 0))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip":
                payload[at] = data.draw(st.integers(0, 255))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 8))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case _:
                payload[at:at] = payload[at : at + 16]
        if not payload:
            break
    try:
        result = FORM.decode(bytes(payload))
    except PayloadError:
        return
    assert {name: (tuple(v.shape), v.dtype) for name, v in result.items()} == LAYOUT
    assert all(bool(torch.isfinite(v).all()) for v in result.values())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from(["x", "count", "scale", "__metadata__", "y"]),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "I64", "F64", "F16", "?", "F8_E8M0", "F4"]),
                "shape": st.lists(st.integers(-1, 2**63), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 2**63), max_size=3),
            }
        ),
    ),
    st.binary(max_size=80),
)
def test_a_forged_header_is_refused(header: dict[str, object], body: bytes) -> None:
    with pytest.raises(PayloadError):
        FORM.decode(with_header(header, body))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_noise_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        FORM.decode(payload)
