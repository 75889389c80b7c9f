"""Push-sum: averages along edges that have a direction (Kempe et al., FOCS 2003).

In round t each peer gives equal parts of what it has to those who hear it and to itself: A_t[i, j]
is 1 / (1 + number of peers that hear j). Columns sum to 1, rows do not: a plain mean of what is
heard favours those who are heard more. Push-sum keeps account of it: with weights w_1 = 1 and
w_{t+1} = A_t w_t, which follow from the topology alone, the sum over all peers of w_i z_i of models

    z_i <- sum_j A_t[i, j] w_j z_j / w_{t+1, i}

stays what it was, and all models approach the mean of all. Where peers learn in between, their
steps are divided by w_i (stochastic gradient push, Assran et al., ICML 2019, algorithm 1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.strategies.errors import TopologyError
from coterie.strategies.topology import Matrix

Floats = npt.NDArray[np.float64]


class PushSum:
    """The averaging weights of each round, and what the models count for.

    Parameters
    ----------
    graphs : (n, n) each, the edges of the rounds in turn, [sender, recipient]; after the last one
        they begin again.

    Raises
    ------
    TopologyError
        Along some edge nothing ever comes back: its sender would count for less and less.
    """

    def __init__(self, graphs: list[Matrix]) -> None:
        # Imported here: every start of a run, and each message of a deployment, would wait for it.
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        _, part_n = connected_components(csr_array(np.any(graphs, axis=0)), connection="strong")
        for sender, recipient in np.argwhere(np.any(graphs, axis=0)):
            if part_n[sender] != part_n[recipient]:
                raise TopologyError(
                    f"peer {sender} is heard by {recipient}, but no path leads back, and averages "
                    "need one (push-sum): add edges, or take a method that chooses its own weights"
                )
        self._graphs = graphs
        self._w = [np.ones(len(graphs[0]))]

    def __call__(self, t: int) -> tuple[Floats, Floats]:
        """(n, n) the weights of round `t`, [recipient, sender], and (n,) w_t.

        Rows of the weights sum to 1, w_t sums to n.
        """
        while len(self._w) < t:
            self._w.append(self._sent(len(self._w)).sum(axis=0))
        sent = self._sent(t)
        return sent.T / sent.sum(axis=0)[:, None], self._w[t - 1]

    def _sent(self, t: int) -> Floats:
        """(n, n) A_t[recipient, sender] w_sender, as [sender, recipient]."""
        heard = self._graphs[(t - 1) % len(self._graphs)] | np.eye(len(self._w[0]), dtype=np.bool_)
        sent: Floats = heard * (self._w[t - 1] / heard.sum(axis=1))[:, None]
        return sent
