"""Animated map: valid, small, self-contained, and equal to the run's weights."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from coterie.app.runs.rundir import PeerSplit, Run
from studies.map import animation

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "map.svg"


def run(weights: list[list[list[float]]]) -> Run:
    rounds = np.arange(len(weights)) * 10
    accuracy = np.full((len(weights), len(weights[0])), 0.5)
    cluster = [PeerSplit(cluster=c) for c in (0, 0, 1)]
    return Run(
        directory=Path("run"), config={"peers": 3}, rounds=rounds,
        metrics={"test_accuracy": accuracy}, reported=np.ones_like(accuracy, bool),
        weight_rounds=rounds, weights=np.array(weights), split=tuple(cluster), progress={},
        names=("peer 0", "peer 1", "peer 2"), classes=(),
    )  # fmt: skip


def test_a_line_is_as_dark_as_the_smaller_weight() -> None:
    start = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    end = [[1.0, 0.9, 0.0], [0.8, 1.0, 0.25], [0.0, 0.5, 1.0]]
    text = animation(run([start, end]))
    svg = ElementTree.fromstring(text)
    lines = [line.get("opacity") for line in svg.iter("{http://www.w3.org/2000/svg}line")]
    assert lines == ["0.8", "0", "0.25"]  # without animation: the last round
    assert "0% { opacity: 1 } 80% { opacity: 0.25 } 100% { opacity: 0.25 }" in text


def test_the_image_of_the_readme_is_small_and_loads_nothing() -> None:
    text = IMAGE.read_text("utf-8")
    ElementTree.fromstring(text)
    assert IMAGE.stat().st_size < 400_000
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
    assert "prefers-reduced-motion" in text
