#!/usr/bin/env python3
"""How long it takes from a decision id to its cause, the next admitted time, and an override that another gateway obeys.

    benches/admin/night.py target/release/tollgate [--times 5]

Two gateways share one Redis (`redis-server` of the path). A caller is refused by the first one. Then, as an operator at a terminal: `tollgate why ID`, `tollgate key raise` on the first
gateway, and requests to the second one until it admits. Every program starts anew, so its start is part of the time.
"""
import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

FILE = """[server]
listen = "127.0.0.1:{port}"
workers = 1
[admin]
listen = "127.0.0.1:{admin}"
operators = [{{ name = "ann", token = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" }}]
[store]
kind = "redis"
url = "redis://127.0.0.1:{redis}"
when_down = "refuse"
answer_within = "500ms"
key_secret_file = "secret"
[identities.tenant]
key = ["header:x-key"]
when_missing = "refuse"
[limits.search]
rate = "1/day"
per = "tenant"
[[routes]]
match = "/**"
upstream = "builtin:echo"
limits = ["search"]
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(port, key):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/", headers={"x-key": key})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def wait_for(port, key, status):
    while True:
        try:
            got, body = ask(port, key)
            if got == status:
                return body
        except OSError:
            time.sleep(0.02)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tollgate")
    arguments.add_argument("--times", type=int, default=5)
    given = arguments.parse_args()
    redis, ports, admins = free_port(), [free_port(), free_port()], [free_port(), free_port()]
    environment = dict(os.environ, TOLLGATE_TOKEN="test")
    with tempfile.TemporaryDirectory() as folder:
        running = [subprocess.Popen(["redis-server", "--port", str(redis), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)]
        try:
            with open(os.path.join(folder, "secret"), "w") as out:
                out.write("a secret that gateways share")
            for number in range(2):
                file = os.path.join(folder, f"{number}.toml")
                with open(file, "w") as out:
                    out.write(FILE.format(port=ports[number], admin=admins[number], redis=redis))
                running.append(subprocess.Popen([given.tollgate, "run", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            both = [f"127.0.0.1:{admin}" for admin in admins]

            def run(*words):
                done = subprocess.run([given.tollgate, *words], env=environment, capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"{words}: {done.stdout}{done.stderr}")
                return done.stdout

            whole = []
            for number in range(given.times):
                key = f"customer-{number}"
                wait_for(ports[0], key, 200)
                document = json.loads(wait_for(ports[0], key, 429))
                wait_for(ports[1], key, 429)
                begun = time.monotonic()
                why = run("why", document["decision_id"], "--admin", ",".join(reversed(both)))
                told = time.monotonic()
                if "search" not in why or "refused until" not in why:
                    sys.exit(f"the cause or the next admitted time is missing:\n{why}")
                run("key", "raise", "tenant", key, "--limit", "search", "--unlimited", "--for", "1m", "--reason", "a ticket", "--admin", both[0])
                raised = time.monotonic()
                wait_for(ports[1], key, 200)
                obeyed = time.monotonic()
                whole.append(obeyed - begun)
                spans = [told - begun, raised - told, obeyed - raised, obeyed - begun]
                print("why %.0f ms, raise %.0f ms, obeyed by the other gateway %.0f ms later: %.0f ms" % tuple(1000 * span for span in spans), flush=True)
            print(f"median {1000 * statistics.median(whole):.0f} ms, longest {1000 * max(whole):.0f} ms")
        finally:
            for one in reversed(running):
                one.terminate()
                one.wait()


if __name__ == "__main__":
    sys.exit(main())
