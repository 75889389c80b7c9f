"""Nearest: each peer averages with the peers whose models are closest.

After local training: x_i <- mean of x_i and the k models closest to it (Euclidean distance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from coterie import Everyone, Grid, Letters, Method, Range, Rule, State

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Options of the method: the table [method-options].

    Attributes
    ----------
    neighbours : int
        Number of models of others in a peer's average.
    """

    neighbours: Annotated[int, Range(1)] = 2
    grid: ClassVar[Grid] = {"neighbours": (1, 2, 4)}  # values for `compare --tune`


@dataclass(frozen=True)
class NearestState(State):
    """State with the weights `w` (P, n) of the last average."""

    w: Floats


class Nearest(Rule[NearestState]):
    """Local training, then an average over the nearest models."""

    def init(self) -> NearestState:
        """Return the initial state; each peer gives all weight to itself."""
        return NearestState(**vars(self.start()), w=self.eye())

    def offer(self, state: NearestState, round_: int) -> tuple[NearestState, Mapping[str, Tensor]]:
        """Train locally, then offer the model."""
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
        """Average with the nearest received models."""
        x_sd, authors = offers["x"], offers.authors
        # |x_i - x_s|^2 without |x_i|^2, which is the same for all s
        length_s = self.engine.inner(x_sd, x_sd).cpu().numpy()
        distance_pn = np.full((len(self.engine.peers), self.engine.n), np.inf)
        distance_pn[:, authors] = length_s - 2 * self.engine.products(state.x, x_sd)
        distance_pn[~self.present(offers)] = np.inf  # missing letters
        distance_pn[self.eye() > 0] = -np.inf  # always include the own model
        nearest_pk = distance_pn.argsort(axis=1)[:, : self.options.neighbours + 1]
        w_pn = np.zeros_like(distance_pn)
        np.put_along_axis(w_pn, nearest_pk, 1.0, axis=1)
        w_pn[np.isposinf(distance_pn)] = 0.0
        w_pn /= w_pn.sum(axis=1, keepdims=True)
        return replace(state, x=self.average(offers, "x", w_pn), w=w_pn)

    def weights(self, state: NearestState) -> Floats:
        """Return the weights of the last average for the collaboration map."""
        return state.w


NEAREST = Method(Everyone, Nearest, Options, "averages with the nearest models", learns_graph=True)
