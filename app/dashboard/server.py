"""Web server of the dashboard: routes, event streams, shutdown."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.middleware.gzip import GZipMiddleware
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from coterie.app.dashboard.guard import Guard
from coterie.app.dashboard.pages import STATIC, Pages

_END_SECONDS = 1
"""Maximum delay of the shutdown by an unread response."""


PATIENCE_SECONDS = 10.0
"""Maximum seconds that a connection may be open without a complete request."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Connection that is closed if no complete request arrives in time."""

    _answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        self._answered += 1
        super().on_response_complete()

    def _wait(self) -> None:
        self.loop.call_later(PATIENCE_SECONDS, self._look, self._answered)

    def _look(self, answered: int) -> None:
        """Close the connection unless a response is in progress or was sent recently."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self._answered == answered:
            self.transport.close()
        elif not self.transport.is_closing():
            self._wait()


class Server(uvicorn.Server):
    """Server that ends at once when interrupted, even with open streams."""

    def __init__(self, pages: Pages, token: str) -> None:
        self._ending = asyncio.Event()
        application = Guard(_routes(pages, self._ending), token)
        super().__init__(
            uvicorn.Config(
                application,
                http=Connection,
                ws="none",
                lifespan="off",
                log_level="critical",  # a request log would contain tokens
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_END_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then shut down."""
        self._ending.set()
        await super().shutdown(sockets)


def _routes(pages: Pages, ending: asyncio.Event) -> FastAPI:
    application = FastAPI(openapi_url=None)
    application.add_middleware(GZipMiddleware, compresslevel=4)

    @application.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        kind, make = STATIC[name]
        return Response(make(), media_type=kind)

    def show(kind: str, path: str) -> None:
        @application.get(path, name=kind)
        def page(at: str = "") -> HTMLResponse:
            return HTMLResponse(pages.page(kind, at))

        @application.get(f"/events/{kind}", response_class=EventSourceResponse)
        async def events(at: str = "") -> AsyncIterator[ServerSentEvent]:
            """Send the version of a page and the server's time, at once and after each change."""
            sent = None
            while not ending.is_set():
                version = await run_in_threadpool(pages.version, kind, at)
                if version != sent:
                    yield ServerSentEvent(data={"version": version, "now": time.time()})
                    sent = version
                with suppress(TimeoutError):
                    await asyncio.wait_for(ending.wait(), pages.pause(kind, at))

    show("list", "/")
    show("run", "/run")
    show("comparison", "/comparison")
    return application
