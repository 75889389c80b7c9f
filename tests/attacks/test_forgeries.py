"""Thousands of forged orders and configurations: each is refused with its code, none fails."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.settings import keys
from coterie.strategies.protocol import PeerMessage, Request, Response
from tests.attacks.consortium import (
    ROWS,
    RUN,
    asking,
    institutions,
    response_of,
    started,
)

ORDERS, CONFIGURATIONS = 150, 150
NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 10**6, 2**62)
SAMPLES = np.array([rows // 2 for rows in ROWS])
LIMITS = dict.fromkeys(
    ("max_replays", "max_answers_per_round", "max_answers_per_peer", "max_answers"), 10**6
)  # fmt: skip


def forged(order: Request, draw: random.Random) -> Request:
    """Forge one to four fields of a request."""
    for what in draw.choices(["stage", "round", "last", "edges", "asked", "samples", "mail"], k=4):
        some = draw.randrange(5)
        match what:
            case "stage":
                stage: Any = draw.choice(["start", "answer", "update", "local-rounds"])
                order = replace(order, stage=stage)
            case "round":
                t = draw.choice(NUMBERS)
                letters = tuple(replace(letter, round=t) for letter in order.letters)
                order = replace(order, round=t, last=t, letters=letters)
            case "last":
                order = replace(order, last=draw.choice(NUMBERS))
            case "edges":
                ends = np.array(draw.choices(NUMBERS, k=2 * some), dtype=np.int64).reshape(-1, 2)
                order = replace(order, edges=ends, asked=np.ones(some, dtype=np.bool_))
            case "asked":
                marks = np.array(draw.choices([True, False], k=len(order.edges)), dtype=np.bool_)
                order = replace(order, asked=marks)
            case "samples":
                order = replace(order, samples=np.array(draw.choices(NUMBERS, k=some)))
            case "mail":
                order = replace(order, letters=tuple(other(x, draw) for x in order.letters))
    return order


def other(letter: PeerMessage, draw: random.Random) -> PeerMessage:
    sender, nbytes = draw.choice(NUMBERS), draw.choice(NUMBERS)
    return replace(letter, sender=sender, nbytes=nbytes)


def code_of(answer: Response | str) -> str:
    return answer.split(": ")[1] if isinstance(answer, str) else "done"


@pytest.mark.slow
def test_forged_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = institutions(tmp_path)
    offers, node, draw = started(nodes), nodes[0], random.Random(1)
    node.set_policy(**{f"answers__{key}": value for key, value in LIMITS.items()})
    order = asking([offers[1], offers[2]])
    begin = Request("start", 0, 0, attempt="a", samples=SAMPLES)
    counts = Counter[str]()
    for number in range(ORDERS):
        if number % 5 == 0:
            response_of(node, begin)
        node.version = draw.choice([None, 0, 0, 0, 1, 5])
        counts[code_of(node.handle(forged(order, draw)))] += 1
    assert counts.keys() <= {"request", "state", "done"}, counts
    assert counts["request"] > ORDERS / 2
    response_of(node, begin)
    assert len(response_of(node, order).letters) == 2


def test_hostile_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Try hostile values of any key; nothing outside the node's folders is written."""
    node, draw = institutions(tmp_path)[0], random.Random(2)
    values = [*NUMBERS, -1, 0.5, 1e300, "", "x", "../..", "/dev/zero", "nan", True, "a, b", "1e30"]
    before = {path for path in tmp_path.rglob("*") if node.home not in path.parents}
    begin = Request("start", 0, 0, attempt="a")
    counts = Counter[str]()
    for number in range(CONFIGURATIONS):
        names = draw.sample(sorted(keys()), k=6)
        changed: dict[str, Any] = {key: draw.choice(values) for key in names}
        changed[draw.choice([key for key in RUN if key != "name"])] = draw.choice(values)
        node.run_config = {**RUN, "name": f"run-{number}"} | changed
        node.version = None
        counts[code_of(node.handle(begin))] += 1
    assert counts.keys() <= {"configuration", "policy", "data", "done"}, counts
    after = {path for path in tmp_path.rglob("*") if node.home not in path.parents}
    assert after - before <= {node.home}
