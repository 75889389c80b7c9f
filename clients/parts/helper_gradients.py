"""Gradients asked of others, where a round has several local steps.

A helper answers with the mean over as many minibatches at x0, the model that opened the round, and
its owner's steps let what was answered move along as the own gradient does: step s descends

    scale g_i(x) + aim - share g_i(x0),   both g_i on the minibatch of that step,

aim what the answers add up to and share the weight that they have. The first step, at x0, is the
method's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Letters

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Engine, GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers
    from coterie.clients.rule import State


def gradients_at(engine: Engine, state: State, round_: int, asked: Letters) -> Tensor:
    """Mean gradient (E, d) at each model that asks, over a round's minibatches of own data."""
    own, x_ed = np.searchsorted(engine.peers, asked.recipients), asked.rows_of("x")
    buffers = state.buffers_at(own)
    batches = engine.batches(round_, Purpose.ANSWER, peers=own, partners=asked.senders)
    found = (engine.gradients(x_ed, buffers, batch).values for batch in batches)
    return mean_over_steps(found, batches)


def mean_over_steps(values: Iterable[Tensor], batches: Sequence[Batch]) -> Tensor:
    """Mean (E, d) of what each model found in the steps it takes; one that has finished found 0."""
    if len(batches) == 1:
        (only,) = values
        return only
    total = reduce(add, values)
    steps_e = np.sum([batch.counts_e > 0 for batch in batches], axis=0)
    return total / total.new_tensor(np.maximum(steps_e, 1))[:, None]


def moving_along(
    engine: Engine,
    state: State,
    own: Iterable[Gradients],
    aim_pd: Tensor,
    share_p1: Tensor | float,
    scale_p1: Tensor | float = 1.0,
) -> GradientFunction:
    """What the hosted peers descend in a round that starts at `state`.

    Parameters
    ----------
    own : their own gradients at x0 on the minibatch of each step.
    """
    at_x0 = iter(own)

    def gradient(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
        before = next(at_x0)
        found = before if x_pd is state.x else engine.gradients(x_pd, buffers, batch)
        moved_pd = scale_p1 * found.values + (aim_pd - share_p1 * before.values)
        return found._replace(values=moved_pd)

    return gradient
