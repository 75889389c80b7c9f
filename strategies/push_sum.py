"""Push-sum: averaging along directed edges (Kempe et al., FOCS 2003).

In round t each peer sends equal parts of its value to its recipients and to itself: A_t[i, j] is
1 / (1 + out-degree of j). Columns sum to 1, rows do not: a plain mean of received models favours
peers with many recipients. Push-sum corrects this by weights w_1 = 1 and w_{t+1} = A_t w_t, which
depend on the topology only: averaging the models by

    z_i <- sum_j A_t[i, j] w_j z_j / w_{t+1, i}

preserves the sum of w_i z_i over all peers, and all models converge to the mean. If peers train in
between, their steps are divided by w_i (stochastic gradient push, Assran et al., ICML 2019,
algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coterie.strategies.errors import TopologyError

Floats = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.bool_]


class PushSum:
    """Averaging and push-sum weights of each round, whose edges are `links`(t), (n, n)."""

    def __init__(self, links: Callable[[int], Matrix], peers: int) -> None:
        self._links, self._peers = links, peers
        self._w = [np.ones(peers)]

    @classmethod
    def repeated(cls, graphs: list[Matrix]) -> PushSum:
        """Return the weights on edges (n, n) of rounds that repeat cyclically."""
        # Imported here, because it would slow down every start and message of a deployment.
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        _, part_n = connected_components(csr_array(np.any(graphs, axis=0)), connection="strong")
        for sender, recipient in np.argwhere(np.any(graphs, axis=0)):
            if part_n[sender] != part_n[recipient]:
                raise TopologyError(
                    f"peer {sender} sends to peer {recipient}, but no path leads back, which "
                    "push-sum averages need: add edges, or choose a method with its own weights"
                )
        return cls(lambda t: graphs[(t - 1) % len(graphs)], len(graphs[0]))

    def __call__(self, t: int) -> tuple[Floats, Floats]:
        """Return averaging weights of round `t`, (n, n), [recipient, sender], and w_t, (n,)."""
        while len(self._w) < t:
            self._w.append(self._sent(len(self._w)).sum(axis=0))
        sent = self._sent(t)
        return sent.T / sent.sum(axis=0)[:, None], self._w[t - 1]

    def _sent(self, t: int) -> Floats:
        """Return A_t[recipient, sender] w_sender as [sender, recipient], (n, n)."""
        edges = self._links(t) | np.eye(self._peers, dtype=np.bool_)
        sent: Floats = edges * (self._w[t - 1] / edges.sum(axis=1))[:, None]
        return sent
