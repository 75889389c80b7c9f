"""Networks larger than they may be: refused before their memory is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.clients.models.build import Limited, SizeError, build
from coterie.clients.models.options import Adaptation, MlpOptions, TransformerOptions


def test_a_network_of_just_the_size_is_built() -> None:
    """64 x 10 weights and 10 biases."""
    build("linear", None, "classification", (8, 8), 10, max_parameters=650)
    with pytest.raises(SizeError, match="more than 649 parameters"):
        build("linear", None, "classification", (8, 8), 10, max_parameters=649)


@pytest.mark.parametrize(
    ("model", "options", "task", "shape", "adaptation"),
    [
        ("mlp", MlpOptions("99999999-99999999"), "classification", (64,), Adaptation()),
        ("mlp", MlpOptions("60000-60000"), "classification", (64,), Adaptation(lora_rank=1)),
        ("linear", None, "classification", (2**26,), Adaptation()),
        (
            "transformer",
            TransformerOptions(layers=500, width=65_536, heads=1),
            *("language", (8,), Adaptation()),
        ),
        ("cnn", None, "classification", (1, 8192, 8192), Adaptation()),
        ("tests.clients.models.test_size:Large", None, "classification", (64,), Adaptation()),
    ],
)
def test_what_would_take_terabytes_takes_nothing(
    model: str, options: object, task: str, shape: tuple[int, ...], adaptation: Adaptation
) -> None:
    with pytest.raises(SizeError):
        build(model, options, task, shape, 100, adaptation)


class Large(nn.Module):
    """A network of a plugin."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10**6, 10**7))


def test_numbers_are_counted_however_they_are_made() -> None:
    generator = torch.Generator()
    with Limited(100):
        torch.randn(5, 10, generator=generator)
        torch.zeros_like(torch.ones(20))
        torch.full((10,), 3.0)
        with pytest.raises(SizeError):
            torch.arange(2)
    torch.zeros(1000)


def test_the_numbers_of_a_network_are_those_of_one_that_nobody_counts() -> None:
    for model, shape in (("lenet", (3, 32, 32)), ("resnet9", (3, 32, 32)), ("mlp", (64,))):
        torch.manual_seed(0)
        one = build(model, None, "classification", shape, 10)
        torch.manual_seed(0)
        other = build(model, None, "classification", shape, 10, max_parameters=10**7)
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
