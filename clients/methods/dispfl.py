"""DisPFL: sparse personal models, averaged entry by entry among the peers that have the entry.

Dai, Shen, He, Tian, Tao, "DisPFL: Towards Communication-Efficient Personalized Federated Learning
via Decentralized Sparse Training", ICML 2022, algorithm 1, and the authors' code
(rong-dai/DisPFL@e2f47d4). Symbols: w_i `state.x`, mask m_i `state.mask`, rho `options.density`,
alpha `options.prune`, `options.growth`. In a round each peer

1. trains the entries of its mask, the others stay 0: every gradient is multiplied by m_i;
2. evolves its mask: in every tensor it drops the ceil(alpha_t |m|) entries of the smallest |w|, and
   takes as many of those that are now outside: with the largest |gradient| of a minibatch, or at
   random. New entries start at 0. alpha_t = (alpha / 2) (1 + cos(pi (t - 1) / T)) falls from alpha
   to almost 0 over the T rounds;
3. receives w_j and m_j, and sets each entry of its mask to the mean over the received models and
   its own that have the entry: w_i <- m_i * sum_j m_j w_j / sum_j m_j.

The masks start random and different, with as many entries in every tensor as ERK gives it: the
density of a tensor is proportional to the sum of its sides over their product, at most 1, with a
mean of rho over all parameters. The number of entries never changes, so all letters have the same
size: the values of the mask in order, and the mask as bits.

Readings and deviations: a round here begins with training and ends with the average, the paper's
begins with the average. Momentum is kept, except that of dropped entries. The dense engine computes
all entries: the operations that sparsity saves are counted by the paper, not saved here. The means
do not depend on the numbers of examples, as in the paper. Robust rules are refused: they need whole
models. Batch-norm buffers stay personal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Engine, GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers

_LARGE = 1e30


@dataclass(frozen=True)
class Options:
    """Options of DisPFL.

    Attributes
    ----------
    density : float
        Share of the parameters that a peer keeps and sends, rho.
    prune : float
        Share of these that is replaced in the first rounds, alpha; it falls to 0.
    growth : {"gradient", "random"}
        New entries: those with the largest gradients, or random ones.
    """

    density: Annotated[float, Range(above=0, high=1)] = 0.5
    prune: Annotated[float, Range(0, 1)] = 0.5
    growth: Literal["gradient", "random"] = "gradient"
    grid: ClassVar[Grid] = {"density": (0.25, 0.5, 0.8)}

    def check(self, config: Any) -> None:
        """Reject robust rules."""
        if config.defence.rule != "none":
            raise ValueError(
                f'defence.rule = "{config.defence.rule}" replaces averages of whole models, and '
                'dispfl sends parts of them: set defence.rule = "none"'
            )


@dataclass(frozen=True)
class DisPFLState(State):
    """State of DisPFL.

    Attributes
    ----------
    mask : Tensor, (P, d)
        1 for the entries that a peer has, else 0.
    w : ndarray, (P, n)
        Weights of the last average, for entries that all have.
    """

    mask: Tensor
    w: Floats


class DisPFL(LocalTraining[DisPFLState]):
    """DisPFL: train and average sparse models."""

    offers_model: ClassVar[bool] = False

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self.kept = entries(engine.network.shapes, options.density)
        ends = np.cumsum(engine.network.sizes)
        self._parts = [slice(int(end) - size, int(end)) for end, size in zip(
            ends, engine.network.sizes, strict=True
        )]  # fmt: skip

    def init(self) -> DisPFLState:
        start = self.start()
        mask_pd = np.zeros(tuple(start.x.shape))
        for p, peer in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(peer), 0, Purpose.CHOICE)
            for part, kept in zip(self._parts, self.kept, strict=True):
                size = part.stop - part.start
                mask_pd[p, part.start + g.permutation(size)[:kept]] = 1.0
        mask = self.engine.tensor(mask_pd)
        state = DisPFLState(**vars(start), mask=mask, w=self.eye())
        return replace(state, x=start.x * mask)

    def offer(self, state: DisPFLState, round_: int) -> tuple[DisPFLState, Mapping[str, Tensor]]:
        state = self.evolved(self.train(state, round_), round_)
        kept_pd = state.mask > 0
        values = state.x[kept_pd].view(len(state.x), -1)
        return state, {"values": values, "mask": _bits(self.engine, kept_pd)}

    def gradient(self, state: DisPFLState, round_: int) -> GradientFunction:
        def masked(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            gradients = self.engine.gradients(x_pd, buffers, batch)
            return gradients._replace(values=gradients.values * state.mask)

        return masked

    def evolved(self, state: DisPFLState, round_: int) -> DisPFLState:
        """Replace a share of each peer's mask; dropped entries become 0."""
        share = self.options.prune / 2 * (1 + math.cos(math.pi * (round_ - 1) / self.rounds))
        batches = self.engine.batches(round_, Purpose.EXTRA, steps=1)
        if not share or not batches:
            return state
        # Finite, so that entries of the other kind, at infinity, are never chosen.
        size_pd = state.x.abs().nan_to_num(nan=_LARGE, posinf=_LARGE)
        score_pd = self._scores(state, round_, batches).nan_to_num(nan=0.0, posinf=_LARGE)
        mask_pd = state.mask.clone()
        for part, kept in zip(self._parts, self.kept, strict=True):
            replaced = min(math.ceil(share * kept), part.stop - part.start - kept)
            mask = mask_pd[:, part]
            smallest = size_pd[:, part].where(mask > 0, math.inf).argsort(dim=1, stable=True)
            mask.scatter_(1, smallest[:, :replaced], 0.0)
            best = score_pd[:, part].where(mask == 0, -math.inf)
            largest = best.argsort(dim=1, descending=True, stable=True)
            mask.scatter_(1, largest[:, :replaced], 1.0)
        opt_state = {
            name: value.where(mask_pd > 0, 0.0) if value.shape == mask_pd.shape else value
            for name, value in state.opt_state.items()
        }
        x_pd = state.x.where(mask_pd > 0, 0.0)
        return replace(state, x=x_pd, mask=mask_pd, opt_state=opt_state)

    def _scores(self, state: DisPFLState, round_: int, batches: Sequence[Batch]) -> Tensor:
        """Return the merit (P, d) of new entries: their gradients' sizes, or random numbers."""
        if self.options.growth == "gradient":
            gradients = self.engine.gradients(state.x, state.buffers, batches[0])
            return gradients.values.abs()
        draws = (
            stream(self.engine.seed, int(peer), round_, Purpose.CHOICE).random(self.engine.d)
            for peer in self.engine.peers
        )
        return self.engine.tensor(np.stack([*draws]))

    def update(
        self, state: DisPFLState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> DisPFLState:
        mask_sd = _mask(self.engine, offers["mask"])
        sound_s = self._sound(mask_sd)
        mask_sd[~sound_s] = 0.0
        x_sd = mask_sd.clone()
        x_sd[mask_sd > 0] = offers["values"][sound_s].flatten()
        valid_n = np.zeros(self.engine.n)
        valid_n[offers.authors[sound_s.cpu().numpy()]] = 1.0
        w_pn = self.present_weights(offers, np.tile(valid_n, (len(state.x), 1)))
        w_ps = w_pn[:, offers.authors]
        total_pd = self.engine.mix(w_ps, mask_sd)
        mean_pd = self.engine.mix(w_ps, x_sd) / total_pd.where(total_pd > 0, 1.0)
        x_pd = (mean_pd * state.mask).where(total_pd > 0, state.x)
        return replace(state, x=x_pd, w=w_pn)

    def weights(self, state: DisPFLState) -> Floats:
        return state.w

    def _sound(self, mask_sd: Tensor) -> Tensor:
        """Mark the masks (S,) that have as many entries in each tensor as all peers."""
        sound_s = mask_sd.new_ones(len(mask_sd)) > 0
        for part, kept in zip(self._parts, self.kept, strict=True):
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


def _bits(engine: Engine, mask_pd: Tensor) -> Tensor:
    """Return the masks as bytes, (P, ceil(d / 8)) uint8."""
    padded = mask_pd.new_zeros(len(mask_pd), -(-engine.d // 8) * 8)
    padded[:, : engine.d] = mask_pd
    powers = engine.tensor(2.0 ** np.arange(8))
    return (padded.view(len(mask_pd), -1, 8) * powers).sum(dim=2).byte()


def _mask(engine: Engine, bits_sb: Tensor) -> Tensor:
    """Return the masks (S, d) of the engine's type from `_bits`."""
    columns = [(bits_sb >> place) & 1 for place in range(8)]
    stacked = bits_sb.new_empty((*bits_sb.shape, 8))
    for place, column in enumerate(columns):
        stacked[:, :, place] = column
    return stacked.flatten(1)[:, : engine.d].to(engine.dtype)
