"""Copies of a network, run one after the other by torch alone: what backends are held against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.clients.engine.network import Network


def outputs(
    network: Network,
    x_ed: Tensor,
    buffers: Mapping[str, Tensor],
    inputs: Tensor,
    keys: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs (E, b, ...) and buffers of rows of models; in evaluation mode without keys."""
    network.module.train(keys is not None)
    results, after = [], []
    for e, examples in enumerate(inputs):
        tensors = {name: value[e] for name, value in network.named(x_ed).items()}
        tensors |= {name: value[e].clone() for name, value in buffers.items()}
        zero = torch.zeros((), dtype=torch.int64)
        tensors |= network.keys(zero if keys is None else keys[e], zero)
        result, left = network.run(network.module, tensors, examples, buffers)
        results.append(result)
        after.append(left)
    return torch.stack(results), {name: torch.stack([a[name] for a in after]) for name in buffers}
