"""DisPFL: sparse personal models, averaged entry by entry among the peers that have the entry.

Dai, Shen, He, Tian, Tao, "DisPFL: Towards Communication-Efficient Personalized Federated Learning
via Decentralized Sparse Training", ICML 2022, algorithm 1, and the authors' code
(rong-dai/DisPFL@e2f47d4). Symbols: w_i `state.x`, mask m_i `state.mask`, rho `density`,
alpha `prune`, `growth`. In a round each peer

1. trains the entries of its mask, the others stay 0: every gradient is multiplied by m_i; and sends
   w_i and m_i;
2. evolves its mask: in every tensor it drops the ceil(alpha_t |m|) entries of the smallest |w|, and
   takes as many of those that are now outside: with the largest |gradient| of a minibatch, or at
   random. alpha_t = (alpha / 2) (1 + cos(pi (t - 1) / T)) falls from alpha to almost 0 over the T
   rounds;
3. receives w_j and m_j, and sets each entry of its new mask to the mean over the received models
   and its own that trained the entry, 0 if none did: w_i <- m_i' * sum_j m_j w_j / sum_j m_j.

The masks start random and different, with as many entries in every tensor as ERK gives it: the
density of a tensor is proportional to the sum of its sides over their product, at most 1, with a
mean of rho over all parameters. The number of entries never changes, so all letters have the same
size: the values of the mask in order, and the mask as bits.

Readings and deviations: a round here begins with training and ends with the average, the paper's
begins with the average; what is sent, averaged and masked is the same. Momentum is kept, except
that of dropped entries; the authors' optimizer is new in every round, and their scripts grow at
random. The gradients that choose new entries are in training mode. The dense engine computes all
entries: the operations that sparsity saves are counted by the paper, not saved here. The means
do not depend on the numbers of examples, as in the paper. Robust rules are refused: they need whole
models. Batch-norm buffers stay personal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Batch, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Weighted
from coterie.ranges import option

_LARGE = 1e30


@dataclass(frozen=True)
class DisPFLState(Weighted):
    """State of DisPFL; `w` has the weights of entries that all have."""

    mask: Tensor  # 1 for the entries that a peer has, else 0, (P, d)


class DisPFL(LocalTraining[DisPFLState], group="personal"):
    """Sparse models with personal masks, averaged entry by entry."""

    offers_model = False

    density: float = option(
        0.5, "Share of the parameters that a peer keeps and sends, rho.",
        above=0, high=1, grid=(0.25, 0.5, 0.8),
    )  # fmt: skip
    prune: float = option(
        0.5, "Share of these that is replaced in the first rounds, alpha; it falls to 0.",
        low=0, high=1,
    )  # fmt: skip
    growth: Literal["gradient", "random"] = option(
        "gradient", "New entries: those with the largest gradients, or random ones."
    )

    def check(self, config: Any) -> None:
        if config.defence.rule != "none":
            raise ValueError(
                f'defence.rule = "{config.defence.rule}" replaces averages of whole models, and '
                'dispfl sends parts of them: set defence.rule = "none"'
            )

    @cached_property
    def kept(self) -> list[int]:
        """Number of entries of a mask in each tensor."""
        return entries(self.engine.network.shapes, self.density)

    @cached_property
    def _parts(self) -> list[tuple[slice, int]]:
        """Columns of each tensor, and the number of entries that a mask has there."""
        sizes = self.engine.network.sizes
        ends = zip(np.cumsum(sizes).tolist(), sizes, self.kept, strict=True)
        return [(slice(end - size, end), kept) for end, size, kept in ends]

    def init(self) -> DisPFLState:
        start = self.start()
        mask_pd = np.zeros(tuple(start.x.shape))
        for p, g in enumerate(self.draws(0)):
            for part, kept in self._parts:
                mask_pd[p, part.start + g.permutation(part.stop - part.start)[:kept]] = 1.0
        mask = self.engine.tensor(mask_pd)
        return self.begin(replace(start, x=start.x * mask), mask=mask)

    def offer(self, s: DisPFLState, t: int) -> tuple[DisPFLState, Mapping[str, Tensor]]:
        s = self.train(s, t)
        kept_pd = s.mask > 0
        bits = np.packbits(kept_pd.cpu().numpy(), axis=1, bitorder="little")
        values = s.x[kept_pd].view(len(s.x), -1)
        return s, {"values": values, "mask": self.engine.tensor(bits).byte()}

    def train(self, s: DisPFLState, t: int) -> DisPFLState:
        return self.fit(s, t, mask=s.mask)

    def evolved(self, s: DisPFLState, t: int) -> DisPFLState:
        """Replace a share of each peer's mask; dropped entries become 0."""
        share = self.prune / 2 * (1 + math.cos(math.pi * (t - 1) / self.rounds))
        batches = self.engine.batches(t, Purpose.EXTRA, steps=1)
        if not share or not batches:
            return s
        # Finite, so that entries of the other kind, at infinity, are never chosen.
        size_pd = s.x.abs().nan_to_num(nan=_LARGE, posinf=_LARGE)
        score_pd = self._scores(s, t, batches).nan_to_num(nan=0.0, posinf=_LARGE)
        mask_pd = s.mask.clone()
        for part, kept in self._parts:
            replaced = math.ceil(share * kept)
            mask = mask_pd[:, part]
            smallest = size_pd[:, part].where(mask > 0, math.inf).argsort(dim=1, stable=True)
            mask.scatter_(1, smallest[:, :replaced], 0.0)
            best = score_pd[:, part].where(mask == 0, -math.inf)
            largest = best.argsort(dim=1, descending=True, stable=True)
            mask.scatter_(1, largest[:, :replaced], 1.0)
        opt_state = {
            name: value.where(mask_pd > 0, 0.0) if value.shape == mask_pd.shape else value
            for name, value in s.opt_state.items()
        }
        return replace(s, x=s.x.where(mask_pd > 0, 0.0), mask=mask_pd, opt_state=opt_state)

    def _scores(self, s: DisPFLState, t: int, batches: Sequence[Batch]) -> Tensor:
        """Return the merit (P, d) of new entries: their gradients' sizes, or random numbers."""
        if self.growth == "gradient":
            return self.engine.gradients(s.x, s.buffers, batches[0]).values.abs()
        return self.engine.tensor(np.stack([g.random(self.engine.d) for g in self.draws(t)]))

    def update(self, s: DisPFLState, inbox: Inbox) -> DisPFLState:
        bits, d = inbox["mask"].cpu().numpy(), self.engine.d
        mask_sd = self.engine.tensor(np.unpackbits(bits, axis=1, count=d, bitorder="little"))
        sound_s = self._sound(mask_sd)
        mask_sd[~sound_s] = 0.0
        x_sd = mask_sd.clone()
        x_sd[mask_sd > 0] = inbox["values"][sound_s].flatten()
        valid_n = inbox.by_peer(sound_s.cpu())
        w_pn = inbox.shares(np.tile(valid_n, (len(s.x), 1)))
        w_ps = w_pn[:, inbox.authors]
        total_pd = self.engine.mix(w_ps, mask_sd)
        mean_pd = self.engine.mix(w_ps, x_sd) / total_pd.where(total_pd > 0, 1.0)
        s = self.evolved(s, inbox.round)
        return replace(s, x=(mean_pd * s.mask).where(total_pd > 0, s.x), w=w_pn)

    def _sound(self, mask_sd: Tensor) -> Tensor:
        """Mark the masks (S,) that have as many entries in each tensor as all peers."""
        sound_s = mask_sd.new_ones(len(mask_sd)) > 0
        for part, kept in self._parts:
            sound_s &= mask_sd[:, part].sum(dim=1) == kept
        return sound_s


def entries(shapes: Sequence[Sequence[int]], density: float) -> list[int]:
    """Return the number of entries that a mask has in each tensor (ERK).

    The density of a tensor is proportional to the sum of its sides over their product; tensors that
    would exceed 1 are dense. The mean density over all parameters is `density`.
    """
    sizes = np.array([math.prod(shape) for shape in shapes], dtype=np.float64)
    raw = np.array([sum(shape) / math.prod(shape) if shape else 1.0 for shape in shapes])
    dense = np.zeros(len(sizes), dtype=np.bool_)
    while True:
        left = density * sizes.sum() - sizes[dense].sum()
        scale = max(left, 0.0) / max((raw * sizes)[~dense].sum(), 1e-300)
        share = np.where(dense, 1.0, scale * raw)
        if dense.all() or not (more := share > 1).any():
            return [max(1, round(number)) for number in (share * sizes).tolist()]
        dense |= more
