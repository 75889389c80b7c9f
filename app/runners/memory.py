"""How much memory a run takes, by the law of docs/results/memory.md."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of

_PROCESS = 600 << 20  # PyTorch and everything else that is imported


def of_runs(configs: Sequence[Config]) -> list[int]:
    """Bytes that each of some runs takes; runs that differ in their seed only take the same."""
    known: dict[tuple[object, ...], int] = {}
    needed = []
    for config in configs:
        alike = (
            config.dataset, config.dataset_options, config.model, config.model_options,
            config.adaptation, config.peers, config.dtype, config.training,
        )  # fmt: skip
        if alike not in known:
            try:
                known[alike] = of_run(config)
            except Exception:  # a network of the user's that fails: its runs will say how
                known[alike] = _PROCESS
        needed.append(known[alike])
    return needed


def of_run(config: Config) -> int:
    """Bytes: twice weights and optimizer memory of all peers, one chunk of models, and the data.

    Methods that keep further models take more.
    """
    from coterie.clients.engine import tuning
    from coterie.clients.engine.engine import Engine

    problem = problem_of(config)
    training = config.training
    one = Engine(
        problem, config.network, config.model_options, [0], training,
        device="cpu", dtype=config.dtype, adaptation=config.adaptation,
    )  # fmt: skip
    x, _ = one.initial()
    numbers = x.numel() + sum(value.numel() for value in one.opt_state(x).values())
    state = config.peers * numbers * one.dtype.itemsize
    chunk = max(tuning.CHUNK_BYTES, one.holds(training.batch_size))
    return 2 * state + chunk + 2 * problem.inputs.nbytes + _PROCESS
