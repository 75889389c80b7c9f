"""kNN-Per (Marfoq et al., ICML 2022): the shared model, and a datastore of each peer's examples.

The peers run FedAvg. For an example z, with phi(z) the input of the global model's last layer
(m numbers), the peer predicts lambda * vote + (1 - lambda) * model. The vote is the mean label of
the k nearest of its training examples z_j, weighted by exp(-|phi(z) - phi(z_j)|^2 / m) (section 3
and the authors' code).

Symbols: k `neighbours`, lambda `lambda_`. Readings: the datastore holds all of the
peer's training data, embedded by the current global model; lambda is the same for all peers; a
training example is not its own neighbour in the training loss; a regression averages targets. Where
examples have no label (quadratic problems) the prediction is the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie.clients.hints import Backend, Scores, SplitName, Tensor
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.rule import State
from coterie.ranges import option


class KNNPer(
    GlobalModel[State], group="personal", exposes="it predicts from a memory of private examples"
):
    """FedAvg's model and the nearest local examples."""

    neighbours: int = option(10, "Number of nearest training examples that vote.", low=1)
    lambda_: float = option(
        0.5, "Weight of the vote; the global model has 1 - lambda. 0 is FedAvg.",
        low=0, high=1, grid=(0.25, 0.5, 0.75),
    )  # fmt: skip

    def evaluate(self, s: State, split: SplitName) -> Scores:
        engine = self.engine
        if engine.task.certain is None:
            return super().evaluate(s, split)
        keys_pnm, labels_pnk = self._datastore(s, engine.task.certain)
        lengths_p1 = engine.data.shards["train"].lengths_p[:, None]
        padding_pn = np.arange(keys_pnm.shape[1]) >= lengths_p1
        far_pn = engine.tensor(np.where(padding_pn, np.inf, 0.0))

        def predict(backend: Backend, at: Tensor, inputs_eb: Tensor) -> Tensor:
            asked = backend, s.x, s.buffers, at, inputs_eb
            model_ebk = engine.predictions(*asked)
            vote_ebk = vote(
                engine.embed(*asked), keys_pnm[at], labels_pnk[at], far_pn[at],
                self.neighbours, skip=split == "train",
            )  # fmt: skip
            return model_ebk.lerp(vote_ebk, self.lambda_)

        return engine.prediction_losses(predict, split)

    def saved(self, s: State) -> Sequence[Mapping[str, Tensor]]:
        """Return the datastore of each peer: embeddings and labels."""
        if self.engine.task.certain is None or not self.lambda_:
            return super().saved(s)
        keys_pnm, labels_pnk = self._datastore(s, self.engine.task.certain)
        lengths = self.engine.data.shards["train"].lengths_p.tolist()
        return [
            {"memory.keys": keys_pnm[p, :count], "memory.labels": labels_pnk[p, :count]}
            for p, count in enumerate(lengths)
        ]

    def _datastore(
        self, s: State, certain: Callable[[Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return keys (P, n, m) and labels (P, n, k) of the peers' training examples."""
        keys_pnm = self.engine.embeddings(s.x, s.buffers, "train")
        targets_pn = self.engine.data.shards["train"].targets_pn
        return keys_pnm, certain(targets_pn, self.engine.outputs).to(keys_pnm)


def vote(
    queries_ebm: Tensor,
    keys_enm: Tensor,
    labels_enk: Tensor,
    far_en: Tensor,
    neighbours: int,
    *,
    skip: bool = False,
) -> Tensor:
    """Return the mean label (E, b, k) of the nearest keys, weighted by exp(-distance^2 / m).

    `far_en` is added to the squared distances: 0, or infinity for padding. With `skip`, the nearest
    key, which is the query itself, does not vote.
    """
    queries_ebm, keys_enm = queries_ebm.double(), keys_enm.double()  # the products may cancel
    squares_ebn = (
        queries_ebm.square().sum(dim=2, keepdim=True)
        + (keys_enm.square().sum(dim=2) + far_en)[:, None]
        - 2 * queries_ebm @ keys_enm.transpose(1, 2)
    )
    count = min(neighbours + skip, keys_enm.shape[1])
    near = squares_ebn.topk(count, dim=2, largest=False)
    weights_ebj = (-near.values[..., skip:] / keys_enm.shape[2]).softmax(dim=2)
    outputs = labels_enk.shape[2]
    rows_ejk = near.indices[..., skip:].flatten(1)[..., None].expand(-1, -1, outputs)
    near_ebjk = labels_enk.gather(1, rows_ejk).view(*weights_ebj.shape, outputs)
    votes_ebk: Tensor = (weights_ebj[..., None] * near_ebjk).sum(dim=2)
    # 0 for queries without neighbours.
    return votes_ebk.masked_fill(votes_ebk.isnan(), 0.0).to(labels_enk)
