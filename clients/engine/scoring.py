"""Evaluation: losses and accuracies of stacked models and of mixtures of them.

Everything here runs in evaluation mode and differentiates nothing. Legend: p = peers of this node,
e = models, m = members of a mixture, n = examples of a split, b = batch positions, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine.batches import Ints
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.differentiation import Differentiation
from coterie.clients.engine.network import Buffers
from coterie.clients.engine.workers import share_out


class Scores(NamedTuple):
    """Mean loss and accuracy (nan where there is none, or no data) of each model, (E,) each."""

    losses: Tensor
    accuracies: Tensor


class Scoring(Differentiation):
    """A stack that is measured."""

    _recorded: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def recorded(self, evaluate: Callable[[], Scores]) -> tuple[Scores, Tensor | None]:
        """What `evaluate` measures, and what was predicted meanwhile (P, n, ...) on the host.

        Parameters
        ----------
        evaluate : scores one model or mixture of each hosted peer on one split; of what scores
            others nothing is recorded.
        """
        self._recorded = []
        try:
            scores = evaluate()
            parts = self._recorded
        finally:
            self._recorded = None
        if not parts or max(int(at.max()) for at, *_ in parts) >= len(self.peers):
            return scores, None
        longest = 1 + max(int(rows.max()) for _, rows, _ in parts)
        found = torch.zeros(len(self.peers), longest, *parts[0][2].shape[2:], dtype=torch.float64)
        for at, rows, predictions in parts:
            found[at[:, None], rows] = predictions
        return scores, found

    def losses(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints | None = None
    ) -> Scores:
        """Mean loss and accuracy of each model on a peer's split, in evaluation mode.

        Parameters
        ----------
        buffers : (E, ...) of the peers that evaluate.
        peers : (E,) local index of the peer whose data is used, default all hosted in order.
        """

        def outputs(worker: Scoring, at: Tensor, inputs: Tensor) -> Tensor:
            return worker.network(x_ed[at], {k: v[at] for k, v in buffers.items()}, inputs)[0]

        predict = self.task.predict
        return self._score(outputs, self.task.losses, len(x_ed), split, peers, predict)

    @torch.no_grad()
    def example_losses(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints | None = None
    ) -> Tensor:
        """Loss of each example, (E, N) in the split's order; beyond its end it means nothing."""
        peers = np.arange(len(self.peers)) if peers is None else np.asarray(peers)
        losses_en = x_ed.new_zeros(len(x_ed), self.data.shards[split].rows_pn.shape[1])

        def see(worker: Scoring, at: Tensor, rows: Tensor, inputs: Tensor, targets: Tensor) -> None:
            own = {k: v[at] for k, v in buffers.items()}
            found = worker.network(x_ed[at], own, inputs)[0]
            losses_en[at[:, None], rows] = self.task.losses(found, targets)

        self._sweep(see, len(x_ed), split, peers)
        return losses_en

    def mixture_losses(
        self, weights_pm: Tensor, x_pmd: Tensor, buffers: Buffers, split: SplitName
    ) -> Scores:
        """`losses` of the hosted peers' mixtures: predictions are averaged, not parameters.

        Parameters
        ----------
        weights_pm : weight of each member; rows sum to 1.
        x_pmd, buffers : the members, and theirs (P, M, ...).
        """

        def predict(worker: Scoring, at: Tensor, inputs: Tensor) -> Tensor:
            shares = []
            for m in range(weights_pm.shape[1]):
                own = {k: v[at, m] for k, v in buffers.items()}
                share = self.task.predict(worker.network(x_pmd[at, m], own, inputs)[0])
                shares.append(share * weights_pm[at, m].view(-1, *[1] * (share.dim() - 1)))
            return sum(shares[1:], shares[0])

        return self.prediction_losses(predict, split)

    def prediction_losses(
        self, predict: Callable[[Scoring, Tensor, Tensor], Tensor], split: SplitName
    ) -> Scores:
        """`losses` of each hosted peer's predictions, wherever they come from.

        Parameters
        ----------
        predict : (an engine to ask, local peers (E,), their inputs (E, b, ...)) -> predictions
            (E, b, ...), averages of what `Task.predict` gives.
        """
        return self._score(predict, self.task.ensemble_losses, len(self.peers), split, None)

    def embeddings(self, x_pd: Tensor, buffers: Buffers, split: SplitName) -> Tensor:
        """What each model hands its last layer for its peer's examples, (P, n, m).

        Beyond a peer's last example it means nothing.
        """
        longest = int(self.data.shards[split].lengths_p.max(initial=0))
        parts: list[tuple[Tensor, Tensor, Tensor]] = []

        def see(worker: Scoring, at: Tensor, rows: Tensor, inputs: Tensor, _: Tensor) -> None:
            own = {k: v[at] for k, v in buffers.items()}
            parts.append((at, rows, worker.embed(x_pd[at], own, inputs)))

        self._sweep(see, len(x_pd), split, np.arange(len(x_pd)))
        found_pnm = x_pd.new_zeros(len(x_pd), longest, parts[0][2].shape[2] if parts else 0)
        for at, rows, part in parts:
            found_pnm[at[:, None], rows] = part
        return found_pnm

    @torch.no_grad()
    def embed(self, x_ed: Tensor, buffers: Buffers, inputs_eb: Tensor) -> Tensor:
        """What each model hands its last layer for its own inputs, flattened (E, b, m)."""
        below = ~self.network.columns(self.network.head)
        return self.network.below_head(x_ed[:, below], buffers, inputs_eb)[0].flatten(2)

    @torch.no_grad()
    def _score(
        self,
        outputs: Callable[[Scoring, Tensor, Tensor], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
        models: int,
        split: SplitName,
        peers: Ints | None,
        predict: Callable[[Tensor], Tensor] = lambda found: found,
    ) -> Scores:
        """Mean losses and accuracies of what `outputs` puts out, of which `predict` makes what is
        recorded.
        """  # noqa: D205
        peers = np.arange(len(self.peers)) if peers is None else np.asarray(peers)
        lengths_e = torch.from_numpy(self.data.shards[split].lengths_p[peers]).to(self.device)
        total = torch.zeros(models, dtype=torch.float64, device=self.device)
        right = torch.zeros_like(total)

        def see(worker: Scoring, at: Tensor, rows: Tensor, inputs: Tensor, targets: Tensor) -> None:
            found = outputs(worker, at, inputs)
            if self._recorded is not None:
                self._recorded.append((at.cpu(), rows.cpu(), predict(found).double().cpu()))
            valid = rows < lengths_e[at, None]
            total[at] += (losses(found, targets) * valid).sum(dim=1, dtype=torch.float64)
            if self.task.correct is not None:
                right[at] += (self.task.correct(found, targets) * valid).sum(
                    dim=1, dtype=torch.float64
                )

        self._sweep(see, models, split, peers)
        if self.task.correct is None:
            right.fill_(torch.nan)
        return Scores(total / lengths_e, right / lengths_e)

    def _sweep(
        self,
        see: Callable[[Scoring, Tensor, Tensor, Tensor, Tensor], None],
        models: int,
        split: SplitName,
        peers: Ints,
    ) -> None:
        """Show all examples of a split in chunks that fit.

        Parameters
        ----------
        see : (an engine to ask, models, rows, inputs, targets) of a chunk.
        """
        peers_e = torch.from_numpy(peers).to(self.device)
        longest = int(self.data.shards[split].lengths_p[peers].max(initial=0))
        (size, workers), width = self._chunks.evaluation(models, longest, self.activations)

        def show(worker: Scoring, at: Tensor) -> None:
            for rows in torch.arange(longest, device=self.device).split(width):
                own = rows.expand(len(at), -1)
                see(worker, at, rows, *self.data.examples(split, peers_e[at], own))

        chunks = torch.arange(models, device=self.device).split(size)
        share_out(show, self.workers(workers), chunks)
