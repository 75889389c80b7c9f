"""Losses and accuracies of stacked models and of mixtures of them, in evaluation mode.

Equal models on equal data are evaluated once. Legend: p = peers of this node, e = models, m =
members of a mixture, n = examples of a split, b = batch positions, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine import tuning
from coterie.clients.engine.backends.backend import Backend, located
from coterie.clients.engine.data import Data, SplitName
from coterie.clients.engine.execution import Execution, Footprint
from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.tasks import Task
from coterie.clients.letters import Ints
from coterie.clients.mixture import Mixture


class Scores(NamedTuple):
    """Mean loss and accuracy of each model; NaN without data."""

    losses: Tensor  # (E,)
    accuracies: Tensor  # (E,); NaN for tasks without accuracy


@dataclass
class Recording:
    """Predictions of the last call of `Evaluation._score`, on the host."""

    parts: list[Piece]  # predictions of each call of the network
    of_e: Ints  # index of the distinct model that each requested model equals, (E,)


Piece = tuple[Tensor, Tensor, Tensor]
"""Models (K,), examples (K, b), and values (K, b, ...) of one call."""
Seen = Callable[[Backend, Tensor, Tensor, Tensor, Tensor], None]
"""(backend, models (E,), rows (E, b), inputs, targets) of one call."""


class Evaluation:
    """Evaluation of an engine's models: the part of `Engine` that differentiates nothing."""

    kind: str
    peers: Ints
    network: Network
    task: Task
    data: Data
    _execution: Execution
    _footprint: Footprint
    _recording: Recording | None = None

    def losses(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints | None = None
    ) -> Scores:
        """Return the mean loss and accuracy of each model on a peer's split, in evaluation mode.

        `peers` (E,) are the local indices of the peers whose data are used; None: all in order.
        """
        peers = self._or_all(peers)
        kept, of_e = self._distinct(x_ed, buffers, split, peers)
        at_k = torch.from_numpy(kept).to(x_ed.device)
        x_kd, buffers_k = x_ed, buffers
        if len(kept) < len(x_ed):
            x_kd, buffers_k = x_ed[at_k], {name: value[at_k] for name, value in buffers.items()}

        def outputs(backend: Backend, at: Tensor, inputs: Tensor) -> Tensor:
            return self._outputs(backend, x_kd, buffers_k, at, inputs)

        return self._score(
            outputs, self.task.losses, split, peers[kept], predict=self.task.predict, of_e=of_e
        )

    def example_losses(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints | None = None
    ) -> Tensor:
        """Return the loss of each example (E, N), undefined beyond a split's end."""
        losses_en = x_ed.new_zeros(len(x_ed), self.data.shards[split].rows_pn.shape[1])

        def see(
            backend: Backend, at: Tensor, rows: Tensor, inputs: Tensor, targets: Tensor
        ) -> None:
            result = self._outputs(backend, x_ed, buffers, at, inputs)
            losses_en[at[:, None], rows] = self.task.losses(result, targets)

        self._sweep(see, split, self._or_all(peers))
        return losses_en

    def example_outputs(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints,
        compute: Callable[..., Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the outputs for each example (E, N, ...), 0 beyond a split's end.

        `compute` is a method like `embed` to call instead.
        """
        parts: list[Piece] = []

        def see(backend: Backend, at: Tensor, rows: Tensor, inputs: Tensor, _: Tensor) -> None:
            parts.append((at, rows, (compute or self._outputs)(backend, x_ed, buffers, at, inputs)))

        self._sweep(see, split, peers)
        longest = int(self.data.shards[split].lengths_p[peers].max(initial=0))
        tail = parts[0][2].shape[2:] if parts else ()
        return _placed(x_ed.new_zeros(len(x_ed), longest, *tail), parts)

    def mixture_losses(self, mixture: Mixture, split: SplitName) -> Scores:
        """Return `losses` of the mixtures of hosted peers: predictions are averaged."""
        adds = mixture.offset is not None

        def predict(backend: Backend, at: Tensor, inputs: Tensor) -> Tensor:
            shares = []
            for m, (outputs, bounds) in enumerate(self._members(mixture, backend, at, inputs)):
                kept = self.task.clipped(outputs, *bounds) if bounds else outputs
                shares.append(self._share(kept, mixture.weights[at, m], adds=adds))
            if mixture.offset is not None:
                shares.append(*_along(shares[0], mixture.offset[at]))
            return sum(shares[1:], shares[0])

        hosted = self._or_all(None)
        if adds:
            return self._score(predict, self.task.losses, split, hosted, predict=self.task.predict)
        return self._score(predict, self.task.ensemble_losses, split, hosted)

    def beyond_limits(self, mixture: Mixture, split: SplitName) -> list[dict[int, tuple[int, int]]]:
        """Return for each hosted peer the numbers of rows by author of the limited members.

        They count the rows in which a member was limited, and those of them in which the author's
        members would have changed the predicted class without limits.
        """
        lengths, adds = self.data.shards[split].lengths_p, mixture.offset is not None
        counts: list[dict[int, tuple[int, int]]] = [{} for _ in self.peers]
        used_pm, authors_pm = mixture.weights.cpu().numpy() != 0, mixture.authors
        assert authors_pm is not None

        def see(backend: Backend, at: Tensor, rows: Tensor, inputs: Tensor, _: Tensor) -> None:
            limited, change, inside = [], [], []
            for m, (outputs, bounds) in enumerate(self._members(mixture, backend, at, inputs)):
                is_inside = self.task.are_inside(outputs, *bounds)
                inside.append(is_inside.reshape(*outputs.shape[:2], -1).all(dim=2))
                kept, raw = (
                    self._share(each, mixture.weights[at, m], adds=adds)
                    for each in (self.task.clipped(outputs, *bounds), outputs)
                )
                limited.append(kept)
                change.append(raw - kept)
            total = sum(limited[1:], limited[0])
            if mixture.offset is not None:
                total = total + _along(total, mixture.offset[at])[0]
            for e, p in enumerate(at.tolist()):
                valid = rows[e] < int(lengths[p])
                for author in np.unique(authors_pm[p, used_pm[p]]).tolist():
                    of = np.flatnonzero((authors_pm[p] == author) & used_pm[p])
                    beyond = valid & ~torch.stack([inside[m][e] for m in of]).all(dim=0)
                    if not beyond.any():
                        continue
                    decided = 0
                    if self.kind == "classification":
                        other = total[e] + sum(change[m][e] for m in of)
                        moved = other.argmax(dim=-1) != total[e].argmax(dim=-1)
                        decided = int((moved & beyond).sum())
                    before = counts[p].get(author, (0, 0))
                    counts[p][author] = before[0] + int(beyond.sum()), before[1] + decided

        self._sweep(see, split, self._or_all(None))
        return counts

    def _members(
        self, mixture: Mixture, backend: Backend, at: Tensor, inputs: Tensor
    ) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Yield the outputs (E, b, ...) of each member of some peers, and their limits, if any."""
        for m in range(mixture.weights.shape[1]):
            buffers = {name: value[:, m] for name, value in mixture.buffers.items()}
            outputs = self._outputs(backend, mixture.models[:, m], buffers, at, inputs)
            bounds = (mixture.low, mixture.high)
            yield outputs, _along(outputs, *(b[at, m] for b in bounds if b is not None))

    def _share(self, outputs: Tensor, weights_e: Tensor, *, adds: bool) -> Tensor:
        share = outputs if adds else self.task.predict(outputs)
        return share * weights_e.view(-1, *[1] * (share.dim() - 1))

    def prediction_losses(
        self, predict: Callable[[Backend, Tensor, Tensor], Tensor], split: SplitName
    ) -> Scores:
        """Return `losses` of given predictions of each hosted peer.

        `predict` maps (backend for `predictions` and `embed`, local peers (E,), their inputs
        (E, b, ...)) to predictions (E, b, ...), averages of `Task.predict`.
        """
        return self._score(predict, self.task.ensemble_losses, split, self._or_all(None))

    def recorded(self, evaluate: Callable[[], Scores]) -> tuple[Scores, Tensor | None, Ints]:
        """Return the result of `evaluate` and its predictions, on the host.

        `evaluate` scores one model or mixture of each hosted peer on one split; other scores are
        not recorded. The predictions (K, n, ...) are those of distinct models on distinct data,
        None if none were recorded, with the row of each peer (P,).
        """
        self._recording = recording = Recording([], np.zeros(0, dtype=np.int64))
        try:
            scores = evaluate()
        finally:
            self._recording = None
        if not recording.parts or len(recording.of_e) != len(self.peers):
            return scores, None, recording.of_e
        models, longest = (1 + max(int(part[k].max()) for part in recording.parts) for k in (0, 1))
        tail = recording.parts[0][2].shape[2:]
        values = torch.zeros(models, longest, *tail, dtype=torch.float64)
        return scores, _placed(values, recording.parts), recording.of_e

    def embeddings(self, x_pd: Tensor, buffers: Buffers, split: SplitName) -> Tensor:
        """Return the last layer's inputs (P, n, m), undefined beyond a peer's last example."""
        return self.example_outputs(x_pd, buffers, split, np.arange(len(x_pd)), self.embed)

    @torch.no_grad()
    def _score(
        self,
        outputs: Callable[[Backend, Tensor, Tensor], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
        split: SplitName,
        peers: Ints,
        *,
        predict: Callable[[Tensor], Tensor] = lambda result: result,
        of_e: Ints | None = None,
    ) -> Scores:
        """Return mean losses and accuracies of outputs."""
        # `outputs` maps (backend, models (K,), inputs) to outputs, on the data of `peers` (K,);
        # `losses` maps them and targets to the loss of each example, `predict` to predictions to
        # record. `of_e` (E,) is the model that each requested one equals; None: all in order.
        lengths_k = torch.from_numpy(self.data.shards[split].lengths_p[peers]).to(self.data.device)
        total = torch.zeros(len(peers), dtype=torch.float64, device=self.data.device)
        right = torch.zeros_like(total)
        recording = self._recording
        if recording is not None:
            recording.parts, recording.of_e = [], np.arange(len(peers)) if of_e is None else of_e

        def see(
            backend: Backend, at: Tensor, rows: Tensor, inputs: Tensor, targets: Tensor
        ) -> None:
            result = outputs(backend, at, inputs)
            if recording is not None:
                values = predict(result).double().cpu()
                recording.parts.append((at.cpu(), rows.cpu(), values))
            valid = rows < lengths_k[at, None]
            total[at] += (losses(result, targets) * valid).sum(dim=1, dtype=torch.float64)
            if self.task.correct is not None:
                correct = self.task.correct(result, targets)
                right[at] += (correct * valid).sum(dim=1, dtype=torch.float64)

        self._sweep(see, split, peers)
        if self.task.correct is None:
            right.fill_(torch.nan)
        scores = Scores(total / lengths_k, right / lengths_k)
        if of_e is None or len(of_e) == len(peers):
            return scores
        at_e = torch.from_numpy(of_e).to(total.device)
        return Scores(scores.losses[at_e], scores.accuracies[at_e])

    def predictions(
        self, backend: Backend, x_ed: Tensor, buffers: Buffers, at: Tensor, inputs: Tensor
    ) -> Tensor:
        """Return the predictions (E, b, ...) of the models at some rows for their inputs."""
        return self.task.predict(self._outputs(backend, x_ed, buffers, at, inputs))

    def _outputs(
        self, backend: Backend, x_ed: Tensor, buffers: Buffers, at: Tensor, inputs: Tensor
    ) -> Tensor:
        """Return the outputs (E, b, ...) of the models at some rows."""
        return backend.outputs(*self._split(x_ed, buffers, at), inputs)

    def embed(
        self, backend: Backend, x_ed: Tensor, buffers: Buffers, at: Tensor, inputs: Tensor
    ) -> Tensor:
        """Return the last layer's inputs (E, b, m) of the models at some rows."""
        return backend.embed(*self._split(x_ed, buffers, at), inputs)

    def _or_all(self, peers: Ints | None) -> Ints:
        return np.arange(len(self.peers)) if peers is None else np.asarray(peers)

    def _split(self, x_ed: Tensor, buffers: Buffers, at: Tensor) -> tuple[Buffers, Buffers]:
        """Return trainable tensors and other buffers of the models at some rows."""
        selected = {name: value[at] for name, value in buffers.items()}
        models = self.network.named(x_ed.index_select(0, at))
        models |= {name: selected[name] for name in self.network.personal}
        return models, {name: selected[name] for name in self.network.buffer_names}

    def _distinct(
        self, x_ed: Tensor, buffers: Buffers, split: SplitName, peers: Ints
    ) -> tuple[Ints, Ints]:
        """Find equal models on equal data: the distinct ones (K,), and which each equals (E,)."""
        # Compare a few columns first, then all columns of the models that agree in these.
        shard, every = self.data.shards[split], np.arange(len(peers))
        same_p = shard.same_p[peers]
        if len(np.unique(same_p)) == len(peers) or not shard.lengths_p[peers].any():
            return every, every
        step = max(1, x_ed.shape[1] // tuning.COMPARED_COLUMNS)
        few = x_ed[:, ::step].cpu().numpy()
        first: dict[tuple[int, bytes], int] = {}
        of_e = np.array(
            [first.setdefault((int(s), row.tobytes()), e) for e, (s, row) in enumerate(
                zip(same_p, few, strict=True)
            )]
        )  # fmt: skip
        if (of_e == every).all():
            return every, every
        again = np.flatnonzero(of_e != every)
        rows = max(1, tuning.SUM_CELLS.on(x_ed.device) // x_ed.shape[1])
        for start in range(0, len(again), rows):
            at = again[start : start + rows]
            equal = [
                (value[at] == value[of_e[at]]).view(len(at), -1).all(dim=1)
                for value in (x_ed, *buffers.values())
            ]
            different = at[~torch.stack(equal).all(dim=0).cpu().numpy()]
            of_e[different] = different
        kept, of_k = np.unique(of_e, return_inverse=True)
        return kept, of_k.astype(np.int64)

    def _sweep(self, see: Seen, split: SplitName, peers: Ints) -> None:
        """Show all examples of a split, in calls that fit the memory."""
        device = self.data.device
        lengths = self.data.shards[split].lengths_p[peers]
        longest = int(lengths.max(initial=0))
        if not longest:
            return
        plan = self._execution.evaluation(len(peers), longest, self._footprint.activations)
        hosted = self.data.peers[peers]

        @torch.no_grad()
        def show(backend: Backend, at: Ints) -> None:
            at_e, peers_e = (torch.from_numpy(values).to(device) for values in (at, peers[at]))
            longest_of_call = int(lengths[at].max())
            for start in range(0, longest_of_call, plan.examples):
                end = min(start + plan.examples, longest_of_call)
                rows = torch.arange(start, end, device=device)
                rows_e = rows.expand(len(at), -1)
                inputs, targets = self.data.examples(split, peers_e, rows_e)
                with located(backend.module, lambda: hosted[at], f"{split} data"):
                    see(backend, at_e, rows_e, inputs, targets)

        every = np.arange(len(peers))
        items = [every[first : first + plan.models] for first in every[:: plan.models]]
        self._execution.run(plan, show, items)


def _along(outputs: Tensor, *values_ek: Tensor) -> list[Tensor]:
    """View values (E, k) as of every row of outputs (E, b, ..., k)."""
    return [each.view(len(each), *[1] * (outputs.dim() - 2), -1) for each in values_ek]


def _placed(values: Tensor, parts: Sequence[Piece]) -> Tensor:
    """Write the values of all calls at their models and examples."""
    for at, rows, part in parts:
        values[at[:, None], rows] = part
    return values
