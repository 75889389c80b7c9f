"""A model of one of several kinds, so that peers with different models have rows of one layout.

A row has a number that says which kind it is, and the parameters of all kinds; those of other
kinds are 0. All kinds are evaluated and one selected: no number can make that fail; s = models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from coterie.clients.models.fitted import Fitted, finite

KIND = "kind"
"""Name of the number."""


class Kinds(nn.Module):
    """Model of one of several kinds, which have the same inputs and outputs."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(()))
        self.models = nn.ModuleList(models)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the row's kind."""
        at = self.kind.nan_to_num(0.0).clamp(0, len(self.models) - 1).long()
        outputs = torch.stack([model(inputs) for model in self.models])
        return outputs.index_select(0, at[None])[0]

    def name(self, kind: int) -> str:
        """Return the name of the module of a kind."""
        return f"models.{kind}"

    def malformed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Mark the models (s,) of no kind, with parameters of others, or that no fit gives."""
        kind_s = tensors[KIND]
        wrong_s = ~torch.isin(kind_s, torch.arange(len(self.models)).to(kind_s))
        for kind, model in enumerate(self.models):
            start = f"{self.name(kind)}."
            own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            used_s = torch.stack([(v != 0).flatten(1).any(dim=1) for v in own.values()]).any(dim=0)
            bad_s = model.malformed(own) if isinstance(model, Fitted) else ~finite(own)
            wrong_s |= torch.where(kind_s == kind, bad_s, used_s)
        return wrong_s
