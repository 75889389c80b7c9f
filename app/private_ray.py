"""Ray that this process starts: it listens to this machine only, to processes with its secret.

Only this module uses names that Ray does not document; 2.55.1 and 2.60.0 have them.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import metadata
from typing import Any

from coterie.errors import RunError

_log = logging.getLogger("coterie.node")

_TOKEN = secrets.token_hex(32)
"""Secret of this process and those that it starts."""
_imported_by_us = False
"""True if Ray was imported with the settings in its environment."""
_LONGEST = 20
"""Maximum characters of a folder of temporary files in which Ray's sockets can lie."""


def start_seconds() -> float:
    """Return Ray's limit for a start, 30 s, times the processes that wait for each core here."""
    return 30.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def address() -> str:
    """Return the address of the Ray cluster of several machines; empty without one."""
    return os.environ.get("RAY_ADDRESS", "")


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables of this process and of those that it starts, and restore them."""
    before = {key: os.environ.get(key) for key in values}
    os.environ |= values
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


@contextmanager
def private() -> Iterator[None]:
    """Make the Ray that this process starts private: start and stop it inside this block."""
    # Its processes get a new secret through their environment, which other users cannot read, and
    # their files are in a closed folder. The omitted dashboard would ask services of three clouds.
    values = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on these systems: loopback
        "RAY_worker_register_timeout_seconds": str(round(2 * start_seconds())),
    }
    with ExitStack() as until_end:
        if "RAY_TMPDIR" not in os.environ:
            is_long = len(tempfile.gettempdir()) > _LONGEST  # paths of sockets have a maximum
            short = "/tmp" if sys.platform == "darwin" or is_long else None
            folder = tempfile.TemporaryDirectory(
                prefix="coterie-", dir=short, ignore_cleanup_errors=True
            )
            values["RAY_TMPDIR"] = until_end.enter_context(folder)
        until_end.enter_context(_settings(values))
        until_end.enter_context(environment(values))
        yield


def patient(find: Callable[..., Any], seconds: float, *where: Any) -> Any:
    """Return what `find` finds, which raises RuntimeError until it is there."""
    end = time.monotonic() + seconds
    while True:
        try:
            return find(*where)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    """Set what Ray read from the environment if somebody imported it before; omit the dashboard."""
    global _imported_by_us
    is_imported, why = "ray" in sys.modules, ""
    _imported_by_us |= not is_imported
    try:
        with environment(values):
            from ray._private import ray_constants, services
            from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

            cluster, start = ray_constants.ENABLE_RAY_CLUSTER, services.start_api_server
            find = services.get_node
    except (ImportError, AttributeError) as error:
        why = f"ray {metadata.version('ray')} (the newest tested version is 2.55.1): {error}"
    if why and not _imported_by_us:
        raise RunError(f"{why}, and a program has imported it before: start Coterie alone")
    if why:
        _log.warning("%s; so Ray starts its dashboard, which asks for a cloud's metadata", why)
        yield
        return

    def use(mode: str) -> None:
        Config.initialize(json.dumps({"AUTH_MODE": mode}))
        AuthenticationTokenLoader.instance().reset_cache()

    def start_nothing(*_: Any, **__: Any) -> tuple[None, None]:
        return None, None

    if not is_imported:
        cluster = sys.platform == "linux"
    use("token")
    ray_constants.ENABLE_RAY_CLUSTER, services.start_api_server = False, start_nothing
    services.get_node = partial(patient, find, start_seconds())
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER, services.start_api_server = cluster, start
        services.get_node = find
        use(os.environ.get("RAY_AUTH_MODE", "disabled"))


def stay_private() -> None:
    """Make the Ray private that this process starts later and stops at its end."""
    if address():
        return
    until_exit = ExitStack()
    atexit.register(until_exit.close)  # before Ray's own function, which then runs first
    until_exit.enter_context(private())
