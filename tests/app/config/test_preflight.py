"""Data that do not suit the model, the augmentation or the method, before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check_method
from tests.problems import classification


def test_only_images_with_a_class_each_can_be_augmented() -> None:
    config = Config.from_flat({"augment": "crop-flip"})
    images = classification([4, 4])
    check_method(config, images)
    for problem in (
        classification([4, 4], shape=(5,)),
        replace(images, task="regression"),  # a flipped image may have another value
    ):
        with pytest.raises(ConfigError, match=r'augment = "crop-flip" wants images'):
            check_method(config, problem)


def test_a_model_is_asked_whether_it_can_begin(tmp_path: Path) -> None:
    config = Config.from_flat({"model": "gpt2", "gpt2.weights-file": str(tmp_path / "none")})
    language = replace(classification([4, 4], shape=(5,)), task="language")
    with pytest.raises(ConfigError, match=r"^gpt2: no weights in .*none"):
        check_method(config, language)
