"""Test reduced precision: exact byte counts, bounded errors, same results on any nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from coterie.app.wire.payload import LetterFormat, PayloadError, Precision, layout_of
from coterie.app.wire.quantise import Reduced, rounded
from tests.inline import run

REDUCED: list[Reduced] = list(get_args(Reduced))
PRECISIONS: list[Precision] = ["full", *REDUCED]


def stack(dtype: torch.dtype = torch.float32, size: int = 1000) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, size, generator=g, dtype=torch.float64)
    scale = 10.0 ** torch.randint(-6, 5, (3, size), generator=g)
    return {
        "x": (x * scale).to(dtype),
        "w": torch.randn(3, 8, 9, generator=g).to(dtype),
        "few": torch.randn(3, 63, generator=g).to(dtype),
        "count": torch.arange(300).view(3, 100),
    }


@pytest.mark.parametrize("precision", REDUCED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_rounded_travels_exactly(precision: Reduced, dtype: torch.dtype) -> None:
    tensors = rounded(stack(dtype), precision)
    again = rounded(tensors, precision)
    assert all(torch.equal(again[name], value) for name, value in tensors.items())
    form = LetterFormat(layout_of(tensors), precision)
    for row in range(3):
        result = form.decode(form.encode(tensors, row))
        assert result.keys() == tensors.keys()
        for name, value in tensors.items():
            assert result[name].dtype == value.dtype
            assert torch.equal(result[name], value[row]), name


@pytest.mark.parametrize("precision", REDUCED)
def test_small_tensors_and_whole_numbers_are_not_touched(precision: Reduced) -> None:
    tensors = stack()
    for name in ("few", "count"):
        assert rounded(tensors, precision)[name] is tensors[name]


@pytest.mark.parametrize(("precision", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_halves_round_to_nearest(precision: Reduced, bits: int) -> None:
    x = torch.linspace(0.01, 60000, 1000, dtype=torch.float64)[None]
    error = (rounded({"x": x}, precision)["x"] - x).abs() / x
    assert error.max() <= 2.0**-bits


def test_a_number_beyond_half_precision_becomes_its_largest() -> None:
    x = torch.full((1, 64), -1e6)
    assert (rounded({"x": x}, "float16")["x"] == -65504).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_int8_errs_by_a_fraction_of_its_block(dtype: torch.dtype) -> None:
    """Half a step, and a step is 2^e with 64 2^e at most the block's largest number."""
    x = stack(dtype, 1024)["x"]
    error = (rounded({"x": x}, "int8")["x"] - x).abs().view(3, -1, 32)
    largest = x.abs().view(3, -1, 32).amax(dim=2, keepdim=True)
    assert (error <= largest / 127).all()
    assert (error.amax(dim=2) > largest[..., 0] / 1000).any()


def test_int4_errs_by_a_step_at_most_and_not_at_all_on_average() -> None:
    """The step is below 2/7 of the block's largest number; the mean of 4000 draws is near 0."""
    x = stack(torch.float64, 1024)["x"]
    error = (rounded({"x": x}, "int4")["x"] - x).abs().view(3, -1, 32)
    assert (error <= 2 / 7 * x.abs().view(3, -1, 32).amax(dim=2, keepdim=True)).all()
    steps = torch.linspace(-0.9, 0.9, 64, dtype=torch.float64)
    noise = 1e-9 * torch.arange(4000, dtype=torch.float64)[:, None]  # another digest per row
    bias = (rounded({"x": steps + noise}, "int4")["x"] - steps).mean(dim=0)
    assert bias.abs().max() < 4 * 0.25 / 2 / 4000**0.5  # deviation of a draw: half a step at most


def test_int8_has_a_step_that_reaches_the_largest_number() -> None:
    """127 steps of 2^-7 end at 0.992: a block with a larger number has steps of 2^-6."""
    x = torch.linspace(-1, 0.999, 64)[None]
    assert (rounded({"x": x}, "int8")["x"] - x).abs()[0, 32:].max() <= 2.0**-7
    x[0, -1] = 127 / 128
    assert rounded({"x": x}, "int8")["x"][0, -1] == 127 / 128
    x[0, -1] = 0.999
    assert rounded({"x": x}, "int8")["x"][0, -1] == 1.0


def test_int8_has_no_trouble_with_extremes() -> None:
    x = torch.zeros(1, 96)
    x[0, 0], x[0, 40], x[0, 70] = 1e-44, 3e38, -(2.0**-90)
    result = rounded({"x": x}, "int8")["x"]
    assert result[0, 0] == 0
    assert abs(result[0, 40] / 3e38 - 1) < 1 / 127
    assert result[0, 70] == -(2.0**-90)
    assert not rounded({"x": torch.zeros(1, 96)}, "int8")["x"].any()


@pytest.mark.parametrize("precision", REDUCED)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_diverged_model_is_not_smoothed_over(precision: Reduced, value: float) -> None:
    tensors = {"x": torch.ones(1, 100)}
    tensors["x"][0, 50] = value
    tensors = dict(rounded(tensors, precision))
    assert not tensors["x"].isfinite().all()
    form = LetterFormat(layout_of(tensors), precision)
    with pytest.raises(PayloadError, match="not finite"):
        form.decode(form.encode(tensors, 0))


@pytest.mark.parametrize(
    ("precision", "bits"), [("full", 32), ("float16", 16), ("int8", 8), ("int4", 4)]
)
def test_bytes_are_counted_exactly(precision: Precision, bits: int) -> None:
    tensors = stack()
    big, exponents = 1000 + 72, -(-1000 // 32) + -(-72 // 32)
    is_scaled = precision in ("int8", "int4")
    expected = big * bits // 8 + 63 * 4 + 100 * 8 + (exponents if is_scaled else 0)
    form = LetterFormat(layout_of(tensors), precision)
    assert form.nbytes == expected
    payload = form.encode(tensors, 0)
    assert sum(v.nbytes for v in load(payload).values()) == expected
    assert expected < len(payload) < expected + 512


@pytest.mark.parametrize("sent", PRECISIONS)
@pytest.mark.parametrize("expected", PRECISIONS)
def test_a_letter_of_another_precision_is_refused(sent: Precision, expected: Precision) -> None:
    tensors = stack()
    layout = layout_of(tensors)
    if sent != expected:
        with pytest.raises(PayloadError):
            LetterFormat(layout, expected).decode(LetterFormat(layout, sent).encode(tensors, 0))


DIGITS: dict[str, Any] = {
    "dataset": "digits", "peers": 4, "num-server-rounds": 4, "evaluate-every": 2, "device": "cpu",
    "partition.clusters": 2, "partition.samples-per-peer": 20, "batch-size": 8, "local-steps": 2,
    "model": "linear", "dtype": "float64", "ifca.clusters": 2,
}  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("method", ["fedavg", "cobo", "wga", "ifca"])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_the_run_does_not_depend_on_who_hosts_whom(
    method: str, precision: str, tmp_path: Path
) -> None:
    flat = DIGITS | {"method": method, "payload": precision}
    alone, each = run(flat, tmp_path / "alone", 1), run(flat, tmp_path / "each", 4)
    full = run(DIGITS | {"method": method}, tmp_path / "full", 1)
    for name in alone.reports[4, 0].metrics:
        np.testing.assert_allclose(each.metric(name), alone.metric(name), rtol=1e-10, err_msg=name)
    assert (alone.metric("bytes_sent") < full.metric("bytes_sent") / 3.7).all()
    np.testing.assert_allclose(alone.metric("test_loss"), full.metric("test_loss"), rtol=0.05)
    assert (alone.metric("test_loss") != full.metric("test_loss")).all()
