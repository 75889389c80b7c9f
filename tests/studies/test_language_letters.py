"""Configurations of the study of a language model's letters."""

from __future__ import annotations

from studies import language_letters as study


def test_every_method_has_a_configuration_with_its_letters() -> None:
    made = [study.configuration(method, 0.01, letters, 0) for method, letters in study.COMPARED]
    assert [(config.method, config.payload, config.letters.scheme) for config in made] == [
        ("local", "full", "full"),
        ("fedavg", "full", "full"),
        ("trust", "full", "full"),
        ("fedavg", "full", "full"),  # fedsa-lora
        ("fedavg", "full", "full"),  # ffa-lora
        ("fedavg", "int8", "increments"),
        ("trust", "int8", "increments"),
        ("fedavg", "int8", "full"),
        ("trust", "int8", "full"),
    ]
