"""Decoder-only transformers: GPT-2 with low-rank adapters, and small ones trained from scratch.

The layers are GPT-2's (Radford et al. 2019) and so are their names, so that its public weights
fit. Attention is written out, not fused: fused kernels draw dropout masks from torch's global
stream, and not all of them can be stacked. Legend: b = examples, t = tokens, h = heads.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.models.convnets import Shape
from coterie.clients.models.options import Gpt2Options, TransformerOptions

HEAD = 64  # width of a head in every public GPT-2
_OWN = "head.weight"  # the untied head: only our own files have one
_MAPS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")  # a block's linear maps


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
        found: Tensor = self.c_proj(mixed)
        return found


class Mlp(nn.Module):
    """Two linear maps around GPT-2's approximation of GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return found


class Block(nn.Module):
    """Attention and an MLP, each on a residual branch behind a layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.drop_1, self.drop_2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_1(self.attn(self.ln_1(x)))
        found: Tensor = x + self.drop_2(self.mlp(self.ln_2(x)))
        return found


class Transformer(nn.Module):
    """Scores (b, t, vocabulary) of the next token at each place of tokens (b, t).

    Parameters
    ----------
    tied : whether the scores use the tokens' embeddings, as GPT-2 does.
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
        for name, value in self.named_parameters():  # GPT-2's start
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
        found: Tensor = F.linear(x, self.wte.weight) if self.head is None else self.head(x)
        return found


class Adapted(nn.Module):
    """A frozen linear map and beside it a trainable one of low rank.

    x W^T + b + alpha / r (x A^T) B^T; B starts at zero (Hu et al. 2022, section 4.1).
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.empty(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)
        return found


def adapt(network: Transformer, rank: int, alpha: float) -> Transformer:
    """The network with all it has frozen, and adapters on its attention and MLP layers."""
    network.requires_grad_(False)
    for block in network.h:
        for name in _MAPS:
            parent, _, child = name.rpartition(".")
            layer = block.get_submodule(parent)
            base = layer.get_submodule(child)
            assert isinstance(base, nn.Linear)
            setattr(layer, child, Adapted(base, rank, alpha))
    return network


def transformer(shape: Shape, outputs: int, options: TransformerOptions) -> nn.Module:
    """A small transformer that learns everything from its own data."""
    o = options
    return Transformer(
        outputs, _length(shape), o.width, o.layers, o.heads, o.dropout, tied=False
    )  # fmt: skip


def gpt2(shape: Shape, outputs: int, options: Gpt2Options) -> nn.Module:
    """A trained GPT-2, frozen, with adapters of `options.rank`: these are what is trained.

    All sizes of the public GPT-2 fit; the small one has 124,439,808 parameters and, at rank 4,
    589,824 more in its adapters: CoBo's 0.47 %. So does what a run of `transformer` saved.
    """
    weights = _read(options.base())
    (vocabulary, width), context = weights["wte.weight"].shape, len(weights["wpe.weight"])
    if outputs != vocabulary:
        raise ValueError(
            f"gpt2: {options.weights_file} knows {vocabulary} tokens, but the data set has "
            f'{outputs}: choose its vocabulary "gpt2", or model = "transformer"'
        )
    if width % HEAD:
        raise ValueError(f"gpt2: heads are {HEAD} wide, but {options.weights_file} is {width} wide")
    if _length(shape) > context:
        raise ValueError(f"gpt2 reads at most {context} tokens: lower the data set's context")
    layers = len({name.split(".")[1] for name in weights if name.startswith("h.")})
    with torch.device("meta"):  # the weights come from the file
        network = Transformer(
            vocabulary, context, width, layers, width // HEAD, options.dropout,
            tied=_OWN not in weights,
        )  # fmt: skip
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"gpt2.weights-file = {options.weights_file}: {error}") from None
    return adapt(network, options.rank, options.alpha)


@lru_cache(maxsize=1)
def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a GPT-2 by their names here, linear maps as torch.nn.Linear has them."""
    # Only here, so that all other networks run where nothing but torch and NumPy is installed.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"gpt2.weights-file = {path} is no safetensors file: {error}") from None
    named = {name.removeprefix("transformer."): value.float() for name, value in tensors.items()}
    # Hugging Face's linear maps are (inputs, outputs).
    turned = () if _OWN in named else tuple(f"{m}.weight" for m in _MAPS)
    own = {
        name: value.T.contiguous() if name.endswith(turned) else value
        for name, value in named.items()
        # The causal mask and the tied head are in some files; neither is a weight of its own.
        if not name.endswith((".attn.bias", ".attn.masked_bias")) and name != "lm_head.weight"
    }
    if not {"wte.weight", "wpe.weight"} <= own.keys():
        raise ValueError(f"gpt2.weights-file = {path} holds no GPT-2: it has no wte and wpe")
    return own


def _length(shape: Shape) -> int:
    if len(shape) != 1:
        raise ValueError(f"a transformer wants rows of tokens, not examples of shape {shape}")
    return shape[0]
