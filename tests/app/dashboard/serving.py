"""Dashboard on a local port, and requests with exact headers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.app.dashboard import address
from coterie.app.dashboard.library import Library
from coterie.app.dashboard.pages import Pages
from coterie.app.dashboard.server import Server

TOKEN = "t" * 42 + "-"


@dataclass(frozen=True)
class Answer:
    """Response of a server."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """Running dashboard."""

    port: int
    server: Server

    def get(self, path: str) -> Answer:
        """Send a GET request with the token."""
        return self.ask("GET", f"/{TOKEN}{path}", [("Host", f"127.0.0.1:{self.port}")])

    def ask(self, method: str, path: str, headers: Sequence[tuple[str, str]]) -> Answer:
        """Send a request with exactly these headers; read the first line of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        is_stream = received.get("content-type", "").startswith("text/event-stream")
        text = (response.readline() if is_stream else response.read()).decode()
        connection.close()
        return Answer(response.status, received, text)


@contextmanager
def served(root: Path) -> Iterator[Served]:
    """Serve the dashboard of a directory in a thread."""
    with address.listen(0) as listener:
        server = Server(Pages(Library(root)), TOKEN, listener)
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield Served(listener.getsockname()[1], server)
        finally:
            server.shutdown()
            thread.join()
