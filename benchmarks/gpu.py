"""GPU benchmarks in one call of under ten minutes: `python -m benchmarks.gpu`.

Prints a line of JSON per result, the most important first, until the time is up: SGD steps per
second of the engine, relative to a module and an optimizer per peer; peak memory, measured and by
the law of docs/results/memory.md; the same in TF32 and in bfloat16; other sizes of a call;
evaluation; mixing; differences to the CPU and between two runs; CoBo's two image experiments
projected to hours. Needs torch, NumPy and this checkout. `--small` tries it out, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks import engine, resnet9
from coterie.clients.engine import tuning
from coterie.clients.engine.engine import Engine
from coterie.clients.training import Training

NETWORKS = {name: row[:3] for name, row in engine.NETWORKS.items()}
NETWORKS["resnet18"] = "resnet18", (3, 32, 32), None
PEERS = (8, 100, 1000)
BATCH = 32
LOOP_PEERS = 4  # its steps a second do not depend on their number
SECONDS = 570.0
TURNS, TURN_SECONDS = 3, 0.3
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
        yield self.same_numbers
        yield from (partial(self.rate, name, many) for name in self.networks)
        if not self.small:
            yield partial(self.cobo, 80)
        yield partial(self.evaluation, middle)
        yield partial(self.mixing, many)
        for name in self.networks:
            yield partial(self.rate, name, middle, precision="tf32")
            yield partial(self.rate, name, middle, precision="bfloat16")
        for name, mebibytes in product(self.networks, (64,) if self.small else (64, 1024, 4096)):
            yield partial(self.rate, name, middle, budget=mebibytes << 20)

    def rate(self, name: str, peers: int, *, precision: str = "float32", budget: int = 0) -> Answer:
        """Measure steps per second of all peers, the ratio to the loop, and memory."""
        model, shape, options = NETWORKS[name]
        asked = {"network": name, "peers": peers, "precision": precision, "budget": budget}
        data = engine.problem(shape, peers)
        steps = engine.engine_steps(
            data, model, options, self.batch, self.device, memory=budget,
            mixed_precision=precision == "bfloat16", tf32=precision == "tf32",
        )  # fmt: skip
        self._reset_peak()
        stacked = self._rate(steps) * peers
        peak = self._peak()
        # bfloat16 its user would have to write.
        loop = self._loop(name, precision == "tf32")
        law = self._law(name, peers)
        return {
            **asked, "steps_s": round(stacked, 1), "loop_steps_s": round(loop, 1),
            "ratio": round(stacked / loop, 2), "peak_mib": peak >> 20, "law_mib": law >> 20,
        }  # fmt: skip

    def _loop_rate(self, name: str, tf32: bool) -> float:
        model, shape, options = NETWORKS[name]
        data = engine.problem(shape, LOOP_PEERS)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        steps = engine.loop_steps(data, model, options, self.batch, self.device)
        return self._rate(steps) * LOOP_PEERS

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
        model, shape, options = NETWORKS[name]
        training = Training(batch_size=self.batch, learning_rate=engine.RATE)
        data = engine.problem(shape, peers)
        return Engine(data, model, options, range(peers), training, device=device)

    def _rate(self, steps: Callable[[int], None]) -> float:
        """Return calls per second: the fastest of several turns."""
        engine.seconds(steps, 1, self.device)  # warm-up
        count = max(1, round(self.turn / engine.seconds(steps, 1, self.device)))
        return max(count / engine.seconds(steps, count, self.device) for _ in range(TURNS))

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="to see that it works")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    print(json.dumps(engine.machine()), flush=True)
    for question in Bench(device, small=options.small).answers():
        if time.monotonic() - start > SECONDS:
            print(json.dumps({"time": "up"}), flush=True)
            return
        try:
            answer = question()
        except torch.OutOfMemoryError as error:
            answer = {"error": str(error).splitlines()[0]}
            torch.cuda.empty_cache()
        print(json.dumps({**answer, "at": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
