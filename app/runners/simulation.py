"""Process of a run in Flower's simulation: `python -m coterie.app.runners.simulation FILE`.

It has no SuperLink, whose port takes code and orders from every user of the machine. FILE has the
arguments of `simulate` in JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from coterie.app import client, server
from coterie.app.config.schema import Scalar


def simulate(config: dict[str, Scalar], nodes: int, backend: dict[str, Any]) -> None:
    """Run relay and nodes; Flower has no parameter for the run's configuration."""
    relay, node = ServerApp(), ClientApp()

    @relay.main()
    def main(grid: Grid, context: Context) -> None:
        context.run_config = config
        server.main(grid, context)

    @node.train()
    def handle(message: Message, context: Context) -> Message:
        place = context.run_id, context.node_id, context.node_config
        return client.answer(message, Context(*place, context.state, config), forwards=True)

    run_simulation(relay, node, nodes, backend_config=backend)


if __name__ == "__main__":
    simulate(**json.loads(Path(sys.argv[1]).read_text("utf-8")))
