#!/usr/bin/env python3
"""Tollgate beside NGINX, HAProxy, Envoy and Pingora on the same work, in alternation.

    cargo build --release && benches/proxy/run.py                 # the table with two workers and with one, memory, features
    benches/proxy/run.py --cases get1k,refused --rounds 5          # some of it
    benches/proxy/run.py --memory                                  # idle, per idle connection (HTTP/1.1, TLS, HTTP/2), per limiter key
    benches/proxy/run.py --features                                # what limiting, quota fields and access log cost together
    benches/proxy/run.py --scale                                   # cost against routes, keys, connections (and the plot)

Needs (Debian): nginx haproxy wrk nghttp2-client python3 openssl; `envoy` on the PATH is used where there is one, and Pingora where
`cargo build --release --manifest-path benches/proxy/pingora/Cargo.toml` has been run. Every proxy limits
per `x-api-key` with a limit that never trips, writes an access log, keeps metrics and sends the usual forwarding headers.
CPU per request is the exact run time of all threads of the proxy's process tree over the requests served. Ratios are
Tollgate over the peer, the median of the ratios within rounds, with their least and greatest.
"""
import argparse, json, os, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, what, deadline=20.0):
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"{what} did not listen on its port within {deadline:.0f} s")


def tree(pid):
    """The process and its descendants."""
    found, queue = [], [pid]
    while queue:
        p = queue.pop()
        found.append(p)
        for task in Path(f"/proc/{p}/task").glob("*/children"):
            try:
                queue += [int(c) for c in task.read_text().split()]
            except OSError:
                pass
    return found


def cpu_ns(pid):
    """Exact run time of every thread of the tree, in nanoseconds."""
    total = 0
    for p in tree(pid):
        for stat in Path(f"/proc/{p}/task").glob("*/schedstat"):
            try:
                total += int(stat.read_text().split()[0])
            except OSError:
                pass
    return total


def pss_kib(pid):
    total = 0
    for p in tree(pid):
        try:
            for line in Path(f"/proc/{p}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total


class Proxy:
    """A running proxy: its process, its HTTP/1.1 port, its cleartext HTTP/2 port."""

    def __init__(self, name, command, port, h2_port, env=None):
        self.name, self.port, self.h2_port = name, port, h2_port
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env, start_new_session=True)
        wait_for(port, name)
        wait_for(h2_port, name)

    def stop(self, how=signal.SIGKILL):
        try:
            os.killpg(self.process.pid, how)
        except ProcessLookupError:
            pass
        self.process.wait()


def upstream(work):
    port = free_port()
    site = work / "site"
    site.mkdir()
    (site / "1k").write_bytes(b"x" * 1024)
    (site / "64k").write_bytes(b"y" * 65536)
    conf = work / "upstream.conf"
    # sendfile with tcp_nopush gives 64 KiB answers tails of 39 ms; neither is used.
    conf.write_text(f"""
daemon off; worker_processes 1; pid {work}/upstream.pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s; sendfile off; tcp_nodelay on;
  open_file_cache max=100 inactive=300s; client_body_temp_path {work}/upb; client_max_body_size 0;
  proxy_temp_path {work}/upp; fastcgi_temp_path {work}/upf; uwsgi_temp_path {work}/upu; scgi_temp_path {work}/ups;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {site};
    location /post {{ return 200 "ok"; }} }} }}
""")
    return Proxy("upstream", ["nginx", "-e", "stderr", "-p", str(work), "-c", str(conf)], port, port)


def start_tollgate(binary, work, up, workers, routes=0, extra="", features=True, memory="256MiB", tls=False):
    """With `features` off nothing is limited, counted per key or logged."""
    port, admin = free_port(), free_port()
    log = work / "tollgate.log"
    conf = work / f"tollgate-{port}.toml"
    certificates = f'certificates = [{{ certificate = "{work}/cert.pem", key = "{work}/key.pem" }}]' if tls else ""
    limited = 'limits = ["ample"]' if features else ""
    more = "".join(f'[[routes]]\nmatch = "/r{i}/{{id}}/x"\nupstream = "http://127.0.0.1:{up}"\n{limited}\n' for i in range(routes))
    conf.write_text(f"""
[server]
listen = "{'https' if tls else 'http'}://127.0.0.1:{port}"
workers = {workers}
{certificates}
[server.bounds]
connections = 15000
[admin]
listen = "127.0.0.1:{admin}"
[log]
access = "{log if features else 'off'}"
[identities.key]
key = ["header:x-api-key"]
when_missing = "use:address"
[limits.ample]
rate = "1000000/second"
burst = 100000000
per = "key"
memory = "{memory}"
[limits.never]
rate = "1/day"
burst = 1
per = "everyone"
[[routes]]
match = "/**"
upstream = "http://127.0.0.1:{up}"
{limited}
[[routes]]
match = "/deny"
upstream = "http://127.0.0.1:{up}"
limits = ["never"]
{more}{extra}
""")
    return Proxy("tollgate", [str(binary), "run", "--config", str(conf)], port, port)


def start_nginx(work, up, workers):
    port, h2 = free_port(), free_port()
    conf = work / f"nginx-{port}.conf"
    common = f"""
    location / {{ limit_req zone=ample burst=1000000 nodelay; proxy_pass http://up; }}
    location /deny {{ limit_req zone=never; limit_req_status 429; proxy_pass http://up; }}
    location /status {{ stub_status; access_log off; }}"""
    conf.write_text(f"""
daemon off; worker_processes {workers}; pid {work}/nginx-{port}.pid; error_log /dev/null crit; 
events {{ worker_connections 9000; }}
http {{ access_log {work}/nginx.log combined buffer=64k flush=1s; keepalive_requests 100000000; keepalive_timeout 300s;
  client_max_body_size 0; client_body_temp_path {work}/nb; proxy_temp_path {work}/np; fastcgi_temp_path {work}/nf;
  uwsgi_temp_path {work}/nu; scgi_temp_path {work}/ns; tcp_nodelay on; reset_timedout_connection on;
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;
  proxy_set_header X-Forwarded-Host $host; proxy_request_buffering off;
  limit_req_zone $http_x_api_key zone=ample:64m rate=1000000r/s;
  limit_req_zone $server_name zone=never:1m rate=1r/m;
  upstream up {{ server 127.0.0.1:{up}; keepalive 256; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} reuseport backlog=4096; {common} }}
  server {{ listen 127.0.0.1:{h2} http2 reuseport backlog=4096; http2_max_concurrent_streams 256; {common} }} }}
""")
    return Proxy("nginx", ["nginx", "-e", "stderr", "-p", str(work), "-c", str(conf)], port, h2)


def start_haproxy(work, up, workers):
    port = free_port()
    stats = free_port()
    conf = work / f"haproxy-{port}.cfg"
    conf.write_text(f"""
global
  nbthread {workers}
  maxconn 9000
  log {work}/haproxy-{port}.sock local0
defaults
  mode http
  log global
  option httplog
  option forwardfor
  http-reuse always
  timeout client 300s
  timeout server 300s
  timeout connect 5s
  timeout http-request 10s
  timeout http-keep-alive 300s
backend ample
  stick-table type string len 32 size 1m expire 1m store http_req_rate(10s)
frontend in
  bind 127.0.0.1:{port} backlog 4096
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(Host)]
  http-request track-sc0 req.hdr(x-api-key) table ample
  http-request deny deny_status 429 if {{ path /deny }} {{ sc0_http_req_rate ge 0 }}
  http-request deny deny_status 429 if {{ sc0_http_req_rate gt 2000000000 }}
  default_backend app
backend app
  server s 127.0.0.1:{up} maxconn 4096 pool-max-conn 256
frontend stats
  bind 127.0.0.1:{stats}
  stats enable
""")
    # HAProxy logs by datagram: somebody must take them, as a real syslog would.
    sink = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sink.bind(f"{work}/haproxy-{port}.sock")
    proxy = Proxy("haproxy", ["haproxy", "-db", "-q", "-f", str(conf)], port, port)
    proxy.sink = sink
    import threading

    def drain():
        while True:
            try:
                if not sink.recv(65536):
                    return
            except OSError:
                return
    threading.Thread(target=drain, daemon=True).start()
    return proxy


def start_envoy(work, up, workers):
    port, admin = free_port(), free_port()
    bucket = lambda tokens, fill: {"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": fill}
    limit = lambda tokens, fill, prefix: {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": prefix,
        "token_bucket": bucket(1000000000, "1s"),
        # A bucket for every value of the key: a descriptor without a value makes them as they come.
        "descriptors": [{"entries": [{"key": "key"}], "token_bucket": bucket(tokens, fill)}],
        "max_dynamic_descriptors": 200000,
        "rate_limits": [{"actions": [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "key"}}]}],
        "filter_enabled": {"default_value": {"numerator": 100}}, "filter_enforced": {"default_value": {"numerator": 100}}}
    route = lambda match, conf: {"match": match, "route": {"cluster": "up", "timeout": "30s"},
                                 "typed_per_filter_config": {"envoy.filters.http.local_ratelimit": conf}}
    config = {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {
            "listeners": [{
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}, "enable_reuse_port": True,
                "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "in", "codec_type": "AUTO", "use_remote_address": True,
                    "access_log": [{"name": "envoy.access_loggers.file", "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": f"{work}/envoy.log"}}],
                    "http_filters": [
                        {"name": "envoy.filters.http.local_ratelimit", "typed_config": limit(1000000000, "1s", "all")},
                        {"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
                    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                        route({"path": "/deny"}, limit(1, "86400s", "never")),
                        route({"prefix": "/"}, limit(1000000000, "1s", "ample"))]}]}}}]}]}],
            "clusters": [{"name": "up", "type": "STATIC", "connect_timeout": "1s",
                          "circuit_breakers": {"thresholds": [{"max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192}]},
                          "load_assignment": {"cluster_name": "up", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {
                              "socket_address": {"address": "127.0.0.1", "port_value": up}}}}]}]}}]}}
    conf = work / f"envoy-{port}.json"
    conf.write_text(json.dumps(config))
    return Proxy("envoy", ["envoy", "-c", str(conf), "--concurrency", str(workers), "--log-level", "off", "--base-id", str(port)], port, port)


PINGORA = HERE / "pingora/target/release/tollgate-bench-pingora"


def start_pingora(work, up, workers):
    port, h2 = free_port(), free_port()
    return Proxy("pingora", [str(PINGORA), str(port), str(h2), str(up), str(workers), f"{work}/pingora.log"], port, h2)


def wrk(port, path, seconds, connections=64, lua=None, headers=()):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    for h in headers:
        command += ["-H", h]
    if lua:
        command += ["-s", str(lua)]
    out = subprocess.run(command + [f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True).stdout
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    errors = re.search(r"Socket errors: (.*)", out)
    unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    quantile = lambda q: (lambda m: float(m.group(1)) * unit[m.group(2)])(re.search(rf"{q}%\s+([\d.]+)(us|ms|s)", out))
    return requests, rate, quantile(50), quantile(99), int(bad.group(1)) if bad else 0, errors.group(1) if errors else ""


def h2load(port, path, seconds, extra, work):
    log = work / "h2load.tsv"
    if log.exists():
        log.unlink()
    command = ["h2load", "-D", str(seconds), "--log-file", str(log), "-H", "x-api-key: bench"] + extra
    out = subprocess.run(command + [f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True).stdout
    times, bad = [], 0
    for line in log.read_text().splitlines():
        _, status, micros = line.split("\t")
        bad += not (200 <= int(status) < 300)
        times.append(int(micros) / 1000)
    times.sort()
    n = len(times)
    if not n:
        raise SystemExit("h2load served nothing:\n" + out)
    return n, n / seconds, times[n // 2], times[min(n - 1, n * 99 // 100)], bad, ""


CASES = ["get1k", "get64k", "post16k", "refused", "newconn", "h2c", "rate4000"]


def run_case(case, proxy, seconds, work):
    key = ["x-api-key: bench"]
    if case == "get1k":
        return wrk(proxy.port, "/1k", seconds, headers=key)
    if case == "get64k":
        return wrk(proxy.port, "/64k", seconds, headers=key)
    if case == "post16k":
        lua = work / "post.lua"
        lua.write_text('wrk.method = "POST"\nwrk.body = string.rep("z", 16384)\n')
        return wrk(proxy.port, "/post", seconds, lua=lua, headers=key)
    if case == "refused":
        return wrk(proxy.port, "/deny", seconds, headers=key)
    if case == "newconn":
        return wrk(proxy.port, "/1k", seconds, headers=key + ["Connection: close"])
    if case == "h2c":
        return h2load(proxy.h2_port, "/1k", seconds, ["-c16", "-m8"], work)
    if case == "rate4000":
        return h2load(proxy.port, "/1k", seconds, ["--h1", "-c40", "--rps=100"], work)
    raise SystemExit(f"no case {case}: one of {', '.join(CASES)}")


def measure(case, proxy, seconds, work):
    before = cpu_ns(proxy.process.pid)
    requests, rate, p50, p99, bad, errors = run_case(case, proxy, seconds, work)
    used = cpu_ns(proxy.process.pid) - before
    wrong = requests - bad if case == "refused" else bad
    # One request of the refused case is admitted per minute or per day.
    if wrong > requests * 0.001 + 2 or ("connect" in errors and not re.search(r"connect 0", errors)):
        print(f"  ! {proxy.name} {case}: {wrong} of {requests} answers were not what the case asks for; {errors}", file=sys.stderr)
    return {"cpu": used / 1000 / max(requests, 1), "rps": rate, "p50": p50, "p99": p99}


def table(args, work, up):
    peers = {"nginx": lambda w: start_nginx(work, up.port, w), "haproxy": lambda w: start_haproxy(work, up.port, w)}
    if shutil.which("envoy"):
        peers["envoy"] = lambda w: start_envoy(work, up.port, w)
    if PINGORA.exists():
        peers["pingora"] = lambda w: start_pingora(work, up.port, w)
    chosen = [p for p in peers if not args.peers or p in args.peers.split(",")]
    results = {}
    for workers in args.workers:
        makers = {"tollgate": lambda w: start_tollgate(args.tollgate, work, up.port, w), **{p: peers[p] for p in chosen}}
        for case in args.cases.split(","):
            rounds = {name: [] for name in makers}
            for number in range(args.rounds):
                order = list(makers) if number % 2 == 0 else list(reversed(makers))
                for name in order:
                    proxy = makers[name](workers)
                    try:
                        run_case(case, proxy, 1, work)  # warm: connections, caches, the limiter's table
                        rounds[name].append(measure(case, proxy, args.seconds, work))
                    finally:
                        proxy.stop()
            results[(workers, case)] = rounds
            report(workers, case, rounds)
    return results


def report(workers, case, rounds):
    ours = rounds["tollgate"]
    median = lambda rows, key: statistics.median(r[key] for r in rows)
    print(f"\n{case}, {workers} worker(s), {len(ours)} rounds")
    print(f"| {'proxy':9} | CPU us/request | requests/s | p50 ms | p99 ms | CPU tollgate / it |")
    print("|---|---|---|---|---|---|")
    for name, rows in rounds.items():
        ratios = [a["cpu"] / b["cpu"] for a, b in zip(ours, rows)]
        ratio = "" if name == "tollgate" else f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
        print(f"| {name:9} | {median(rows, 'cpu'):.2f} | {median(rows, 'rps'):.0f} | {median(rows, 'p50'):.2f} | {median(rows, 'p99'):.2f} | {ratio} |", flush=True)


def served(s):
    """The connection, after a request of 1 KiB over it."""
    s.sendall(b"GET /1k HTTP/1.1\r\nHost: a\r\nx-api-key: idle\r\n\r\n")
    got = b""
    while b"\r\n\r\n" not in got or len(got.split(b"\r\n\r\n", 1)[1]) < 1024:
        got += s.recv(65536)
    return s


def idle_connections(port, count):
    held = []
    for _ in range(count):
        held.append(served(socket.create_connection(("127.0.0.1", port), 5)))
    return held


def many_keys(port, count, same=False):
    """Asks once with each of `count` keys of 20 bytes (or as often with one), pipelined."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        for first in range(0, count, 50):
            some = range(first, min(first + 50, count))
            s.sendall(b"".join(b"GET /1k HTTP/1.1\r\nHost: a\r\nx-api-key: %020d\r\n\r\n" % (0 if same else i + 1) for i in some))
            left, got = len(some), b""
            while left:
                got += s.recv(1 << 18)
                while (end := got.find(b"\r\n\r\n")) >= 0 and len(got) >= end + 4 + 1024:
                    if not got.startswith(b"HTTP/1.1 200"):
                        raise SystemExit(f"not admitted: {got[:100]}")
                    got, left = got[end + 4 + 1024:], left - 1


def idle_tls(port, count):
    """TLS 1.3 connections that served a request each, and rest."""
    import ssl
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    held = []
    for _ in range(count):
        held.append(served(context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5))))
    return held


def idle_h2(port, count):
    """HTTP/2 connections (cleartext, prior knowledge) that served a request each, and rest."""
    text = lambda s: bytes([len(s)]) + s
    # RFC 7541: GET and http by index, the path, the authority and the key as literals that are not indexed.
    block = b"\x82\x86\x04" + text(b"/1k") + b"\x01" + text(b"a") + b"\x00" + text(b"x-api-key") + text(b"idle")
    frame = lambda kind, flags, stream, body=b"": len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    held = []
    for _ in range(count):
        s = socket.create_connection(("127.0.0.1", port), 5)
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(4, 1, 0) + frame(1, 5, 1, block))
        got, ended = b"", False
        while not ended:
            got += s.recv(65536)
            while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
                size, kind, flags = int.from_bytes(got[:3], "big"), got[3], got[4]
                ended |= kind == 0 and flags & 1 == 1
                got = got[9 + size:]
        held.append(s)
    return held


CONNECTIONS, KEYS, SECURED = 10_000, 150_000, 1_000


def memory(args, work, up):
    print(f"\nmemory (proportional set size of the process tree, 2 workers; {CONNECTIONS} connections that served a request each; "
          f"{KEYS} keys of 20 bytes, Tollgate's table 4 MiB)")
    print("| proxy | idle MiB | KiB per idle connection | bytes per key |\n|---|---|---|---|")
    makers = {"tollgate": lambda: start_tollgate(args.tollgate, work, up.port, 2, memory="4MiB"), "nginx": lambda: start_nginx(work, up.port, 2),
              "haproxy": lambda: start_haproxy(work, up.port, 2)}
    for name, make in makers.items():
        if name != "tollgate" and args.peers and name not in args.peers.split(","):
            continue
        proxy = make()
        try:
            time.sleep(1)
            idle = pss_kib(proxy.process.pid)
            many_keys(proxy.port, 20_000, same=True)
            before = pss_kib(proxy.process.pid)
            many_keys(proxy.port, KEYS)
            keyed = pss_kib(proxy.process.pid)
            # HAProxy reserves two descriptors a connection: more do not fit under a limit of 20,000.
            count = 8_900 if name == "haproxy" else CONNECTIONS
            held = idle_connections(proxy.port, count)
            time.sleep(2)
            full = pss_kib(proxy.process.pid)
            print(f"| {name} | {idle / 1024:.1f} | {(full - keyed) / count:.1f} | {(keyed - before) * 1024 / KEYS:.1f} |", flush=True)
            for s in held:
                s.close()
        finally:
            proxy.stop()
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                   "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(work / "key.pem"), "-out", str(work / "cert.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    for kind, hold, tls in [("TLS", idle_tls, True), ("HTTP/2", idle_h2, False)]:
        proxy = start_tollgate(args.tollgate, work, up.port, 2, tls=tls)
        try:
            for s in hold(proxy.port, 50):
                s.close()
            time.sleep(1)
            before = pss_kib(proxy.process.pid)
            held = hold(proxy.port, SECURED)
            time.sleep(2)
            print(f"tollgate, an idle {kind} connection: {(pss_kib(proxy.process.pid) - before) / SECURED:.1f} KiB ({SECURED} of them)", flush=True)
            for s in held:
                s.close()
        finally:
            proxy.stop()


def features(args, work, up):
    """What limiting, the quota fields and the access log cost: one proxy with all of them and one with none, asked in turn.
    Metrics are always kept: they are in both."""
    proxies = {on: start_tollgate(args.tollgate, work, up.port, 2, features=on) for on in (True, False)}
    differences = []
    try:
        for proxy in proxies.values():
            run_case("get1k", proxy, 2, work)
        for number in range(4 * max(args.rounds, 5)):
            order = [True, False] if number % 2 == 0 else [False, True]
            cost = {on: measure("get1k", proxies[on], 1, work)["cpu"] for on in order}
            differences.append(cost[True] - cost[False])
    finally:
        for proxy in proxies.values():
            proxy.stop()
    low, middle, high = statistics.quantiles(differences, n=4)
    print(f"\nlimiting, quota fields and access log together: {middle:.2f} us a request "
          f"[quartiles {low:.2f} and {high:.2f}], GET 1 KiB, 2 workers, {len(differences)} rounds", flush=True)


def scale(args, work, up):
    """CPU per request against the number of routes, keys and connections; and the plot of it. Every round measures
    every point, so that what else the machine does falls on all of them."""
    routes_lua, keys_lua = work / "routes.lua", work / "keys.lua"

    def routes(count):
        routes_lua.write_text(f'local i=0\nrequest=function() i=(i+7919)%{count}; return wrk.format("GET","/r"..i.."/a1/x",{{["x-api-key"]="bench"}}) end\n')
        return scale_point(start_tollgate(args.tollgate, work, up.port, 2, routes=count), args, routes_lua)

    filled = {}

    def keys(count):
        """Every key has been asked with before, and its bucket is still being refilled: the table holds all of them."""
        if count not in filled:
            filled[count] = start_tollgate(args.tollgate, work, up.port, 2, extra=SLOW_KEYS.replace("{up}", str(up.port)))
            fill(filled[count].port, count, work)
        keys_lua.write_text(f'math.randomseed(os.time())\nlocal r=math.random\nrequest=function() return wrk.format("GET","/1k",{{["x-api-key"]="k"..r({count})}}) end\n')
        return scale_point(filled[count], args, keys_lua, stop=False)

    def connections(count):
        """64 at work at most, the others idle."""
        proxy = start_tollgate(args.tollgate, work, up.port, 2)
        held = idle_connections(proxy.port, count - 64) if count > 64 else []
        cost = scale_point(proxy, args, None, min(count, 64))
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
    plot(series, ROOT / "docs" / "cost-that-does-not-grow.svg")


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
    lua, done = work / "fill.lua", 0
    while done < count:
        lua.write_text(f'local i={done}\nrequest=function() i=i+1; if i>{count} then i={count} end; return wrk.format("GET","/fill",{{["x-api-key"]="k"..i}}) end\n')
        done += wrk(port, "/fill", min(20, 1 + (count - done) // 50_000), lua=lua)[0]


def scale_point(proxy, args, lua, connections=64, stop=True):
    try:
        wrk(proxy.port, "/1k", 1, connections, lua, ["x-api-key: bench"])
        before = cpu_ns(proxy.process.pid)
        served = wrk(proxy.port, "/1k", args.seconds, connections, lua, ["x-api-key: bench"])[0]
        return (cpu_ns(proxy.process.pid) - before) / 1000 / served
    finally:
        if stop:
            proxy.stop()


def plot(series, target):
    width, height, left, bottom = 640, 300, 60, 40
    import math
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


def train(args, work, up):
    """A mixed load for a profile-guided build: every case, and the answers that are not 200."""
    proxy = start_tollgate(args.tollgate, work, up.port, 2)
    for _ in range(2):
        for case in CASES:
            run_case(case, proxy, max(1, args.seconds), work)
        wrk(proxy.port, "/absent", 1, headers=["x-api-key: other"])
        # Many callers, some of whom never come back: the limiter's table, and connections that rest.
        many_keys(proxy.port, 20_000)
        for s in idle_connections(proxy.port, 300):
            s.close()
    proxy.stop(signal.SIGTERM)  # a profile is written at a clean exit only


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tollgate", default=str(ROOT / "target/release/tollgate"), help="the binary to measure")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--peers", default="", help="nginx,haproxy,envoy,pingora; default: all that are there")
    parser.add_argument("--workers", default="2,1", type=lambda s: [int(w) for w in s.split(",")])
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--seconds", default=2, type=int)
    parser.add_argument("--skip-rest", action="store_true", help="the table of cases, without memory and features")
    parser.add_argument("--memory", action="store_true", help="only the memory table")
    parser.add_argument("--features", action="store_true", help="only what limiting and the access log cost")
    parser.add_argument("--train", action="store_true", help="only load Tollgate, for a profile-guided build")
    parser.add_argument("--scale", action="store_true", help="only the cost against routes, keys and connections")
    args = parser.parse_args()
    alone = args.train or args.scale or args.features  # no peer takes part
    for tool in ["nginx", "wrk", "h2load"] + ([] if alone else ["haproxy"]):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is missing: apt-get install nginx haproxy wrk nghttp2-client")
    if not Path(args.tollgate).exists():
        raise SystemExit(f"{args.tollgate} is missing: cargo build --release")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        os.chmod(work, 0o755)
        up = upstream(work)
        try:
            if args.train:
                train(args, work, up)
            elif args.scale:
                scale(args, work, up)
            elif args.memory:
                memory(args, work, up)
            elif args.features:
                features(args, work, up)
            else:
                table(args, work, up)
                if not args.skip_rest:
                    memory(args, work, up)
                    features(args, work, up)
        finally:
            up.stop()


if __name__ == "__main__":
    main()
