"""What it costs to limit by the body: one gateway with two routes, alike but for where the key and the cost come from."""
import json, signal, statistics

import load, peers
from processes import cpu_ns

SIZE = 4096
COST = 8
# The limits differ in their key and their cost. Neither ever refuses.
EXTRA = """
[limits.by_header]
rate = "1000000/second"
burst = 100000000
per = "key"
cost = {{ header = "x-cost", default = 1, max = 1000 }}
[limits.by_body]
rate = "1000000/second"
burst = 100000000
per = "json:model"
when_missing = "refuse"
cost = {{ json = "max_tokens", default = 1, max = 1000 }}
[[routes]]
match = "POST /post/header"
upstream = "http://127.0.0.1:{up}"
limits = ["by_header"]
[[routes]]
match = "POST /post/body"
upstream = "http://127.0.0.1:{up}"
limits = ["by_body"]
"""


# Lines of the text: of prose, and of a text with an escape every 20 characters.
TEXTS = {
    "prose": "She was told that it depends, and closed the door behind her without another word.\n",
    "escapes": 'She said "well, that depends" and closed the door behind her.\n',
}


def document(line):
    """A chat request of SIZE bytes: the model first, a text of such lines, the maximum last."""
    def with_text(text):
        message = {"role": "user", "content": text}
        return json.dumps({"model": "gpt-4o-mini", "messages": [message], "stream": False, "max_tokens": COST})
    text = line * (SIZE // len(line))
    while len(with_text(text)) > SIZE:
        text = text[:-1]
    return with_text(text + "x" * (SIZE - len(with_text(text))))


def start(args, work, up):
    return peers.tollgate(args.tollgate, work, up.port, 1, peers.LEAN, extra=EXTRA.format(up=up.port))


def request(name):
    """The same for both routes, but for the path."""
    return f"/post/{name}", ("x-api-key: bench", f"x-cost: {COST}", "content-type: application/json")


def one(proxy, name, line, seconds, work, up):
    path, headers = request(name)
    body = document(line).replace("\\", "\\\\").replace("'", "\\'")
    before, cpu = load.settled(up), cpu_ns(proxy.process.pid)
    served = load.wrk(proxy.port, path, seconds, work, lua=f'wrk.method = "POST"\nwrk.body = \'{body}\'\n', headers=headers)
    used = cpu_ns(proxy.process.pid) - cpu
    load.check(set(served.statuses) == {200} and served.failed == 0, proxy, name, f"{served.statuses}, {served.failed} failures")
    load.check(abs(load.settled(up) - before - served.requests) <= 64, proxy, name, "the upstream saw another number of requests")
    return used / 1000 / served.requests


def train(args, work, up):
    """Both routes with each text, for a profile-guided build."""
    proxy = start(args, work, up)
    for line in TEXTS.values():
        for name in ["header", "body"]:
            one(proxy, name, line, 1, work, up)
    proxy.stop(signal.SIGTERM)


def bodies(args, work, up):
    """CPU per request of both routes in turn, for each text."""
    for text, line in TEXTS.items():
        rounds = measured(args, line, work, up)
        differences = [body - header for body, header in zip(rounds["body"], rounds["header"])]
        low, middle, high = statistics.quantiles(differences, n=4)
        print(f"\nPOST of 4 KiB ({text}), 1 worker: by a header {statistics.median(rounds['header']):.2f} us a request, by the body "
              f"{statistics.median(rounds['body']):.2f} us; the difference is {middle:.2f} us [quartiles {low:.2f} and {high:.2f}], "
              f"{len(differences)} rounds", flush=True)


def measured(args, line, work, up):
    """CPU per request of each round."""
    proxy = start(args, work, up)
    try:
        for name in ["header", "body"]:
            headers = [("x-cost", str(COST)), ("content-type", "application/json")]
            status, answer = load.ask(proxy, f"/post/{name}", document(line).encode(), headers)
            load.check((status, answer) == (200, str(SIZE).encode()), proxy, name, f"{status}, the upstream saw {answer} bytes")
            one(proxy, name, line, 1, work, up)
        rounds = {"header": [], "body": []}
        for number in range(4 * max(args.rounds, 5)):
            for name in sorted(rounds, reverse=number % 2 == 0):
                rounds[name].append(one(proxy, name, line, 1, work, up))
    finally:
        proxy.stop()
    return rounds
