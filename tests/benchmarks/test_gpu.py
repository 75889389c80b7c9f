"""The GPU benchmark, in small: it needs neither Flower nor Ray, and answers every question."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from coterie.app.config.root import ROOT

TRY = """
import sys
from benchmarks import gpu
gpu.main(["--small"])
assert not {"flwr", "ray", "app"} & sys.modules.keys()
"""


@pytest.mark.long
def test_every_question_is_answered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRY], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    _, *answers = map(json.loads, done.stdout.splitlines())
    kinds = [next(iter(answer)) for answer in answers]
    assert {"network", "cobo", "numbers", "evaluation", "mixing"} == set(kinds)
    rates = [answer for answer in answers if "ratio" in answer]
    assert {answer["precision"] for answer in rates} == {"float32", "tf32", "bfloat16"}
    assert all(answer["steps_s"] > 0 and answer["law_mib"] >= 0 for answer in rates)
    (numbers,) = (answer for answer in answers if "numbers" in answer)
    assert numbers["twice"] == 0
    assert numbers["against_cpu"] < 1e-5
