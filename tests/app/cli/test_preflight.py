"""`coterie preflight`: the connection to the relay."""

from __future__ import annotations

import socket
import threading

import pytest

from coterie.app.cli import preflight


def test_the_relay_is_reached_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Flower's SuperNode does; a proxy that refuses is named."""
    lines = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                lines.extend(connection.recv(65536).splitlines()[:1])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with pytest.raises(OSError, match="403 Forbidden"):
            preflight._relay("relay.example.org:9092", None)
        thread.join()
    (line,) = lines
    assert line.startswith(b"CONNECT relay.example.org:9092 ")
