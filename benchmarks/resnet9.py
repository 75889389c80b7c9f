"""CoBo's image experiments on one GPU: ResNet-9, 8 and 80 peers, random CIFAR-shaped data.

Three ways to the same work: the engine as it chooses its chunks ("stacked"), the engine with one
model a call ("one by one"), and a module and a torch.optim.SGD for each peer ("modules"). "cobo" is
a whole iteration of CoBo on the first: the step with its pull, and gradients at the midpoints of
pairs drawn with probability 1/n. From its time the paper's 40,000 and 20,000 iterations are
projected; the paper took 9 hours on one V100 and 28 hours on four (appendix 8).

Needs torch and NumPy only: python -m benchmarks.resnet9
On a CPU, to see that it works: --device cpu --peers 2 --batch 4 --side 16 --steps 2
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch.nn import functional as F

from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Ints, Letters
from coterie.clients.methods.cobo import CoBo
from coterie.clients.models.build import build
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split

CLASSES = 100
EXAMPLES = 512  # of each peer, in a pool that all share
POOL = 4096
PAPER = {8: (40_000, 9.0), 80: (20_000, 28.0)}  # peers: iterations, hours
WAYS = ("stacked", "one by one", "modules", "cobo")
GIB = 2.0**30
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """Setting of one measurement; see the command's options."""

    device: str
    peers: int
    way: str
    batch: int
    side: int
    steps: int
    mixed_precision: bool
    channels_last: bool


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes
    ----------
    steps_s : float
        SGD iterations per second, summed over peers.
    peak_gib : float
        Peak memory; on a CPU that of the process, including torch.
    state_gib : float
        Memory of the weights and momentum of all peers.
    iterations : int or None
        Iterations of the paper's experiment with this number of peers.
    hours, paper_hours : float or None
        Hours that it would take here, and that it took in the paper.
    """

    device: str
    peers: int
    way: str
    batch: int
    mixed_precision: bool
    channels_last: bool
    steps_s: float
    peak_gib: float
    state_gib: float
    iterations: int | None = None
    hours: float | None = None
    paper_hours: float | None = None


def problem(peers: int, side: int) -> Problem:
    """Draw random images and labels."""
    g = np.random.default_rng(0)
    rows = tuple(np.sort(g.choice(POOL, EXAMPLES, replace=False)) for _ in range(peers))
    split = Split(rows, tuple(g.integers(CLASSES, size=EXAMPLES) for _ in range(peers)))
    none = Split(tuple(r[:0] for r in rows), tuple(r[:0] for r in rows))
    inputs = g.integers(256, size=(POOL, 3, side, side), dtype=np.uint8)
    mean, std = np.full((3, 1, 1), 127.5), np.full((3, 1, 1), 73.9)
    samples = np.full(peers, EXAMPLES)
    return Problem(
        "random", "classification", inputs, split, none, none, CLASSES, mean, std, samples
    )


def engine_of(s: Setting) -> Engine:
    """Build the engine of a setting."""
    training = Training(batch_size=s.batch, local_steps=1, learning_rate=0.01, momentum=0.9)
    return Engine(
        problem(s.peers, s.side), "resnet9", None, range(s.peers), training, device=s.device,
        chunk=1 if s.way == "one by one" else 0,
        mixed_precision=s.mixed_precision,
    )  # fmt: skip


def by_engine(s: Setting) -> Callable[[int], None]:
    """Return a function that takes step t of every peer with the engine."""
    engine = engine_of(s)
    x, buffers = engine.initial()
    state = [(x, buffers, engine.opt_state(x))]

    def step(t: int) -> None:
        state[0] = engine.fit(*state[0], engine.batches(t))

    return step


def by_modules(s: Setting) -> Callable[[int], None]:
    """Return a function that takes step t of every peer with plain PyTorch modules."""
    data = problem(s.peers, s.side)
    pool = (torch.tensor(data.inputs, device=s.device).float() - 127.5) / 73.9
    layout = torch.channels_last if s.channels_last else torch.contiguous_format
    modules = [
        build("resnet9", None, "classification", pool.shape[1:], CLASSES)
        .to(s.device)
        .to(memory_format=layout)
        for _ in range(s.peers)
    ]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in modules]
    rows = [torch.tensor(r, device=s.device) for r in data.train.rows]
    targets = [torch.tensor(y, device=s.device) for y in data.train.targets]
    autocast = partial(torch.autocast, s.device, torch.bfloat16, enabled=s.mixed_precision)

    def step(t: int) -> None:
        for r, y, module, optimizer in zip(rows, targets, modules, optimizers, strict=True):
            at = torch.randperm(EXAMPLES, device=s.device)[: s.batch]
            optimizer.zero_grad()
            with autocast():
                loss = F.cross_entropy(module(pool[r[at]].contiguous(memory_format=layout)), y[at])
            loss.backward()
            optimizer.step()

    return step


def by_cobo(s: Setting) -> Callable[[int], None]:
    """Return a function that runs iteration t of CoBo: models of all, gradients of some."""
    engine = engine_of(s)
    rule = CoBo(rho=0.01, sampling="constant").bind(engine, rounds=10**9)
    state = [rule.init()]
    g, n = np.random.default_rng(0), s.peers
    everyone = np.arange(n)

    def letters(ends_e2: Ints, rows_e: Ints, authors: Ints, tensors: Tensors) -> Letters:
        return Letters(ends_e2[:, 0], ends_e2[:, 1], rows_e, authors, tensors)

    def step(t: int) -> None:
        now, shown = rule.offer(state[0], t)
        drawn = np.triu(g.random((n, n)) < 1 / n, 1)
        recipients, senders = np.nonzero(drawn | drawn.T)
        to, of = np.nonzero(~np.eye(n, dtype=np.bool_))
        received = letters(np.stack([of, to], 1), of, everyone, shown)
        none = letters(np.empty((0, 2), np.int64), everyone[:0], everyone[:0], {})
        sent = answers = none
        if len(senders):
            asked = letters(np.stack([senders, recipients], 1), senders, everyone, shown)
            answered = rule.answer(now, rule.inbox(t, asked))
            back = np.stack([recipients, senders], 1)
            rows = np.arange(len(back))
            sent = letters(back, rows, recipients, answered)
            order = np.lexsort((back[:, 0], back[:, 1]))
            answers = letters(back[order], order, recipients, answered)
        state[0] = rule.update(now, rule.inbox(t, received, sent, answers))

    return step


def measure(s: Setting) -> Row:
    """Measure one row, in a process used for nothing else."""
    step = {"modules": by_modules, "cobo": by_cobo}.get(s.way, by_engine)(s)

    def seconds(first: int, last: int) -> float:
        if s.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for t in range(first, last):
            step(t)
        if s.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    warm = 3
    seconds(1, warm)
    if s.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    each = seconds(warm, warm + s.steps) / s.steps
    if s.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / GIB
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    template = build("resnet9", None, "classification", (3, s.side, s.side), CLASSES)
    d = sum(value.numel() for value in template.parameters())
    iterations, paper = PAPER.get(s.peers, (None, None))
    return Row(
        torch.cuda.get_device_name() if s.device == "cuda" else "cpu",
        s.peers, s.way, s.batch, s.mixed_precision, s.channels_last,
        round(1 / each, 3), round(peak, 2), round(2 * 4 * d * s.peers / GIB, 2),
        iterations, iterations and round(iterations * each / 3600, 1), paper,
    )  # fmt: skip


def main() -> None:
    """Measure each variant in its own process, and print a line of JSON per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 80])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--alone", action="store_true", help="measure the one setting given here")
    options = vars(parser.parse_args())
    peers, ways, alone = (options.pop(key) for key in ("peers", "ways", "alone"))
    if alone:
        print(json.dumps(asdict(measure(Setting(peers=peers[0], way=ways[0], **options)))))
        return
    for n, way in product(peers, ways):
        flags = [
            f"--{k.replace('_', '-')}={v}" for k, v in options.items() if v not in (True, False)
        ]
        flags += [f"--{k.replace('_', '-')}" for k, v in options.items() if v is True]
        command = [sys.executable, "-m", "benchmarks.resnet9", "--alone", f"--peers={n}"]
        done = subprocess.run(
            [*command, "--ways", way, *flags], capture_output=True, text=True, check=False
        )
        failed = json.dumps({"peers": n, "way": way, "error": done.stderr.strip()[-300:]})
        print(failed if done.returncode else done.stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
