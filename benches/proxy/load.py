"""The cases: the load of each, and what must be true of every run of it."""
import http.client, os, re, subprocess, time
from dataclasses import dataclass

from peers import LEAN
from processes import cpu_ns

KEY = "bench"


@dataclass
class Case:
    path: str
    generator: str
    # Requests under way when the load stops: the upstream may have seen them, the client has no response.
    under_way: int
    arguments: list
    refused: bool = False


CASES = {
    "get1k": Case("/1k", "wrk", 64, []),
    "get64k": Case("/64k", "wrk", 64, []),
    "post16k": Case("/post", "wrk", 64, ["post"]),
    "refused": Case("/deny", "wrk", 64, [], refused=True),
    "newconn": Case("/1k", "wrk", 64, ["close"]),
    "h2c": Case("/1k", "h2load", 128, ["-c16", "-m8"]),
    "rate4000": Case("/1k", "h2load", 40, ["--h1", "-c40", "--rps=100"]),
}


@dataclass
class Served:
    """What the client counted: responses by status, and milliseconds."""
    statuses: dict
    failed: int
    rate: float
    p50: float
    p99: float

    @property
    def requests(self):
        return sum(self.statuses.values())


# Counts every response by its status (measured: no slower than wrk without it).
WRK = """
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() seen = {} end
function response(status) seen[status] = (seen[status] or 0) + 1 end
function done(summary, latency)
  local sums = {}
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get("seen")) do sums[status] = (sums[status] or 0) + count end
  end
  for status, count in pairs(sums) do print("status", status, count) end
  local e = summary.errors
  print("failed", e.connect + e.read + e.write + e.timeout)
  print("took", summary.duration, latency:percentile(50), latency:percentile(99))
end
"""


# The connections of wrk, where a caller says no other number.
CONNECTIONS = 64


def wrk(port, path, seconds, work, connections=None, lua="", headers=(f"x-api-key: {KEY}",)):
    """`lua`: makes the requests, where that is not a GET of `path`."""
    script = work / f"load-{os.getpid()}.lua"
    script.write_text(WRK + lua)
    command = ["wrk", "-t1", f"-c{connections or CONNECTIONS}", f"-d{seconds}s", "-s", str(script)]
    for header in headers:
        command += ["-H", header]
    out = subprocess.run(command + [f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True).stdout
    statuses = {int(status): int(count) for status, count in re.findall(r"^status\s+(\d+)\s+(\d+)", out, re.M)}
    failed = int(re.search(r"^failed\s+(\d+)", out, re.M)[1])
    micros, p50, p99 = (float(number) for number in re.search(r"^took\s+(\S+)\s+(\S+)\s+(\S+)", out, re.M).groups())
    return Served(statuses, failed, sum(statuses.values()) / micros * 1e6, p50 / 1000, p99 / 1000)


def h2load(port, path, seconds, work, extra):
    log = work / "h2load.tsv"
    log.unlink(missing_ok=True)
    command = ["h2load", "-D", str(seconds), "--log-file", str(log), "-H", f"x-api-key: {KEY}"] + extra
    subprocess.run(command + [f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True)
    statuses, times, failed = {}, [], 0
    for line in log.read_text().splitlines():
        _, status, micros = line.split("\t")
        # A stream that was cut off has status -1.
        if int(status) < 0:
            failed += 1
            continue
        statuses[int(status)] = statuses.get(int(status), 0) + 1
        times.append(int(micros) / 1000)
    times.sort()
    if not times:
        raise SystemExit(f"h2load was answered nothing at port {port}")
    return Served(statuses, failed, len(times) / seconds, times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)])


def run(name, proxy, seconds, work):
    case = CASES[name]
    if case.generator == "h2load":
        port = proxy.port if "--h1" in case.arguments else proxy.h2_port
        return h2load(port, case.path, seconds, work, case.arguments)
    lua = 'wrk.method = "POST"\nwrk.body = string.rep("z", 16384)\n' if "post" in case.arguments else ""
    close = ["Connection: close"] if "close" in case.arguments else []
    return wrk(proxy.port, case.path, seconds, work, lua=lua, headers=[f"x-api-key: {KEY}"] + close)


class Wrong(SystemExit):
    """A proxy did not do what the case means: no figure is worth anything then."""


def check(true, proxy, name, what):
    if not true:
        raise Wrong(f"{proxy.name}, {name}: {what}")


def ask(proxy, path, body=None, headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        connection.request("POST" if body else "GET", path, body, {"x-api-key": KEY, **dict(headers)})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def probe(proxy, setup, up):
    """Before any load: bodies come whole in both directions, the upstream is told what the setup says, and a key is admitted
    by `/deny` once."""
    for path, size in [("/1k", 1024), ("/64k", 65536)]:
        status, body = ask(proxy, path)
        check(status == 200 and len(body) == size, proxy, "probe", f"{path}: {status}, {len(body)} bytes")
    status, body = ask(proxy, "/post", b"z" * 16384)
    check((status, body) == (200, b"16384"), proxy, "probe", f"the upstream of /post saw {body} bytes")
    status, body = ask(proxy, "/seen", headers=[("Host", "site.example")])
    # Envoy always says the scheme, Tollgate always says all three.
    told = body.decode().split(" ")
    if setup != LEAN:
        # Envoy says the machine's own address where the peer's is the loopback's.
        check(told[0] == "127.0.0.1" or (proxy.name == "envoy" and told[0]), proxy, "probe", f"the upstream was told {told}")
        check(told[1:] == ["http", "site.example"], proxy, "probe", f"the upstream was told {told}")
    elif proxy.name != "tollgate":
        check(told[0] == "" and told[2] == "", proxy, "probe", f"the upstream was told {told}")
    before = up.requests()
    answers = [ask(proxy, "/deny") for _ in range(4)]
    check([status for status, _ in answers] == [200, 429, 429, 429], proxy, "probe", f"/deny answered {answers}")
    check(answers[0][1] == b"admitted" and up.requests() - before == 1, proxy, "probe", "refused requests reached the upstream")


def verify(name, proxy, served, forwarded, seconds):
    """What must hold of every run: each response is the one the case means, and the upstream was asked once for each that is
    not a refusal."""
    case, statuses = CASES[name], dict(served.statuses)
    check(served.requests > 100 and served.failed == 0, proxy, name, f"{served.requests} responses, {served.failed} failures")
    admitted = statuses.pop(200, 0)
    refused = statuses.pop(429, 0)
    check(not statuses, proxy, name, f"statuses {served.statuses}")
    if case.refused:
        # NGINX's slowest limit admits one a minute.
        check(refused > 0 and admitted <= 1 + seconds // 60, proxy, name, f"{admitted} of {served.requests} admitted")
        check(forwarded == admitted, proxy, name, f"the upstream saw {forwarded} requests, the client {admitted} of its responses")
    else:
        check(refused == 0, proxy, name, f"{refused} of {served.requests} refused")
        under_way = max(case.under_way, CONNECTIONS if case.generator == "wrk" else 0)
        check(abs(forwarded - admitted) <= under_way, proxy, name,
              f"the upstream saw {forwarded} requests, the client {admitted} of its responses")


def settled(up):
    """The upstream's count, once it no longer moves."""
    last, now = None, up.requests()
    while last != now:
        time.sleep(0.02)
        last, now = now, up.requests()
    return now


def logged(name, proxy, requests):
    """An access log has a line for each response, once what is gathered has been written."""
    end = time.monotonic() + 10
    # HAProxy drops a line when another thread is writing one, Tollgate when the disk falls behind.
    while (lines := proxy.log_lines()) < 0.99 * requests:
        check(time.monotonic() < end, proxy, name, f"{lines} lines in the access log after {requests} responses")
        time.sleep(0.1)


def measure(name, proxy, seconds, work, up):
    """One run under load, verified."""
    before, cpu = settled(up), cpu_ns(proxy.process.pid)
    served = run(name, proxy, seconds, work)
    used = cpu_ns(proxy.process.pid) - cpu
    verify(name, proxy, served, settled(up) - before, seconds)
    return {"cpu": used / 1000 / served.requests, "rps": served.rate, "p50": served.p50, "p99": served.p99, "requests": served.requests}
