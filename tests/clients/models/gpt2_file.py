"""Tiny GPT-2 in the file format of the public one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def write_gpt2(
    path: Path, *, vocabulary: int, context: int, width: int, layers: int, prefix: str = ""
) -> dict[str, Tensor]:
    """Write random weights with Hugging Face's names and (inputs, outputs) layers; return them."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=g)

    tensors = {"wte.weight": normal(vocabulary, width), "wpe.weight": normal(context, width)}
    for layer in range(layers):
        maps = {
            "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
        }  # fmt: skip
        for name, shape in maps.items():
            tensors[f"h.{layer}.{name}.weight"] = normal(*shape) / 4
            tensors[f"h.{layer}.{name}.bias"] = normal(shape[1])
        for name in ("ln_1", "ln_2"):
            tensors[f"h.{layer}.{name}.weight"] = 1 + normal(width)
            tensors[f"h.{layer}.{name}.bias"] = normal(width)
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, context, context).tril()
    tensors |= {"ln_f.weight": 1 + normal(width), "ln_f.bias": normal(width)}
    save_file({f"{prefix}{name}": value for name, value in tensors.items()}, path)
    return tensors
