"""Transformers: GPT-2 by its formulas, and adapters on a shared base."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from coterie.clients.engine.engine import Engine
from coterie.clients.engine.network import Network
from coterie.clients.models.build import build
from coterie.clients.models.options import Gpt2Options, TransformerOptions
from coterie.clients.models.transformer import Adapted, Transformer, add_adapters
from coterie.clients.training import Training
from coterie.datasets.problem import Problem
from tests.clients.engine.test_memory import peak
from tests.clients.methods.test_twins import problem_of
from tests.clients.models.gpt2_file import write_gpt2
from tests.problems import classification


def small(file: Path, prefix: str = "") -> dict[str, Tensor]:
    return write_gpt2(file, vocabulary=11, context=8, width=128, layers=2, prefix=prefix)


def gpt2(file: Path, **options: float) -> Transformer:
    network = build("gpt2", Gpt2Options(str(file), **options), "language", (6,), 11)  # type: ignore[arg-type]
    assert isinstance(network, Transformer)
    return network.eval()


def by_hand(w: dict[str, Tensor], tokens_t: Tensor, heads: int) -> Tensor:
    """Compute GPT-2 for one row of tokens from the tensors of its file."""

    def normed(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def mapped(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens_t] + w["wpe.weight"][: len(tokens_t)]
    width = x.shape[1] // heads
    for layer in range(2):
        h = f"h.{layer}"
        qkv = mapped(normed(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
        q, k, v = qkv.split(x.shape[1], dim=1)
        attended = torch.zeros_like(x)
        for head in range(heads):
            at = slice(head * width, (head + 1) * width)
            for t in range(len(x)):
                scores = k[: t + 1, at] @ q[t, at] / math.sqrt(width)
                attended[t, at] = scores.softmax(0) @ v[: t + 1, at]
        x = x + mapped(attended, f"{h}.attn.c_proj")
        m = mapped(normed(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")
        m = 0.5 * m * (1 + torch.tanh(math.sqrt(2 / math.pi) * (m + 0.044715 * m**3)))
        x = x + mapped(m, f"{h}.mlp.c_proj")
    return normed(x, "ln_f") @ w["wte.weight"].T


def test_gpt2_is_as_large_as_the_public_one_and_its_adapters_as_the_paper_says() -> None:
    """124 million parameters; rank 4 on attention and MLP is 0.47 % of them (CoBo, section 4.3)."""
    with torch.device("meta"):
        network = Transformer(50_257, 1024, 768, 12, 12, 0.1, tied=True)
    base = sum(value.numel() for value in network.parameters())
    assert base == 124_439_808
    with torch.device("meta"):
        network.requires_grad_(False)
        names = [name for name, layer in network.named_modules() if type(layer) is nn.Linear]
        add_adapters(network, names, 4, 32.0)
        adapters = Network(network).d
    # 4 x (inputs + outputs) of four maps in each of 12 blocks
    assert adapters == 12 * 4 * 768 * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)) == 589_824
    assert round(100 * adapters / base, 2) == 0.47


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_weights_of_the_public_format_give_gpt2(prefix: str, tmp_path: Path) -> None:
    w = small(tmp_path / "w.safetensors", prefix)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    result = gpt2(tmp_path / "w.safetensors")(tokens)  # adapters start at zero
    for row, expected in zip(result, tokens, strict=True):
        assert torch.allclose(row, by_hand(w, expected, heads=2), atol=1e-4)


def test_an_adapter_adds_a_map_of_low_rank(tmp_path: Path) -> None:
    w = small(tmp_path / "w.safetensors")
    network = gpt2(tmp_path / "w.safetensors", rank=3, alpha=6.0)
    names = [name for name, value in network.named_parameters() if value.requires_grad]
    assert len(names) == 2 * 4 * 2
    assert all(name.endswith((".A", ".B")) for name in names)
    g = torch.Generator().manual_seed(1)
    for name in {n[:-2] for n in names}:
        adapter = network.get_submodule(name)
        assert isinstance(adapter, Adapted)
        adapter.B.data = 0.1 * torch.randn(adapter.B.shape, generator=g)
        w[f"{name}.weight"] = w[f"{name}.weight"] + 2.0 * (adapter.B @ adapter.A).detach().T
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    assert torch.allclose(network(tokens)[0], by_hand(w, tokens[0], heads=2), atol=1e-4)


def language(peers: int = 2) -> Problem:
    problem = problem_of("gpt2", (6,))
    assert problem.peers == peers
    return problem


def test_peers_share_one_base_and_hold_adapters_only(tmp_path: Path) -> None:
    small(tmp_path / "w.safetensors")
    options = Gpt2Options(str(tmp_path / "w.safetensors"), rank=1, dropout=0.0)
    training = Training(batch_size=5, local_steps=2, learning_rate=0.002)
    engine = Engine(language(), "gpt2", options, [0, 1], training, device="cpu")
    base = {
        name: value.detach().clone()
        for name, value in engine.network.module.named_parameters()
        if not value.requires_grad
    }
    frozen = sum(value.numel() for value in base.values())
    assert engine.d == 2 * 128 * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)) < frozen / 10
    x_pd, buffers = engine.initial()
    assert x_pd.shape == (2, engine.d)
    assert not buffers
    fit = engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(1))
    assert not torch.equal(fit.x[0], fit.x[1])
    for name, value in engine.network.module.named_parameters():
        assert value.requires_grad or torch.equal(value, base[name]), name
    saved, start = engine.losses(fit.x, buffers, "train"), engine.losses(x_pd, buffers, "train")
    assert (saved.losses < start.losses).all()
    # The size of a chunk excludes the base, which all models share.
    assert engine.holds(2) < 4 * frozen


def test_a_further_peer_adds_no_base(tmp_path: Path) -> None:
    """Eight peers need less memory for a step, activations included, than another base."""
    write_gpt2(tmp_path / "w.safetensors", vocabulary=11, context=8, width=256, layers=2)
    problem = classification([1] * 8, shape=(6,), classes=11)
    rows = np.arange(len(problem.inputs) * 6).reshape(-1, 6) % 11
    train = replace(problem.train, targets=tuple((rows[r] + 1) % 11 for r in problem.train.rows))
    engine = Engine(
        replace(problem, inputs=rows, task="language", train=train), "gpt2",
        Gpt2Options(str(tmp_path / "w.safetensors"), dropout=0.0), range(8),
        Training(batch_size=1, local_steps=1), device="cpu", chunk=8,
    )  # fmt: skip
    frozen = sum(v.nbytes for v in engine.network.module.parameters() if not v.requires_grad)
    made = peak(lambda: engine.initial(common=False))
    x_pd, buffers = engine.initial()
    memory = peak(lambda: engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(1)))
    assert made < frozen
    assert memory < frozen


def test_a_saved_transformer_is_a_base(tmp_path: Path) -> None:
    """A saved small transformer: untied head, linear layers (outputs, inputs)."""
    saved = build("transformer", TransformerOptions(2, 128, 2), "language", (8,), 11).eval()
    save_file(saved.state_dict(), tmp_path / "peer-0000.safetensors")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    result = gpt2(tmp_path / "peer-0000.safetensors")  # adapters start at zero
    assert torch.equal(result(tokens), saved(tokens))
    trained = [name for name, value in result.named_parameters() if value.requires_grad]
    assert all(name.endswith((".A", ".B")) for name in trained)


def test_the_next_token_is_not_seen() -> None:
    network = build("transformer", TransformerOptions(2, 16, 4), "language", (7,), 11).eval()
    tokens = torch.randint(11, (1, 7), generator=torch.Generator().manual_seed(0))
    before = network(tokens)
    for t in range(1, 7):
        changed = tokens.clone()
        changed[0, t] = (tokens[0, t] + 1) % 11
        after = network(changed)
        assert torch.allclose(after[0, :t], before[0, :t], atol=1e-6)
        assert not torch.allclose(after[0, t], before[0, t], atol=1e-4)


def test_a_small_transformer_learns_a_rule() -> None:
    """Each token determines the next: the loss falls far below that of guessing."""
    problem = language()
    rows = (np.arange(6) + np.arange(len(problem.inputs))[:, None]) % 11
    train = replace(problem.train, targets=tuple((rows[r] + 1) % 11 for r in problem.train.rows))
    training = Training(batch_size=5, local_steps=60, optimizer="adam", learning_rate=0.01)
    engine = Engine(
        replace(problem, inputs=rows, train=train), "transformer", TransformerOptions(1, 16, 2),
        [0, 1], training, device="cpu",
    )  # fmt: skip
    x_pd, buffers = engine.initial()
    start = engine.losses(x_pd, buffers, "train")
    assert start.losses.tolist() == pytest.approx([math.log(11)] * 2, abs=0.1)
    fit = engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(1))
    assert engine.losses(fit.x, buffers, "train").losses.max() < 0.3


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    with pytest.raises(ValueError, match=r"w\.safetensors.*weights-file.*huggingface"):
        gpt2(file)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a safetensors"):
        gpt2(file)
    narrow = build("transformer", TransformerOptions(1, 32, 4), "language", (8,), 11)
    save_file(narrow.state_dict(), tmp_path / "n.safetensors")
    with pytest.raises(ValueError, match=r"n\.safetensors, 32, is not a multiple .* 64"):
        gpt2(tmp_path / "n.safetensors")
    save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="is not a GPT-2"):
        gpt2(file)
    other = tmp_path / "v.safetensors"
    small(other)
    with pytest.raises(ValueError, match="has 11 tokens, but the data set has 256"):
        build("gpt2", Gpt2Options(str(other)), "language", (6,), 256)
    with pytest.raises(ValueError, match="at most 8 tokens"):
        build("gpt2", Gpt2Options(str(other)), "language", (9,), 11)
    with pytest.raises(ValueError, match=r"\(3, 8, 8\)"):
        build("transformer", None, "language", (3, 8, 8), 11)


@pytest.mark.parametrize(
    ("model", "task", "known"),
    [
        ("mlp", "language", "transformer, gpt2"),
        ("resnet9", "segmentation", "unet3d"),
        (
            "gpt2",
            "classification",
            "linear, mlp, logistic, forest, boosted-trees, xgboost, lightgbm, lenet",
        ),
        ("unet3d", "regression", "linear, mlp"),
    ],
)
def test_a_model_of_another_task_is_refused(model: str, task: str, known: str) -> None:
    with pytest.raises(ValueError, match=f"{model}.*does not support {task}.*{known}"):
        build(model, None, task, (1, 8, 8), 10)
