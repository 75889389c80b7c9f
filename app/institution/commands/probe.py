"""Look at a machine and its relay from outside: connection, certificate, executor, disk."""

from __future__ import annotations

import http.client
import shutil
import ssl
import time
import urllib.request
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError

RENEW_DAYS = 30
"""Days before the end of a certificate at which its renewal is asked for."""
_RENEW = "renew it (coterie certificates DIRECTORY --hosts ..., then restart the SuperLink"
_EXECUTOR = b"superexec\0"
_SECONDS = 10.0
_DAY = 86400.0


def machine(directory: Path) -> dict[str, Any]:
    """Return whether Flower's executor runs here, and the free bytes of the disk of the runs."""
    executor = False
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # gone in the meantime, or another user's
            executor |= _EXECUTOR in path.read_bytes()
    return {"executor": executor, "free_bytes": shutil.disk_usage(directory).free}


def relay(address: str, authority: Path | None) -> tuple[float, float | None]:
    """Connect to a SuperLink as a node does, through a proxy if `HTTPS_PROXY` is set.

    Returns the end of its certificate (seconds since 1970), and the seconds between its clock and
    this one, None if it does not say. `authority`: file of the certificate that has signed the
    relay's. OSError: there is no connection, or the certificate is not valid.
    """
    ends = list[float]()

    class Connection(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            assert isinstance(self.sock, ssl.SSLSocket)
            certificate = self.sock.getpeercert() or {}
            ends.append(ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    class Handler(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(Connection, request, context=context)

    context = ssl.create_default_context(cafile=authority)
    opener = urllib.request.build_opener(Handler(context=context))
    try:
        with opener.open(f"https://{address}/health", timeout=_SECONDS) as response:
            date = response.headers["Date"]
    except URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        raise OSError(
            f"the certificate of {address} is not valid: {error.reason.verify_message}; {_RENEW} "
            "and every SuperNode)"
        ) from None
    apart = None if date is None else abs(parsedate_to_datetime(date).timestamp() - time.time())
    return ends[-1], apart


def certificate(until: float) -> str:
    """Write until when a certificate is valid; in its last days how to renew it."""
    days = (until - time.time()) / _DAY
    line = f"certificate valid until {time.strftime('%Y-%m-%d', time.gmtime(until))}"
    if days > RENEW_DAYS:
        return line
    return f"{line}, {max(days, 0):.0f} days left: {_RENEW})"
