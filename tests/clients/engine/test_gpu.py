"""Test on a pretended GPU: same results as on a CPU, number of operations independent of peers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.models.options import Adaptation
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split
from tests import marks
from tests.clients.engine.test_backends import OPTIONS, SLOW, WITHOUT
from tests.clients.methods.test_twins import CASES, case
from tests.pretended_gpu import DEVICE, OnDevice, PretendedGpu
from tests.problems import classification

LARGE = ("resnet9", "resnet18", "cnn-128", "cnn")


def computed(problem: Problem, model: str, options: Any, **more: Any) -> list[Tensor]:
    """Models, buffers, gradients and scores, on the CPU."""
    setting = {"batch_size": 2, "local_steps": 2, "learning_rate": 0.01, **more.pop("training", {})}
    of = Engine(
        problem, model, options, [0, 1], Training(**setting), dtype="float64", device="cpu", **more
    )  # fmt: skip
    x, buffers = of.initial(common=False)
    steps = of.batches(1) if model in LARGE else of.batches(1, steps=None, epochs=1)
    fit = of.fit(x, buffers, of.opt_state(x), steps)
    gradients = of.gradients(fit.x, fit.buffers, of.batches(2)[0])
    scores = of.losses(fit.x, fit.buffers, "test")
    mixed = of.mix(np.array([[0.5, 0.5], [1.0, 0.0]]), fit.x)
    values = [
        fit.x,
        gradients.values,
        scores.losses,
        mixed,
        of.inner(x, fit.x),
        *fit.buffers.values(),
    ]
    assert all(isinstance(value, OnDevice) == (of.device == DEVICE) for value in values)
    return [value.double().cpu() for value in values]


def pairs() -> list[Any]:
    cases = [(name, option) for name in CASES for option in OPTIONS]
    return [
        marks.case(*pair, is_long=pair[0] in SLOW) for pair in cases
        if pair not in WITHOUT
        and (pair[1] == "plain" or pair[0] in ("mlp", "lenet", "transformer"))
    ]  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), pairs())
def test_numbers_are_the_cpus(name: str, option: str, tmp_path: Path) -> None:
    model, options, problem = case(name, tmp_path)
    keys = dict(OPTIONS[option])
    if option == "frozen":
        keys["adaptation"] = Adaptation(frozen={"transformer": "wte"}.get(model, "1"))
    expected = computed(problem, model, options, **keys)
    with PretendedGpu() as gpu:
        result = computed(problem, model, options, **keys)
    assert gpu.counts["operations"] > 100
    for one, other in zip(result, expected, strict=True):
        bound = 1e-9 * float(other.abs().max().clamp_min(1.0))  # batch norm of few examples
        assert float((one - other).abs().max()) <= bound


@pytest.mark.slow
def test_augmented_mixed_and_alone() -> None:
    problem = classification([5, 4], shape=(1, 8, 8))
    settings: list[dict[str, Any]] = [
        {"training": {"augment": "crop-flip"}},
        {"model": "tests.plugins:branching"},
        {"backend": "sequential"},
    ]
    for keys in settings:
        model = keys.pop("model", "lenet")
        expected = computed(problem, model, None, **dict(keys))
        with PretendedGpu():
            result = computed(problem, model, None, **dict(keys))
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def copies(problem: Problem, peers: int) -> Problem:
    """Return the problem for more peers, all with the examples of peer 0."""

    def of(split: Split) -> Split:
        return Split((split.rows[0],) * peers, (split.targets[0],) * peers)

    return replace(
        problem, train=of(problem.train), test=of(problem.test),
        validation=of(problem.validation), samples=problem.samples[:1].repeat(peers),
    )  # fmt: skip


def counted(name: str, peers: int, path: Path, **more: Any) -> dict[str, int]:
    """Operations, waits and copies of the third step, which does what the second did."""
    model, options, problem = case(name, path)
    training = Training(batch_size=2, local_steps=1, momentum=0.9)
    rounds: list[tuple[Counter[str], list[str]]] = []
    with PretendedGpu() as gpu:
        of = Engine(copies(problem, peers), model, options, range(peers), training, **more)
        x, buffers = of.initial()
        opt_state = of.opt_state(x)
        of.fit(x, buffers, opt_state, of.batches(1))  # measures activations
        for steps in (2, 3):
            drawn = of.batches(2, steps=steps, epochs=0)
            gpu.counts.clear()
            gpu.names.clear()
            of.fit(x, buffers, opt_state, drawn)
            rounds.append((gpu.counts.copy(), gpu.names.copy()))
    (two, names), (three, again) = rounds
    step = {key: three[key] - two[key] for key in ("operations", "waits", "copies")}
    if "memory" not in more:  # one call takes all models: the steps follow each other
        assert names[-step["operations"] :] == again[-step["operations"] :]
    return step


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [marks.case(name, is_long=name in SLOW) for name in CASES])
def test_a_step_does_not_grow_with_the_number_of_peers(name: str, tmp_path: Path) -> None:
    """And the host never waits in it: what a CUDA graph asks."""
    few, many = (2, 3) if name in LARGE or name == "gpt2" else (2, 17)
    one, other = (counted(name, peers, tmp_path) for peers in (few, many))
    assert one == other
    assert one["waits"] == 0
    assert one["copies"] == 0


@pytest.mark.slow
def test_nor_does_a_private_step(tmp_path: Path) -> None:
    privacy = Privacy("examples", clip=1.0, noise=1.0)
    for name in ("mlp", "lenet", "transformer"):
        one, other = (counted(name, peers, tmp_path, privacy=privacy) for peers in (2, 9))
        assert other["operations"] == one["operations"], name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_calls_follow_the_memory_of_the_gpu(name: str, tmp_path: Path) -> None:
    """With room for two models, six take three calls and give the results of one call."""
    model, options, problem = case(name, tmp_path)
    of = Engine(problem, model, options, [0], Training(batch_size=2), device="cpu")
    two = 2 * of.holds(2)
    assert counted(name, 6, tmp_path)["operations"] == counted(name, 2, tmp_path)["operations"]
    in_three = counted(name, 6, tmp_path, memory=two)
    ratio = in_three["operations"] / counted(name, 2, tmp_path)["operations"]
    assert 3 <= ratio < 3.3, "three calls, and their parts of the minibatch"
    assert in_three["waits"] == 0
    with PretendedGpu():
        whole = computed(problem, model, options)
        cut = computed(problem, model, options, memory=of.holds(2))
    for one, other in zip(cut, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_what_is_placed_wrongly_fails() -> None:
    with PretendedGpu() as gpu:
        on, off = torch.ones(3, device=DEVICE), torch.ones(3)
        with pytest.raises(RuntimeError, match="two devices"):
            _ = on + off
        with pytest.raises(TypeError, match="numpy"):
            on.numpy()
        assert gpu.counts["waits"] == 0
        assert on.sum().item() == 3
        assert (on + 2.0).cpu().tolist() == [3, 3, 3]
        assert gpu.counts["waits"] == 2
