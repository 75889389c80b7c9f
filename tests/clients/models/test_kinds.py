"""Models of several kinds: the kind that a row says, hostile numbers, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clients.models.build import build
from coterie.clients.models.fitted import Kinds, Rows
from coterie.clients.models.options import (
    ForestOptions,
    KindOptions,
    LogisticOptions,
    MlpOptions,
    ResNet18Options,
    kinds_in,
)
from tests.clients.models.test_fitted import filled, stacked

NAME = "mlp + forest + logistic"
OPTIONS = KindOptions((MlpOptions("5"), ForestOptions(3, 4), LogisticOptions()))


def made() -> Kinds:
    module = build(NAME, OPTIONS, "classification", (3,), 2)
    assert isinstance(module, Kinds)
    return module


def of_kind(kind: int) -> Kinds:
    """A model as a run has it: a fitted one, or a network; parameters of the others are 0."""
    g, module = np.random.default_rng(0), made()
    x, y = g.normal(size=(40, 3)), g.integers(2, size=40)
    for number, model in enumerate(module.models):
        if number != kind:
            for value in model.parameters():
                value.data.zero_()
        elif kind > 0:
            filled(model, model.fitted(Rows(x, y, np.ones(40)), 0))  # type: ignore[arg-type,operator]
    module.kind.data.fill_(kind)
    return module


@pytest.mark.parametrize("kind", range(3))
def test_a_row_has_the_outputs_of_its_kind(kind: int) -> None:
    module, x = of_kind(kind), torch.randn(9, 3)
    assert not module.malformed(stacked(module)).any()
    assert torch.equal(module(x), module.models[kind](x))


def test_every_kind_begins_as_it_does_alone() -> None:
    torch.manual_seed(3)
    both = build("linear + mlp", KindOptions((None, MlpOptions("5"))), "classification", (3,), 2)
    torch.manual_seed(3)
    alone = build("mlp", MlpOptions("5"), "classification", (3,), 2)
    assert isinstance(both, Kinds)
    pairs = zip(both.models[1].parameters(), alone.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("value", [-1.0, 0.5, 3.0, np.nan, np.inf, -np.inf, 1e30])
def test_a_hostile_kind_is_found_and_evaluated(kind: int, value: float) -> None:
    module = of_kind(kind)
    module.kind.data.fill_(value)
    assert module.malformed(stacked(module)).all()
    assert module(torch.randn(4, 3)).shape == (4, 2)


@pytest.mark.parametrize(("kind", "other"), [(0, 1), (1, 2), (2, 0)])
def test_another_kind_or_parameters_of_another_kind_are_found(kind: int, other: int) -> None:
    module = of_kind(kind)
    module.kind.data.fill_(other)
    assert module.malformed(stacked(module)).all()
    module = of_kind(kind)
    next(module.models[other].parameters()).data.view(-1)[0] = 1.0
    assert module.malformed(stacked(module)).all()


def test_a_hostile_tree_is_found_among_kinds() -> None:
    module = of_kind(1)
    module.get_parameter("models.1.left").data[1, 1] = 1.0
    assert module.malformed(stacked(module)).all()


@pytest.mark.parametrize("name", ["mlp + mlp", "mlp + none", "gpt2 + mlp", "auto + mlp"])
def test_kinds_are_different_and_built_in(name: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        kinds_in(name)


def test_batch_norm_is_refused() -> None:
    options = KindOptions((ResNet18Options(), None))
    with pytest.raises(ValueError, match=r'"resnet18".*batch norm'):
        build("resnet18 + linear", options, "classification", (1, 8, 8), 2)
