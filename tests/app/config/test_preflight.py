"""Data that do not suit the model, the augmentation or the method, before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check_method, problem_of
from coterie.app.config.schema import Scalar
from tests.inline import run
from tests.problems import classification


def test_only_images_with_a_class_each_can_be_augmented() -> None:
    config = Config.from_flat({"augment": "crop-flip"})
    images = classification([4, 4])
    check_method(config, images)
    for problem in (
        classification([4, 4], shape=(5,)),
        replace(images, task="regression"),  # a flipped image may have another value
    ):
        with pytest.raises(ConfigError, match=r'augment = "crop-flip" requires images'):
            check_method(config, problem)


def test_a_model_is_asked_whether_it_can_begin(tmp_path: Path) -> None:
    config = Config.from_flat({"model": "gpt2", "gpt2.weights-file": str(tmp_path / "none")})
    language = replace(classification([4, 4], shape=(5,)), task="language")
    with pytest.raises(ConfigError, match=r"^gpt2: no weights in .*none"):
        check_method(config, language)


def test_a_split_seed_fixes_the_division_and_nothing_else(tmp_path: Path) -> None:
    """Runs with different seeds divide alike; a split-seed equal to the seed changes no byte."""
    flat: dict[str, Scalar] = {"partition.kind": "dirichlet", "peers": 4, "dataset": "digits"}

    def rows(**keys: Scalar) -> list[list[int]]:
        problem = problem_of(Config.from_flat({**flat, **keys}))
        return [of_peer.tolist() for of_peer in problem.train.rows]

    assert rows(**{"seed": 0, "split-seed": 5}) == rows(**{"seed": 1, "split-seed": 5})
    assert rows(**{"seed": 0, "split-seed": 5}) == rows(seed=5) != rows(seed=0)
    short: dict[str, Scalar] = {
        **flat,
        "method": "fedavg",
        "num-server-rounds": 2,
        "evaluate-every": 1,
        "seed": 3,
    }
    same, fixed = (
        {
            at: report.metrics
            for at, report in run({**short, **more}, tmp_path / name).reports.items()
        }
        for name, more in (("same", {}), ("fixed", {"split-seed": 3}))
    )
    assert same == fixed
    with pytest.raises(ConfigError, match="split-seed = -1: must be at least 0"):
        Config.from_flat({**flat, "split-seed": -1})
