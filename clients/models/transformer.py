"""Decoder-only transformers: GPT-2 with low-rank adapters, and small ones trained from scratch.

The layers and their names are GPT-2's (Radford et al. 2019), so that its public weights fit.
Attention is not fused: fused kernels draw dropout masks from torch's global stream, and not all of
them can be batched over models. Legend: b = examples, t = tokens, h = heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.models.convnets import Shape
from coterie.clients.models.options import Gpt2Options, TransformerOptions
from coterie.datasets.files.fingerprint import content, remembered

HEAD = 64  # width of a head in every public GPT-2
_UNTIED_HEAD = "head.weight"  # only in files of our transformers
_MAPS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")  # linear layers of a block


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_btw: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in self.c_attn(x_btw).chunk(3, dim=-1)
        )
        t = x_btw.shape[-2]
        future_tt = torch.ones(t, t, dtype=torch.bool, device=x_btw.device).triu(1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        share_bhtt = scores.masked_fill(future_tt, -torch.inf).softmax(dim=-1)
        mixed = (self.drop(share_bhtt) @ v).transpose(-2, -3).flatten(-2)
        out: Tensor = self.c_proj(mixed)
        return out


class Mlp(nn.Module):
    """Two linear layers around GPT-2's approximation of GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Attention and an MLP, each on a residual branch after a layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.drop_1, self.drop_2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_1(self.attn(self.ln_1(x)))
        out: Tensor = x + self.drop_2(self.mlp(self.ln_2(x)))
        return out


class Transformer(nn.Module):
    """Language model: scores (b, t, vocabulary) of the next token after each of tokens (b, t).

    `context` is the maximum length of the input; a `tied` one computes the scores with the token
    embeddings, as GPT-2 does.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, heads: int,
        dropout: float, *, tied: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        for name, value in self.named_parameters():  # GPT-2's initialisation
            if value.dim() == 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(value, std=0.02 / (math.sqrt(2 * layers) if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        x = self.wte(tokens_bt) + self.wpe.weight[: tokens_bt.shape[-1]]
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        scores: Tensor = F.linear(x, self.wte.weight) if self.head is None else self.head(x)
        return scores


class Adapted(nn.Module):
    """Frozen linear layer with a low-rank adapter: x W^T + b + alpha / r (x A^T) B^T.

    B starts at zero (Hu et al. 2022, section 4.1).
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.empty(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)
        return out


def add_adapters(network: nn.Module, names: Iterable[str], rank: int, alpha: float) -> None:
    """Put adapters on linear layers, in place."""
    for name in names:
        parent, _, child = name.rpartition(".")
        base = network.get_submodule(name)
        assert isinstance(base, nn.Linear)
        setattr(network.get_submodule(parent), child, Adapted(base, rank, alpha))


def transformer(shape: Shape, outputs: int, options: TransformerOptions) -> nn.Module:
    """Build a small transformer, trained from scratch."""
    return Transformer(outputs, _length(shape), **vars(options), tied=False)


def gpt2(shape: Shape, outputs: int, options: Gpt2Options) -> nn.Module:
    """Load a frozen GPT-2 and add trainable adapters of `options.rank`."""
    # Supports all sizes of the public GPT-2 and models saved by a run of `transformer`. The small
    # GPT-2 has 124,439,808 parameters and, at rank 4, 589,824 more in its adapters: CoBo's 0.47 %.
    weights = _read(options.base())
    (vocabulary, width), context = weights["wte.weight"].shape, len(weights["wpe.weight"])
    if outputs != vocabulary:
        raise ValueError(
            f"gpt2: {options.weights_file} has {vocabulary} tokens, but the data set has "
            f'{outputs}: set its vocabulary to "gpt2", or choose model = "transformer"'
        )
    if width % HEAD:
        raise ValueError(
            f"gpt2: the width of {options.weights_file}, {width}, is not a multiple of the head "
            f"width {HEAD}"
        )
    if _length(shape) > context:
        raise ValueError(f"gpt2 reads at most {context} tokens: lower the data set's context")
    layers = len({name.split(".")[1] for name in weights if name.startswith("h.")})
    with torch.device("meta"):  # the weights come from the file
        network = Transformer(
            vocabulary, context, width, layers, width // HEAD, options.dropout,
            tied=_UNTIED_HEAD not in weights,
        )  # fmt: skip
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"gpt2.weights-file = {options.weights_file}: {error}") from None
    network.requires_grad_(False)
    names = (f"h.{block}.{name}" for block in range(layers) for name in _MAPS)
    add_adapters(network, names, options.rank, options.alpha)
    return network


def read_tensors(path: Path, key: str) -> dict[str, Tensor]:
    """Read a safetensors file that a key of the run names; ValueError: it is none."""
    # Imported here so that other networks need only torch and NumPy.
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        raise ValueError(f"{key} = {path}: no such file")
    try:
        return load(content(path))
    except SafetensorError as error:
        raise ValueError(
            f"{key} = {path} is not a safetensors file ({error}): write one with "
            "safetensors.torch.save_file(network.state_dict(), PATH)"
        ) from None


@remembered(1)
def _read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a GPT-2, with our names and the layout of `torch.nn.Linear`."""
    tensors = read_tensors(path, "gpt2.weights-file")
    named = {name.removeprefix("transformer."): value.float() for name, value in tensors.items()}
    # Hugging Face's linear layers are (inputs, outputs).
    transposed = () if _UNTIED_HEAD in named else tuple(f"{m}.weight" for m in _MAPS)
    weights = {
        name: value.T.contiguous() if name.endswith(transposed) else value
        for name, value in named.items()
        # Some files also hold the causal mask and the tied head.
        if not name.endswith((".attn.bias", ".attn.masked_bias")) and name != "lm_head.weight"
    }
    if not {"wte.weight", "wpe.weight"} <= weights.keys():
        raise ValueError(
            f"gpt2.weights-file = {path} is not a GPT-2: the tensors wte and wpe are missing"
        )
    return weights


def _length(shape: Shape) -> int:
    if len(shape) != 1:
        raise ValueError(f"a transformer needs rows of tokens, not examples of shape {shape}")
    return shape[0]
