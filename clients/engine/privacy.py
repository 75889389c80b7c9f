"""Differential privacy of examples: per-example clipping, keyed noise, and what it has cost.

The gradient of a minibatch B becomes (sum over B of g_e min(1, C / |g_e|) + s C z) / |B| with z
standard normal (Abadi et al., "Deep learning with differential privacy", CCS 2016). Norms of single
gradients come from what goes into a layer and from the gradient of what comes out, without any
gradient of its own (Goodfellow, "Efficient per-example gradient computations", 2015; convolutions:
Rochette et al. 2019), so a private step is a plain one with weights, half a backward pass and noise
more. Networks with other layers take a backward pass for each example.

Noise belongs to (seed, peer, round, stage, minibatch, and how often the minibatch was used in the
stage): the same wherever a peer is hosted, never twice the same. Whoever knows the seed knows the
noise; a deployed node draws a seed of its own for each request and tells nobody. Legend: p = peers
of this node, e = models, b = examples of a minibatch, d = parameters, a = orders, t = places of a
layer (tokens, pixels), k = inputs, m = outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.engine import accountant
from clients.engine.batches import Ints
from clients.engine.data import Batch, Charge
from clients.engine.network import Network
from clients.engine.streams import Purpose, stream
from clients.letters import Bools
from clients.privacy import Privacy

OFFER, ANSWER, UPDATE = range(3)
"""Stages of a round, in each of which a minibatch may be used anew."""
_WORDS = 624  # of the state of torch's generator on a CPU
_USES = 1 << 16


class Trace(NamedTuple):
    """A layer of a forward pass: what went in and what came out."""

    layer: nn.Module
    inputs: Tensor
    outputs: Tensor


class Guard:
    """What makes the gradients of hosted peers private, and keeps count.

    Parameters
    ----------
    peers : (P,) ids. examples_p : (P,) training examples of each.

    Attributes
    ----------
    rdp : (P, A) what each peer has spent, see `clients.engine.accountant`.
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
        self.options, self._peers, self._examples, self._seed = options, peers, examples_p, seed
        self._traces: list[Trace] | None = None
        self._layers = 0
        if is_traceable(network.module):
            self._layers = network.watch(self._see)
        self.rdp = np.zeros((len(peers), len(accountant.ORDERS)))
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
        return accountant.epsilon(self.rdp, self.options.delta)

    def admit(self, batch: Batch) -> Batch:
        """Charge each peer for a gradient; the minibatches of those who cannot pay are emptied."""
        counts_e, uses_e = batch.counts_e.copy(), np.zeros_like(batch.counts_e)
        keys, peers = batch.keys_e.tolist(), batch.peers_e.tolist()
        assert batch.charges_e is not None
        for e, (p, key) in enumerate(zip(peers, keys, strict=True)):
            if not counts_e[e]:
                continue
            uses_e[e] = before = self._uses[p, key]
            cost_a = self._cost(p, int(counts_e[e]), Charge(batch.charges_e[e]), before)
            if self.options.budget and cost_a.any():
                after = accountant.epsilon((self.rdp[p] + cost_a)[None], self.options.delta)[0]
                self.exhausted[p] |= after > self.options.budget
            if self.exhausted[p]:
                counts_e[e] = 0
                continue
            self._uses[p, key] += 1
            self.rdp[p] += cost_a
        paid_e1 = torch.from_numpy(counts_e > 0).to(batch.weights_eb.device)[:, None]
        weights_eb = batch.weights_eb * paid_e1
        return replace(batch, counts_e=counts_e, weights_eb=weights_eb, uses_e=uses_e)

    def _cost(self, p: int, count: int, charge: Charge, before: int) -> accountant.Floats:
        """Rényi divergences of one more gradient on a minibatch, after so many of them."""
        examples, noise = int(self._examples[p]), self.options.noise
        if charge == Charge.FREE:
            return np.zeros(len(accountant.ORDERS))
        drawn = count if charge == Charge.DRAWN else examples
        cost_a = accountant.query(examples, drawn, noise, before + 1)
        if before and noise:
            cost_a = cost_a - accountant.query(examples, drawn, noise, before)
        return cost_a

    @contextmanager
    def watching(self) -> Iterator[list[Trace]]:
        """What the layers of the network do meanwhile."""
        traces: list[Trace] = []
        self._traces = traces
        try:
            yield traces
        finally:
            self._traces = None

    def _see(self, layer: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
        if self._traces is not None:
            self._traces.append(Trace(layer, inputs.detach(), outputs))

    def factors(self, losses_eb: Tensor, traces: list[Trace], leaves: Sequence[Tensor]) -> Tensor:
        """min(1, C / norm of the gradient) of each example (E, b)."""
        if len(traces) != self._layers:  # a layer was used twice: its gradients add up
            traces = []
        squares_eb = squared_norms(losses_eb, traces, leaves)
        return (self.options.clip / squares_eb.sqrt().clamp_min(1e-30)).clamp_max(1.0)

    def noise(self, batch: Batch, d: int) -> Tensor:
        """What is added to the mean gradients (E, d)."""
        noise_ed = batch.weights_eb.new_zeros(len(batch.counts_e), d)
        assert batch.uses_e is not None, "a minibatch that was not admitted"
        ends = zip(
            batch.peers_e.tolist(), batch.keys_e.tolist(), batch.uses_e.tolist(), strict=True
        )
        for e, (p, key, use) in enumerate(ends):
            if self.options.noise and (count := int(batch.counts_e[e])):
                when, peer = self._when + use, int(self._peers[p])
                g = generator(stream(self._seed, peer, when, Purpose.PRIVACY, key))
                deviation = self.options.noise * self.options.clip / count
                drawn = torch.randn(d, generator=g, dtype=noise_ed.dtype)
                noise_ed[e] = drawn.to(noise_ed.device).mul_(deviation)
        return noise_ed


def generator(source: np.random.Generator) -> torch.Generator:
    """Torch's generator, which is fast, with a whole state from a stream instead of 32 bits."""
    made = torch.Generator()
    state = made.get_state()
    words = state[24 : 24 + 8 * _WORDS].view(torch.int64)
    words.copy_(torch.from_numpy(source.integers(0, 2**32, _WORDS, dtype=np.int64)))
    made.set_state(state)
    return made


def squared_norms(losses_eb: Tensor, traces: Sequence[Trace], leaves: Sequence[Tensor]) -> Tensor:
    """Squared norm of each example's gradient (E, b), without the gradients where that is possible.

    Parameters
    ----------
    traces : of every layer with parameters, if its kind is known and it was used once.
    leaves : the parameters.
    """
    if not traces:
        return _one_by_one(losses_eb, leaves)
    outputs = [trace.outputs for trace in traces]
    found = torch.autograd.grad(losses_eb.sum(), outputs, retain_graph=True)
    total = torch.zeros_like(losses_eb)
    with torch.no_grad():
        for trace, gradient in zip(traces, found, strict=True):
            total += NORMS[type(trace.layer)](trace, gradient, losses_eb.shape)
    return total


def _one_by_one(losses_eb: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    assert len(losses_eb) == 1, "such networks go alone"
    squares = losses_eb.new_zeros(losses_eb.shape)
    for b, loss in enumerate(losses_eb[0]):
        for gradient in torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True):
            if gradient is not None:
                squares[0, b] += gradient.square().sum()
    return squares


def _linear(trace: Trace, gradient: Tensor, shape: torch.Size) -> Tensor:
    """|sum_t g_t a_t'|^2 = sum_ts <a_t, a_s> <g_t, g_s>, and the bias's |sum_t g_t|^2."""
    a = trace.inputs.reshape(*shape, -1, trace.inputs.shape[-1])
    g = gradient.reshape(*shape, -1, gradient.shape[-1])
    if a.shape[-2] == 1:
        square = a.square().sum((-1, -2)) * g.square().sum((-1, -2))
    else:
        square = ((a @ a.mT) * (g @ g.mT)).sum((-1, -2))
    if trace.layer.bias is not None:
        square = square + g.sum(-2).square().sum(-1)
    return square


def _convolution(trace: Trace, gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of each example is small here, and made."""
    layer = trace.layer
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    kernel = layer.kernel_size, layer.dilation, layer.padding, layer.stride
    windows = F.unfold(trace.inputs, *kernel)
    g = gradient.flatten(2)
    square = (g @ windows.mT).square().sum((-1, -2))
    if layer.bias is not None:
        square = square + g.sum(-1).square().sum(-1)
    return square.view(shape)


NORMS = {nn.Linear: _linear, nn.Conv2d: _convolution}
"""Layer type -> squared norms (E, b) of its gradients, example by example."""


def is_traceable(module: nn.Module) -> bool:
    """Whether all trainable parameters lie in layers whose norms are known, each in one place."""
    owned: list[nn.Parameter] = []
    for layer in module.modules():
        own = [value for value in layer.parameters(recurse=False) if value.requires_grad]
        owned += own
        if own and type(layer) not in NORMS:
            return False
        if isinstance(layer, nn.Conv2d) and (
            layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
        ):
            return False
    return len({*map(id, owned)}) == len(owned)
