"""Stacked networks: names, buffers, and dropout that belongs to a key."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.clients.engine.layers import Dropout
from coterie.clients.engine.network import Network
from tests.networks import outputs as by_torch


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def masks(p: float, keys: Tensor, size: int) -> Tensor:
    """(E, size) which inputs survive, by running ones through a dropout layer."""
    network = Network(nn.Sequential(nn.Dropout(p)))
    ones = torch.ones(len(keys), 1, size)
    outputs = by_torch(network, torch.empty(len(keys), 0), {}, ones, keys)[0][:, 0]
    kept = outputs > 0
    assert torch.allclose(outputs, kept / (1 - p))
    return kept


def test_a_row_holds_the_named_parameters_in_order() -> None:
    module = small()
    network = Network(module)
    row_d = network.flat(module)
    assert row_d.shape == (network.d,) == (3 * 4 + 4 + 4 + 4 + 4 * 2 + 2,)
    named = network.named(torch.stack([row_d, row_d + 1]))
    for name, value in module.named_parameters():
        assert torch.equal(named[name][0], value)
        assert torch.equal(named[name][1], value + 1)
    frozen = small()
    frozen.get_submodule("0").requires_grad_(False)
    assert Network(frozen).names == ["1.weight", "1.bias", "2.weight", "2.bias"]


def test_columns_name_the_parameters_of_modules_and_tensors() -> None:
    network = Network(small())
    assert network.columns(["0"]).nonzero().flatten().tolist() == list(range(16))
    assert network.columns(["2.bias"]).nonzero().flatten().tolist() == [32, 33]
    assert not network.columns(["", "0.w"]).any()


def test_models_and_buffers_are_each_ones_own() -> None:
    """Every stacked copy gives what the module alone gives with its parameters and buffers."""
    network, g = Network(small()), torch.Generator().manual_seed(0)
    assert network.coupled
    x_ed = torch.randn(3, network.d, dtype=torch.float64, generator=g)
    buffers = network.buffers(3)
    buffers["1.running_mean"] += torch.arange(3.0)[:, None]
    before = {name: value.clone() for name, value in buffers.items()}
    inputs = torch.randn(3, 5, 3, dtype=torch.float64, generator=g)
    for keys in (None, torch.zeros(3, dtype=torch.int64)):
        outputs, after = by_torch(network, x_ed, buffers, inputs, keys)
        for e in range(3):
            module = small().train(keys is not None)
            copies = {name: value[e].clone() for name, value in buffers.items()}
            parameters = {name: value[e] for name, value in network.named(x_ed).items()}
            alone = functional_call(module, (parameters, copies), (inputs[e],))
            assert torch.allclose(outputs[e], alone, rtol=1e-12)
            for name, value in copies.items():
                assert torch.allclose(after[name][e], value, rtol=1e-12), name
        assert all(torch.equal(buffers[name], before[name]) for name in buffers)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_is_bernoulli_and_keeps_the_mean(p: float) -> None:
    """Hoeffding: among N masks the share of survivors is off by more than
    sqrt(log(2e6) / 2N) with probability below 1e-6; so is each position's, over keys."""
    keys = torch.arange(1000) * 7919
    kept = masks(p, keys, 400)
    assert abs(kept.double().mean() - (1 - p)) < math.sqrt(math.log(2e6) / (2 * kept.numel()))
    bound = math.sqrt(math.log(2e6 * 400) / (2 * len(keys)))
    assert (kept.double().mean(dim=0) - (1 - p)).abs().max() < bound
    bound = math.sqrt(math.log(2e6 * 1000) / (2 * 400))
    assert (kept.double().mean(dim=1) - (1 - p)).abs().max() < bound


def test_neighbouring_keys_and_positions_are_not_correlated() -> None:
    """Agreement of independent fair bits is 1/2 within Hoeffding's bound."""
    kept = masks(0.5, torch.arange(200), 2000)
    swapped = kept[:, torch.arange(2000) ^ 1]  # a hash of (position xor key) would repeat itself
    pairs = (kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept[::2], swapped[1::2])
    for one, other in pairs:
        agreement = (one == other).double().mean()
        assert abs(agreement - 0.5) < math.sqrt(math.log(2e6) / (2 * one.numel()))


def test_a_mask_depends_on_the_key_alone() -> None:
    keys = torch.tensor([5, 2**32 - 1, 5, 17])
    together = masks(0.5, keys, 300)
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[3])
    torch.manual_seed(1)
    for e in range(4):
        assert torch.equal(masks(0.5, keys[e : e + 1], 300)[0], together[e])


def test_each_dropout_layer_has_masks_of_its_own() -> None:
    network = Network(nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))))
    ones, nothing, key = torch.ones(1, 1, 2000), torch.empty(1, 0), torch.tensor([3])
    both = (by_torch(network, nothing, {}, ones, key)[0] > 0).double().mean().item()
    assert both == pytest.approx(0.25, abs=math.sqrt(math.log(2e6) / 4000))


def test_evaluation_drops_nothing_and_needs_no_key() -> None:
    network = Network(nn.Sequential(nn.Dropout(0.5)))
    ones = torch.ones(2, 1, 50)
    assert torch.equal(by_torch(network, torch.empty(2, 0), {}, ones)[0], ones)
    assert not network.buffers(2)  # keys are no state


def test_a_mask_has_the_precision_of_its_input() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Dropout(0.5)(torch.ones(3, dtype=torch.float64)).dtype == torch.float64


def test_outputs_do_not_depend_on_the_place_in_a_stack() -> None:
    """To the bit, with sizes for which MKL rounds by the alignment of its operands (MKL_CBWR)."""
    g = torch.Generator().manual_seed(0)
    inputs_bm, weights_km = torch.randn(31, 26, generator=g), torch.randn(2, 26, generator=g)
    for count in (1, 2, 3, 4, 8):
        outputs_ebk = torch.vmap(nn.functional.linear)(
            inputs_bm.repeat(count, 1, 1), weights_km.repeat(count, 1, 1)
        )
        assert (outputs_ebk == outputs_ebk[0]).all()
