"""The proxies under comparison, each in its best ordinary configuration for the same work.

Three setups: `lean` limits by the value of `x-api-key` and does nothing else that can be left out; `full` also writes an
access log, in the combined format where a proxy has it, and tells the upstream who asked (X-Forwarded-For, -Proto, -Host).
With `defaults` Tollgate also does what it does by default and the others do not (a JSON line of log with the limits that were
checked, quota headers, Via, the admin listener with an explanation of each refusal), beside the same peers as with `full`.
In all of them, every path but `/deny` has a limit that never trips, and `/deny` one that admits a key once and then refuses
it with 429.

Ordinary means: documented directives, no patches, no options marked experimental. Where two ways were open, the cheaper
one was measured and taken; the comment beside a line says why it is there.
"""
import json, shutil, sys
from pathlib import Path

from processes import Proxy, free_port

HERE = Path(__file__).resolve().parent
PINGORA = HERE / "pingora/target/release/tollgate-bench-pingora"
LEAN, FULL, DEFAULTS = "lean", "full", "defaults"


def available(wanted):
    """The peers that are installed, in the order of the table; `wanted`: only these, each of which must be there, or `none`."""
    if wanted == ["none"]:
        return {}
    makers = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy, "pingora": pingora}
    there = {"nginx": shutil.which("nginx"), "haproxy": shutil.which("haproxy"), "envoy": shutil.which("envoy"), "pingora": PINGORA.exists()}
    if missing := [name for name in wanted if not there.get(name)]:
        raise SystemExit(f"not installed: {', '.join(missing)} (see --help)")
    for name in makers:
        if not there[name] and not wanted:
            print(f"{name} is not installed and takes no part", file=sys.stderr)
    return {name: make for name, make in makers.items() if there[name] and (not wanted or name in wanted)}


def tollgate(binary, work, up, workers, setup=DEFAULTS, routes=0, extra="", limited=True, memory="256MiB", tls=False):
    """Its defaults, but for what the setups say. Forwarding headers cannot be turned off towards a server of one's own, so that
    `lean` has them too; metrics are always kept. `limited=False`: only `/deny` has a limit."""
    port, admin = free_port(), free_port()
    log = work / f"tollgate-{port}.log" if setup != LEAN else None
    conf = work / f"tollgate-{port}.toml"
    certificates = f'certificates = [{{ certificate = "{work}/cert.pem", key = "{work}/key.pem" }}]' if tls else ""
    ample, once = ('limits = ["ample"]' if limited else "", 'limits = ["once"]')
    route = lambda match, limits: f'[[routes]]\nmatch = "{match}"\nupstream = "http://127.0.0.1:{up}"\n{limits}\n'
    more = "".join(route(f"/r{i}/{{id}}/x", ample) for i in range(routes))
    # The others add neither Via nor quota headers, keep no explanation of each refusal for an admin listener, and refuse with a fixed
    # page of about this length: NGINX sends its own.
    page = "<html><head><title>429 Too Many Requests</title></head><body><h1>429 Too Many Requests</h1><p>Please try again later.</p></body></html>"
    refusal = f'refusal = {{ body = "{page}", content_type = "text/html" }}'
    via, responses = ("", "") if setup == DEFAULTS else ('via = "off"', f"[responses]\nheaders = []\n{refusal}")
    conf.write_text(f"""
[server]
listen = "{'https' if tls else 'http'}://127.0.0.1:{port}"
workers = {workers}
{via}
{certificates}
[server.bounds]
connections = 15000
[admin]
listen = "{f'127.0.0.1:{admin}' if setup == DEFAULTS else 'off'}"
[log]
access = "{log or 'off'}"
{'format = "combined"' if setup == FULL else ''}
{responses}
[identities.key]
key = ["header:x-api-key"]
when_missing = "use:address"
[limits.ample]
rate = "1000000/second"
burst = 100000000
per = "key"
memory = "{memory}"
[limits.once]
rate = "1/day"
burst = 1
per = "key"
{route("/**", ample)}{route("/deny", once)}{more}{extra}
""")
    return Proxy("tollgate", [str(binary), "run", "--config", str(conf)], port, log=log)


def nginx(work, up, workers, setup):
    port, h2 = free_port(), free_port()
    conf = work / f"nginx-{port}.conf"
    log = work / f"nginx-{port}.log" if setup != LEAN else None
    locations = """
    location / { limit_req zone=ample burst=1000000 nodelay; proxy_pass http://up; }
    # The lowest rate NGINX knows is one a minute; without burst and delay the second request is refused.
    location /deny { limit_req zone=once; proxy_pass http://up; }"""
    forwarding = """
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
  proxy_set_header X-Forwarded-Proto $scheme;
  proxy_set_header X-Forwarded-Host $host;""" if setup != LEAN else ""
    conf.write_text(f"""
daemon off; pid {work}/nginx-{port}.pid;
worker_processes {workers};
# A refusal is logged as an error where that is not above the level: it would cost each refusal a write.
error_log /dev/null crit;
# multi_accept stays off: 5 % dearer for new connections.
events {{ worker_connections 9000; }}
http {{
  # Lines are gathered for a second, and written 64 KiB at a time.
  access_log {f'{log} combined buffer=64k flush=1s' if log else 'off'};
  # A client's connection is closed by default after 1000 requests.
  keepalive_requests 100000000; keepalive_timeout 300s;
  client_max_body_size 0;
  # A body of 16 KiB and its head fit into memory (13 % cheaper than the default of 16 KiB); bodies are passed on as they come, as
  # the others do (gathered first: the same within the noise).
  client_body_buffer_size 32k; proxy_request_buffering off;
  # Connections to the upstream are used again only over HTTP/1.1 and without `Connection: close`.
  proxy_http_version 1.1; proxy_set_header Connection "";
  # The upstream sees the client's Host, as it does from the others.
  proxy_set_header Host $host;{forwarding}
  # A response of 64 KiB stays in memory; with the default of 8 x 4k or 8k its end goes through a temporary file. (16 x 8k: 12 % dearer. A first buffer
  # larger than 8k: dearer for small responses.)
  proxy_buffer_size 8k; proxy_buffers 4 32k; proxy_busy_buffers_size 64k; proxy_max_temp_file_size 0;
  limit_req_status 429;
  limit_req_zone $http_x_api_key zone=ample:64m rate=1000000r/s;
  limit_req_zone $http_x_api_key zone=once:10m rate=1r/m;
  upstream up {{
    server 127.0.0.1:{up};
    # Idle connections each worker keeps: more than the clients there are (1000 at the most). They are closed by default after 1000
    # requests.
    keepalive 2048; keepalive_requests 100000000; keepalive_timeout 300s;
  }}
  # Only so that it starts without root; nothing is written there.
  client_body_temp_path {work}/nb; proxy_temp_path {work}/np; fastcgi_temp_path {work}/nf; uwsgi_temp_path {work}/nu; scgi_temp_path {work}/ns;
  # reuseport: a queue for each worker. (`deferred` saves nothing here.)
  server {{ listen 127.0.0.1:{port} reuseport backlog=4096; {locations} }}
  server {{ listen 127.0.0.1:{h2} http2 reuseport backlog=4096; http2_max_concurrent_streams 256; {locations} }}
}}
""")
    return Proxy("nginx", ["nginx", "-e", "stderr", "-p", str(work), "-c", str(conf)], port, h2, log)


def haproxy(work, up, workers, setup):
    port = free_port()
    conf = work / f"haproxy-{port}.cfg"
    log = work / f"haproxy-{port}.log" if setup != LEAN else None
    # To a file by standard output: cheaper for it than a datagram to a syslog for each request.
    logged = "  log stdout format raw local0\n" if log else ""
    conf.write_text(f"""
global
  # tune.bufsize stays at 16 KiB: with 32 or 72 KiB responses of 64 KiB are 15 to 22 % dearer.
  nbthread {workers}
  maxconn 9000
{logged}defaults
  mode http
{'  log global' if log else ''}
{'  option httplog' if log else ''}
{'  option forwardfor' if log else ''}
  # A client's request may go out over any idle connection, not only over one that the same client has used.
  http-reuse always
  timeout client 300s
  timeout server 300s
  timeout connect 5s
  timeout http-request 10s
  timeout http-keep-alive 300s
backend ample
  stick-table type string len 32 size 1m expire 1m store http_req_rate(10s)
backend once
  stick-table type string len 32 size 1m expire 2h store http_req_rate(1h)
frontend in
  # A connection is accepted once its request is there. (`shards by-thread`, a queue for each thread: 5 % dearer for new connections.)
  bind 127.0.0.1:{port} backlog 4096 defer-accept
{'  http-request set-header X-Forwarded-Proto http' if log else ''}
{'  http-request set-header X-Forwarded-Host %[req.hdr(Host)]' if log else ''}
  http-request track-sc0 req.hdr(x-api-key) table once if {{ path /deny }}
  http-request deny deny_status 429 if {{ path /deny }} {{ sc0_http_req_rate gt 1 }}
  http-request track-sc0 req.hdr(x-api-key) table ample unless {{ path /deny }}
  http-request deny deny_status 429 if {{ sc0_http_req_rate gt 2000000000 }}
  default_backend app
backend app
  server s 127.0.0.1:{up} maxconn 4096 pool-max-conn 2048
""")
    stdout = open(log, "wb") if log else None
    return Proxy("haproxy", ["haproxy", "-db", "-f", str(conf)], port, log=log, stdout=stdout)


def envoy(work, up, workers, setup):
    port, admin = free_port(), free_port()
    log = work / f"envoy-{port}.log" if setup != LEAN else None
    kind = lambda name: f"type.googleapis.com/envoy.extensions.{name}"
    unlimited = {"max_tokens": 1_000_000_000, "tokens_per_fill": 1_000_000_000, "fill_interval": "1s"}
    limit = lambda tokens, fill, prefix: {
        "@type": kind("filters.http.local_ratelimit.v3.LocalRateLimit"), "stat_prefix": prefix, "token_bucket": unlimited,
        # A bucket for every value of the key: a descriptor without a value makes them as they come.
        "descriptors": [{"entries": [{"key": "key"}], "token_bucket": {"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": fill}}],
        "max_dynamic_descriptors": 200_000,
        # A request that has a bucket of its own does not draw from the shared one as well.
        "always_consume_default_token_bucket": False,
        "rate_limits": [{"actions": [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "key"}}]}],
        "filter_enabled": {"default_value": {"numerator": 100}}, "filter_enforced": {"default_value": {"numerator": 100}}}
    route = lambda match, limited: {"match": match, "route": {"cluster": "up", "timeout": "30s"},
                                    "typed_per_filter_config": {"envoy.filters.http.local_ratelimit": limited}}
    manager = {
        "@type": kind("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "in", "codec_type": "AUTO",
        # At the edge the peer's own address counts; skip_xff_append: the upstream is not told of it.
        "use_remote_address": True, "skip_xff_append": setup == LEAN,
        # A random id for each request, a Server header of its own: by default there, and no other peer has them here.
        "generate_request_id": False, "server_header_transformation": "PASS_THROUGH",
        "http_filters": [
            {"name": "envoy.filters.http.local_ratelimit", "typed_config": limit(1_000_000_000, "1s", "all")},
            # No timing headers of its own, no statistics beside those of the listener and the cluster.
            {"name": "envoy.filters.http.router", "typed_config": {
                "@type": kind("filters.http.router.v3.Router"), "suppress_envoy_headers": True, "dynamic_stats": False}}],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            route({"path": "/deny"}, limit(1, "86400s", "once")),
            route({"prefix": "/"}, limit(1_000_000_000, "1s", "ample"))]}]}}
    if setup != LEAN:
        manager["access_log"] = [{"name": "envoy.access_loggers.file", "typed_config": {
            "@type": kind("access_loggers.file.v3.FileAccessLog"), "path": str(log)}}]
        # It says X-Forwarded-For and -Proto by itself.
        manager["route_config"]["request_headers_to_add"] = [{"header": {"key": "x-forwarded-host", "value": "%REQ(:AUTHORITY)%"}}]
    address = lambda p: {"socket_address": {"address": "127.0.0.1", "port_value": p}}
    config = {
        "admin": {"address": address(admin)},
        "static_resources": {
            # reuse_port: a queue for each worker.
            "listeners": [{"address": address(port), "enable_reuse_port": True, "tcp_backlog_size": 4096,
                           "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}],
            "clusters": [{"name": "up", "type": "STATIC", "connect_timeout": "1s",
                          # The defaults of 1024 would refuse.
                          "circuit_breakers": {"thresholds": [{"max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192}]},
                          "load_assignment": {"cluster_name": "up", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(up)}}]}]}}]}}
    conf = work / f"envoy-{port}.json"
    conf.write_text(json.dumps(config))
    return Proxy("envoy", ["envoy", "-c", str(conf), "--concurrency", str(workers), "--log-level", "off", "--base-id", str(port)], port, log=log)


def pingora(work, up, workers, setup):
    """The program beside this file; its source says what it sets."""
    port, h2 = free_port(), free_port()
    log = work / f"pingora-{port}.log" if setup != LEAN else None
    return Proxy("pingora", [str(PINGORA), str(port), str(h2), str(up), str(workers), str(log or "-")], port, h2, log)
