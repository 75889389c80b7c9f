"""Browser for tests: Chromium, controlled over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE = 180.0  # beside other tests, a server may need a minute to import


class Tab:
    """One page. `errors` collects its exceptions and refused resources."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors = browser.errors.setdefault(session, [])

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def go(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def front(self) -> None:
        """Activate this tab of its window."""
        self.ask("Page.bringToFront")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                if self.value(expression):
                    return
            except AssertionError:  # the page is being replaced
                pass
            assert time.monotonic() < until, f"{expression} is never true: {self.text[:2000]}"
            time.sleep(0.1)

    @property
    def text(self) -> str:
        """Text of the page."""
        return str(self.value("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """Chromium, headless."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self.errors: dict[str, list[str]] = {}

    def tab(self, *, window: bool = True) -> Tab:
        """Open a tab in a new window, or in front of the others in the last window."""
        target = self.ask("Target.createTarget", url="about:blank", newWindow=window)
        target_id = target["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target_id, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log"):
            tab.ask(f"{domain}.enable")
        return tab

    def ask(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._send, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        errors = self.errors.setdefault(event.get("sessionId", ""), [])
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            errors.append(str(params["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            errors.append(str(params["entry"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            block = os.read(self._receive, 1 << 20)
            assert block, "the browser has ended"
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Yield a browser that ends with the block; skip the test without Chromium."""
    if _BROWSER is None:
        pytest.skip("no chromium")
    (from_us, send), (receive, to_us) = os.pipe(), os.pipe()
    command = [
        *("bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "bash", _BROWSER),
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "--window-size=1280,900"),
    ]
    with subprocess.Popen(
        command, pass_fds=(from_us, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(from_us)
        os.close(to_us)
        try:
            yield Browser(send, receive)
        finally:
            process.kill()
            os.close(send)
            os.close(receive)
