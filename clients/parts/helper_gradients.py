"""Gradients answered by helpers, in rounds of several local steps.

A helper answers with its mean gradient over as many minibatches at x0, the model at the start of
the round. The asking peer corrects it by the change of its own gradient: step s descends

    scale g_i(x) + aim - share g_i(x0),   both g_i on the minibatch of that step,

where aim is the weighted sum of the answers and share their total weight. The first step, at x0,
is the method's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import (
    Batch,
    Buffers,
    Engine,
    GradientFunction,
    Gradients,
    Models,
    Tensor,
)
from coterie.clients.inbox import Inbox
from coterie.clients.rule import State


def gradients_at(
    engine: Engine, s: State, asked: Inbox, x_ed: Models | None = None, steps: int | None = None
) -> Tensor:
    """Return the mean gradient (E, d) over a round of minibatches, or over some `steps`."""
    # At each asking model, or at `x_ed`, on the data of the peers that were asked.
    x_ed = asked.offers.rows_of("x") if x_ed is None else x_ed
    batches = engine.batches(
        asked.round, Purpose.ANSWER, peers=asked.peer, partners=asked.senders, steps=steps
    )
    buffers = s.buffers_at(asked.peer)
    gradients = (engine.gradients(x_ed, buffers, batch).values for batch in batches)
    return mean_over_steps(gradients, batches)


def mean_over_steps(values: Iterable[Tensor], batches: Sequence[Batch]) -> Tensor:
    """Return the mean gradient (E, d) over the steps that each model takes."""
    # A model that has no minibatch left in a step contributes 0 to it.
    if len(batches) == 1:
        (only,) = values
        return only
    total = reduce(add, values)
    steps_e = np.sum([batch.counts_e > 0 for batch in batches], axis=0)
    return total / total.new_tensor(np.maximum(steps_e, 1))[:, None]


def corrected(
    engine: Engine,
    state: State,
    at_start: Iterable[Gradients],
    aim_pd: Tensor,
    share_p1: Tensor | float,
    scale_p1: Tensor | float = 1.0,
) -> GradientFunction:
    """Return the direction that the hosted peers descend in a round that starts at `state`."""
    remaining = iter(at_start)

    def gradient(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
        first = next(remaining)
        now = first if x_pd is state.x else engine.gradients(x_pd, buffers, batch)
        descent_pd = scale_p1 * now.values + (aim_pd - share_p1 * first.values)
        return now._replace(values=descent_pd)

    return gradient
