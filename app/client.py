"""The ClientApp: a node of a run. It finds out which peers it hosts and hands orders to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from app.config import Config
from app.sealing import Sealing, deployed, peer_of
from app.wire import decode_order, encode_fault, encode_reply
from strategies.mail import Order, Reply

if TYPE_CHECKING:
    from app.node import Node

_STATE = "coterie"
_ITS_OWN = {"out": Config.out, "data-dir": Config.data_dir, "device": Config.device}
"""What a deployed node takes from --node-config only, and the values it has without."""
_NODES_IN_MEMORY = 4

_log = logging.getLogger("coterie.node")
app = ClientApp()


@app.train()
def handle(message: Message, context: Context) -> Message:
    """Carry out an order. What goes wrong becomes one line for the relay and a log here."""
    try:
        order = decode_order(message.content)
        record = encode_reply(_carry_out(order, context), order)
        if order.stage != "answer":
            context.state[_STATE] = ConfigRecord({"version": order.last})
    except Exception as error:
        _log.exception("the order could not be carried out")
        record = encode_fault(f"{type(error).__name__}: {error}")
    return Message(record, reply_to=message)


def hosted(node_config: Mapping[str, object], peers: int) -> tuple[int, ...]:
    """Name the peers that this node hosts, of `peers` in all.

    A simulated node takes its share of them, which may be none; a deployed one says which.

    Raises
    ------
    ValueError
        The node configuration does not say.
    """
    if _simulated(node_config):
        shares = np.array_split(np.arange(peers), int(str(node_config["num-partitions"])))
        return tuple(int(peer) for peer in shares[int(str(node_config["partition-id"]))])
    peer = node_config["peer"] if "peer" in node_config else peer_of(node_config)
    if type(peer) is not int or not 0 <= peer < peers:
        raise ValueError(
            f"this SuperNode says peer = {peer!r}; start it with --node-config 'peer=K', "
            f"K from 0 to {peers - 1}, or with a name that its trust file has"
        )
    return (peer,)


def _simulated(node_config: Mapping[str, object]) -> bool:
    """Whether Flower's simulation made this node; it gives it these two and nothing else."""
    return node_config.keys() == {"partition-id", "num-partitions"}


def _carry_out(order: Order, context: Context) -> Reply:
    node_config, run_config = context.node_config, dict(context.run_config)
    simulated = _simulated(node_config)
    if not simulated:  # whoever starts runs has no say in where a hospital's files lie
        run_config |= {key: node_config.get(key, value) for key, value in _ITS_OWN.items()}
        run_config["run-dir"] = ""
    config = Config.from_flat(run_config).located(str(context.run_id))
    peers = hosted(node_config, config.peers)
    if not peers:
        return Reply(())
    if order.stage != "start":
        state = context.state.get(_STATE)
        version = state["version"] if isinstance(state, ConfigRecord) else "none"
        if version != order.round - 1:
            raise RuntimeError(
                f"peers {list(peers)} stand at round {version!r}, the order builds on "
                f"{order.round - 1}: a state update was lost, or the node restarted"
            )
    sealing = None if simulated else deployed(context.run_config, node_config, peers[0])
    return _node(config, peers, Path(config.run_dir), sealing).handle(order)


@lru_cache(_NODES_IN_MEMORY)
def _node(config: Config, peers: tuple[int, ...], directory: Path, sealing: Sealing | None) -> Node:
    from app.node import Node  # here, so that a simulation's main process never loads torch

    return Node(config, peers, directory, sealing)
