"""Augmented minibatches against a plain loop over images; what is never augmented."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.engine.data import crop_flip
from coterie.clients.engine.network import LAYER_STEP
from coterie.clients.training import Training
from coterie.datasets.problem import Problem
from tests.kit import engine_of
from tests.problems import classification

TRAINING = Training(batch_size=4, local_steps=3, augment="crop-flip", momentum=0.9)
SIDE, MOST = 16, 2  # an eighth of the side


def images_problem() -> Problem:
    problem = classification([9, 3, 6], shape=(2, SIDE, SIDE))
    g = np.random.default_rng(7)
    pool = g.integers(1, 256, problem.inputs.shape, dtype=np.uint8)
    mean, std = np.array([90.0, 110.0])[:, None, None], np.array([30.0, 50.0])[:, None, None]
    return replace(problem, inputs=pool, mean=mean, std=std)


def hash32(h: int) -> int:
    """MurmurHash3's finaliser, in Python's whole numbers."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) % 2**32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) % 2**32
    return h ^ (h >> 16)


def moved(image: npt.NDArray[np.uint8], key: int, place: int) -> npt.NDArray[np.uint8]:
    """Augment one image by slicing: pad with black, crop, perhaps mirror."""
    key = (key - LAYER_STEP) % 2**32
    down, right, mirror = (
        hash32(hash32(3 * place + draw) ^ key) * range_ // 2**32
        for draw, range_ in enumerate((2 * MOST + 1, 2 * MOST + 1, 2))
    )
    padded = np.pad(image, ((0, 0), (MOST, MOST), (MOST, MOST)))
    crop = padded[:, down : down + SIDE, right : right + SIDE]
    return crop[:, :, ::-1] if mirror else crop


def test_training_on_moved_images_is_a_plain_loop_over_them() -> None:
    problem = images_problem()
    engine = engine_of(problem, training=TRAINING)
    x, buffers = engine.initial()
    batches = engine.batches(1)
    fit = engine.fit(x, buffers, engine.opt_state(x), batches)
    seen = 0
    for peer in range(3):
        weight, bias = x[peer].split([3 * 2 * SIDE**2, 3])
        layer = nn.Linear(2 * SIDE**2, 3).double()
        layer.weight.data, layer.bias.data = weight.view(3, -1).clone(), bias.clone()
        optimizer = torch.optim.SGD(layer.parameters(), lr=TRAINING.learning_rate, momentum=0.9)
        for batch in batches:
            images, labels = [], []
            for place in range(int(batch.counts_e[peer])):
                row = int(batch.rows_eb[peer, place])
                raw = problem.inputs[problem.train.rows[peer][row]]
                images.append(
                    (moved(raw, int(batch.keys_e[peer]), place) - problem.mean) / problem.std
                )
                labels.append(int(problem.train.targets[peer][row]))
                seen += 1
            optimizer.zero_grad()
            scores = layer(torch.from_numpy(np.stack(images)).flatten(1))
            F.cross_entropy(scores, torch.tensor(labels)).backward()
            optimizer.step()
        expected = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
        assert torch.allclose(fit.x[peer], expected, rtol=1e-10, atol=1e-12)
    assert seen == 3 * (4 + 3 + 4)


def test_who_is_stacked_with_whom_does_not_matter() -> None:
    problem = images_problem()
    together = engine_of(problem, training=TRAINING)
    x, buffers = together.initial()
    models = together.fit(x, buffers, together.opt_state(x), together.batches(1)).x
    for chunk in (1, 2):
        engine = engine_of(problem, training=TRAINING, chunk=chunk)
        other = engine.fit(x, buffers, engine.opt_state(x), engine.batches(1)).x
        assert torch.allclose(other, models, rtol=1e-10)
    for peer in range(3):
        engine = engine_of(problem, training=TRAINING, peers=[peer])
        alone = engine.fit(
            x[peer : peer + 1],
            engine.network.buffers(1),
            engine.opt_state(x[:1]),
            engine.batches(1),
        ).x
        assert torch.allclose(alone[0], models[peer], rtol=1e-10)


def test_evaluation_and_whole_gradients_see_the_images_as_they_are() -> None:
    problem = images_problem()
    plain, augmented = (
        engine_of(problem, training=replace(TRAINING, augment=augment))
        for augment in ("none", "crop-flip")
    )
    x, buffers = plain.initial()
    for split in ("train", "test"):
        scores = [e.losses(x, buffers, split) for e in (plain, augmented)]
        assert torch.equal(scores[0].losses, scores[1].losses)
    whole = [e.gradients(x, buffers, e.data.everything()).values for e in (plain, augmented)]
    assert torch.equal(*whole)
    batches = [e.batches(1)[0] for e in (plain, augmented)]
    assert torch.equal(batches[0].rows_eb, batches[1].rows_eb)
    drawn = [
        e.gradients(x, buffers, batch).values
        for e, batch in zip((plain, augmented), batches, strict=True)
    ]
    assert not torch.allclose(drawn[0], drawn[1])


def offsets(images_ebchw: Tensor) -> tuple[list[tuple[int, int]], list[bool]]:
    """Return the shift of each image of `ramp`, and whether it was mirrored."""
    centre = images_ebchw[..., 0, SIDE // 2, SIDE // 2 - 1 : SIDE // 2 + 1].flatten(0, 1)
    mirrored = (centre[:, 0] > centre[:, 1]).tolist()
    value = torch.where(centre[:, 0] > centre[:, 1], centre[:, 1], centre[:, 0])
    return [(int(v) // SIDE, int(v) % SIDE) for v in value.tolist()], mirrored


def test_every_move_is_as_likely_and_independent_of_the_mirror() -> None:
    """6,400 images of 50 equally likely kinds, 128 expected each, standard deviation 11.2."""
    ramp = torch.arange(SIDE * SIDE).view(1, 1, 1, SIDE, SIDE).expand(100, 64, 1, SIDE, SIDE)
    keys = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 100))
    kinds: dict[tuple[tuple[int, int], bool], int] = {}
    for kind in zip(*offsets(crop_flip(ramp, keys)), strict=True):
        kinds[kind] = kinds.get(kind, 0) + 1
    assert len(kinds) == 2 * (2 * MOST + 1) ** 2
    chi_square = sum((count - 128) ** 2 / 128 for count in kinds.values())
    assert chi_square < 49 + 6 * math.sqrt(2 * 49)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 5, 9)])
def test_images_of_any_shape(shape: tuple[int, int, int]) -> None:
    """Pixels are the image's own or black, and an image moves by an eighth of its side at most."""
    images = torch.randint(1, 256, (2, 50, *shape), dtype=torch.uint8)
    augmented = crop_flip(images, torch.tensor([5, 2**32 - 1]))
    assert augmented.shape == images.shape
    assert augmented.dtype == torch.uint8
    black = (augmented == 0).all(dim=2)
    assert black.all(dim=2).sum(dim=2).max() == shape[2] // 8
    assert black.all(dim=3).sum(dim=2).max() == shape[1] // 8
