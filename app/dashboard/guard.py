"""Whom the dashboard answers: requests that know its token, and no page of another site."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(rb"(127\.0\.0\.1|localhost)(:\d{1,5})?")
"""The port may be another one: a tunnel has its own at either end."""

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


class Guard:
    """Stands before a web application, whose paths begin with the token.

    A request whose Host is not this machine is refused, or another site could point its own name
    here (DNS rebinding) and read the answers in a visitor's browser. A request without the token is
    refused before any route is looked up. Every answer carries the headers that confine a page.
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        if scope["type"] != "http":
            assert scope["type"] == "lifespan", "uvicorn is told to know no websockets"
            await self._application(scope, receive, send)
            return

        async def confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        given = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            refusal = PlainTextResponse("This address is not this machine's.\n", 400)
            await refusal(scope, receive, confined)
        elif not secrets.compare_digest(given.encode(), self._token.encode()):
            refusal = PlainTextResponse("The address lacks its token.\n", 403)
            await refusal(scope, receive, confined)
        else:
            inside = {**scope, "root_path": f"/{self._token}"}
            await self._application(inside, receive, confined)
