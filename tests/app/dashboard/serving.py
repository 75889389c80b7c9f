"""A dashboard that answers on a port of this machine, and requests written by hand."""

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
    """What a server said."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A dashboard that is up."""

    port: int
    server: Server

    def get(self, path: str) -> Answer:
        """Ask as a browser does that knows the token."""
        return self.ask("GET", f"/{TOKEN}{path}", [("Host", f"127.0.0.1:{self.port}")])

    def ask(self, method: str, path: str, headers: Sequence[tuple[str, str]]) -> Answer:
        """Send exactly this; of a stream, read its first line."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        is_stream = told.get("content-type", "").startswith("text/event-stream")
        text = (response.readline() if is_stream else response.read()).decode()
        connection.close()
        return Answer(response.status, told, text)


@contextmanager
def served(root: Path) -> Iterator[Served]:
    """The dashboard of a directory, in a thread of this process."""
    with address.listen(0) as listener:
        server = Server(Pages(Library(root)), TOKEN)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(listener.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join()
