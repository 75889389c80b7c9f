"""Web server of the dashboard: access control, routes, event streams.

A request with another Host is refused, as another site could point its name here (DNS rebinding),
and one without the token before its path is looked at.
"""

from __future__ import annotations

import gzip
import json
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from coterie.app.dashboard.pages import STATIC, Pages

PATIENCE_SECONDS = 10.0
"""Seconds that a connection may be silent before its request is complete."""
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.ASCII)
"""Any port: a tunnel may use a different port at each end."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
        "style-src 'self'; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_KINDS = {"": "list", "run": "run", "comparison": "comparison"}
"""Path -> kind of the page; events/<kind> tells its versions."""


class Server(ThreadingHTTPServer):
    """Server of the pages on a listening socket; `shutdown` ends the streams, too."""

    daemon_threads = True

    def __init__(self, pages: Pages, token: str, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.pages, self.token, self.ending = pages, token, threading.Event()

    def shutdown(self) -> None:
        self.ending.set()
        super().shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(PATIENCE_SECONDS)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the visitor left
            super().handle()

    def do_GET(self) -> None:
        """Answer a request of any method; only GET is allowed."""
        path, _, query = self.requestline.split()[1].partition("?")  # `self.path` is normalised
        token, _, path = path.removeprefix("/").partition("/")
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            self._answer(400, "The Host header is not this machine.\n")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(403, "The address has no valid token.\n")
        elif self.command != "GET":
            self._answer(405, "Only GET is allowed.\n")
        else:
            self._route(path, parse_qs(query).get("at", [""])[0])

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

    def _route(self, path: str, at: str) -> None:
        folder, _, name = path.rpartition("/")
        if path in _KINDS:
            self._answer(200, self.server.pages.page(_KINDS[path], at), "text/html")
        elif folder == "events" and name in _KINDS.values():
            self._stream(name, at)
        elif folder == "static" and name in STATIC:
            kind, make = STATIC[name]
            self._answer(200, make(), kind)
        else:
            self._answer(404, "Not found.\n")

    def _stream(self, kind: str, at: str) -> None:
        """Send the version of a page and the server's time, at once and after each change."""
        self._head(200, {"Content-Type": "text/event-stream"})
        sent, pages, is_open = None, self.server.pages, True
        while is_open and not self.server.ending.is_set():
            if (version := pages.version(kind, at)) != sent:
                event = json.dumps({"version": version, "now": time.time()})
                self.wfile.write(f"data: {event}\n\n".encode())
                sent = version
            is_open = not select.select([self.connection], [], [], pages.pause(kind, at))[0]

    def _answer(self, status: int, text: str, kind: str = "text/plain") -> None:
        body, headers = text.encode(), {"Content-Type": f"{kind}; charset=utf-8"}
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, 4), "gzip"
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no HTTP."""
        self.headers = self.MessageClass()
        self._answer(code, f"{message or 'Bad request'}\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: requests contain the token."""
