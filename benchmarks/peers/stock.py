"""FedAvg as a Flower app with a client per peer, as in Flower's PyTorch tutorial.

`python -m benchmarks.peers.stock NETWORK DATA PEERS AWAKE ROUNDS`, in Flower's simulation. Clients
keep their data between rounds and are not asked for evaluation; the server evaluates before and
after.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.networks import NETWORKS, peer, test, train

NAME, DIRECTORY = sys.argv[1], Path(sys.argv[2])
PEERS, AWAKE, ROUNDS = map(int, sys.argv[3:])


client = ClientApp()
server = ServerApp()


@client.train()
def fit(message: Message, context: Context) -> Message:
    """Train the received model and return it."""
    network = NETWORKS[NAME]()
    network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    examples = peer(DIRECTORY, int(context.node_config["partition-id"]))
    train(network, examples)
    content = RecordDict()
    content["arrays"] = ArrayRecord(network.state_dict())
    content["metrics"] = MetricRecord({"num-examples": len(examples.y)})
    return Message(content, reply_to=message)


def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
    """Evaluate on the server, before the first round and after the last."""
    if round_ not in (0, ROUNDS):
        return None
    network = NETWORKS[NAME]()
    network.load_state_dict(arrays.to_torch_state_dict())
    accuracy = statistics.mean(test(network, peer(DIRECTORY, number)) for number in range(PEERS))
    print(accuracy, flush=True)
    return MetricRecord({"accuracy": accuracy})


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg over a sample of the clients."""
    strategy = FedAvg(
        fraction_train=AWAKE / PEERS, fraction_evaluate=0.0, min_available_nodes=PEERS
    )
    torch.manual_seed(0)
    arrays = ArrayRecord(NETWORKS[NAME]().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, evaluate_fn=evaluate)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # of the clients, one on each core
    run_simulation(server, client, PEERS, backend_config={"client_resources": {"num_cpus": 1}})
