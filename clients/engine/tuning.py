"""Thresholds of the engine.

The numbers were measured on two cores of an AMD EPYC (KVM, 23 GiB) with torch 2.14, with the
command named in each group; run that command after changing one. Values for a GPU are estimates,
not measurements. No threshold changes a result beyond rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Threshold(NamedTuple):
    """Threshold for the CPU, and for other devices."""

    cpu: int
    gpu: int

    def on(self, device: torch.device) -> int:
        """Return the value for a device."""
        return self.cpu if device.type == "cpu" else self.gpu


# python -m benchmarks.engine: models and threads per call
CHUNK_BYTES = 1 << 24
"""Bytes that the models of a call hold together on a CPU. On a GPU, chunks follow its memory."""
CHUNK_MODELS = 256
"""Maximum number of models per call on a CPU; a longer call no longer hides overhead."""
SHARED_BYTES = 1 << 22
"""Bytes of a stacked call, or products of its matrices, from which threads share it."""
SINGLE_BYTES = 1 << 20
"""Bytes of a single model's call from which threads share it, or other calls run beside it."""
GATHERED_BYTES = Threshold(cpu=1 << 20, gpu=1 << 28)
"""Bytes of the minibatches that are gathered at once; on a CPU they stay in the cache."""
MEMORY_SHARE = Threshold(cpu=8, gpu=4)
"""Divisor: the part of the memory that the calls of one engine may hold."""

# python -m benchmarks.engine, "evaluation" in docs/results/speed.md
EVALUATED_EXAMPLES = 2048
"""Maximum number of examples per evaluation call."""
COMPARED_COLUMNS = 64
"""Number of parameters that are compared first, to find models that may be equal."""

# python -m benchmarks.floor: weighted sums and inner products
SUM_COLUMNS = Threshold(cpu=1 << 10, gpu=1 << 18)
"""Minimum number of columns of a stack in one step of a weighted sum in float64."""
SUM_CELLS = Threshold(cpu=1 << 18, gpu=1 << 23)
"""Numbers in one step of a sum; on a CPU they stay in the cache."""
PRODUCT_TERMS = Threshold(cpu=1 << 9, gpu=1 << 17)
"""Partial sums per inner product of two stacks: few, so that many pairs are added at once."""
PAIRED_TERMS = Threshold(cpu=1 << 16, gpu=1 << 18)
"""Partial sums where each model has one partner: many, so that a long model takes few calls."""

ANSWER_BYTES = Threshold(cpu=1 << 26, gpu=1 << 32)
"""Answers between pairs of hosted peers that are computed and compared at once."""

# python -m studies.privacy
NOISE_CELLS = Threshold(cpu=1 << 17, gpu=1 << 24)
"""Random numbers that are drawn together; on a CPU they stay in the cache."""

# python -m studies.robust_rules
SORTED_COLUMNS = 1 << 16
"""Columns that a robust rule sorts at once."""
