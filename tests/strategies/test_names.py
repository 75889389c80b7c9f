"""Names of runs and display names of parts."""

from __future__ import annotations

import pytest

from coterie.strategies.names import display


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("cobo", "cobo"),
        ("my_methods:MINE", "MINE"),
        ("package.module:Outer.INNER", "Outer.INNER"),
        ("here:Mine", "Mine"),
        ("package.module:MINE learning-rate=0.1", "MINE learning-rate=0.1"),
        ("model=package.module:Net", "model=package.module:Net"),
        ("timm:resnet18", "timm:resnet18"),
        ("transformers:small-gpt2", "transformers:small-gpt2"),
        ("odd:", "odd:"),
        ("", ""),
    ],
)
def test_a_plugin_is_displayed_without_its_module(part: str, name: str) -> None:
    assert display(part) == name
