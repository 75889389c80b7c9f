"""A causal language model from a local folder, fine-tuned by adapters on own texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError
from coterie.app.experiments.grid import with_run_dir
from coterie.app.trained.inputs import read
from coterie.app.trained.personal import Named, load
from coterie.app.wire.increments import MODEL, IncrementFormat
from coterie.app.wire.operators import OPERATORS
from coterie.app.wire.payload import LetterFormat
from tests.datasets.own.test_text import WORDS, write_part, write_tokenizer
from tests.inline import run

transformers = pytest.importorskip("transformers")

RANK, WIDTH = 2, 8
ADAPTERS = RANK * sum((WIDTH + 3 * WIDTH, 2 * WIDTH, 5 * WIDTH, 5 * WIDTH, WIDTH + len(WORDS)))
"""Adapters of c_attn, c_proj, c_fc, c_proj and lm_head: rank times (inputs + outputs)."""


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Four peers, of which two write one language and two another; and a GPT-2 of one block."""
    directory = tmp_path_factory.mktemp("texts")
    write_tokenizer(directory / "data")
    for peer, words in enumerate(("abcde", "abcde", "fghij", "fghij")):
        g = np.random.default_rng(peer)
        write_part(directory / "data" / str(peer), " ".join(g.choice([*words], 400)))
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=8, n_embd=WIDTH, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(directory / "gpt2")
    return {
        "dataset": "text", "text.context": 8, "text.validation": 0.2, "peers": 4,
        "data-dir": str(directory / "data"), "model": f"transformers:{directory / 'gpt2'}",
        "model.lora-rank": RANK, "model.lora-alpha": 16.0, "num-server-rounds": 6,
        "evaluate-every": 6, "batch-size": 8,
        "local-steps": 2, "optimizer": "adam", "learning-rate": 0.03, "device": "cpu",
        "dpfl.init-epochs": 1,
    }  # fmt: skip


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fedavg", "cobo", "dpfl"])
def test_every_method_fine_tunes_adapters(
    method: str, flat: dict[str, Any], tmp_path: Path
) -> None:
    result = run(flat | {"method": method}, tmp_path)
    before, after = result.metric("test_loss", 0), result.metric("test_loss")
    assert (after < before - 0.1).all()
    letters = result.metric("bytes_sent") / (4 * ADAPTERS)
    assert (letters == np.round(letters)).all(), "adapters and nothing else are sent"
    assert (letters > 0).all() == (method != "local")
    assert sum(value.numel() for value in result.models()[0].values()) == ADAPTERS
    file = result.directory / "models" / "peer-0000.safetensors"
    model = load(file, Named(parts=(flat["model"],)))
    (tmp_path / "notes.txt").write_text("a b c")
    with pytest.raises(ConfigError, match=r"a language model takes tokens: an .npz with x"):
        read(tmp_path / "notes.txt", model.about)


INCREMENTS = {"letters.scheme": "increments", "letters.operator": "sign", "payload": "int8"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "trust"])
def test_increments_of_adapters_have_one_bit_per_number(
    method: str, flat: dict[str, Any], tmp_path: Path
) -> None:
    """Send the adapters in int8 first, then a bit per number and a scale of int8 per tensor.

    int8 adds a byte per 32 numbers to tensors of at least 64; A and B of five layers are ten
    tensors, whose scales are one tensor of ten float32.
    """
    result = run(flat | INCREMENTS | {"method": method}, tmp_path)
    first = ADAPTERS + math.ceil(ADAPTERS / 32)
    increment = math.ceil(ADAPTERS / 8) + 4 * len(result.models()[0])
    assert len(result.models()[0]) == 10
    assert (result.metric("bytes_sent") == 3 * (first + 5 * increment)).all()
    assert (result.metric("test_loss") < result.metric("test_loss", 0) - 0.1).all()


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "trust"])
def test_the_identity_increment_of_adapters_changes_no_number(
    method: str, flat: dict[str, Any], tmp_path: Path
) -> None:
    identity = {"letters.scheme": "increments", "letters.operator": "top-k", "letters.ratio": 1.0}
    full = run(flat | {"method": method}, tmp_path / "full")
    same = run(flat | {"method": method} | identity, tmp_path / "same")
    assert same.reports == full.reports


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "trust"])
def test_increments_of_adapters_are_the_same_over_nodes(
    method: str, flat: dict[str, Any], tmp_path: Path
) -> None:
    keys = flat | INCREMENTS | {"method": method}
    alone = run(keys, tmp_path / "one")
    for nodes in (2, 4):
        result = run(keys, tmp_path / str(nodes), nodes)
        assert result.reports == alone.reports
        assert not result.refused


def test_letters_of_the_full_size_preset() -> None:
    """GPT-2 at rank 4: 589,824 numbers in 96 tensors, A and B of four layers in twelve blocks.

    float32: 2.36 MB; int8: a byte per number, and per 32 of them; sign: a bit per number and 96
    scales in int8.
    """
    letters = ["letters.scheme=increments", "letters.operator=sign", "payload=int8"]
    items = ["presets/cobo/table2-languages.toml", *letters]
    config = Config.from_flat(read_items(items, {})[1])
    rank, width = int(config.flat()["gpt2.rank"]), 768
    sides = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * 12
    shapes = [shape for m, n in sides for shape in ((m, rank), (rank, n))]
    layout = {MODEL: ((sum(math.prod(shape) for shape in shapes),), torch.float32)}
    operator = OPERATORS[config.letters.operator](shapes, config.letters.ratio)
    form = IncrementFormat(layout, operator, "int8")
    assert layout[MODEL][0] == (589_824,)
    assert LetterFormat(layout, "full").nbytes == 4 * 589_824 == 2_359_296
    assert form.first.nbytes == 589_824 + 589_824 // 32 == 608_256
    assert form.increment.nbytes == 589_824 // 8 + 96 + 96 // 32 == 73_827


def test_a_comparison_tells_models_apart_by_what_is_in_their_folder(
    flat: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "net").mkdir()
    names = set()
    for content in ("one", "two"):
        (tmp_path / "net" / "config.json").write_text(content)
        config = Config.from_flat(flat | {"model": f"transformers:{tmp_path / 'net'}"})
        names.add(with_run_dir(config, tmp_path).name)
    assert len(names) == 2
    assert (
        with_run_dir(Config.from_flat({"model": "torchvision:resnet18"}), tmp_path).name
        not in names
    )
