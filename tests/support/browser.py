# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its own protocol on two pipes: no library, no port.

It is the program that CHROMIUM names, one of its names on the PATH, or one that Playwright downloaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLAYWRIGHT = ("chromium*/*/chrome", "chromium*/*/headless_shell", "chromium*/*/chrome-headless-shell")
FLAGS = (
    "--headless",
    "--no-sandbox",  # the pages are the tests' own, and root has no other way
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
SECONDS = 60  # that an answer may take on a busy machine

# what a page is, measured in it
LOOK = """(() => ({
  wide: document.documentElement.scrollWidth, window: innerWidth,
  ready: document.readyState === "complete",
  hidden: [...document.querySelectorAll(".wide:has(table)")].map(w => w.scrollWidth - w.clientWidth),
  pictures: [...document.images].map(i => i.complete && i.naturalWidth > 0),
  shown: [...document.images].map(i => i.currentSrc), text: document.body.innerText,
}))()"""


def find_chromium() -> str | None:
    """Return the program; None: there is none."""
    if named := os.environ.get("CHROMIUM"):
        return named
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    files = (file for form in PLAYWRIGHT for file in sorted(cache.glob(form)))
    return next((str(file) for file in files if os.access(file, os.X_OK)), None)


class Browser:
    """A browser with one page.

    Args:
        program: of Chromium.
        profile: an empty folder.

    Attributes:
        complaints: what the pages wrote on the console, errors and refused loads among it.
        requests: addresses that were requested.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number, self._rest, self._session = 0, b"", ""
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # the protocol has file descriptors 3 and 4
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def open(self, address: str, *, width: int = 1200, dark: bool = False, media: str = "") -> dict[str, Any]:
        """Open a page, and return what `LOOK` measures in it.

        Args:
            address: of the page.
            width: of the window, in pixels.
            dark: the user likes dark pages.
            media: "print", or empty for the screen.
        """
        self.complaints.clear()
        self.requests.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._call("Page.navigate", url=address)
        self._until("Page.loadEventFired")
        wait = "Promise.all([...document.images].map(i => i.decode().catch(() => 0)))"
        self._call("Runtime.evaluate", expression=wait, awaitPromise=True)
        return self._call("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"]["value"]

    def wait_for(self, text: str, *, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait, without a navigation of the test's own, until the page shows a text; return what `LOOK` measures.

        Args:
            text: that the page is to show.
            seconds: until this fails.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError, KeyError):  # of a page that is just being left
                seen = self._call("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"]["value"]
                if seen["ready"] and text in seen["text"]:
                    return seen
            time.sleep(0.05)
        raise RuntimeError(f"the page did not show {text!r} within {seconds} s")

    def measure(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        import base64

        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, RuntimeError):
            self._session = ""
            self._call("Browser.close")
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, method: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _until(self, event: str) -> None:
        while (message := self._next()).get("method") != event:
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what a page says and requests."""
        values, method = message.get("params", {}), message.get("method")
        if method == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(values["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(values["exceptionDetails"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise RuntimeError(f"the browser did not answer within {SECONDS} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended; is it Chromium, and are its libraries there?")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)
