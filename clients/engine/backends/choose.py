"""Choose the backend of a network.

============  ======================================  ==========================================
backend       runs                                    chosen by "auto"
============  ======================================  ==========================================
batched       linear layers, activations, dropout     whenever it can run
              and flatten, called in order
vmapped       every network that vmap can batch       on a GPU; on a CPU for networks without
                                                      convolutions, and under privacy
sequential    every network                           convolutions on a CPU, where grouped ones
                                                      are slow; networks that vmap cannot batch
============  ======================================  ==========================================
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from coterie.clients.engine.backends.backend import Backend, Examples
from coterie.clients.engine.backends.batched import Batched
from coterie.clients.engine.backends.sequential import Sequential, Vmapped
from coterie.clients.engine.network import Network
from coterie.clients.engine.tasks import Task
from coterie.clients.training import BackendName

_AGREE = 1e-3
"""Maximum relative difference, in float32, between gradients of two backends that agree."""
_PIECE = 2**20
"""Numbers that are compared at a time."""

_log = logging.getLogger("coterie.engine")


def choose(
    wanted: BackendName, network: Network, task: Task, examples: Examples, *, private: bool
) -> Backend:
    """Return the backend of a network; one log line says which and why.

    `examples` are two for each of two models. ValueError: `wanted` cannot run the network.
    """
    backend, why = _chosen(wanted, network, task, examples, private)
    _log.info("backend=%s reason=%s", backend.name, why)
    return backend


def _chosen(
    wanted: BackendName, network: Network, task: Task, examples: Examples, private: bool
) -> tuple[Backend, str]:
    if wanted == "sequential":
        return Sequential(network, task), "asked for"
    if wanted in ("auto", "batched"):
        backend, why = _batched(network, task, examples, private)
        if backend is not None:
            return backend, "every layer has a batched kernel"
        if wanted == "batched":
            raise ValueError(
                f'engine.backend = "batched" cannot run the network: {why}; use "auto"'
            )
    if network.alone:
        if wanted == "vmapped":
            raise ValueError(
                f'engine.backend = "vmapped" cannot run the network: {network.alone}; use "auto"'
            )
        return Sequential(network, task), f"vmap cannot batch it: {network.alone}"
    if wanted == "vmapped":
        return Vmapped(network, task), "asked for"
    if examples.inputs.device.type == "cpu" and network.convolves and not private:
        return Sequential(network, task), "grouped convolutions are slow on a CPU"
    return Vmapped(network, task), "not every layer has a batched kernel"


def _batched(
    network: Network, task: Task, examples: Examples, private: bool
) -> tuple[Backend | None, str]:
    """Return the batched backend if its gradients equal autograd's, or None and the reason."""
    # Types of layers do not show hooks or replaced methods; comparing a gradient detects them.
    models, buffers = network.copies(len(examples.inputs))
    try:
        backend = Batched(network, task)
        if private:
            backend.per_example(models, buffers, examples)
    except ValueError as error:
        return None, str(error)
    ours, alone = backend.value_and_grad(models, buffers, examples), Sequential(network, task)
    for e in range(len(examples.inputs)):
        theirs = alone.value_and_grad(
            {name: value[e : e + 1] for name, value in models.items()},
            {name: value[e : e + 1] for name, value in buffers.items()},
            Examples(*(value[e : e + 1] for value in examples)),
        )
        for name, value in theirs.gradients.items():
            if not _agree(ours.gradients[name][e], value[0]):
                return None, f'the gradient of "{name}" is not that of its layer alone'
    return backend, ""


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether two gradients agree, without temporary tensors of their size."""
    scale = float(torch.stack(theirs.aminmax()).abs().max()) if theirs.numel() else 0.0
    pairs = zip(ours.reshape(-1).split(_PIECE), theirs.reshape(-1).split(_PIECE), strict=True)
    return all(torch.allclose(a, b, rtol=_AGREE, atol=_AGREE * scale) for a, b in pairs)
