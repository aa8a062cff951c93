"""Whether the cost of a request grows: with routes, keys, connections. And the plot of it."""
import math, statistics
from pathlib import Path

import load, peers
from processes import cpu_ns
from resting import idle_connections

ROOT = Path(__file__).resolve().parent.parent.parent


def scale(args, work, up):
    """CPU per request against the number of routes, keys and connections; and the plot of it. Every round measures
    every point, so that what else the machine does falls on all of them."""

    def routes(count):
        lua = f'local i=0\nrequest=function() i=(i+7919)%{count}; return wrk.format("GET","/r"..i.."/a1/x",{{["x-api-key"]="bench"}}) end\n'
        return scale_point(peers.tollgate(args.tollgate, work, up.port, 2, routes=count), args, work, lua)

    filled = {}

    def keys(count):
        """Every key has been asked with before, and its bucket is still being refilled: the table holds all of them."""
        if count not in filled:
            filled[count] = peers.tollgate(args.tollgate, work, up.port, 2, extra=SLOW_KEYS.replace("{up}", str(up.port)))
            fill(filled[count].port, count, work)
        lua = f'math.randomseed(os.time())\nlocal r=math.random\nrequest=function() return wrk.format("GET","/1k",{{["x-api-key"]="k"..r({count})}}) end\n'
        return scale_point(filled[count], args, work, lua, stop=False)

    def connections(count):
        """64 at work at most, the others idle."""
        proxy = peers.tollgate(args.tollgate, work, up.port, 2)
        held = idle_connections(proxy.port, count - 64) if count > 64 else []
        cost = scale_point(proxy, args, work, "", min(count, 64))
        for s in held:
            s.close()
        return cost

    points = [(routes, n) for n in [1, 10, 100, 1000, 10_000]]
    points += [(keys, n) for n in [1, 100, 10_000, 1_000_000, 10_000_000]]
    points += [(connections, n) for n in [1, 10, 100, 1000, 10_000]]
    samples = {point: [] for point in points}
    for number in range(args.rounds):
        for point in points if number % 2 == 0 else reversed(points):
            samples[point].append(point[0](point[1]))
    for proxy in filled.values():
        proxy.stop()
    print(f"\nCPU us/request of Tollgate, 2 workers, GET 1 KiB, median of {args.rounds} rounds")
    series = {}
    for (kind, count), costs in samples.items():
        series.setdefault(kind.__name__, []).append((count, statistics.median(costs)))
    for name, measured in series.items():
        print(f"| {name} | " + " | ".join(f"{n:,}: {cpu:.1f}" for n, cpu in measured) + " |")
    plot(series, ROOT / "docs/src/pictures" / "cost-that-does-not-grow.svg")


# A unit is back after five minutes: every key that was used stays in the table, which has room for 10 million.
SLOW_KEYS = """
[limits.slow]
rate = "12/hour"
burst = 10000000
per = "key"
memory = "640MiB"
[[routes]]
match = "/1k"
upstream = "http://127.0.0.1:{up}"
limits = ["slow"]
[[routes]]
match = "/fill"
upstream = "builtin:echo"
limits = ["slow"]
"""


def fill(port, count, work):
    """Asks once with each of `count` keys."""
    done = 0
    while done < count:
        lua = f'local i={done}\nrequest=function() i=i+1; if i>{count} then i={count} end; return wrk.format("GET","/fill",{{["x-api-key"]="k"..i}}) end\n'
        done += admitted(load.wrk(port, "/fill", min(20, 1 + (count - done) // 50_000), work, lua=lua))


def admitted(served):
    """The number of responses, all of which must be 200."""
    if set(served.statuses) != {200} or served.failed:
        raise SystemExit(f"not every request was admitted: {served}")
    return served.requests


def scale_point(proxy, args, work, lua, connections=64, stop=True):
    ask = lambda seconds: admitted(load.wrk(proxy.port, "/1k", seconds, work, connections, lua))
    try:
        ask(1)
        before = cpu_ns(proxy.process.pid)
        served = ask(args.seconds)
        return (cpu_ns(proxy.process.pid) - before) / 1000 / served
    finally:
        if stop:
            proxy.stop()


def plot(series, target):
    width, height, left, bottom = 640, 300, 60, 40
    top = max(cpu for points in series.values() for _, cpu in points) * 1.25
    x = lambda n: left + math.log10(max(n, 1)) / 7 * (width - left - 110)
    y = lambda cpu: height - bottom - cpu / top * (height - bottom - 20)
    colours = {"routes": "#1b6ca8", "keys": "#c0392b", "connections": "#2e8b57"}
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="14">CPU microseconds a request (GET 1 KiB, 2 workers)</text>']
    for tick in range(0, 8):
        parts.append(f'<text x="{x(10 ** tick):.0f}" y="{height - 14}" text-anchor="middle">{["1", "10", "100", "1k", "10k", "100k", "1M", "10M"][tick]}</text>')
    step = 5 if top <= 40 else 10
    for level in range(0, int(top) + 1, step):
        parts.append(f'<line x1="{left}" x2="{width - 100}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level}</text>')
    for name, points in series.items():
        line = " ".join(f"{x(n):.1f},{y(cpu):.1f}" for n, cpu in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(cpu):.1f}" r="3" fill="{colours[name]}"/>' for n, cpu in points]
        n, cpu = points[-1]
        parts.append(f'<text x="{x(n) + 8:.0f}" y="{y(cpu) + (-6 if name == "keys" else 14 if name == "routes" else 4):.0f}" fill="{colours[name]}">{name}</text>')
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(parts + ["</svg>"]) + "\n")
    print(f"plot written to {target.relative_to(ROOT)}")
