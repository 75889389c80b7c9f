"""Fits of models by a library: to all training rows of a peer, and without a fold of them.

A model is fitted once: where its parameters are not all 0, there is nothing left to fit. The fit of
a peer depends on the run's seed and the peer alone. Only `boosting` continues: it fits a further
model to what the scores of its former ones leave. If peers have different kinds of model (`Kinds`),
a row says which one is fitted; networks take gradient steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine.data import Data
from coterie.clients.engine.network import Network
from coterie.clients.engine.streams import FOLDS, Purpose, stream
from coterie.clients.letters import Bools, Ints
from coterie.clients.models.fitted import BoostedTrees, Fitted, Kinds, Rows

Begun = tuple[Tensor, int]
"""Former fits that a fit continues: their scores of the training rows, (n, k), or (F, n, k) of fits
without a fold, and their number."""


@dataclass
class Library:
    """Fits of one network's copies; `network.module` is a `Fitted` or `Kinds`."""

    network: Network
    seed: int
    _folds: dict[int, Tensor] = field(default_factory=dict)  # the same for all rounds

    @property
    def module(self) -> Fitted | Kinds:
        return cast("Fitted | Kinds", self.network.module)

    @property
    def is_mixed(self) -> bool:
        return isinstance(self.module, Kinds)

    def fits(self, x_ed: Tensor) -> Bools:
        """Mark the models (E,) that a library fits; the others take gradient steps."""
        if not isinstance(self.module, Kinds):
            return np.ones(len(x_ed), dtype=np.bool_)
        fits_k = np.array([isinstance(model, Fitted) for model in self.module.models])
        return np.asarray(fits_k[self._kinds(x_ed)])

    def starts(self, x_ed: Tensor, kinds_e: Ints) -> Tensor:
        """Return start models (E, d) of these kinds: networks keep their random weights."""
        start_ed = torch.zeros_like(x_ed)
        start_ed[:, self._is_kind] = torch.from_numpy(kinds_e).to(x_ed)[:, None]
        keeps_ed = self.own(start_ed)
        keeps_ed[self.fits(start_ed)] = False
        return torch.where(keeps_ed, x_ed, start_ed)

    def own(self, x_ed: Tensor) -> Tensor:
        """Mark the parameters (E, d) of the kinds of models."""
        assert isinstance(self.module, Kinds)
        names = (self.module.name(kind) for kind in range(len(self.module.models)))
        own_kd = torch.stack([self.network.columns([name]) for name in names]).to(x_ed.device)
        return own_kd[self._kinds(x_ed)]

    def blank(self, x_ed: Tensor) -> Tensor:
        """Return models (E, d) of the same kinds before their fit."""
        blank_ed = torch.zeros_like(x_ed)
        blank_ed[:, self._is_kind] = x_ed[:, self._is_kind]
        return blank_ed

    def fitted(
        self, data: Data, peer: int, name: int, like_d: Tensor, begun: Begun | None = None
    ) -> Tensor:
        """Return a model (d,) of a peer, of the kind of `like_d`, with the draws of peer `name`."""
        return self._fit(like_d, _rows(data, peer), name, 0, begun)

    @torch.no_grad()
    def out_of_fold(self, data: Data, peer: int, name: int, like_d: Tensor) -> Tensor:
        """Return outputs (n, k) for the training rows, each of a fit without the row's fold."""
        # Folds have the same classes; with a single row there is no such fit, and outputs are 0.
        if name not in self._folds:
            inputs_bm, fold_b = _rows(data, peer).inputs, self.folds(data, peer, name)
            outputs = None
            for fold, row_d in enumerate(self.without_folds(data, peer, name, like_d)):
                tensors = {k: value[0] for k, value in self.network.named(row_d[None]).items()}
                out = fold_b == fold
                inputs = torch.from_numpy(inputs_bm[out]).to(row_d)
                result, _ = self.network.run(self.module, tensors, inputs, ())
                if outputs is None:
                    outputs = result.new_zeros(len(fold_b), *result.shape[1:])
                outputs[torch.from_numpy(out)] = result
            assert outputs is not None
            self._folds[name] = outputs
        return self._folds[name]

    def malformed(self, x_sd: Tensor) -> Bools:
        """Mark the models (S,) that no fit can give."""
        marked: Bools = self.module.malformed(self.network.named(x_sd)).cpu().numpy()
        return marked

    def folds(self, data: Data, peer: int, name: int) -> Ints:
        """Return the fold of each training row, (n,); a group (u of them) is in one fold."""
        targets_b = _rows(data, peer).targets
        first_b = targets_b.reshape(len(targets_b), -1)[:, 0]
        groups_b = data.groups("train", peer)
        unit_b = np.unique(
            np.arange(len(first_b)) if groups_b is None else groups_b, return_inverse=True
        )[1]
        mean_u = np.bincount(unit_b, first_b) / np.bincount(unit_b)
        order = stream(self.seed, name, 0, Purpose.LIBRARY, 1).permutation(len(mean_u))
        fold_u = np.zeros(len(mean_u), dtype=np.int64)
        fold_u[order[mean_u[order].argsort(kind="stable")]] = np.arange(len(mean_u)) % FOLDS
        return np.asarray(fold_u[unit_b])

    def without_folds(
        self, data: Data, peer: int, name: int, like_d: Tensor, begun: Begun | None = None
    ) -> Tensor:
        """Return parameters (F, d) of fits without the rows of a fold; blank if no row is left."""
        rows, fold_b = _rows(data, peer), self.folds(data, peer, name)
        x_fd = self.blank(like_d.repeat(int(fold_b.max()) + 1, 1))
        for fold in range(len(x_fd)):
            rest = fold_b != fold
            if rest.any():
                left = None if begun is None else (begun[0][fold, rest], begun[1])
                x_fd[fold] = self._fit(like_d, rows.part(rest), name, 2 + fold, left)
        return x_fd

    @property
    def _is_kind(self) -> Tensor:
        return self.network.columns(["kind"] if self.is_mixed else [])

    def _kinds(self, x_ed: Tensor) -> Ints:
        kinds: Ints = x_ed[:, self._is_kind][:, 0].cpu().numpy().astype(np.int64)
        return kinds

    def _fit(
        self, like_d: Tensor, rows: Rows, name: int, partner: int, begun: Begun | None
    ) -> Tensor:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        key = int(stream(self.seed, name, 0, Purpose.LIBRARY, partner).integers(2**31))
        start, module, row_1d = "", self.module, self.blank(like_d[None])
        if isinstance(module, Kinds):
            kind = int(self._kinds(row_1d)[0])
            start, module = f"{module.name(kind)}.", cast("Fitted", module.models[kind])
        if step := 2 * module.threshold_step:  # so that thresholds are multiples of half of it
            rows = rows._replace(inputs=np.round(rows.inputs / step) * step)
        assert begun is None or isinstance(module, BoostedTrees), "only these can be continued"
        former = None if begun is None else (begun[0].double().cpu().numpy(), begun[1])
        with threadpool_limits(1):  # sums do not depend on the machine's cores
            arrays = module.fitted(rows, key, former)
        tensors = self.network.named(row_1d)
        for each, values in arrays.items():
            tensors[start + each][0] = torch.from_numpy(np.asarray(values, dtype=np.float64))
        return row_1d[0]


def _rows(data: Data, peer: int) -> Rows:
    """Return the training rows of a peer, with weights of mean 1."""
    batch = data.everything(np.array([peer]))
    inputs, targets = data.minibatch(batch)
    weights_b = batch.weights_eb[0].double().cpu().numpy()
    rows = inputs[0].flatten(1).double().cpu().numpy()
    return Rows(rows, targets[0].cpu().numpy(), (weights_b * len(weights_b)).round(6))  # exactly 1
