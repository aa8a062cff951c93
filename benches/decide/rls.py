#!/usr/bin/env python3
"""What decisions of Envoy's rate limit service cost: store calls on Redis, and CPU beside a proxied refusal.

    benches/decide/rls.py BINARY [COUNT]      COUNT: decisions of the first part (64000); needs h2load (nghttp2), redis-server and redis-cli; loopback only

Store calls: 64 connections ask about callers that are within their limits, so that every decision is one of the store. The
script counts the commands that the gateway sends by Redis' own INFO commandstats. envoyproxy/ratelimit sends two for each limit
of a request, INCRBY and EXPIRE, in one pipeline (pipelineAppend in src/redis/fixed_cache_impl.go). CPU: the same program refuses requests to a route, and
requests about the same limit over gRPC, in alternation, with the same generator. Each round checks by the gateway's
metrics and h2load's counts that every response was the one that is measured.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proxy"))
from processes import Proxy, cpu_ns, free_port, wait_for  # noqa: E402

CONNECTIONS = 64
CALLERS = 8
# The commands of envoyproxy/ratelimit for a decision about one limit.
PEER = 2
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def field(number, value):
    """A length-delimited member of a protobuf message; all lengths here are below 128."""
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def request(user):
    """A gRPC message: domain `edge`, one descriptor with `user`."""
    entry = field(1, b"user") + field(2, user.encode())
    message = field(1, b"edge") + field(2, field(1, entry))
    return b"\0" + len(message).to_bytes(4, "big") + message


def start(binary, folder, limit, store=""):
    """A gateway with a route and a rule on the limit `users`."""
    public, decide, admin = free_port(), free_port(), free_port()
    file = folder / "gateway.toml"
    file.write_text(f"""
[server]
listen = "127.0.0.1:{public}"
workers = 1
[admin]
listen = "127.0.0.1:{admin}"
[log]
access = "off"
[decide]
listen = "grpc://127.0.0.1:{decide}"
[limits.users]
{limit}
per = "descriptor"
[[decide.rules]]
domain = "edge"
descriptor = [{{ key = "user" }}]
limits = ["users"]
[limits.routed]
{limit}
per = "header:x-user"
when_missing = "refuse"
[[routes]]
match = "/**"
upstream = "builtin:echo"
limits = ["routed"]
{store}
""")
    gateway = Proxy("tollgate", [binary, "run", "--config", str(file)], public)
    wait_for(decide, "the service")
    wait_for(admin, "the admin listener")
    return gateway, public, decide, admin


def outcomes(admin):
    """The decisions of the service so far, by outcome."""
    text = subprocess.run(["curl", "-s", f"http://127.0.0.1:{admin}/metrics"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r'^tollgate_rate_limit_service_requests_total\{outcome="(\w+)"\} (\d+)', text, re.M)
    assert found, text[:500]
    return {outcome: int(count) for outcome, count in found}


def load(arguments, url, count, connections):
    return subprocess.Popen(["h2load", "-n", str(count), "-c", str(connections), "-t", "1", *arguments, url],
                            stdout=subprocess.PIPE, text=True)


def grpc(folder, port, user, count, connections):
    body = folder / f"{user}.bin"
    body.write_bytes(request(user))
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body)]
    return load(headers, f"http://127.0.0.1:{port}{PATH}", count, connections)


def finished(run):
    """The responses of a run by the first digit of their status."""
    text = run.communicate()[0]
    assert run.returncode == 0, text
    counts = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    return [int(count) for count in counts.groups()]


def store_calls(binary, count, lease):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        redis = Proxy("redis", ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", name], port)
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        store = f'[store]\nkind = "redis"\nurl = "redis://127.0.0.1:{port}/0"\nwhen_down = "refuse"\nanswer_within = "2s"\nkey_secret_file = "secret"\n'
        gateway, _, decide, admin = start(binary, folder, f'rate = "1000000/second"\nburst = 1000000\nlease = {lease}', store)
        try:
            ask = lambda command: subprocess.run(["redis-cli", "-p", str(port), *command.split()], capture_output=True, text=True, check=True).stdout
            finished(grpc(folder, decide, "warm", 640, CONNECTIONS))
            ask("CONFIG RESETSTAT")
            before = outcomes(admin)
            runs = [grpc(folder, decide, f"user{n}", count // CALLERS, CONNECTIONS // CALLERS) for n in range(CALLERS)]
            for run in runs:
                assert finished(run) == [count // CALLERS, 0, 0, 0]
            stats = {name: int(calls) for name, calls in re.findall(r"cmdstat_([\w|]+):calls=(\d+)", ask("INFO commandstats"))}
            after = outcomes(admin)
            assert after["ok"] - before["ok"] == count and after["over_limit"] == before["over_limit"], (before, after)
            scripts = sum(stats.get(name, 0) for name in ("evalsha", "eval", "fcall"))
            return scripts, stats
        finally:
            gateway.stop()
            redis.stop()


def cpu(binary, count, rounds):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gateway, public, decide, admin = start(binary, folder, 'rate = "1/hour"\nburst = 1')
        try:
            def service():
                return grpc(folder, decide, "ann", count, CONNECTIONS), [count, 0, 0, 0]

            def route():
                return load(["-H", "x-user: ann"], f"http://127.0.0.1:{public}/", count, CONNECTIONS), [0, 0, count, 0]

            # The units of both limits.
            finished(grpc(folder, decide, "ann", 1, 1))
            finished(load(["-H", "x-user: ann"], f"http://127.0.0.1:{public}/", 1, 1))
            figures = {service: [], route: []}
            for _ in range(rounds):
                for kind, found in figures.items():
                    before, begin = outcomes(admin), cpu_ns(gateway.process.pid)
                    run, expected = kind()
                    assert finished(run) == expected
                    found.append((cpu_ns(gateway.process.pid) - begin) / count / 1000)
                    refused = outcomes(admin)["over_limit"] - before["over_limit"]
                    assert refused == (count if kind is service else 0), refused
            return [sorted(found)[len(found) // 2] for found in figures.values()], figures.values()
        finally:
            gateway.stop()


def main():
    binary = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 64_000
    calls = {}
    for lease in ("false", "true"):
        calls[lease], stats = store_calls(binary, count, lease)
        each = count / max(calls[lease], 1)
        print(f"{count} decisions, {CONNECTIONS} connections, {CALLERS} callers, lease = {lease}: {calls[lease]} calls, one for {each:.1f} decisions;"
              f" 1/{each * PEER:.0f} of the commands of envoyproxy/ratelimit, 1/{each:.1f} of its pipelines")
        print("  all commands, those within scripts too:", ", ".join(f"{name} {number}" for name, number in sorted(stats.items())))
    print(f"  envoyproxy/ratelimit: {PEER * count} commands in {count} pipelines")
    (service, route), rounds = cpu(binary, count // 2, 7)
    print(f"CPU of the gateway for a refusal: {service:.2f} us over gRPC, {route:.2f} us of a route over HTTP/2: {service / route:.2f} times")
    for name, found in zip(("gRPC ", "route"), rounds):
        print(f"  {name}", " ".join(f"{one:.2f}" for one in found))
    assert calls["true"] * 20 <= count, "with leases at most one store call for 20 decisions"
    assert calls["false"] * 20 <= PEER * count, "without leases at most a twentieth of the commands of envoyproxy/ratelimit"
    assert service <= 1.5 * route, "at most 1.5 times the CPU of a proxied refusal"


main()
