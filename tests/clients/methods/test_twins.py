"""All networks: stacked training equals a plain PyTorch loop over peers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.clients.engine.engine import Engine
from coterie.clients.engine.layers import Dropout
from coterie.clients.engine.network import LAYER_STEP
from coterie.clients.engine.tasks import TASKS
from coterie.clients.models.build import build
from coterie.clients.models.options import (
    MODELS,
    Gpt2Options,
    MlpOptions,
    ResNet9Options,
    ResNet18Options,
    TransformerOptions,
)
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split, Task
from tests.clients.models.gpt2_file import write_gpt2
from tests.problems import classification

BATCH = 3
TRAINING = Training(batch_size=BATCH, local_steps=2, learning_rate=0.01, momentum=0.9)
VOCABULARY = 11
CASES: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "linear": ("linear", None, (1, 4, 4)),
    "mlp": ("mlp", MlpOptions("7-5"), (1, 4, 4)),
    "lenet": ("lenet", None, (3, 8, 8)),
    "lenet-femnist": ("lenet-femnist", None, (1, 8, 8)),
    "cnn": ("cnn", None, (1, 8, 8)),
    "cnn-mnist": ("cnn-mnist", None, (1, 8, 8)),
    "cnn-128": ("cnn-128", None, (3, 8, 8)),
    "resnet9": ("resnet9", ResNet9Options(8), (3, 8, 8)),
    "resnet18": ("resnet18", ResNet18Options("group"), (3, 8, 8)),  # resnet9 has batch norm
    "unet2d": ("unet2d", None, (3, 8, 5)),
    "unet3d": ("unet3d", None, (1, 8, 4, 5)),
    "transformer": ("transformer", TransformerOptions(1, 8, 2, dropout=0.2), (6,)),
    "gpt2": ("gpt2", Gpt2Options(rank=2, dropout=0.2), (6,)),
}


def test_every_network_is_here() -> None:
    networks = {name for name, model in MODELS.items() if not model.library} - {"auto"}
    assert {model for model, _, _ in CASES.values()} == networks


def problem_of(model: str, shape: tuple[int, ...]) -> Problem:
    """Make two peers with random images, tokens or volumes."""
    problem = classification([BATCH + 2, BATCH + 1], shape=shape, tests=[2, 2])
    g = np.random.default_rng(1)

    def with_targets(split: Split, high: int, shape: tuple[int, ...]) -> Split:
        return Split(split.rows, tuple(g.integers(high, size=(len(r), *shape)) for r in split.rows))

    task: Task
    if model in ("transformer", "gpt2"):
        tokens = g.integers(VOCABULARY, size=problem.inputs.shape)
        task, high, target = "language", VOCABULARY, shape
        problem = replace(problem, inputs=tokens)
    elif model.startswith("unet"):
        task, high, target = "segmentation", 2, shape[1:]
    else:
        return problem
    return replace(
        problem,
        task=task,
        outputs=high,
        train=with_targets(problem.train, high, target),
        test=with_targets(problem.test, high, target),
    )


def case(name: str, path: Path) -> tuple[str, Any, Problem]:
    model, options, shape = CASES[name]
    if model == "gpt2":
        file = path / "model.safetensors"
        write_gpt2(file, vocabulary=VOCABULARY, context=8, width=64, layers=1)
        options = replace(options, weights_file=str(file))
    return model, options, problem_of(model, shape)


def set_trained(module: nn.Module, x_d: Tensor) -> list[nn.Parameter]:
    """Write a row of the stack to the trainable tensors, and return them."""
    tensors = [value for value in module.parameters() if value.requires_grad]
    for value, part in zip(tensors, x_d.split([v.numel() for v in tensors]), strict=True):
        value.data = part.view(value.shape).clone()
    return tensors


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-10 * b.abs().max().clamp_min(1.0))


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chunk"),
    [(name, 2) for name in CASES] + [(name, 1) for name in CASES if "resnet" not in name],
)
def test_stacked_training_equals_a_plain_loop(name: str, chunk: int, tmp_path: Path) -> None:
    model, options, problem = case(name, tmp_path)
    steps = 1 if "resnet" in model else TRAINING.local_steps  # millions of parameters
    training = replace(TRAINING, local_steps=steps)
    engine = Engine(
        problem, model, options, [0, 1], training, dtype="float64", device="cpu", chunk=chunk
    )
    batches = engine.batches(1)
    x_pd, buffers = engine.initial(common=False)
    fit = engine.fit(x_pd, buffers, engine.opt_state(x_pd), batches)
    scores = engine.losses(fit.x, fit.buffers, "test")
    built = build(model, options, problem.task, problem.inputs.shape[1:], problem.outputs)
    for p in range(2):
        module = Adopted(deepcopy(built).to(torch.float64)).train()
        tensors = set_trained(module, x_pd[p])
        optimizer = torch.optim.SGD(tensors, lr=TRAINING.learning_rate, momentum=TRAINING.momentum)
        for batch in batches:
            module.key(int(batch.keys_e[p]))
            peer = torch.tensor([p])
            inputs, targets = engine.data.examples("train", peer, batch.rows_eb[p : p + 1])
            losses = TASKS[problem.task].losses(module(inputs[0])[None], targets)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        twin_d = torch.cat([value.detach().flatten() for value in tensors])
        assert close(fit.x[p], twin_d)
        assert not close(fit.x[p], x_pd[p])
        for key, value in module.inner.named_buffers():
            if "dropout_" not in key:
                assert torch.allclose(fit.buffers[key][p].double(), value.double(), rtol=1e-10)
        rows = torch.arange(2)[None]
        inputs, targets = engine.data.examples("test", torch.tensor([p]), rows)
        expected = TASKS[problem.task].losses(module.eval()(inputs[0])[None], targets).mean()
        assert scores.losses[p].item() == pytest.approx(expected.item(), rel=1e-9)


class Adopted(nn.Module):
    """Module with the engine's keyed dropout instead of torch's, for equal masks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        for parent in list(inner.modules()):
            for child, layer in parent.named_children():
                if isinstance(layer, nn.Dropout):
                    setattr(parent, child, Dropout(layer.p))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result

    def key(self, key: int) -> None:
        layers = [m for m in self.inner.modules() if isinstance(m, Dropout)]
        for number, layer in enumerate(layers):
            layer.get_buffer("dropout_key").fill_(key + number * LAYER_STEP)
