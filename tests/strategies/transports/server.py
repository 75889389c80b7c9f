"""ServerApp whose transport the process of the checks uses."""

from __future__ import annotations

from multiprocessing.connection import Client

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.strategies.flower.transport import FlowerTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Call (seconds, method, arguments) in order, until None arrives."""
    port, key = context.run_config["port"], str(context.run_config["key"])
    transports: dict[float, FlowerTransport] = {}
    results: list[object] = []  # the SuperLink keeps a letter while the relay refers to it
    with Client(("127.0.0.1", int(port)), authkey=bytes.fromhex(key)) as connection:
        while (call := connection.recv()) is not None:
            seconds, method, arguments = call
            transport = transports.setdefault(seconds, FlowerTransport(grid, seconds))
            results.append(getattr(transport, method)(*arguments))
            connection.send(results[-1])
