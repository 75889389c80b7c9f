"""Mixed precision and batches in parts change only what they should; layout of images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine.engine import Engine, Fit
from coterie.clients.models.options import ResNet9Options, TransformerOptions
from coterie.clients.training import Training
from tests.clients.methods.test_twins import problem_of
from tests.kit import engine_of

TRAINING = Training(batch_size=4, local_steps=2, learning_rate=0.01, momentum=0.9)
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (None, (1, 4, 4)),
    "lenet": (None, (3, 8, 8)),
    "resnet9": (ResNet9Options(8), (3, 8, 8)),
    "unet3d": (None, (1, 8, 8, 8)),
    "transformer": (TransformerOptions(1, 8, 2, dropout=0.2), (6,)),
}


def narrow(model: str, dtype: str = "float32", **more: Any) -> Engine:
    options, shape = NETWORKS[model]
    return engine_of(
        problem_of(model, shape), model, options, training=TRAINING, dtype=dtype, **more
    )


def trained(engine: Engine) -> Fit:
    x_pd, buffers = engine.initial()
    return engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(1))


def loss(engine: Engine, fit: Fit) -> Tensor:
    return engine.losses(fit.x, fit.buffers, "test").losses


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("model", ["mlp", "lenet", "unet3d", "transformer"])
def test_mixed_precision_rounds_products_and_keeps_everything_else(model: str, chunk: int) -> None:
    """Gradients differ by the 8 bits of bfloat16; stored models stay float32."""
    seen: dict[torch.dtype, int] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], got: Tensor) -> None:
        seen[got.dtype] = seen.get(got.dtype, 0) + 1

    full, mixed = narrow(model, chunk=chunk), narrow(model, chunk=chunk, mixed_precision=True)
    for layer in mixed.network.module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(note)
    one, other = trained(full), trained(mixed)
    assert set(seen) == {torch.bfloat16}
    assert other.x.dtype == torch.float32
    assert {v.dtype for v in other.opt_state.values()} == {torch.float32}
    assert {k: v.dtype for k, v in other.buffers.items()} == {
        k: v.dtype for k, v in one.buffers.items()
    }
    went, goes = ((fit.x - full.initial()[0]).double().flatten() for fit in (one, other))
    assert not torch.equal(went, goes)
    # The cosine of their angle; batch norm of 4 examples is touchy.
    assert (went @ goes / went.norm() / goes.norm()).item() > 0.9
    assert torch.allclose(loss(mixed, other), loss(full, one), rtol=0.1)


def test_mixed_precision_leaves_alone_what_it_is_not_for() -> None:
    assert not narrow("mlp").network.mixed_precision
    with pytest.raises(ValueError, match="float32"):
        narrow("mlp", dtype="float64", mixed_precision=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "resnet9"])
def test_images_are_channels_last_in_every_layer_on_a_cpu(model: str) -> None:
    seen = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape[1] > 1 and max(inputs[0].shape[2:]) > 1:
            seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    engine = narrow(model, chunk=1)
    for layer in engine.network.module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(note)
    trained(engine)
    assert seen
    assert all(seen)  # it lasts through pooling, batch norm and residual branches


@pytest.mark.parametrize("model", ["mlp", "lenet", "transformer"])
def test_a_batch_too_large_for_one_model_is_worked_off_in_parts(model: str) -> None:
    """Its gradient, loss and dropout are those of the whole."""
    whole = narrow(model, dtype="float64", memory=10**9)
    for parts in (2, 4):
        bound = whole.holds(4) // parts
        cut = narrow(model, dtype="float64", memory=bound)
        assert cut._trainer.execution.width(4, whole.holds(4)) == 4 // parts
        x_pd, buffers = whole.initial()
        batch = whole.batches(1)[0]
        one, other = (engine.gradients(x_pd, buffers, batch) for engine in (whole, cut))
        assert torch.allclose(one.values, other.values, rtol=1e-10, atol=1e-14)
        assert torch.allclose(one.losses, other.losses, rtol=1e-12)


def test_batch_norm_sees_the_whole_batch_however_large() -> None:
    whole, cut = narrow("unet3d", memory=10**9), narrow("unet3d", memory=1)
    assert torch.allclose(trained(whole).x, trained(cut).x, atol=1e-4)
