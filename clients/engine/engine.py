"""Engine: train, differentiate and evaluate all peers of a node as one stacked tensor.

All methods use four batched operations: `fit`, `gradients`, `losses` and `mix`; rules are formulas
over them. Legend: p = peers of this node, e = models or edges, m = members of a mixture, n =
examples of a split, b = batch positions, s = rows to mix, d = parameters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.clients.defence import Defence
from coterie.clients.engine import linear, optimizers, probe, robust, sums
from coterie.clients.engine.backends.backend import Clipped
from coterie.clients.engine.backends.choose import choose
from coterie.clients.engine.data import Batch, Data
from coterie.clients.engine.evaluation import Evaluation, Scores
from coterie.clients.engine.execution import Execution, Footprint
from coterie.clients.engine.library import Begun, Library
from coterie.clients.engine.network import Buffers, ModelError, Network
from coterie.clients.engine.privacy import Guard
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.engine.tasks import TASKS
from coterie.clients.engine.training import Fit, GradientFunction, Gradients, Models, Trainer
from coterie.clients.letters import Bools, Floats, Ints
from coterie.clients.models.adaptation import personal_names
from coterie.clients.models.build import MAX_PARAMETERS, build
from coterie.clients.models.fitted import Fitted, Kinds
from coterie.clients.models.options import MODELS, Adaptation
from coterie.clients.privacy import Privacy
from coterie.clients.training import NO_TERMS, BackendName, Terms, Training, Weighting
from coterie.datasets.problem import Problem
from coterie.strategies.topology import AveragingWeights

__all__ = ["Engine", "Fit", "GradientFunction", "Gradients", "Scores", "device_of"]

_log = logging.getLogger("coterie.engine")


def device_of(name: str, gpu: int) -> torch.device:
    """Resolve a device name; `gpu` indexes the visible GPUs, modulo their number."""
    if name not in ("auto", "cuda"):
        return torch.device(name)
    if name == "auto" and not torch.cuda.is_available():
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and Path("/dev/nvidiactl").exists():
            _log.warning(
                "this machine has a GPU, but it is hidden from this process, which computes on the "
                "CPU: give each node a share, flwr run . --federation-config "
                "'client-resources-num-gpus=0.5'"
            )
        return torch.device("cpu")
    return torch.device("cuda", gpu % max(1, torch.cuda.device_count()))


class Engine(Evaluation):
    """Engine with the stacked models of the peers that one node hosts.

    Rules read `n`, the number of peers of the run; `samples` (n,), their numbers of examples;
    `clusters` (n,), the true ones, if known; `topology` (n, n), the allowed edges, symmetric with
    an empty diagonal; `kind`, the problem's task, and `outputs`, its classes or regression outputs;
    `noise` (n,), the deviation of gradient noise, if defined; `batches`, see
    `coterie.clients.engine.data.Data.batches`; `n_gradients` (P,), the gradients of single examples
    computed so far; `library`, the fits of models that a library fits whole, None if all are
    networks of one kind; `guard` and `spent` (P, A) of private gradients, see
    `coterie.clients.engine.privacy.Guard`: None and A = 0 without privacy.
    """

    def __init__(
        self,
        problem: Problem,
        model: str,
        model_options: object,
        peers: Sequence[int],
        training: Training,
        *,
        seed: int = 0,
        device: str = "auto",
        gpu: int = 0,
        dtype: str = "float32",
        topology: Bools | None = None,
        backend: BackendName = "auto",
        chunk: int = 0,
        memory: int = 0,
        mixed_precision: bool = False,
        tf32: bool = False,
        defence: Defence | None = None,
        staleness_discount: float = 0.0,
        weighting: Weighting = "samples",
        mixing: AveragingWeights | None = None,
        privacy: Privacy | None = None,
        adaptation: Adaptation | None = None,
        max_parameters: int = MAX_PARAMETERS,
        pools: bool = False,
        kinds: Sequence[int] = (),
    ) -> None:
        if mixed_precision and dtype != "float32":
            raise ValueError(f"mixed-precision goes with dtype float32, not {dtype}")
        self.device = device_of(device, gpu)
        self.dtype = torch.float64 if problem.task == "quadratic" else getattr(torch, dtype)
        self.peers = np.asarray(peers, dtype=np.int64)
        self.n, self.samples = len(problem.samples), np.asarray(problem.samples, dtype=np.float64)
        self.clusters, self.outputs = problem.clusters, problem.outputs
        self.topology = ~np.eye(self.n, dtype=np.bool_) if topology is None else topology
        self.noise = problem.noise
        self.seed, self.training = seed, training
        self.defence = defence or Defence()
        self.staleness_discount = staleness_discount
        self.weighting, self.mixing = weighting, mixing
        data_of = partial(Data, training=training, seed=seed, device=self.device, dtype=self.dtype)
        self.data = data_of(problem, self.peers)
        self._pool = data_of(problem.pooled(), np.array([0])) if pools else None
        self.batches: Callable[..., list[Batch]] = self.data.batches
        self.kind, self.task = problem.task, TASKS[problem.task]
        shape = problem.inputs.shape[1:]
        made_of = model, model_options, problem.task, shape, problem.outputs, adaptation
        self._build: Callable[[], nn.Module] = lambda: build(*made_of, max_parameters)
        self._start, self._begin = problem.start, dict[str, Tensor]()
        template = self._fresh(0).to(self.device, self.dtype)
        self.network = Network(
            template,
            mixed_precision=mixed_precision,
            personal=personal_names(template, adaptation),
        )
        self.d = self.network.d
        fits_whole = isinstance(self.network.module, Fitted | Kinds)
        self.library = Library(self.network, seed) if fits_whole else None
        self.kinds = np.asarray(kinds, dtype=np.int64)
        if model not in MODELS:
            probe.try_out(self.network, problem, model)
        for data in filter(None, (self.data, self._pool)):
            data.min_batch = probe.min_batch(self.network, problem, data)
        self.n_gradients = np.zeros(len(self.peers), dtype=np.int64)
        self.guard: Guard | None = None
        if privacy is not None and privacy.kind != "none":
            examples_p = self.data.shards["train"].lengths_p
            self.guard = Guard(privacy, self.peers, examples_p, seed, self.network)
        self.spent = np.zeros((len(self.peers), 0)) if self.guard is None else self.guard.rdp
        private = self.guard is not None
        examples = probe.examples(self.network, problem)
        chosen = choose(backend, self.network, self.task, examples, private=private)
        self.network.release()
        self.backend = chosen.name
        if self.device.type == "cpu" and not chosen.stacks:
            for data in filter(None, (self.data, self._pool)):
                data.lay_channels_last()
        materializes = private and chosen.materializes
        if self.guard is not None:
            chosen = Clipped(chosen, self.guard.options.clip)
        self._execution = Execution(chosen, self.device, chunk=chunk, memory=memory, tf32=tf32)
        # One thread: trees that continue a fit break ties by its rounding.
        self.ridge = self._execution.settings(1)(partial(linear.ridge, self.task))
        self._footprint = Footprint(self.network, self.task, self.data, materializes=materializes)
        self._trainer = Trainer(
            self.network, self.task, self._execution, self.data, self.guard, self._footprint
        )

    # ---- state of the hosted peers -----------------------------------------------------------

    def enter(self, round_: int, stage: int) -> None:
        """Begin a stage of a round, with its own random draws."""
        if self.guard is not None:
            self.guard.begin(round_, stage)

    def reseed(self, seed: int) -> Guard:
        """Draw minibatches and noise from another, secret seed from now on."""
        assert self.guard is not None
        self.data.seed = seed
        self.guard.reseed(seed)
        return self.guard

    def narrowed(self, rows: Ints, *, idle: bool = False) -> Self:
        """Return an engine of the peers `rows` with own counts; `idle` ones have no minibatches."""
        some = copy(self)
        some.peers = self.peers[rows]
        some.data = self.data.narrowed(rows)
        some.kinds = self.kinds[rows] if len(self.kinds) else self.kinds
        some.batches = (lambda *which, **how: []) if idle else some.data.batches
        some.n_gradients = np.zeros(len(rows), dtype=np.int64)
        some._trainer = replace(self._trainer, data=some.data)
        return some

    def tensor(self, values: npt.ArrayLike) -> Tensor:
        """Return a tensor of the engine's precision on its device."""
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def initial(self, *, common: bool = True) -> tuple[Tensor, Buffers]:
        """Return start models (P, d) and buffers: one start for all peers, or each peer its own."""
        common = common or self._start is not None
        x_pd = self.origins(self.peers) if common else self._drawn(self.peers)
        if self.library is not None and len(self.kinds):
            x_pd = self.library.starts(x_pd, self.kinds)
        buffers = self.network.buffers(len(self.peers))
        if self.network.personal:
            peers = np.zeros_like(self.peers) if common else self.peers
            starts = [dict(self._begun(peer).named_parameters()) for peer in peers]
            personal = {
                name: torch.stack([start[name].detach() for start in starts])
                for name in self.network.personal
            }
            personal |= {name: self._begin[name] for name in personal if name in self._begin}
            here = {name: value.to(self.device, self.dtype) for name, value in personal.items()}
            buffers |= optimizers.personal_buffers(self.training, here)
        buffers |= {k: v.clone() for k, v in self._begin.items() if k in self.network.buffer_names}
        return x_pd.clone(), buffers

    def begin_from(self, models: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from named parameters and buffers of each peer; ValueError: one does not fit."""
        network = self.network
        kept = network.buffers(1)
        shapes = dict(zip(network.names, network.shapes, strict=True))
        shapes |= {name: tuple(kept[name].shape[1:]) for name in kept}
        for name, shape in shapes.items():
            for model in models:
                if name not in model or tuple(model[name].shape) != shape:
                    raise ValueError(f"the models have no tensor {name} of shape {shape}")
        rows = (torch.cat([model[name].reshape(-1) for name in network.names]) for model in models)
        self._start = torch.stack([*rows]).double().numpy()
        self._begin = {
            name: torch.stack([models[peer][name] for peer in self.peers]).to(value)
            for name, value in kept.items()
        }

    def origins(self, peers: Ints) -> Tensor:
        """Return start models (E, d) of any peers, in a run with a common or prescribed start."""
        if self._start is not None:
            return self.tensor(self._start[peers])
        return self._drawn([0]).expand(len(peers), self.d)

    def starts(self, models: int) -> Tensor:
        """Return different start models (models, d) that all peers know: the first peers'."""
        if self._start is not None:
            return self.tensor(self._start[np.arange(models) % self.n])
        return self._drawn(range(models))

    def opt_state(self, x_ed: Tensor, training: Training | None = None) -> optimizers.OptState:
        """Return fresh state of the run's optimizer, or another one, for the models `x_ed`."""
        return optimizers.opt_state(training or self.training, x_ed)

    def _drawn(self, peers: Iterable[int]) -> Tensor:
        rows = [self.network.flat(self._begun(peer)) for peer in peers]
        return torch.stack(rows).to(self.device, self.dtype)

    def _begun(self, peer: int) -> nn.Module:
        module = self._fresh(int(stream(self.seed, int(peer), 0, Purpose.START).integers(2**63)))
        if module is self.network.module:
            raise ModelError(
                "the function of the model returns the same network again: build a new one per call"
            )
        return module

    def _fresh(self, key: int) -> nn.Module:
        """Build a module initialised from a key; torch's generator keeps its state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key)
            return self._build()

    # ---- training ----------------------------------------------------------------------------

    def fit(
        self,
        x_ed: Tensor,
        buffers: Buffers,
        opt_state: optimizers.OptState,
        batches: Sequence[Batch],
        *,
        gradient: GradientFunction | None = None,
        terms: Terms = NO_TERMS,
        training: Training | None = None,
        begun: Sequence[Begun | None] | None = None,
    ) -> Fit:
        """Train models (E, d) on own data, one minibatch per step; no argument is changed.

        `gradient` computes the gradient to descend, None: that of the local loss. Objectives wrap
        `gradients`; the first call receives `x_ed` itself. `terms`: proximal term, mask, trained
        tensors (`opt_state` has only their columns) and drift. `training`: another optimizer, to
        which `opt_state` belongs. `begun`: what the fit of each model by a library continues.
        """
        training, before = training or self.training, Fit(x_ed, buffers, opt_state)
        if self.library is not None:
            self._needs_no_gradient(gradient, *terms)
            fit = self._fitted(before, self.data, batches, self.peers, begun)
            return self._stepped(fit, batches, training) if self.library.is_mixed else fit
        if training.reset_optimizer:
            before = self._forgetful(before, training, terms.trained)
        if gradient is not None:
            return self._trainer.follow(before, batches, training, terms, gradient)
        return self._trainer.fit(before, self._paid(batches), training, terms)

    def fit_pooled(
        self, x_pd: Tensor, buffers: Buffers, opt_state: optimizers.OptState, round_: int
    ) -> Fit:
        """Train the peers' models for a round on the data of all peers; equal models once.

        The engine must pool, see `pools`. Each peer pays for the training of its model.
        """
        assert self._pool is not None
        stacks = x_pd, *buffers.values(), *opt_state.values()
        models = 1 if all(bool((stack == stack[:1]).all()) for stack in stacks) else len(x_pd)
        few = [{name: value[:models] for name, value in of.items()} for of in (buffers, opt_state)]
        before, training = Fit(x_pd[:models], *few), self.training
        if training.reset_optimizer:
            before = self._forgetful(before, training)
        batches = self._pool.batches(round_, peers=np.zeros(models, dtype=np.int64))
        if self.library is not None:
            fit = self._fitted(before, self._pool, batches, np.zeros(1, dtype=np.int64))
        else:
            self.n_gradients += sum(int(batch.counts_e[0]) for batch in batches)
            trainer = replace(self._trainer, data=self._pool)
            fit = trainer.fit(before, batches, training, NO_TERMS)
        if models == len(x_pd):
            return fit
        of_all = [
            {name: value.repeat(len(x_pd), *[1] * (value.dim() - 1)) for name, value in of.items()}
            for of in ({"x": fit.x}, fit.buffers, fit.opt_state)
        ]
        return Fit(of_all[0]["x"], *of_all[1:])

    def _fitted(
        self, before: Fit, data: Data, batches: Sequence[Batch], names: Ints,
        begun: Sequence[Begun | None] | None = None,
    ) -> Fit:  # fmt: skip
        """Let the library fit the models that have examples and are not fitted yet, or continue."""
        # `names` has the number of each peer of `data`, which keys its random draws.
        assert self.library is not None
        x_ed, pools = before.x.clone(), data is not self.data
        is_due_e = (x_ed == self.library.blank(x_ed)).all(dim=1).cpu().numpy()
        is_due_e &= self.library.fits(x_ed)
        for e in np.flatnonzero(batches[0].counts_e).tolist() if batches else ():
            former = None if begun is None else begun[e]
            if former is not None or is_due_e[e]:
                peer = int(batches[0].hosted_e[e])
                x_ed[e] = self.library.fitted(data, peer, int(names[peer]), x_ed[e], former)
                count = int(data.shards["train"].lengths_p[peer])
                self.n_gradients[slice(None) if pools else peer] += count
        return before._replace(x=x_ed)

    def _stepped(self, before: Fit, batches: Sequence[Batch], training: Training) -> Fit:
        """Train the networks among models of several kinds."""
        assert self.library is not None
        at = np.flatnonzero(~self.library.fits(before.x))
        if not len(at) or not batches:
            return before
        some = Fit(before.x[at], *({k: v[at] for k, v in of.items()} for of in before[1:]))
        if training.reset_optimizer:
            some = self._forgetful(some, training)
        own_ed = self.library.own(some.x)
        for batch in self._paid([batch.part(at) for batch in batches]):
            fit = self._trainer.fit(some, [batch], training, NO_TERMS)
            some = fit._replace(x=torch.where(own_ed, fit.x, some.x))  # weight decay changes kinds

        def put(into: Tensor, values: Tensor) -> Tensor:
            into = into.clone()
            into[at] = values
            return into

        stacks = (
            {name: put(value, new[name]) for name, value in old.items()}
            for old, new in zip(before[1:], some[1:], strict=True)
        )
        return Fit(put(before.x, some.x), *stacks)

    def _needs_no_gradient(self, *objectives: object) -> None:
        if self.library is not None and any(each is not None for each in objectives):
            raise ModelError(
                "a model that a library fits has no gradients, which this method descends"
            )

    def step(
        self, x_ed: Tensor, g_ed: Tensor, opt_state: optimizers.OptState, round_: int,
        training: Training | None = None,
    ) -> Fit:  # fmt: skip
        """Take one step of a round down given gradients (E, d), see `fit`."""
        training = training or self.training
        if training.reset_optimizer:
            opt_state = self.opt_state(x_ed, training)
        x_ed, after = x_ed.clone(), {name: value.clone() for name, value in opt_state.items()}
        rows = {name: [value] for name, value in after.items()}
        decay = optimizers.row_decay(training, self.network.shapes, x_ed)
        optimizers.step(training, training.rate(round_), [x_ed], [g_ed], rows, [decay])
        return Fit(x_ed, {}, after)

    def _forgetful(
        self, before: Fit, training: Training, trained: Sequence[str] | None = None
    ) -> Fit:
        """Return models and buffers with fresh optimizer state, also of personal layers."""
        personal = {name: before.buffers[name] for name in self.network.personal}
        buffers = {**before.buffers, **optimizers.personal_buffers(self.training, personal)}
        steps = before.x if trained is None else before.x[:, self.network.columns(trained)]
        return before._replace(buffers=buffers, opt_state=optimizers.opt_state(training, steps))

    def gradients(self, x_ed: Models, buffers: Buffers, batch: Batch) -> Gradients:
        """Return the gradient of each model's loss on its minibatch, in training mode.

        Lazy models are computed part by part. The returned buffers hold updated
        running statistics; a caller that only computes an answer drops them.
        """
        self._needs_no_gradient(batch)
        (batch,) = self._paid([batch])
        return self._trainer.gradients(x_ed, buffers, batch)

    def feature_gradients(
        self, x_ed: Models, buffers: Buffers, batch: Batch, centres_pkm: Tensor
    ) -> Tensor:
        """Return the gradient (E, d) of the mean of |z - c_y|^2 / m on each minibatch.

        z are the m inputs of the last layer, c_y the centre of the example's class at its peer,
        for problems with one class per example. The gradient is not private.
        """
        assert self.guard is None
        self._needs_no_gradient(batch)
        np.add.at(self.n_gradients, batch.hosted_e, batch.counts_e)
        return self._trainer.feature_gradients(x_ed, buffers, batch, centres_pkm)

    def holds(self, examples: int) -> int:
        """Return the bytes that one model holds for a backward pass over `examples` examples."""
        return self._footprint.holds(examples)

    def step_bytes(self, examples: int) -> int:
        """Return the bytes that one model holds in a training step, computed in parts if large."""
        return self.holds(self._trainer.width(examples))

    def _paid(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Charge private minibatches, count their examples, and return them."""
        if self.guard is not None:
            batches = self.guard.admit(batches)
        for batch in batches:
            np.add.at(self.n_gradients, batch.hosted_e, batch.counts_e)
        return batches

    def training_rows(
        self, peer: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Return normalised inputs (n, m), targets (n, ...) and groups (n,) of a hosted peer."""
        # They are those of all peers if the engine pools.
        data, peer = (self._pool, 0) if self._pool else (self.data, peer)
        inputs, targets = data.minibatch(data.everything(np.array([peer])))
        rows = inputs[0].flatten(1).double().cpu().numpy()
        return rows, targets[0].cpu().numpy(), data.groups("train", peer)

    # ---- aggregation -------------------------------------------------------------------------

    def mix(
        self, weights_ps: npt.ArrayLike | Tensor, x_sd: Tensor, own_pd: Models | None = None
    ) -> Tensor:
        """Return weighted sums of models: (P, S) times (S, d), independent of the peers' nodes.

        The cost is proportional to the number of nonzero weights in distinct rows. If the run has a
        defence, its rule replaces the mean; `own_pd` are the recipients' models, if not in `x_sd`.
        """
        weights = torch.as_tensor(weights_ps).cpu().double().numpy()
        if self.defence.rule == "none":
            return sums.mixed(weights, x_sd)
        return robust.mixed(self.defence, weights, x_sd, own_pd)

    def collect(self, weights_e: Floats, x_sd: Tensor, from_e: Ints, to_e: Ints) -> Tensor:
        """Return weighted sums (P, d): of rows `from_e` of the stack, to local indices `to_e`."""
        hosted = np.arange(len(self.peers))
        if self.defence.rule == "none":
            return sums.weighted(weights_e, x_sd, from_e, to_e, hosted)
        return robust.collected(self.defence, weights_e, x_sd, from_e, to_e, hosted)

    inner, squared_distances = staticmethod(sums.paired), staticmethod(sums.squared_distances)

    def products(self, a_ed: Tensor, b_sd: Tensor) -> Floats:
        """Return inner products of every model of one stack with every one of another, (E, S)."""
        result: Floats = sums.products(a_ed, b_sd).cpu().numpy()
        return result
