"""Name of the machine of a run."""

from __future__ import annotations

from coterie.app.runners.machine import description


def test_a_machine_has_a_processor_and_cores() -> None:
    assert " core" in description()
    assert description("NVIDIA H200").endswith(", NVIDIA H200")
