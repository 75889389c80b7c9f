"""FedAvg as a plain PyTorch loop, a sample of the peers in each round.

`python -m benchmarks.peers.loop NETWORK DATA PEERS AWAKE ROUNDS`
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import torch

from benchmarks.peers.networks import NETWORKS, peer, test, train


def main(name: str, directory: Path, peers: int, awake: int, rounds: int) -> None:
    """Train, and print the mean accuracy over peers before and after."""
    torch.manual_seed(0)
    chosen = random.Random(0)
    network = NETWORKS[name]()
    data = [peer(directory, number) for number in range(peers)]
    print(statistics.mean(test(network, examples) for examples in data))
    parameters: list[torch.Tensor] = [*network.parameters()]
    shared = [value.detach().clone() for value in parameters]
    for _ in range(rounds):
        sums = [torch.zeros_like(value) for value in shared]
        for examples in data if awake == peers else chosen.sample(data, awake):
            with torch.no_grad():
                torch._foreach_copy_(parameters, shared)
            train(network, examples)
            with torch.no_grad():
                torch._foreach_add_(sums, parameters, alpha=1 / awake)
        shared = sums
    with torch.no_grad():
        torch._foreach_copy_(parameters, shared)
    print(statistics.mean(test(network, examples) for examples in data))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
