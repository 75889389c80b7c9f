"""Differential privacy of examples: per-example clipping, keyed noise, and what it has cost.

The gradient of a minibatch B becomes (sum over B of g_e min(1, C / |g_e|) + s C z) / |B| with z
standard normal (Abadi et al., "Deep learning with differential privacy", CCS 2016). What goes into
a layer and the gradient of what comes out give the norms of single gradients, and their weighted
sum, in one backward pass (Goodfellow, "Efficient per-example gradient computations", 2015; Bu et
al., "Differentially private optimization on large model at small cost", ICML 2023). Networks with
other layers take a backward pass for each example.

Noise belongs to (seed, peer, round, stage, minibatch, and how often the minibatch was used in the
stage): the same wherever a peer is hosted, never twice the same. Whoever knows the seed knows the
noise; a deployed node draws a seed of its own for each request and tells nobody. Legend: p = peers
of this node, e = models, b = examples of a minibatch, d = parameters, a = orders, t = places of a
layer (tokens, pixels), k = inputs, m = outputs.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor, nn
from torch.nn import functional as F

from clients.engine import accountant
from clients.engine.batches import Ints
from clients.engine.data import Batch, Charge
from clients.engine.forms import linear_sums
from clients.engine.layers import trains
from clients.engine.line import Line, Slope
from clients.engine.network import Network
from clients.engine.streams import Purpose, stream
from clients.letters import Bools
from clients.privacy import Privacy

OFFER, ANSWER, UPDATE = range(3)
"""Stages of a round, in each of which a minibatch may be used anew."""
_USES = 1 << 16
_LONGEST = 1e24  # norm of a gradient that is scaled down, in multiples of the clip
_CACHED = 1 << 17  # numbers that are made together, so that they stay in the cache


class Trace(NamedTuple):
    """A layer of a forward pass: what went in and what came out."""

    layer: nn.Module
    inputs: Tensor
    outputs: Tensor


Account = Callable[[], AbstractContextManager[tuple[accountant.Floats, accountant.Floats]]]
"""Opens the account of the hosted peers: (P, A) what each has spent so far and (P, A) zeros, to
which is added what each spends now. What was added counts when the account is closed, and not where
an error closes it; nobody else has it open meanwhile."""


class Guard:
    """What makes the gradients of hosted peers private, and keeps count.

    Parameters
    ----------
    peers : (P,) ids. examples_p : (P,) training examples of each.

    Attributes
    ----------
    rdp : (P, A) what each peer has spent in the run, see `clients.engine.accountant`.
    account : what decides about the budget, see `Account`; here, what the run has spent.
    exhausted : (P,) whether a query of the current stage was beyond the budget.
    """

    def __init__(
        self, options: Privacy, peers: Ints, examples_p: Ints, seed: int, network: Network
    ) -> None:
        if network.coupled:
            raise ValueError(
                "privacy: batch norm lets examples of a minibatch see each other, so none can be "
                "protected alone: take a model without it"
            )
        if network.personal:
            raise ValueError("privacy: what model.personal keeps at home is trained without it")
        self.options, self._peers, self._examples, self._seed = options, peers, examples_p, seed
        self._names = {id(value): name for name, value in network.module.named_parameters()}
        self._network = network
        traceable = is_traceable(network.module)
        self._layers = sum(map(trains, network.module.modules())) if traceable else 0
        self.rdp = np.zeros((len(peers), len(accountant.ORDERS)))
        self.account: Account = lambda: nullcontext((self.rdp.copy(), np.zeros_like(self.rdp)))
        self.begin(0, OFFER)

    def reseed(self, seed: int) -> None:
        """From now on noise comes from this seed."""
        self._seed = seed

    def begin(self, round_: int, stage: int) -> None:
        """A stage of a round begins."""
        self._when = round_ * _USES * 4 + stage * _USES
        self._uses = Counter[tuple[int, int]]()
        self.exhausted: Bools = np.zeros(len(self._peers), dtype=np.bool_)

    def epsilon(self) -> accountant.Floats:
        """(P,) what each peer has spent."""
        with self.account() as (spent_pa, _):
            return accountant.epsilon(spent_pa, self.options.delta)

    def admit(self, batches: Sequence[Batch]) -> list[Batch]:
        """Charge each peer for its gradients; the minibatches of those who cannot pay are emptied.

        What is admitted is paid for when this returns, and before anything is computed.
        """
        with self.account() as (spent_pa, cost_pa):
            return [self._admit(batch, spent_pa, cost_pa) for batch in batches]

    def _admit(
        self, batch: Batch, spent_pa: accountant.Floats, cost_pa: accountant.Floats
    ) -> Batch:
        counts_e, uses_e = batch.counts_e.copy(), np.zeros_like(batch.counts_e)
        keys, peers = batch.keys_e.tolist(), batch.peers_e.tolist()
        assert batch.charges_e is not None
        for e, (p, key) in enumerate(zip(peers, keys, strict=True)):
            if not counts_e[e]:
                continue
            uses_e[e] = before = self._uses[p, key]
            cost_a = self._cost(p, int(counts_e[e]), Charge(batch.charges_e[e]), before)
            if self.options.budget and cost_a.any():
                total_1a = (spent_pa[p] + cost_pa[p] + cost_a)[None]
                after = accountant.epsilon(total_1a, self.options.delta)[0]
                self.exhausted[p] |= not after <= self.options.budget  # nor where it is no number
            if self.exhausted[p]:
                counts_e[e] = 0
                continue
            self._uses[p, key] += 1
            self.rdp[p] += cost_a
            cost_pa[p] += cost_a
        paid_e1 = torch.from_numpy(counts_e > 0).to(batch.weights_eb.device)[:, None]
        weights_eb = batch.weights_eb * paid_e1
        return replace(batch, counts_e=counts_e, weights_eb=weights_eb, uses_e=uses_e)

    def _cost(self, p: int, count: int, charge: Charge, before: int) -> accountant.Floats:
        """Rényi divergences of one more gradient on a minibatch, after so many of them."""
        if charge == Charge.FREE:
            return np.zeros(len(accountant.ORDERS))
        examples = int(self._examples[p])
        drawn = count if charge == Charge.DRAWN else examples
        return accountant.another(examples, drawn, self.options.noise, before)

    def knows(self, line: Line) -> bool:
        """Whether slopes of these layers are all that `clipped_sums` needs."""
        return bool(self._layers) and line.once

    @contextmanager
    def watching(self) -> Iterator[list[Trace]]:
        """What the layers of the network do meanwhile; nothing where some have unknown norms."""
        traces: list[Trace] = []

        def see(layer: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
            traces.append(Trace(layer, inputs.detach(), outputs))

        with self._network.watched(see) if self._layers else nullcontext():
            yield traces

    def clipped(
        self,
        losses_eb: Tensor,
        weights_eb: Tensor,
        traces: list[Trace],
        leaves: dict[str, Tensor],
        loss_of: Callable[[int], Tensor],
    ) -> Sequence[Tensor]:
        """Weighted sums of the examples' clipped gradients, one for each of the leaves.

        Parameters
        ----------
        traces : of the forward pass, while which it was `watching`.
        loss_of : computes the loss of a single example, given by its place in the minibatch.
        """
        used = len({id(trace.layer) for trace in traces})
        if not used == len(traces) == self._layers or not traces:  # of one used twice they add up
            return self._one_by_one(loss_of, weights_eb, [*leaves.values()])
        outputs = [trace.outputs for trace in traces]
        slopes = torch.autograd.grad(losses_eb.sum(), outputs)
        with torch.no_grad():
            found = self.clipped_sums(
                [Slope(t.layer, t.inputs, g) for t, g in zip(traces, slopes, strict=True)],
                weights_eb,
            )
            return tuple(found[name].reshape(leaf.shape) for name, leaf in leaves.items())

    def clipped_sums(self, slopes: Sequence[Slope], weights_eb: Tensor) -> dict[str, Tensor]:
        """The same by name, from each layer's inputs and the gradients of its outputs."""
        layers = [LAYERS[type(layer)](layer, a, g, weights_eb.shape) for layer, a, g in slopes]
        squares_eb = functools.reduce(torch.add, [layer.squares() for layer in layers])
        factors_eb, sound_eb = self._factors(squares_eb)
        weights_eb = weights_eb * factors_eb.to(weights_eb.dtype)
        found: dict[str, Tensor] = {}
        for (layer, _, _), gradients in zip(slopes, layers, strict=True):
            weight, bias = gradients.sums(weights_eb, sound_eb)
            found[self._names[id(layer.weight)]] = weight
            if layer.bias is not None:
                found[self._names[id(layer.bias)]] = bias
        return found

    def _one_by_one(
        self, loss_of: Callable[[int], Tensor], weights_eb: Tensor, leaves: Sequence[Tensor]
    ) -> list[Tensor]:
        """`clipped`, by a forward and a backward pass for each example.

        In one pass for all, numbers of one example that are not finite would reach the gradients of
        the others.
        """
        assert len(weights_eb) == 1, "such networks go alone"
        sums = [torch.zeros_like(leaf) for leaf in leaves]
        for b, weight in enumerate(weights_eb[0]):
            gradients = torch.autograd.grad(loss_of(b).sum(), leaves, materialize_grads=True)
            square = functools.reduce(torch.add, [_squares(g.reshape(1, -1)) for g in gradients])
            factor, sound = self._factors(square)
            for total, gradient in zip(sums, gradients, strict=True):
                scaled = gradient * (factor.to(weight.dtype) * weight)
                total.add_(torch.where(sound, scaled, 0.0))
        return sums

    def _factors(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """min(1, C / norm of the gradient) of each example, and whether its norm is sound.

        A gradient that is not finite, or too long for float32 to scale down, counts as 0: it would
        take the sum with it, and so tell that its example is there.
        """
        clip = self.options.clip
        sound = (squares >= 0) & (squares < (_LONGEST * clip) ** 2)  # not where one is no number
        norms = torch.where(sound, squares, 1.0).sqrt()
        return (clip / norms.clamp_min(1e-30)).clamp_max(1.0), sound

    def add_noise(self, gradients: Sequence[Tensor], batch: Batch) -> None:
        """Add what hides single examples to the mean gradients, given tensor by tensor."""
        counts_e, uses_e = batch.counts_e, batch.uses_e
        models, dtype, device = len(counts_e), gradients[0].dtype, gradients[0].device
        assert uses_e is not None, "a minibatch that was not admitted"
        ends = zip(batch.peers_e.tolist(), batch.keys_e.tolist(), uses_e.tolist(), strict=True)
        sources = [
            stream(self._seed, int(self._peers[p]), self._when + use, Purpose.PRIVACY, key)
            for p, key, use in ends
        ]
        deviations_e = (counts_e > 0) * self.options.noise * self.options.clip
        deviations_e = deviations_e / np.maximum(counts_e, 1)
        sizes = [gradient.numel() // models for gradient in gradients]
        few = max(1, _CACHED // sum(sizes))
        for first in range(0, models, few):
            at = slice(first, first + few)
            noise_ed = normal(sources[at], deviations_e[at], sum(sizes), dtype).to(device)
            for gradient, noise in zip(gradients, noise_ed.split(sizes, dim=1), strict=True):
                part = gradient[at] if models > 1 else gradient  # which may have no such axis
                part.add_(noise.reshape(part.shape))


def normal(
    sources: Sequence[np.random.Generator], deviations_e: accountant.Floats, d: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Normal numbers (E, d) from AES in counter mode, each row's key drawn from its stream.

    Fast, and who sees some of the numbers can tell nothing of the others, as of Mersenne Twister's.
    Box and Muller's method, with 32 random bits for each number; NumPy takes half to a third of the
    time that torch takes for logarithms and cosines.
    """
    half = (d + 1) // 2
    bits = np.empty((len(sources), 2, half), dtype=np.int32)
    zeros = bytes(8 * half)
    for row, source in zip(bits, sources, strict=True):
        key = source.bit_generator.random_raw(4).tobytes()
        cipher = Cipher(AES(key), CTR(bytes(16)))
        cipher.encryptor().update_into(zeros, row.data.cast("B"))
    numbers = bits.astype(str(dtype).removeprefix("torch."))  # uniform, from -2^31 to 2^31
    first, second = numbers[:, 0], numbers[:, 1]
    radius = np.abs(first)
    radius *= 2.0**-31
    np.maximum(radius, 2.0**-32, out=radius)
    np.log(radius, out=radius)
    radius *= (-2 * deviations_e**2).astype(radius.dtype)[:, None]
    np.sqrt(radius, out=radius)
    second *= math.pi * 2.0**-31
    np.cos(second, out=first)
    np.sin(second, out=second)
    numbers *= radius[:, None]
    return torch.from_numpy(numbers).flatten(1)[:, :d]


class _Linear:
    """Gradients sum_t g_t a_t' of a linear layer, and sum_t g_t of its bias."""

    def __init__(
        self, layer: nn.Module, inputs: Tensor, gradient: Tensor, shape: torch.Size
    ) -> None:
        self._a = inputs.reshape(*shape, -1, inputs.shape[-1])
        self._g = gradient.reshape(*shape, -1, gradient.shape[-1])
        self._biased = layer.bias is not None

    def squares(self) -> Tensor:
        """|sum_t g_t a_t'|^2 = sum_ts <a_t, a_s> <g_t, g_s>, and what rounding may take from it.

        Where places cancel each other, little is left of products of large numbers, and a norm that
        is found too small would clip too little.
        """
        a, g = self._a, self._g
        places = a.shape[-2]
        if places == 1:
            return _squares(g) * (_squares(a) + self._biased)
        eps = torch.finfo(a.dtype).eps
        a, g = a.double(), g.double()
        square: Tensor = ((a @ a.mT) * (g @ g.mT)).sum((-1, -2))
        norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(g, dim=-1)
        sums = a.shape[-1] + g.shape[-1] + places**2
        square = square + sums * eps * norms.sum(-1).square()
        if self._biased:
            square = square + _squares(g.sum(-2, keepdim=True))
        return square

    def sums(self, weights_eb: Tensor, sound_eb: Tensor) -> tuple[Tensor, Tensor]:
        weights, sound = weights_eb[..., None, None], sound_eb[..., None, None]
        return linear_sums(
            torch.where(sound, self._a, 0.0), torch.where(sound, self._g * weights, 0.0)
        )


class _Convolution:
    """Those of a convolution, which are small and made for each example."""

    def __init__(
        self, layer: nn.Module, inputs: Tensor, gradient: Tensor, shape: torch.Size
    ) -> None:
        assert isinstance(layer, nn.Conv2d)
        assert not isinstance(layer.padding, str)
        kernel = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        g = gradient.flatten(2)
        self._weight = (g @ F.unfold(inputs, *kernel).mT).unflatten(0, shape)
        self._bias = g.sum(-1, keepdim=True).unflatten(0, shape)
        self._biased = layer.bias is not None

    def squares(self) -> Tensor:
        square = _squares(self._weight)
        return square + _squares(self._bias) if self._biased else square

    def sums(self, weights_eb: Tensor, sound_eb: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights_eb[..., None, None]
        for each in (self._weight, self._bias):
            each[~sound_eb] = 0.0
        return (self._weight * weights).sum(1), (self._bias * weights).sum(1)


def _squares(x: Tensor) -> Tensor:
    """Squared norms in float64, in which no square of a float32 is rounded to 0 or infinity."""
    found: Tensor = torch.linalg.vector_norm(x, dim=(-1, -2), dtype=torch.float64).square()
    return found


LAYERS: dict[type[nn.Module], type[_Linear | _Convolution]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Convolution,
}
"""Layer type -> its gradients, example by example (E, b)."""


def is_traceable(module: nn.Module) -> bool:
    """Whether all trainable parameters lie in layers whose norms are known, each in one place."""
    owned: list[nn.Parameter] = []
    for layer in module.modules():
        own = [value for value in layer.parameters(recurse=False) if value.requires_grad]
        owned += own
        if own and type(layer) not in LAYERS:
            return False
        if isinstance(layer, nn.Conv2d) and (
            layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
        ):
            return False
    return len({*map(id, owned)}) == len(owned)
