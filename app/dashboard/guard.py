"""Access control of the dashboard: token, Host header and security headers."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(rb"(127\.0\.0\.1|localhost)(:\d{1,5})?")
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


class Guard:
    """ASGI middleware for an application whose paths begin with the token.

    It refuses a request whose Host is not this machine; otherwise another site could point its name
    here (DNS rebinding) and read responses in a visitor's browser. It refuses a request without the
    token before any route is resolved. Every response has headers that confine the page.
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            assert scope["type"] == "lifespan", "uvicorn runs without websockets"
            await self._application(scope, receive, send)
            return

        async def confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        token = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            refusal = PlainTextResponse("The Host header is not this machine.\n", 400)
            await refusal(scope, receive, confined)
        elif not secrets.compare_digest(token.encode(), self._token.encode()):
            refusal = PlainTextResponse("The address has no valid token.\n", 403)
            await refusal(scope, receive, confined)
        else:
            inside = {**scope, "root_path": f"/{self._token}"}
            await self._application(inside, receive, confined)
