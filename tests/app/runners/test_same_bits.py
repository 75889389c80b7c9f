"""Test that a resumed run writes the same bytes as an uninterrupted one, for each network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie.app.config.config import Config
from coterie.app.runners import inline
from tests import marks
from tests.datasets.own.test_text import write_part, write_tokenizer

ROUNDS, PEERS = 3, 2
COMMON: dict[str, Any] = {
    "method": "cobo", "peers": PEERS, "num-server-rounds": ROUNDS, "evaluate-every": 1,
    "batch-size": 4, "local-steps": 2, "learning-rate": 0.01, "device": "cpu",
}  # fmt: skip
SHARES = {"partition.kind": "iid", "partition.samples-per-peer": 8}
DIGITS = {"dataset": "digits", **SHARES}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": DIGITS,
    "lenet": DIGITS,
    "resnet9": {**DIGITS, "resnet9.width": 8},
    "unet3d": {"dataset": "phantoms", **SHARES, "batch-size": 2},
    "transformer": {"dataset": "text", "text.context": 8},
}


class PowerCutError(BaseException):
    """The end of the process."""


def cut(now: Mapping[str, Any]) -> None:
    if now["round"] == 2:
        raise PowerCutError


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [marks.case(name, is_long=name == "resnet9") for name in NETWORKS]
)
def test_stopped_and_resumed_is_byte_for_byte_the_same(network: str, tmp_path: Path) -> None:
    flat = COMMON | NETWORKS[network] | {"model": network}
    if network == "transformer":
        write_tokenizer(tmp_path / "data")
        for peer in range(PEERS):
            words = np.random.default_rng(peer).choice([*"abcde"], 200)
            write_part(tmp_path / "data" / str(peer), " ".join(words))
        flat["data-dir"] = str(tmp_path / "data")
    whole, part = (
        Config.from_flat(flat | {"run-dir": str(tmp_path / name)}) for name in ("whole", "part")
    )
    inline.run(whole)
    with pytest.raises(PowerCutError):
        inline.run(part, cut)
    inline.run(Config.from_flat(flat | {"run-dir": part.run_dir, "resume": True}))
    one, other = Path(whole.run_dir), Path(part.run_dir)
    metrics = (one / "metrics.jsonl").read_bytes()
    assert metrics
    assert metrics == (other / "metrics.jsonl").read_bytes()
    for file in (one / "models").glob(
        "*.safetensors"
    ):  # the order of what they tell of themselves varies
        went, goes = load_file(file), load_file(other / "models" / file.name)
        assert went.keys() == goes.keys()
        assert all(value.tobytes() == goes[name].tobytes() for name, value in went.items())
