"""GPU benchmarks in one call of eight minutes: `python -m benchmarks.gpu [--out DIRECTORY]`.

Prints a line of JSON per result, the most important first, until the time is up: SGD steps per
second of the engine, relative to a module and an optimizer per peer, both in the engine's setting
and as torch ships (cuDNN in TF32); peak memory, measured and by the law of docs/results/memory.md;
CoBo's image experiment; sums over pairs of models; private steps; a transformer, trained whole and
with low-rank adapters; TF32 and bfloat16; other sizes of a call; evaluation; mixing; differences to
the CPU and between two runs. A question that does not end in time is left, with a line.

Writes `gpu.md`, a table, and `profile.txt`: what a step of two networks spends on which operation,
and how much of its time the GPU works (the rest is the price of launches). Needs torch, NumPy and
this checkout. `--small` tries it out, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import profile

from benchmarks import engine, resnet9
from coterie.clients.engine import sums, tuning
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Rows
from coterie.clients.models.options import Adaptation, TransformerOptions
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split


class Case(NamedTuple):
    """A network to measure."""

    model: str
    shape: tuple[int, ...]
    options: object = None
    adaptation: Adaptation | None = None


NETWORKS = {name: Case(*row[:3]) for name, row in engine.NETWORKS.items()}
NETWORKS["resnet18"] = Case("resnet18", (3, 32, 32))
_SMALL, _LARGE = TransformerOptions(2, 16, 2), TransformerOptions(4, 256, 4)
LANGUAGE = {
    "transformer": Case("transformer", (64,), _LARGE),
    "transformer-lora": Case("transformer", (64,), _LARGE, Adaptation(lora_rank=8)),
}
PEERS = (8, 100, 1000)
BATCH, TOKENS = 32, 256
LOOP_PEERS = 4  # its steps a second do not depend on their number
PAIRED = 32
SECONDS, LONGEST = 450.0, 90.0
"""Time for all questions, and for one; imports and the profile take half a minute more."""
TURNS, TURN_SECONDS = 3, 0.3
PROFILED = 5
Answer = dict[str, Any]


class Bench:
    """Benchmarks of one device.

    Parameters
    ----------
    small : bool
        Use tiny sizes, as a smoke test.
    """

    def __init__(self, device: str, *, small: bool) -> None:
        self.device, self.small = device, small
        self.networks = ["mlp-64", "lenet"] if small else [*NETWORKS]
        tiny = {name: case._replace(shape=(5,), options=_SMALL) for name, case in LANGUAGE.items()}
        self.cases = NETWORKS | (tiny if small else LANGUAGE)
        self.peers = (2, 2, 3) if small else PEERS
        self.batch = 4 if small else BATCH
        self.turn = 0.01 if small else TURN_SECONDS
        self._loop = cache(self._loop_rate)

    def answers(self) -> Iterator[Callable[[], Answer]]:
        """Return the benchmarks as functions, the most important first."""
        few, middle, many = self.peers[0], self.peers[-2], self.peers[-1]
        for peers in sorted({few, middle}):
            yield from (partial(self.rate, name, peers) for name in self.networks)
        yield partial(self.cobo, few)
        yield from (partial(self.rate, name, few) for name in LANGUAGE)
        yield from (partial(self.pairs, name) for name in (self.networks[0], self.networks[-1]))
        yield from (partial(self.private, name, few) for name in self.networks[:2])
        yield self.same_numbers
        for name in self.networks:
            yield partial(self.rate, name, middle, precision="tf32")
            yield partial(self.rate, name, middle, precision="bfloat16")
        yield from (partial(self.rate, name, many) for name in self.networks)
        if not self.small:
            yield partial(self.cobo, 80)
        yield partial(self.evaluation, middle)
        yield partial(self.mixing, many)
        for name, mebibytes in product(self.networks, (64,) if self.small else (64, 1024, 4096)):
            yield partial(self.rate, name, middle, budget=mebibytes << 20)

    def rate(self, name: str, peers: int, *, precision: str = "float32", budget: int = 0) -> Answer:
        """Measure steps per second of all peers, the ratios to two loops, and memory."""
        keys: dict[str, Any] = {
            "memory": budget, "mixed_precision": precision == "bfloat16",
            "tf32": precision == "tf32",
        }  # fmt: skip
        self._reset_peak()
        stacked = self._rate(self._steps(name, peers, **keys)) * peers
        peak = self._peak()
        # bfloat16 its user would have to write.
        loop, stock = self._loop(name, precision == "tf32"), self._loop(name, None)
        law = self._law(name, peers)
        return {
            "network": name, "peers": peers, "precision": precision, "budget": budget,
            "steps_s": round(stacked, 1), "loop_steps_s": round(loop, 1),
            "ratio": round(stacked / loop, 2), "stock_ratio": round(stacked / stock, 2),
            "peak_mib": peak >> 20, "law_mib": law >> 20,
        }  # fmt: skip

    def _steps(self, name: str, peers: int, **keys: Any) -> Callable[[int], None]:
        model, _, options, adaptation = self.cases[name]
        data = self._problem(name, peers)
        keys |= {"adaptation": adaptation}
        return engine.engine_steps(data, model, options, self.batch, self.device, **keys)

    def _problem(self, name: str, peers: int) -> Problem:
        shape = self.cases[name].shape
        return engine.problem(shape, peers) if len(shape) > 1 else tokens(shape[0], peers)

    def _loop_rate(self, name: str, tf32: bool | None) -> float:
        """Measure the loop with TF32, without it, or (None) as torch ships."""
        model, _, options, adaptation = self.cases[name]
        data = self._problem(name, LOOP_PEERS)
        torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
        torch.backends.cudnn.allow_tf32 = tf32 is not False
        steps = engine.loop_steps(data, model, options, self.batch, self.device, adaptation)
        return self._rate(steps) * LOOP_PEERS

    def private(self, name: str, peers: int) -> Answer:
        """Measure private steps per second, and what one costs in steps that are not."""
        plain = self._rate(self._steps(name, peers))
        private = self._rate(self._steps(name, peers, privacy=Privacy("examples")))
        return {
            "private": name, "peers": peers, "steps_s": round(private * peers, 1),
            "cost": round(plain / private, 2),
        }  # fmt: skip

    def pairs(self, name: str) -> Answer:
        """Measure picoseconds per parameter and pair of sums over all pairs of models.

        `torch` is a product of matrices in float64, which adds in another order.
        """
        n = self.peers[0] if self.small else PAIRED
        x_nd = torch.randn(n, self._engine(name, 1, "cpu").d, device=self.device)
        i, k = np.divmod(np.arange(n * n), n)
        ways: dict[str, Callable[[], object]] = {
            "products": partial(sums.products, x_nd, x_nd),
            "distances": partial(sums.squared_distances, Rows(x_nd, i), Rows(x_nd, k)),
            "torch": lambda: x_nd.double() @ x_nd.double().T,
        }
        unit = 1e12 / (n * n * x_nd.shape[1])
        result: Answer = {"pairs": name, "peers": n}
        for way, call in ways.items():
            result[f"{way}_ps"] = round(unit / self._rate(_repeated(call)), 3)
        return result

    def _law(self, name: str, peers: int) -> int:
        """Return the bytes that training needs: twice the state and one chunk of models."""
        one = self._engine(name, 1, "cpu")
        chunk = peers * one.holds(self.batch)
        if self.device == "cpu":
            chunk = max(min(chunk, tuning.CHUNK_BYTES), one.holds(self.batch))
        law: int = 2 * peers * one.d * 4 + chunk
        return law

    def cobo(self, peers: int) -> Answer:
        """Project CoBo's image experiment with a number of peers to hours."""
        steps, side = (1, 8) if self.small else (5, 32)
        batch = self.batch if self.small else 128
        setting = resnet9.Setting(self.device, peers, "cobo", batch, side, steps, False, False)
        row = resnet9.measure(setting)
        return {
            "cobo": peers, "iterations_s": row.steps_s, "peak_gib": row.peak_gib,
            "hours": row.hours, "paper_hours": row.paper_hours,
        }  # fmt: skip

    def same_numbers(self) -> Answer:
        """Return the largest difference to the CPU, and between two runs, after three steps."""
        ends = {}
        for key, device in (("cpu", "cpu"), ("first", self.device), ("second", self.device)):
            one = self._engine("lenet", 3, device)
            x, buffers = one.initial()
            drawn = one.batches(1, steps=3, epochs=0)
            ends[key] = one.fit(x, buffers, one.opt_state(x), drawn).x.cpu()
        return {
            "numbers": "lenet", "against_cpu": float((ends["first"] - ends["cpu"]).abs().max()),
            "twice": float((ends["first"] - ends["second"]).abs().max()),
        }  # fmt: skip

    def evaluation(self, peers: int) -> Answer:
        """Measure evaluated images per second of all networks."""
        result: Answer = {"evaluation": peers}
        for name in self.networks:
            one = self._engine(name, peers, self.device)
            x, buffers = one.initial()
            rate = self._rate(_repeated(one.losses, x, buffers, "train"))
            result[name] = round(rate * peers * engine.EXAMPLES)
        return result

    def mixing(self, peers: int) -> Answer:
        """Measure the seconds of FedAvg's average, and of averages over eight neighbours."""
        x = torch.randn(peers, 1000 if self.small else 62_006, device=self.device)
        g = np.random.default_rng(0)
        sparse = np.zeros((peers, peers))
        for row in sparse:
            row[g.choice(peers, min(8, peers), replace=False)] = 1 / min(8, peers)
        one = self._engine("mlp-64", 1, self.device)
        result: Answer = {"mixing": peers, "parameters": x.shape[1]}
        for kind, weights in (("average", np.full((peers, peers), 1 / peers)), ("graph", sparse)):
            result[kind] = round(1 / self._rate(_repeated(one.mix, weights, x)), 5)
        return result

    def _engine(self, name: str, peers: int, device: str) -> Engine:
        model, _, options, adaptation = self.cases[name]
        training = Training(batch_size=self.batch, learning_rate=engine.RATE)
        data, every = self._problem(name, peers), range(peers)
        return Engine(data, model, options, every, training, device=device, adaptation=adaptation)

    def _rate(self, steps: Callable[[int], None]) -> float:
        """Return calls per second: the fastest of several turns."""
        engine.seconds(steps, 1, self.device)  # warm-up
        count = max(1, round(self.turn / engine.seconds(steps, 1, self.device)))
        return max(count / engine.seconds(steps, count, self.device) for _ in range(TURNS))

    def profiles(self) -> Iterator[str]:
        """Yield the profile of a few steps of two networks: each operation, and the GPU's share."""
        for name in (self.networks[0], "lenet" if self.small else "resnet9"):
            steps = self._steps(name, self.peers[0])
            engine.seconds(steps, 1, self.device)
            with profile() as profiled:
                seconds = engine.seconds(steps, PROFILED, self.device)
            events = profiled.key_averages()
            kernels = sum(event.self_device_time_total for event in events) / 1e6
            yield (
                f"{name}, {self.peers[0]} peers: {PROFILED} steps take {seconds:.4f} s, "
                f"the GPU works {kernels / seconds:.0%} of them\n"
            )
            order = "self_device_time_total" if kernels else "self_cpu_time_total"
            yield events.table(sort_by=order, row_limit=20, max_name_column_width=60)

    def _reset_peak(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


def _repeated(call: Callable[..., object], *arguments: object) -> Callable[[int], None]:
    def steps(count: int) -> None:
        for _ in range(count):
            call(*arguments)

    return steps


def tokens(length: int, peers: int) -> Problem:
    """Draw random tokens, each of which is followed by a random one."""
    g = np.random.default_rng(0)
    data = engine.problem((length,), peers)
    drawn = tuple(g.integers(TOKENS, size=(engine.EXAMPLES, length)) for _ in range(peers))
    none = Split(tuple(r[:0] for r in data.train.rows), tuple(t[:0] for t in drawn))
    train = Split(data.train.rows, drawn)
    inputs = g.integers(TOKENS, size=(engine.POOL, length))
    zero = np.zeros(1)
    return Problem(
        "random", "language", inputs, train, none, none, TOKENS, zero, zero + 1, data.samples
    )


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def over(*_: object) -> None:
        raise TimeoutError(f"left after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def table(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield the answers as Markdown, a table for each kind."""
    kinds: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        kinds.setdefault(tuple(answer), []).append(answer)
    for keys, of_kind in kinds.items():
        yield f"| {' | '.join(keys)} |"
        yield "|---" * len(keys) + "|"
        yield from (f"| {' | '.join(map(str, answer.values()))} |" for answer in of_kind)
        yield ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="to see that it works")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the table")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    bench, answers = Bench(device, small=options.small), [engine.machine()]
    print(json.dumps(answers[0]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for question in bench.answers():
        left = SECONDS - (time.monotonic() - start)
        if left <= 0:
            answers.append({"time": "up"})
            break
        try:
            with limit(min(left, LONGEST)):
                answer = question()
        except (torch.OutOfMemoryError, TimeoutError) as error:
            answer = {"question": str(question), "error": str(error).splitlines()[0]}
            if device == "cuda":
                torch.cuda.empty_cache()
        answers.append({**answer, "at": round(time.monotonic() - start, 1)})
        print(json.dumps(answers[-1]), flush=True)
        (options.out / "gpu.md").write_text("\n".join(table(answers)), "utf-8")
    with (options.out / "profile.txt").open("w", encoding="utf-8") as profiles:
        profiles.writelines(f"{part}\n" for part in bench.profiles())
    print(f"wrote {options.out / 'gpu.md'} and {options.out / 'profile.txt'}")


if __name__ == "__main__":
    main()
