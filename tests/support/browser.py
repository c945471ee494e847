"""Debian's Chromium without a window, driven over a pipe (the DevTools protocol); ended by pid."""

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import program

ANSWER_SECONDS = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-pipe",
)

_LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from 3 and answers on 4."""


class Browser:
    """One tab. `complaints` are what the console and the page reported that is a warning or worse."""

    def __init__(self, write_fd, read_fd):
        self._write, self._read = write_fd, read_fd
        self._pending = b""
        self._number = 0
        self._session = None
        self._events = []
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Return the result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_SECONDS
        while (answer := self._message(end)).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, *, width, scheme, medium="screen"):
        """Show a file at a width in CSS pixels, in the light or the dark scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)
        self.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")

    def wait(self, event):
        """Wait for an event of the page."""
        end = time.monotonic() + ANSWER_SECONDS
        while event not in self._events:
            self._note(self._message(end))
        self._events.clear()

    def ask(self, expression):
        """Return the JSON value of an expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path):
        """Save the whole page as a PNG file, however long it is."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def _note(self, message):
        method, parameters = message.get("method", ""), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
            entry = parameters["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}".rstrip())
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"fetched {parameters['request']['url']}")
        self._events.append(method)

    def _message(self, end):
        while b"\0" not in self._pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"Chromium: no answer within {ANSWER_SECONDS} s")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise EOFError("Chromium ended")
            self._pending += data
        raw_message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(raw_message)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, contextlib.ExitStack() as stack:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        stack.callback(os.close, ours_out)
        stack.callback(os.close, ours_in)
        flags = [*_FLAGS, f"--user-data-dir={profile}"]
        command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), program("chromium"), *flags]
        environment = os.environ | {"HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile}
        with Path(profile, "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
