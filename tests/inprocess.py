"""Run the ServerApp and the ClientApp on Flower's real simulation engine, without Ray.

Grid, link state and engine are Flower's; only the backend differs: it calls the ClientApp in this
process, after a pickle round trip of message and context. All that is private to flwr is here.
"""

from __future__ import annotations

import importlib
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.server.superlink.fleet.vce.backend.backend import Backend, BackendConfig
from flwr.serverapp import ServerApp
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType

from coterie.app.client import app as client_app
from coterie.app.server import app as server_app

engine = importlib.import_module("flwr.simulation.run_simulation")  # a function has its name
ROOT = Path(__file__).resolve().parent.parent
_RUN_ID = 17
_TICK = 0.01  # seconds; Flower's engine polls every 0.1 to 3 s

Watch = Callable[[Message, Context], None]


@dataclass
class _Inside(Backend):
    """Calls the ClientApp in this process; `watch` sees each message first and may raise."""

    watch: Watch
    workers: int

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._app = app_fn()

    @property
    def num_workers(self) -> int:
        return self.workers

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        pass

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        message, context = pickle.loads(pickle.dumps((message, context)))
        self.watch(message, context)
        try:
            reply = self._app(message, context)
        except Exception as error:  # as Ray's actor does
            raise ClientAppException(str(error)) from error
        sent: tuple[Message, Context] = pickle.loads(pickle.dumps((reply, context)))
        return sent


class _Queue(Queue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block, min(timeout or _TICK, _TICK))


class _Event(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(min(timeout or _TICK, _TICK))


def message_of(content: RecordDict) -> Message:
    """Return a message as a ClientApp of this process receives it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN_ID, 1
    return Message(content, 1, "train")


def simulate(
    run_config: Mapping[str, str | int | float | bool],
    nodes: int,
    watch: Watch = lambda message, context: None,
    workers: int = 1,
    client_app: ClientApp = client_app,
    server_app: ServerApp = server_app,
) -> None:
    """Run to the end; raises what the ServerApp raised.

    Parameters
    ----------
    run_config : overrides of pyproject.toml's configuration.
    nodes : virtual SuperNodes.
    watch : sees each message before the ClientApp and may raise or sleep.
    workers : messages that are worked on at the same time.
    client_app, server_app : of another app than this one.
    """
    run = Run.create_empty(_RUN_ID)
    run.primary_task_id = 1
    run.federation_id = NOOP_FEDERATION_ID
    run.override_config = dict(run_config)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN_ID, 1

    def backend(config: BackendConfig) -> Backend:
        return _Inside(watch, workers)

    with (
        patch.object(raybackend, "RayBackend", backend),
        patch.object(vce_api, "Queue", _Queue),
        patch.object(engine, "Queue", _Queue),
        patch.object(engine, "threading", SimpleNamespace(Event=_Event, Thread=threading.Thread)),
        patch("coterie.strategies.flower.transport._MIN_PAUSE", _TICK),
        patch(
            "coterie.app.client.in_simulation", return_value=True
        ),  # the backend stands in for Ray's
    ):
        engine._run_simulation(
            num_supernodes=nodes,
            exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            client_app=client_app,
            server_app=server_app,
            server_app_context=Context(_RUN_ID, 0, {}, RecordDict(), dict(run_config)),
            app_dir=str(ROOT),
            run=run,
            is_app=True,
        )
