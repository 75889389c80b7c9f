"""FedAvg, whole commands from start to report: `python -m benchmarks.peers [mlp] [cnn]`.

The same split of Fashion-MNIST (20 peers with 300 images), network and steps (batches of 10, one
epoch a round) as a plain PyTorch loop, as a stock Flower app with a client for each peer, and as
Coterie in one process and on two nodes; all evaluate before the first round and after the last. In
turns; ratios are of the same turn. On a machine that others use, processor seconds compare loop and
inline; those of Ray's processes are not counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.engine import machine
from benchmarks.peers.commands import Taken, carried_out, show, ways, write_data
from coterie.app.config.schema import Scalar

PEERS, TURNS = 20, 3
ROUNDS = {"mlp": 60, "cnn": 6}
COMMON: dict[str, Scalar] = {
    "method": "fedavg", "dataset": "fashion-mnist", "peers": PEERS, "batch-size": 10,
    "local-epochs": 1, "learning-rate": 0.05, "mlp.hidden": "100", "partition.kind": "dirichlet",
    "partition.alpha": 1.0, "partition.samples-per-peer": 300,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*ROUNDS])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--rounds", type=int, help="fewer, to try it")
    parser.add_argument("--beside", nargs="*", help="of the ways, what to run beside the loop")
    arguments = parser.parse_args()
    print(json.dumps(machine()), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        write_data(COMMON, Path(directory))
        for network in arguments.networks:
            rounds = arguments.rounds or ROUNDS[network]
            flat = {**COMMON, "model": network}
            commands = ways(flat, rounds, PEERS, Path(directory))
            commands["two nodes"] = [*commands["inline"], "--nodes", "2"]
            if arguments.beside is not None:
                commands = {way: commands[way] for way in ("loop", *arguments.beside)}
            taken: dict[str, list[Taken]] = {way: [] for way in commands}
            for _ in range(arguments.turns):
                for way, command in commands.items():
                    alone = network == "mlp" and way == "loop"  # faster so
                    taken[way].append(carried_out(command, 1 if alone else None))
            show(network, rounds, taken)


if __name__ == "__main__":
    main()
