#!/usr/bin/env python3
"""Takes the picture of the operator's page: docs/screenshot.py PROGRAM [FILE.png]. Needs chromium.

It runs the gateway with some callers for a few seconds. No test compares the picture: its times differ.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

CONFIG = """
[server]
listen = "http://127.0.0.1:{port}"
workers = 2
[admin]
listen = "127.0.0.1:{admin}"
[log]
access = "off"
keys = "plain"
[identities.customer]
key = "header:x-api-key"
when_missing = "use:address"
[limits.per_customer]
rate = "600/minute"
burst = 40
per = "customer"
[limits.search]
rate = "120/minute"
burst = 10
per = "customer"
candidate = {{ rate = "60/minute" }}
[limits.total]
rate = "6000/minute"
burst = 500
per = "everyone"
mode = "shadow"
[[routes]]
match = "GET /search"
upstream = "builtin:echo"
limits = ["per_customer", "search", "total"]
[[routes]]
match = "/**"
upstream = "builtin:echo"
limits = ["per_customer", "total"]
"""
# Requests a second of each caller, and the path.
CALLERS = [("acme", 25, "/search"), ("globex", 14, "/items/7"), ("initech", 6, "/search"), ("hooli", 30, "/report"), ("umbrella", 2, "/search")]
SECONDS = 20
WIDTH, HEIGHT = 1100, 880


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def call(port, key, a_second, path, until):
    while time.monotonic() < until:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"x-api-key": key})
        try:
            urllib.request.urlopen(request, timeout=5).read()
        except urllib.error.HTTPError as refused:
            refused.read()
        time.sleep(1 / a_second)


class Browser:
    """A page in chromium, driven over the pipe of its DevTools protocol (descriptors 3 and 4)."""

    def __init__(self, home):
        self.last, self.session, self.rest = 0, None, b""
        command = 'exec chromium "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1'
        options = ["--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={home}/profile"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "HOME": home}}
        self.process = subprocess.Popen(["sh", "-c", command, "sh", *options], **pipes)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            while b"\0" not in self.rest:
                read = os.read(self.process.stdout.fileno(), 1 << 20)
                assert read, "the browser has ended"
                self.rest += read
            one, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self.last:
                assert "error" not in answer, answer
                return answer["result"]


def main():
    program, file = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent / "src/pictures/page.png")
    with tempfile.TemporaryDirectory() as home:
        port, admin = free_port(), free_port()
        (Path(home) / "gateway.toml").write_text(CONFIG.format(port=port, admin=admin))
        gateway = subprocess.Popen([program, "run", "--config", f"{home}/gateway.toml"])
        try:
            browser = Browser(home)
            browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz")
                    break
                except OSError:
                    time.sleep(0.05)
            browser.call("Page.navigate", url=f"http://127.0.0.1:{admin}/")
            until = time.monotonic() + SECONDS
            callers = [threading.Thread(target=call, args=(port, *caller, until)) for caller in CALLERS]
            for one in callers:
                one.start()
            time.sleep(SECONDS - 1)
            picture = browser.call("Page.captureScreenshot", format="png")["data"]
            file.write_bytes(base64.b64decode(picture))
            for one in callers:
                one.join()
            browser.call("Browser.close")
        finally:
            gateway.terminate()
            gateway.wait()
    print(f"{file}: {file.stat().st_size >> 10} KiB")


main()
