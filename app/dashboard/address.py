"""Where the dashboard answers: a port that only this machine reaches, and the token in its address.

The token is the user's and outlives the server, so that open pages find a restarted one.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
from pathlib import Path

from coterie.app.config.keys import ConfigError

HOST = "127.0.0.1"
PORT = 8321
_TOKEN = re.compile(r"[\w-]{43}", re.ASCII)


def token() -> str:
    """The user's token, 256 random bits; made when there is none.

    Raises
    ------
    ConfigError
        The file that holds it can be read by others, or holds something else.
    """
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(home, "coterie", "dashboard-token")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _kept(path)
    made = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(made)
    return made


def _kept(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.getuid():
        raise ConfigError(f"{path}: others could read it: remove it, and a new one is made")
    text = path.read_text(encoding="ascii", errors="replace")
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{path}: this is no token: remove it, and a new one is made")
    return text


def listen(port: int | None) -> socket.socket:
    """A socket on this port of the loopback interface; without one `PORT`, or else any free one.

    Raises
    ------
    ConfigError
        The port cannot be had.
    """
    if port is not None and not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: a port is a number below {2**16}")
    try:
        return socket.create_server((HOST, PORT if port is None else port))
    except OSError as error:
        if port is None:
            return socket.create_server((HOST, 0))
        raise ConfigError(f"--port {port}: {error.strerror}") from None
