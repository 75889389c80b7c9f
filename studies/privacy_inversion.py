"""Gradient inversion with and without privacy: `python -m studies.privacy_inversion FIGURE.png`.

A peer answers with its gradient at a model that the attacker chose: a fresh MLP. Of one example,
the first layer's gradient g a' and that of its bias g give the input a in closed form. Of more,
Adam looks for inputs whose gradient has the least cosine distance to the answer in each tensor
(Geiping et al., "Inverting gradients", NeurIPS 2020); the attacker knows the labels and the range
of pixels. Rows of the picture: the minibatch, digits of another one, reconstructions from the
plain gradient, and from private gradients of which a single answer costs `EPSILONS`. Each
reconstructed image is matched with one original; the number is their mean correlation. The other
minibatch shows the correlation of unrelated digits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from coterie.app.config.config import Config
from coterie.app.config.preflight import check
from coterie.app.config.schema import Scalar
from coterie.clients.engine.engine import Engine
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from coterie.datasets.problem import Problem
from studies.privacy import noise_for

BATCHES = (1, 8, 32)
EPSILONS = (1000.0, 100.0, 8.0)
STEPS = 600
SHOWN = 8
BLACK_WHITE = (0 - 4.892) / 6.019, (16 - 4.892) / 6.019
Floats = npt.NDArray[np.float64]


def problem_of(batch: int) -> Problem:
    """Return two i.i.d. peers with a number of digits each."""
    split: Mapping[str, Scalar] = {"partition.kind": "iid", "partition.samples-per-peer": batch}
    return check(Config.from_flat({"dataset": "digits", "method": "local", "peers": 2, **split}))


def engine_of(problem: Problem, epsilon: float) -> Engine:
    """Build the engine of both peers; one answer on all examples costs epsilon."""
    private = math.isfinite(epsilon)
    return Engine(
        problem, "mlp", None, range(2), Training(), dtype="float64", device="cpu",
        privacy=Privacy("examples", noise=noise_for(epsilon, 1)) if private else None,
    )  # fmt: skip


def inverted(engine: Engine, answer_d: Tensor, labels_b: Tensor, steps: int) -> Tensor:
    """Optimise inputs (b, 1, 8, 8) so that their gradient approaches an answer."""
    x_pd, buffers = engine.initial()
    aims = engine.network.tensors(answer_d[None])
    if len(labels_b) == 1:
        weight, bias = aims[0][0], aims[1][0]
        return (bias @ weight / bias.square().sum()).reshape(1, 1, 8, 8)
    network = engine.network
    leaves = {name: v[0].detach().requires_grad_() for name, v in network.named(x_pd[:1]).items()}
    low, high = BLACK_WHITE
    draws = torch.Generator().manual_seed(0)
    guess = torch.empty(len(labels_b), 1, 8, 8, dtype=x_pd.dtype).uniform_(
        low, high, generator=draws
    )
    adam = torch.optim.Adam([guess.requires_grad_()], lr=0.05)
    for _ in range(steps):
        outputs, _ = network.run(network.module, {**leaves}, guess, buffers)
        loss = F.cross_entropy(outputs, labels_b)
        gradients = torch.autograd.grad(loss, [*leaves.values()], create_graph=True)
        distance = torch.stack(
            [
                1 - F.cosine_similarity(gradient.flatten(), aim.flatten(), dim=0)
                for gradient, aim in zip(gradients, aims, strict=True)
            ]
        ).sum()
        (guess.grad,) = torch.autograd.grad(distance, [guess])
        adam.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    return guess.detach()


def matched(rebuilt: Floats, true: Floats) -> tuple[Floats, float]:
    """Match images (b, 64) with the originals; return them and the mean correlation."""
    correlation = np.corrcoef(true, rebuilt)[: len(true), len(true) :]
    rows, columns = linear_sum_assignment(-correlation)
    return rebuilt[columns], float(correlation[rows, columns].mean())


def main() -> None:
    """Reconstruct, print the numbers, draw."""
    rows: dict[str, list[tuple[Floats, float]]] = {"original": [], "other digits": []}
    for batch in BATCHES:
        problem = problem_of(batch)
        true, other = (problem.inputs[row].reshape(batch, 64) / 1.0 for row in problem.train.rows)
        rows["original"].append((true, 1.0))
        rows["other digits"].append(matched(other, true))
        labels_b = torch.from_numpy(problem.train.targets[0].copy())
        for epsilon in (math.inf, *EPSILONS):
            engine = engine_of(problem, epsilon)
            x_pd, buffers = engine.initial()
            answer_d = engine.gradients(x_pd, buffers, engine.data.everything()).values[0]
            rebuilt = inverted(engine, answer_d, labels_b, STEPS).reshape(batch, 64).numpy()
            name = "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
            rows.setdefault(name, []).append(matched(rebuilt, true))
            print(
                f"{batch:>3} examples  {name:<14} correlation {rows[name][-1][1]:.2f}", flush=True
            )
        chance = rows["other digits"][-1][1]
        print(f"{batch:>3} examples  {'other digits':<14} correlation {chance:.2f}", flush=True)
    draw(rows, Path(sys.argv[1]))


def draw(rows: Mapping[str, list[tuple[Floats, float]]], path: Path) -> None:
    """Draw up to `SHOWN` images of each minibatch, with a row per attempt."""
    widths = [min(batch, SHOWN) for batch in BATCHES]
    figure = Figure(figsize=(0.62 * sum(widths) + 2, 0.8 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(BATCHES), width_ratios=widths)
    for of_row, (name, attempts) in zip(panels, rows.items(), strict=True):
        of_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        for axes, (images, score), batch in zip(of_row, attempts, BATCHES, strict=True):
            shown = [image.reshape(8, 8) for image in images[:SHOWN]]
            # scaled from darkest to brightest pixel, because noise has no fixed range
            shown = [(image - image.min()) / np.ptp(image) for image in shown]
            padded = [np.pad(image, 1, constant_values=np.nan) for image in shown]
            axes.imshow(np.hstack(padded), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(f"{score:.2f}", fontsize=9)
            if name == "original":
                axes.set_title(f"{batch} example{'s' if batch > 1 else ''}", fontsize=10)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
