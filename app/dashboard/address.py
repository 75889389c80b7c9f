"""Address of the dashboard: a port on the loopback interface, and a secret token kept per user."""

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
    """Return the user's token, 256 random bits; create it if there is none."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(home, "coterie", "dashboard-token")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _stored(path)
    made = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(made)
    return made


def _stored(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.getuid():
        raise ConfigError(f"{path}: other users can read it; remove it to get a new token")
    text = path.read_text(encoding="ascii", errors="replace")
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{path}: not a token; remove it to get a new one")
    return text


def listen(port: int | None) -> socket.socket:
    """Return a socket on the loopback interface: at `port`, else at `PORT` or a free one."""
    if port is not None and not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: a port is a number from 0 to {2**16 - 1}")
    try:
        return socket.create_server((HOST, PORT if port is None else port))
    except OSError as error:
        if port is None:
            return socket.create_server((HOST, 0))
        raise ConfigError(f"--port {port}: {error.strerror}") from None
