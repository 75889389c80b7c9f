"""Nearest: each peer averages with those whose models are most alike.

x_i <- mean of x_i and of the k models that are nearest to it, after local training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from coterie import Everyone, Grid, Letters, Method, Rule, State

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """How many to average with; the table [method-options].

    Attributes
    ----------
    neighbours : models that a peer averages its own with.
    """

    neighbours: int = 2
    grid: ClassVar[Grid] = {"neighbours": (1, 2, 4)}  # what `compare --tune` tries

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError("neighbours must be at least 1")


@dataclass(frozen=True)
class NearestState(State):
    """`w` (P, n) are the weights of the last average."""

    w: Floats


class Nearest(Rule[NearestState]):
    """Local training, then an average over the nearest models."""

    def init(self) -> NearestState:
        """Every peer begins with a model of its own weight only."""
        return NearestState(**vars(self.start()), w=self.eye())

    def offer(self, state: NearestState, round_: int) -> tuple[NearestState, Mapping[str, Tensor]]:
        """Train, then show the model."""
        batches = self.engine.batches(round_)
        state = state.trained(self.engine.fit(state.x, state.buffers, state.opt_state, batches))
        return state, {"x": state.x}

    def update(
        self,
        state: NearestState,
        round_: int,
        offers: Letters,
        sent: Letters,
        answers: Letters,
    ) -> NearestState:
        """Average with the nearest models that arrived."""
        x_sd, authors = offers["x"], offers.authors
        # |x_i - x_s|^2 but for |x_i|^2, which is the same for all s
        length_s = self.engine.inner(x_sd, x_sd).cpu().numpy()
        distance_pn = np.full((len(self.engine.peers), self.engine.n), np.inf)
        distance_pn[:, authors] = length_s - 2 * self.engine.products(state.x, x_sd)
        distance_pn[~self.present(offers)] = np.inf  # no letter, no neighbour
        distance_pn[self.eye() > 0] = -np.inf  # the own model always counts
        nearest_pk = distance_pn.argsort(axis=1)[:, : self.options.neighbours + 1]
        w_pn = np.zeros_like(distance_pn)
        np.put_along_axis(w_pn, nearest_pk, 1.0, axis=1)
        w_pn[np.isposinf(distance_pn)] = 0.0
        w_pn /= w_pn.sum(axis=1, keepdims=True)
        return replace(state, x=self.average(offers, "x", w_pn), w=w_pn)

    def weights(self, state: NearestState) -> Floats:
        """The weights of the last average, for the map of who helps whom."""
        return state.w


NEAREST = Method(Everyone, Nearest, Options, "averages with the nearest models", learns_graph=True)
