"""Differential privacy of examples: per-example clipping, keyed noise and accounting.

The gradient of a minibatch B becomes (sum over B of g_e min(1, C / |g_e|) + s C z) / |B| with z
standard normal (Abadi et al., "Deep learning with differential privacy", CCS 2016). The backend
clips (`coterie.clients.engine.backends.backend`); this module adds noise and charges for it.

Noise is keyed by seed, peer, round, stage, minibatch and the number of earlier uses of the
minibatch in the stage: it does not depend on the node that hosts a peer, and never repeats. The
seed determines the noise; a deployed node draws a secret seed for each request. Legend: p = peers
of this node, e = models, b = examples of a minibatch, d = parameters, a = orders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from coterie.clients.engine import accountant, tuning
from coterie.clients.engine.data import Batch, Charge
from coterie.clients.engine.network import ModelError, Network
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Floats, Ints
from coterie.clients.privacy import Privacy

OFFER, ANSWER, UPDATE = range(3)
"""Stages of a round; uses of a minibatch are counted per stage."""
_USES = 1 << 16


Account = Callable[[], AbstractContextManager[tuple[Floats, Floats]]]
"""Opens the account of the hosted peers and yields two arrays (P, A): the divergences that each
peer has spent, and zeros, to which the caller adds its new costs. The costs are charged when the
account is closed without an error; the account is locked until then."""


class Guard:
    """Guard that makes the gradients of hosted peers private and charges their budgets.

    `rdp` (P, A) are divergences spent in the run (`coterie.clients.engine.accountant`), `exhausted`
    (P,) marks peers with a query of this stage beyond the budget; `account`: see `Account`.
    """

    def __init__(
        self, options: Privacy, peers: Ints, examples_p: Ints, seed: int, network: Network
    ) -> None:
        if network.coupled:
            raise ModelError(
                "privacy: batch norm mixes the examples of a minibatch, so none can be protected "
                "alone: use a model without it"
            )
        self.options, self._peers, self._examples, self._seed = options, peers, examples_p, seed
        self.rdp = np.zeros((len(peers), len(accountant.ORDERS)))
        self.account: Account = lambda: nullcontext((self.rdp.copy(), np.zeros_like(self.rdp)))
        self.begin(0, OFFER)

    def reseed(self, seed: int) -> None:
        """Draw noise from this seed from now on."""
        self._seed = seed

    def begin(self, round_: int, stage: int) -> None:
        """Begin a stage of a round."""
        self._when = round_ * _USES * 4 + stage * _USES
        self._uses = Counter[tuple[int, int]]()
        self.exhausted: Bools = np.zeros(len(self._peers), dtype=np.bool_)

    def epsilon(self) -> Floats:
        """Return the epsilon (P,) that each peer has spent."""
        with self.account() as (spent_pa, _):
            return accountant.epsilon(spent_pa, self.options.delta)

    def admit(self, batches: Sequence[Batch]) -> list[Batch]:
        """Charge each peer for its gradients; empty the minibatches of peers that cannot pay."""
        # The charge is final when this returns, before anything is computed.
        with self.account() as (spent_pa, cost_pa):
            return [self._admit(batch, spent_pa, cost_pa) for batch in batches]

    def _admit(self, batch: Batch, spent_pa: Floats, cost_pa: Floats) -> Batch:
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
                self.exhausted[p] |= not after <= self.options.budget  # true for NaN as well
            if self.exhausted[p]:
                counts_e[e] = 0
                continue
            self._uses[p, key] += 1
            self.rdp[p] += cost_a
            cost_pa[p] += cost_a
        paid_e1 = torch.from_numpy(counts_e > 0).to(batch.weights_eb.device)[:, None]
        weights_eb = batch.weights_eb * paid_e1
        return replace(batch, counts_e=counts_e, weights_eb=weights_eb, uses_e=uses_e)

    def _cost(self, p: int, count: int, charge: Charge, before: int) -> Floats:
        """Return the Rényi divergences of a gradient on a minibatch with `before` earlier uses."""
        if charge == Charge.FREE:
            return np.zeros(len(accountant.ORDERS))
        examples = int(self._examples[p])
        drawn = count if charge == Charge.DRAWN else examples
        return accountant.another(examples, drawn, self.options.noise, before)

    def add_noise(self, gradients: Sequence[Tensor], batch: Batch) -> None:
        """Add privacy noise to the mean gradients, given tensor by tensor."""
        counts_e, uses_e = batch.counts_e, batch.uses_e
        models, dtype, device = len(counts_e), gradients[0].dtype, gradients[0].device
        assert uses_e is not None, "minibatch without `admit`"
        ends = zip(batch.peers_e.tolist(), batch.keys_e.tolist(), uses_e.tolist(), strict=True)
        sources = [
            stream(self._seed, int(self._peers[p]), self._when + use, Purpose.PRIVACY, key)
            for p, key, use in ends
        ]
        deviations_e = (counts_e > 0) * self.options.noise * self.options.clip
        deviations_e = deviations_e / np.maximum(counts_e, 1)
        sizes = [gradient.numel() // models for gradient in gradients]
        few = max(1, tuning.NOISE_CELLS.on(device) // sum(sizes))
        for first in range(0, models, few):
            at = slice(first, first + few)
            noise_ed = normal(sources[at], deviations_e[at], sum(sizes), dtype).to(device)
            for gradient, noise in zip(gradients, noise_ed.split(sizes, dim=1), strict=True):
                gradient[at].add_(noise.reshape(gradient[at].shape))


def normal(
    sources: Sequence[np.random.Generator], deviations_e: Floats, d: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Draw normal numbers (E, d) from AES in counter mode, each row's key from its stream."""
    # Fast and secure: unlike with the Mersenne Twister, some numbers do not reveal the others.
    # Box-Muller transform with 32 random bits per number; NumPy computes logarithms and cosines in
    # a half to a third of torch's time.
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
