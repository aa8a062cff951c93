#!/usr/bin/env python3
"""What an open page costs: CPU of the admin thread and of the whole gateway, while requests are refused, without and with readers of the events.

    benches/admin/page_cost.py target/release/tollgate [--keys 1000000] [--rate 10000] [--seconds 20]

Every key has a bucket that is empty. Then requests of random keys are refused at the rate, pipelined over one connection.
"""
import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

FILE = """[server]
listen = "127.0.0.1:{port}"
workers = 1
[admin]
listen = "127.0.0.1:{admin}"
[log]
access = "off"
[address]
trusted_proxies = ["127.0.0.0/8"]
[limits.per_caller]
rate = "1/day"
burst = 1
per = "address"
memory = "256MiB"
[[routes]]
match = "/**"
upstream = "builtin:echo"
limits = ["per_caller"]
"""
PIPELINED = 50


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def request(key):
    return b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.%d.%d.%d\r\n\r\n" % (key >> 16 & 255, key >> 8 & 255, key & 255)


class Load:
    """Sends requests, and counts the responses by status."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.counts = {b"200": 0, b"429": 0}
        self.tail = b""

    def send(self, keys):
        self.socket.sendall(b"".join(map(request, keys)))
        left = len(keys)
        while left:
            data = self.tail + self.socket.recv(1 << 18)
            for status in self.counts:
                found = data.count(b"HTTP/1.1 %s " % status)
                self.counts[status] += found
                left -= found
            # A status line may be cut in two; what is kept is too short to be counted twice.
            self.tail = data[-12:] if not data.endswith(b"}") else b""

    def at_rate(self, keys, rate, until):
        sent, begun = 0, time.monotonic()
        while time.monotonic() < until:
            self.send([random.randrange(keys) for _ in range(PIPELINED)])
            sent += PIPELINED
            ahead = sent / rate - (time.monotonic() - begun)
            if ahead > 0:
                time.sleep(ahead)


def cpu(pid, thread):
    """Seconds of CPU of one thread by its name, or of the process."""
    nanoseconds = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        name, spent = (open(f"/proc/{pid}/task/{task}/{file}").read() for file in ("comm", "schedstat"))
        if thread is None or name.strip() == thread:
            nanoseconds += int(spent.split()[0])
    return nanoseconds / 1e9


def read_events(port, stop, counted):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/events") as events:
        while not stop.is_set():
            length = len(events.readline())
            counted[0] += length


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tollgate")
    arguments.add_argument("--keys", type=int, default=1_000_000)
    arguments.add_argument("--rate", type=int, default=10_000)
    arguments.add_argument("--seconds", type=float, default=20)
    given = arguments.parse_args()
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "gateway.toml")
        with open(file, "w") as out:
            out.write(FILE.format(port=port, admin=admin))
        gateway = subprocess.Popen([given.tollgate, "run", file], stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    load = Load(port)
                    break
                except OSError:
                    time.sleep(0.05)
            for key in range(0, given.keys, PIPELINED):
                load.send(range(key, key + PIPELINED))
            print(f"{load.counts[b'200']} keys were admitted, {load.counts[b'429']} refused", flush=True)
            for readers in (0, 1, 4):
                stop, counted = threading.Event(), [0]
                threads = [threading.Thread(target=read_events, args=(admin, stop, counted), daemon=True) for _ in range(readers)]
                for thread in threads:
                    thread.start()
                load.at_rate(given.keys, given.rate, time.monotonic() + 2)
                refused = load.counts[b"429"]
                before, begun = (cpu(gateway.pid, "admin"), cpu(gateway.pid, None)), time.monotonic()
                load.at_rate(given.keys, given.rate, begun + given.seconds)
                span = time.monotonic() - begun
                own, whole = cpu(gateway.pid, "admin") - before[0], cpu(gateway.pid, None) - before[1]
                rate = (load.counts[b"429"] - refused) / span
                print(
                    f"{readers} readers: {rate:.0f} refusals/s, admin thread {100 * own / span:.2f} % of a core, whole gateway {100 * whole / span:.1f} %, "
                    f"{counted[0] / span / 1024:.0f} KiB/s of events",
                    flush=True,
                )
                stop.set()
                for thread in threads:
                    thread.join()
        finally:
            gateway.terminate()
            gateway.wait()


if __name__ == "__main__":
    sys.exit(main())
