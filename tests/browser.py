"""A headless Chromium, driven over the WebDriver protocol (w3.org/TR/webdriver2) with nothing but the library."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
]


def find_browser() -> tuple[str, str] | None:
    """The browser and its driver; None where either is not installed."""
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._address = address
        self._session = session

    def command(self, path: str, body: Mapping[str, Any]) -> Any:
        """One command of the protocol."""
        return _post(f"{self._address}/session/{self._session}/{path}", body)

    def open(self, file: Path) -> None:
        """Show a file."""
        self.command("url", {"url": file.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.command("execute/sync", {"script": f"return {script}", "args": []})

    def resize(self, width: int, height: int) -> None:
        """The size of the window in CSS pixels, also below what a desktop window may have."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def devtools(self, name: str, parameters: Mapping[str, Any]) -> None:
        """One command of the DevTools protocol."""
        self.command("goog/cdp/execute", {"cmd": name, "params": parameters})

    def console(self) -> list[str]:
        """What the console said since it was last asked."""
        return [entry["message"] for entry in self.command("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that were asked for since it was last asked."""
        entries = self.command("se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def start_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in `folder`; closed at the end, with its driver."""
    found = find_browser()
    assert found is not None
    browser, driver = found
    port = _free_port()
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address)
        options = {"binary": browser, "args": [*_ARGUMENTS, f"--user-data-dir={folder}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = _post(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(address, session)
        finally:
            _send(urllib.request.Request(f"{address}/session/{session}", method="DELETE"))
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(address: str) -> None:
    for _ in range(100):
        try:
            _send(urllib.request.Request(f"{address}/status"))
        except urllib.error.URLError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(address)


def _post(address: str, body: Mapping[str, Any]) -> Any:
    data = json.dumps(body).encode()
    return _send(urllib.request.Request(address, data, {"Content-Type": "application/json"}))


def _send(request: urllib.request.Request) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.load(answer)["value"]
