"""Sizes that no configuration may have: refused before anything of that size is made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.limits import MAX_PEERS
from coterie.app.config.settings import keys


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ({"peers": 400_000_000, "attack.kind": "nan", "attack.share": 0.5}, "peers = 400000000"),
        ({"peers": MAX_PEERS + 1}, f"must be at most {MAX_PEERS}"),
        ({"num-server-rounds": 2**62}, "num-server-rounds"),
        ({"local-steps": 2**62}, "local-steps"),
        ({"local-epochs": 2**62}, "local-epochs"),
        ({"batch-size": 2**62}, "batch-size"),
        ({"dpfl.init-epochs": 2**62, "method": "dpfl"}, "dpfl.init-epochs"),
        ({"fedem.components": 2**40}, "fedem.components"),
        ({"ifca.clusters": 2**40}, "ifca.clusters"),
        ({"schedule.max-age": 2**40}, "schedule.max-age"),
        ({"round-seconds": 1e308}, "round-seconds"),
        ({"transformer.layers": 100_000}, "transformer.layers = 100000"),
        ({"transformer.width": 2**40}, "transformer.width"),
        ({"transformer.heads": 2**40}, "transformer.heads"),
        ({"gpt2.rank": 2**40}, "gpt2.rank"),
        ({"model.lora-rank": 2**40}, "model.lora-rank"),
        ({"text.context": 2**40}, "text.context"),
        ({"mlp.hidden": "-".join("1" * 5000)}, "at most 1000 widths"),
        ({"table.columns": "x" * 200_000}, "at most 100000 characters"),
        ({"topology-degree": 2**60}, "topology-degree"),
        ({"evaluate-every": 2**60}, "evaluate-every"),
        (
            {"dataset": "least-squares", "least-squares.samples": 10**9},
            "numbers for 8 peers; at most",
        ),
        ({"dataset": "sine", "sine.samples": 10**9}, "sine: 16,000,003,200 numbers"),
        (
            {"dataset": "noisy-quadratic", "noisy-quadratic.trials": 10**7, "peers": 11},
            "noisy-quadratic: 550,000,000 numbers",
        ),
        (
            {
                "dataset": "image-folder",
                "image-folder.shape": "1x100000x100000",
                "image-folder.classes": "a, b",
            },
            "10,000,000,000 numbers in an example",
        ),
        ({"dataset": "ixi", "ixi.size": "999-999-999"}, "997,002,999 numbers in an example"),
    ],
)
def test_a_size_beyond_all_bounds_is_refused(flat: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refusal:
        Config.from_flat(flat)
    assert len(str(refusal.value)) < 300, "a long value is shortened"


def test_every_whole_number_has_a_bound() -> None:
    """But `seed`, which takes no memory and no time."""
    for key, (_, option) in keys().items():
        if option.kinds == (int,) and key != "seed":
            with pytest.raises(ConfigError, match=r"at most|must be [12] to"):
                Config.from_flat({key: 2**62})
    assert Config.from_flat({"seed": 2**62}).seed == 2**62
