"""What lies stacked on a node: the models of its peers, their network, their minibatches.

Legend: p = peers of this node, e = models, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.clients.defence import Defence
from coterie.clients.engine import optimizers, probe
from coterie.clients.engine.batches import Ints
from coterie.clients.engine.chunks import Chunks
from coterie.clients.engine.data import Batch, Data
from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.personal import PersonalLayers
from coterie.clients.engine.privacy import Guard
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.engine.tasks import TASKS
from coterie.clients.letters import Bools
from coterie.clients.models.adaptation import personal_names
from coterie.clients.models.build import build
from coterie.clients.models.options import MODELS
from coterie.clients.models.size import MAX_PARAMETERS

Mixing = Callable[[int], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
"""Round -> (n, n) averaging weights, whose rows sum to 1, and (n,) what each peer's model counts
for in the mean of all that they keep: its steps are divided by that."""

if TYPE_CHECKING:
    from coterie.clients.models.options import Adaptation
    from coterie.clients.privacy import Privacy
    from coterie.clients.training import Training
    from coterie.datasets.problem import Problem


def device_of(name: str, gpu: int) -> torch.device:
    """The device that "auto", "cpu" or "cuda" means for who counts GPUs up to `gpu`."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", gpu % max(1, torch.cuda.device_count()))


def _no_batches(*which: Any, **how: Any) -> list[Batch]:
    return []


class Stack:
    """Stacked models of the peers that one node hosts.

    Parameters
    ----------
    problem : the data of all peers; only that of `peers` is kept.
    model, model_options : name and options of the network (`coterie.clients.models.build`).
    peers : ids of the hosted peers, ascending.
    training : minibatches and optimizer.
    seed : of every stream.
    device : "cpu", "cuda", or "auto" for CUDA where there is one.
    gpu : which GPU, where there are several: counted on from the first after the last.
    dtype : "float32" or "float64"; quadratic problems are always float64.
    topology : (n, n) who may talk to whom; None: everybody.
    chunk : models per batched call; 0 takes the rule of `coterie.clients.engine.chunks`.
    memory : bound in bytes on what one chunk holds for its backward pass; 0 takes a share of
        what the machine has.
    tf32 : whether products of float32 are rounded to TF32 on a GPU, in this process.
    mixed_precision, channels_last : see `coterie.clients.engine.network.Network`.
    defence : what takes the place of weighted means; None: nothing.
    staleness_discount : exponent of `Rule.freshness`.
    mixing : averaging weights of a topology that has its own, see `Mixing`.
    privacy : how gradients are made private; None: not.
    adaptation : of the network, see `coterie.clients.models.options.Adaptation`.
    max_parameters : of the network; a larger one is refused before its memory is taken.

    Attributes
    ----------
    n : peers of the whole run. samples : (n,) their n_i. clusters : (n,) or None, the truth.
    topology : (n, n) who may talk to whom, symmetric, empty diagonal.
    kind : the problem's task, by name. outputs : classes, or outputs of a regression.
    noise : (n,) deviation of the gradient noise, where the problem states it, else None.
    batches : draws minibatches of training data, see `coterie.clients.engine.data.Data.batches`.
    n_gradients : (P,) examples each peer has differentiated so far: the bill for gradients.
    guard : what makes gradients private, None where nothing does.
    spent : (P, A) what that has cost, see `coterie.clients.engine.privacy.Guard`; A = 0 where nothing does.
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
        chunk: int = 0,
        memory: int = 0,
        mixed_precision: bool = False,
        tf32: bool = False,
        channels_last: bool = False,
        defence: Defence | None = None,
        staleness_discount: float = 0.0,
        mixing: Mixing | None = None,
        privacy: Privacy | None = None,
        adaptation: Adaptation | None = None,
        max_parameters: int = MAX_PARAMETERS,
    ) -> None:
        self.device = device_of(device, gpu)
        # Left alone, torch rounds in convolutions, but not in matrix products.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        if mixed_precision and dtype != "float32":
            raise ValueError(f"mixed-precision goes with dtype float32, not {dtype}")
        self.dtype = torch.float64 if problem.task == "quadratic" else getattr(torch, dtype)
        self.peers = np.asarray(peers, dtype=np.int64)
        self.n, self.samples = len(problem.samples), np.asarray(problem.samples, dtype=np.float64)
        self.clusters, self.outputs = problem.clusters, problem.outputs
        self.topology = ~np.eye(self.n, dtype=np.bool_) if topology is None else topology
        self.noise = problem.noise
        self.seed, self.training = seed, training
        self.defence = defence or Defence()
        self.staleness_discount, self.mixing = staleness_discount, mixing
        self.data = Data(
            problem, self.peers, training, seed=seed, device=self.device, dtype=self.dtype
        )
        self.batches: Callable[..., list[Batch]] = self.data.batches
        self.kind, self.task = problem.task, TASKS[problem.task]
        shape = problem.inputs.shape[1:]
        made_of = model, model_options, problem.task, shape, problem.outputs, adaptation
        self._build: Callable[[], nn.Module] = lambda: build(*made_of, max_parameters)
        self._start = problem.start
        template = self._fresh(0).to(self.device, self.dtype)
        self.network = Network(
            template,
            mixed_precision=mixed_precision,
            channels_last=channels_last,
            personal=personal_names(template, adaptation),
        )
        if self.device.type == "cpu" and not self.network.stacks:
            self.data.lay_channels_last()
        self.personal = PersonalLayers(self.network.personal, training)
        if model not in MODELS:
            probe.try_out(self.network, problem, model)
        self.d = self.network.d
        self.n_gradients = np.zeros(len(self.peers), dtype=np.int64)
        chunk = 1 if self.network.alone else chunk
        self.guard: Guard | None = None
        if privacy is not None and privacy.kind != "none":
            examples_p = self.data.shards["train"].lengths_p
            self.guard = Guard(privacy, self.peers, examples_p, seed, self.network)
            chunk = chunk if self.network.is_layered else 1  # vmap shows no layers
        self.spent = np.zeros((len(self.peers), 0)) if self.guard is None else self.guard.rdp
        self._chunks = Chunks(
            self.device, stacks=self.network.stacks, chunk=chunk, memory=memory,
            # The guard keeps one account; what draws from torch's generator has only one of it.
            apart=self.guard is None and not self.network.alone,
        )  # fmt: skip

    def enter(self, round_: int, stage: int) -> None:
        """A stage of a round begins: what is drawn for it is drawn for nothing else."""
        if self.guard is not None:
            self.guard.begin(round_, stage)

    def draw_anew(self, seed: int) -> Guard:
        """Take minibatches and noise from another seed, which nobody else knows, from now on."""
        assert self.guard is not None
        self.data.seed = seed
        self.guard.reseed(seed)
        return self.guard

    def _admitted(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The minibatches, paid for where gradients are private."""
        return batches if self.guard is None else [self.guard.admit(batch) for batch in batches]

    def narrowed(self, rows: Ints, *, idle: bool = False) -> Self:
        """An engine of some of these peers, given by local index; it counts gradients anew.

        Parameters
        ----------
        idle : none of them trains: there are no minibatches.
        """
        some = copy(self)
        some.peers = self.peers[rows]
        some.data = self.data.narrowed(rows)
        some.batches = _no_batches if idle else some.data.batches
        some.n_gradients = np.zeros(len(rows), dtype=np.int64)
        return some

    def workers(self, count: int) -> list[Self]:
        """Engines like this one, itself the first, whose calls may go side by side."""
        networks = self.network.twins(count - 1) if count > 1 else ()
        twins = [copy(self) for _ in networks]
        for twin, network in zip(twins, networks, strict=True):
            twin.network = network
        return [self, *twins]

    def tensor(self, values: npt.ArrayLike) -> Tensor:
        """A tensor of the engine's precision on its device."""
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def initial(self, *, common: bool = True) -> tuple[Tensor, Buffers]:
        """Start models (P, d) and buffers: one start for all peers, or each peer its own."""
        common = common or self._start is not None
        x_pd = self.origins(self.peers) if common else self._drawn(self.peers)
        buffers = self.network.buffers(len(self.peers))
        if self.network.personal:
            peers = np.zeros_like(self.peers) if common else self.peers
            starts = [dict(self._begun(peer).named_parameters()) for peer in peers]
            own = {
                name: torch.stack([start[name].detach() for start in starts])
                for name in self.network.personal
            }
            buffers |= self.personal.buffers(
                {name: value.to(self.device, self.dtype) for name, value in own.items()}
            )
        return x_pd.clone(), buffers

    def origins(self, peers: Ints) -> Tensor:
        """Start models (E, d) of any peers, in a run with a common or a prescribed start."""
        if self._start is not None:
            return self.tensor(self._start[peers])
        return self._drawn([0]).expand(len(peers), self.d)

    def starts(self, models: int) -> Tensor:
        """Different start models (models, d) that all peers know: those of the first peers."""
        if self._start is not None:
            return self.tensor(self._start[np.arange(models) % self.n])
        return self._drawn(range(models))

    def opt_state(self, x_ed: Tensor) -> optimizers.OptState:
        """Fresh optimizer state for the models `x_ed`."""
        return optimizers.opt_state(self.training, x_ed)

    def _drawn(self, peers: Iterable[int]) -> Tensor:
        """The start models that some peers draw, (K, d)."""
        rows = [self.network.flat(self._begun(peer)) for peer in peers]
        return torch.stack(rows).to(self.device, self.dtype)

    def _begun(self, peer: int) -> nn.Module:
        """The module that a peer draws."""
        return self._fresh(int(stream(self.seed, int(peer), 0, Purpose.START).integers(2**63)))

    def _fresh(self, key: int) -> nn.Module:
        """A module initialised from a key; torch's own stream stays where it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key)
            return self._build()
