"""`coterie flower`: Flower's services of a node, without pauses and imports between messages.

Flower starts a process for each message, which imports Flower and the app for seconds, and a
SuperNode without a message sleeps for 3 s. Here each message has a process of its own, too, but it
is a fork of a resident process, which has imported both and sees no message. The SuperNode asks
the SuperLink again after a quarter of the time that it has waited, at most 3 s, and answers its
executor when there is a message. `flower-supernode` and `flower-superexec` work with the same
options, also one of them beside one of these.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.strategies.flower import private

_MESSAGE = "flwr-clientapp"  # Flower's program for a message

_log = logging.getLogger("coterie.node")


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Run Flower's SuperNode or SuperExec in this process."""
    parser.add_argument("service", choices=["supernode", "superexec"])
    parser.add_argument("options", nargs=argparse.REMAINDER, help="those of Flower's own program")
    options = parser.parse_args(arguments)
    sys.argv = [f"flower-{options.service}", *options.options]
    (program, *_) = entry_points(group="console_scripts", name=sys.argv[0])
    if options.service == "superexec":
        _fork_messages()
    else:
        _wait_less()
    program.load()()


def _wait_less() -> None:
    try:
        private.change_waits(growing_pause(), hold)
    except (ImportError, AttributeError, KeyError) as error:
        _log.warning("%s: the SuperNode waits in steps of 3 s, as Flower does", error)


def growing_pause() -> Callable[[float], None]:
    """Return a `sleep(most)` that is short when a wait begins, and at most `most` seconds later."""
    before, began = 0.0, 0.0

    def pause(most: float) -> None:
        nonlocal before, began
        if most != before:  # SuperNodes wait 3 s for a message and 0.5 s for its response
            before, began = most, time.monotonic()
        time.sleep(min(most, max(most / 30, (time.monotonic() - began) / 4)))

    return pause


def hold(acquire: Callable[..., Any], request: object, state: object, most: float = 1.0) -> Any:
    """Answer an executor when there is a task for it, at the latest after `most` seconds."""
    end = time.monotonic() + most
    while not (answer := acquire(request, state)).token and time.monotonic() < end:
        time.sleep(0.05)
    return answer


def _fork_messages() -> None:
    """Let the resident process fork whenever this process wants to start Flower's for a message."""
    begin, command = subprocess.Popen.__init__, [sys.executable, "-P", "-m", __spec__.name]
    start: Any = partial(subprocess.Popen, command, bufsize=0, stdin=subprocess.PIPE)
    resident = start()

    def begin_or_fork(self: Any, words: Any, *rest: Any, **more: Any) -> None:
        nonlocal resident
        if words[0] != _MESSAGE:
            begin(self, words, *rest, **more)
            return
        # Flower's executor drops the object, which therefore may stay empty.
        line = json.dumps(words).encode() + b"\n"
        try:
            resident.stdin.write(line)
        except BrokenPipeError:
            _log.error("the resident process ended (exit code %d): another one", resident.wait())
            resident = start()
            resident.stdin.write(line)

    subprocess.Popen.__init__ = begin_or_fork  # type: ignore[assignment,method-assign]


def main() -> None:
    """Fork a process for each line of the standard input, the command of a message."""
    (program, *_) = entry_points(group="console_scripts", name=_MESSAGE)
    run = program.load()
    try:
        private.change_install(partial(install, _load_app()))
    except Exception as error:  # also of an app that is damaged, which its messages will say
        _log.warning("%s: each message imports the app again", error)
        _forget_app()
    gc.freeze()
    for line in sys.stdin:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if not os.fork():
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = json.loads(line)
            run()
            return


def install(app: Path | None, real: Callable[..., Any], fab: bytes, **options: Any) -> Any:
    """Install the app of a message, unless it is `app`, which this process has loaded."""
    if app is not None and app.name.endswith(f".{hashlib.sha256(fab).hexdigest()[:8]}"):
        return app
    _forget_app()
    return real(fab, **options)


def _load_app() -> Path | None:
    """Import the ClientApp that was installed last, as Flower does; return its directory."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    apps = sorted(home.glob("apps/coterie.coterie.*"), key=lambda app: app.stat().st_mtime)
    _forget_app()
    sys.path[:0] = map(str, apps[-1:])
    import_module("coterie.app.client")
    return apps[-1] if apps else None


def _forget_app() -> None:
    """Forget the modules of Coterie, but not the libraries that they have imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
        del sys.modules[name]


if __name__ == "__main__":
    main()
