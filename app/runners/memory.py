"""Memory of a run, estimated as in docs/results/memory.md."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of

_PROCESS = 600 << 20  # PyTorch and everything else that is imported
_RESIDENT = 1.25  # resident bytes per byte of a step's tensors (benchmarks/memory.py)


def estimates(configs: Sequence[Config]) -> list[int]:
    """Return the bytes that each run takes; runs that differ only in their seed take the same."""
    known: dict[tuple[object, ...], int] = {}
    needed = []
    for config in configs:
        alike = (
            config.dataset, config.dataset_options, config.network, config.model_options,
            config.adaptation, config.peers, config.compute.dtype, config.training, config.privacy,
            config.engine,
        )  # fmt: skip
        if alike not in known:
            try:
                known[alike] = estimate(config)
            except Exception:  # a network of a plugin that fails: its run reports the error
                known[alike] = _PROCESS
        needed.append(known[alike])
    return needed


def estimate(config: Config) -> int:
    """Return the bytes of a run: twice weights and optimizer memory, a chunk of models, the data.

    Methods that keep further models take more.
    """
    from coterie.app.node.assembly import engine_of
    from coterie.clients.engine import tuning

    problem = problem_of(config)
    one = engine_of(config.with_(device="cpu"), problem, [0])
    x, _ = one.initial()
    numbers = x.numel() + sum(value.numel() for value in one.opt_state(x).values())
    state = config.peers * numbers * one.dtype.itemsize
    examples = min(config.training.batch_size, int(problem.samples.max()))
    chunk = max(tuning.CHUNK_BYTES, one.step_bytes(examples))
    return 2 * state + int(_RESIDENT * chunk) + 2 * problem.inputs.nbytes + _PROCESS
