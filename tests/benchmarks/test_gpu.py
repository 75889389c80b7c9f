"""The GPU benchmark, in small: it needs neither Flower nor Ray, and answers every question."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import gpu
from coterie.app.config.root import ROOT
from tests.pretended_gpu import PretendedGpu

TRY = """
import sys
from benchmarks import gpu
gpu.main(["--small", "--out", sys.argv[1]])
assert not {"flwr", "ray", "app"} & sys.modules.keys()
"""


KINDS = ["network", "cobo", "pairs", "private", "numbers", "evaluation", "mixing"]


@pytest.mark.long
def test_every_question_is_answered(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *answers = map(json.loads, done.stdout.splitlines()[:-1])
    kinds = [next(iter(answer)) for answer in answers]
    assert {*KINDS} == set(kinds)
    table = (tmp_path / "gpu.md").read_text()
    assert table.count("\n| ") == 1 + len(answers) + len({tuple(answer) for answer in answers})
    assert "mlp-64, 2 peers: 5 steps take" in (tmp_path / "profile.txt").read_text()
    rates = [answer for answer in answers if "ratio" in answer]
    assert {answer["precision"] for answer in rates} == {"float32", "tf32", "bfloat16"}
    assert all(answer["steps_s"] > 0 and answer["law_mib"] >= 0 for answer in rates)
    (numbers,) = (answer for answer in answers if "numbers" in answer)
    assert numbers["twice"] == 0
    assert numbers["against_cpu"] < 1e-5


@pytest.mark.long
def test_it_runs_to_its_end_on_a_gpu() -> None:
    with PretendedGpu() as device:
        bench = gpu.Bench("pretended", small=True)
        answers = [question() for question in bench.answers()]
        profiles = "".join(bench.profiles())
    assert {next(iter(answer)) for answer in answers} == {*KINDS}
    assert "aten::" in profiles
    assert device.counts["operations"] > 100_000


def test_a_question_without_an_end_is_left() -> None:
    with pytest.raises(TimeoutError, match="left after"), gpu.limit(0.01):
        signal.pause()


def test_presets_of_resnets_round_to_tf32() -> None:
    presets = [tomllib.loads(path.read_text()) for path in ROOT.glob("presets/*/*.toml")]
    of_resnets = [keys for keys in presets if keys.get("model", "").startswith("resnet")]
    assert of_resnets
    assert all(keys["tf32"] for keys in of_resnets)
