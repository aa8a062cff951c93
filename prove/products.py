"""The products, each with its own words for "10 requests a second, burst 100".

A product is one entry: its words, the line of its documentation that they are from, and the command that starts one instance. Where a
product has no burst, "100 in 10 seconds" is the nearest: it grants 100 at once, and 10 a second in the long run. `documented` is what
its documentation says it may grant beyond one bucket, and `as_documented` how many bursts and how many rates follow from it for n instances.
"""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import processes

HERE = Path(__file__).resolve().parent


@dataclass
class Place:
    """Where one instance of a fleet runs."""

    folder: Path
    port: int
    upstream: int
    index: int
    # Ports of all instances, and others for what they say to each other.
    ports: list
    peers: list
    store: object
    installed: Path
    tollgate: Path
    words: str = ""

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass
class Product:
    name: str
    words: str
    quote: str
    source: str
    command: Callable
    store: type | None = None
    documented: str = ""
    as_documented: Callable = field(default=lambda n: (1, 1))
    is_ours: bool = False


def tollgate(at):
    store = ""
    if at.store:
        store = f'[store]\nkind = "{at.store.kind}"\nurl = "{at.store.url}"\nkey_secret = "${{PROVE_SECRET}}"\nanswer_within = "500ms"\nwhen_down = "refuse"'
    if at.store and at.store.kind == "postgres":
        # A crash of the server empties the table, where the administrator does not make it a logged one.
        store += "\nsynchronous_commit = true"
        schema = subprocess.run([at.tollgate, "schema", "--sql", "postgres"], capture_output=True, text=True, check=True).stdout
        at.store.sql(schema.replace("UNLOGGED ", ""))
    conf = at.write("gateway.toml", f"""
[server]
listen = "http://127.0.0.1:{at.port}"
workers = 2
[admin]
listen = "off"
[log]
access = "off"
{store}
[identities.caller]
key = ["header:x-api-key"]
when_missing = "refuse"
{at.words}
per = "caller"
[[routes]]
match = "/**"
upstream = "http://127.0.0.1:{at.upstream}"
limits = ["calls"]
""")
    return ["env", "PROVE_SECRET=sixteen-characters-or-more", at.tollgate, "run", "--config", conf]


def nginx(at):
    conf = at.write("nginx.conf", f"""
daemon off; pid {at.folder}/pid; error_log stderr crit; events {{}}
http {{
  access_log off; limit_req_status 429; keepalive_requests 100000;
  {at.words}
  server {{ listen 127.0.0.1:{at.port}; location / {{ proxy_pass http://127.0.0.1:{at.upstream}; }} }}
}}""")
    return [shutil.which("nginx") or "/usr/sbin/nginx", "-e", "stderr", "-c", conf]


def haproxy(at):
    table, rules = at.words.split("\n", 1)
    peers = "\n".join(f"  peer p{index} 127.0.0.1:{port}" for index, port in enumerate(at.peers))
    conf = at.write("haproxy.cfg", f"""
global
  localpeer p{at.index}
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
peers fleet
{peers}
frontend front
  bind 127.0.0.1:{at.port}
{rules}
  default_backend back
backend callers
{table}
backend back
  server upstream 127.0.0.1:{at.upstream}
""")
    return [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", conf]


def envoy(at):
    # A bucket for each caller: their names are written down, one descriptor for each.
    callers = ["flood", "pauses", "edge", "rest", "lone", "outage"]
    bucket = " ".join(at.words.split())
    descriptors = ",\n".join(f'{{ entries: [{{ key: caller, value: "{name}" }}], {bucket} }}' for name in callers)
    always = "default_value: { numerator: 100, denominator: HUNDRED }"
    conf = at.write("envoy.yaml", f"""
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {at.port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: prove
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: upstream }} }}]
              rate_limits: [{{ actions: [{{ request_headers: {{ header_name: x-api-key, descriptor_key: caller }} }}] }}]
          http_filters:
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: prove
              # For requests without a descriptor, of which there are none.
              token_bucket: {{ max_tokens: 1, fill_interval: 3600s }}
              always_consume_default_token_bucket: false
              filter_enabled: {{ {always} }}
              filter_enforced: {{ {always} }}
              descriptors: [{descriptors}]
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {at.upstream} }} }} }} }}] }}]
""")
    return [at.installed / "venv/bin/envoy", "-c", conf, "--base-id", at.port, "--concurrency", "2", "-l", "critical"]


def traefik(at):
    redis = f"\n        redis: {{ endpoints: ['127.0.0.1:{at.store.port}'] }}" if at.store else ""
    rules = at.write("rules.yml", f"""
http:
  routers: {{ all: {{ rule: "PathPrefix(`/`)", service: upstream, middlewares: [calls] }} }}
  services: {{ upstream: {{ loadBalancer: {{ servers: [{{ url: "http://127.0.0.1:{at.upstream}" }}] }} }} }}
  middlewares:
    calls:
      rateLimit:
        {at.words}
        sourceCriterion: {{ requestHeaderName: X-Api-Key }}{redis}
""")
    return [at.installed / "venv/bin/traefik", f"--entrypoints.web.address=127.0.0.1:{at.port}", f"--providers.file.filename={rules}", "--log.level=ERROR",
            "--global.checknewversion=false", "--global.sendanonymoususage=false"]


def node(product):
    return lambda at: ["env", "-C", at.installed / "node", "node", HERE / "servers/node.mjs", product, at.port, *([at.store.url] if at.store else [])]


def python(product):
    return lambda at: [at.installed / "venv/bin/python", HERE / "servers/libraries.py", product, at.port, at.store.url]


def rust(product):
    return lambda at: [at.installed / "rust/release/prove-libraries", product, at.port]


PER_INSTANCE = lambda n: (n, n)
WINDOW = lambda n: (2, 1)
WINDOW_PER_INSTANCE = lambda n: (2 * n, n)

OURS = dict(
    words='[limits.calls]\nrate = "10/second"\nburst = 100',
    quote="In any T seconds a token bucket grants at most `burst + rate × T`",
    source="README.md",
    command=tollgate,
    is_ours=True,
)
TRAEFIK = dict(
    words="{ average: 10, period: 1s, burst: 100 }".strip("{ }").replace(", ", "\n        "),
    quote="the average and period parameters define the rate at which the bucket refills, and the burst is the size (volume) of the bucket",
    source="https://doc.traefik.io/reference/routing-configuration/http/middlewares/ratelimit",
    command=traefik,
)
EXPRESS = dict(
    words="rateLimit({ windowMs: 10_000, limit: 100 })",
    quote="`windowMs`: How long to remember requests for, in milliseconds. `limit`: How many requests to allow.",
    source="express-rate-limit 8.7.5, readme.md, Configuration",
)
LIMITS = "limits 5.8.0, README, "

PRODUCTS = [
    Product("Tollgate, local", **OURS, documented="without a store every gateway counts for itself (reference/file/store.md)", as_documented=PER_INSTANCE),
    Product("Tollgate, Redis", **OURS, store=processes.Redis),
    Product("Tollgate, PostgreSQL", **OURS, store=processes.Postgres),
    Product("Tollgate, MariaDB", **OURS, store=processes.MariaDb),
    Product(
        "NGINX",
        # `burst` is what may exceed the rate: the first request passes besides.
        "limit_req_zone $http_x_api_key zone=calls:1m rate=10r/s;\n  limit_req zone=calls burst=99 nodelay;",
        "an average rate of requests for this zone cannot exceed 1 request per second [...] with bursts not exceeding 5 requests",
        "http://nginx.org/en/docs/http/ngx_http_limit_req_module.html",
        nginx,
        documented="the zone is shared memory of one instance",
        as_documented=PER_INSTANCE,
    ),
    Product(
        "HAProxy, peers",
        "  stick-table type string len 64 size 10k expire 30s store http_req_rate(10s) peers fleet\n"
        "  http-request track-sc0 req.hdr(x-api-key) table callers\n  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100 }",
        "the length of the period over which the average is measured. It reports the average HTTP request rate over that period, in requests per period",
        "HAProxy 2.6 configuration manual, stick-table, http_req_rate",
        haproxy,
        documented="\"The pushed values overwrite remote ones without aggregation\" (3.5 Peers); refused requests count",
        as_documented=PER_INSTANCE,
    ),
    Product(
        "Envoy, local",
        "token_bucket: { max_tokens: 100, tokens_per_fill: 1, fill_interval: 0.1s }",
        "During each fill interval `tokens_per_fill` are added to the bucket. The bucket will never contain more than `max_tokens` tokens",
        "https://www.envoyproxy.io/docs/envoy/v1.39.0/api-v3/type/v3/token_bucket.proto",
        envoy,
        documented="\"The token bucket is shared across all workers, thus the rate limits are applied per Envoy process\"",
        as_documented=PER_INSTANCE,
    ),
    Product("Traefik, in memory", **TRAEFIK, documented="without `redis` every instance counts for itself", as_documented=PER_INSTANCE),
    Product("Traefik, Redis", **TRAEFIK, store=processes.Redis),
    Product(
        "express-rate-limit",
        **EXPRESS,
        command=node("express-rate-limit"),
        documented="a window of ten seconds; memory store: \"Does not share state when app has multiple processes or servers\"",
        as_documented=WINDOW_PER_INSTANCE,
    ),
    Product("express-rate-limit, Redis", **EXPRESS, command=node("express-rate-limit-redis"), store=processes.Redis, documented="a window of ten seconds", as_documented=WINDOW),
    Product(
        "rate-limiter-flexible, Redis",
        "new RateLimiterRedis({ points: 100, duration: 10 })",
        "points: Maximum number of points that can be consumed over duration. duration: Number of seconds before consumed points are reset",
        "rate-limiter-flexible 11.4.0, README.md, Options",
        node("rate-limiter-flexible"),
        store=processes.Redis,
        documented="\"The Flexible Fixed Window algorithm starts counting from the moment a request is received\"",
        as_documented=WINDOW,
    ),
    Product(
        "limits, fixed window, Redis",
        'FixedWindowRateLimiter, "100/10 seconds"',
        "All requests in that window increment the counter and when the window expires, the counter resets",
        LIMITS + "Fixed Window",
        python("FixedWindowRateLimiter"),
        store=processes.Redis,
        documented="\"Burst traffic that bypasses the rate limit may occur at window boundaries\"",
        as_documented=WINDOW,
    ),
    Product(
        "limits, moving window, Redis",
        'MovingWindowRateLimiter, "100/10 seconds"',
        "This strategy adds each request's timestamp to a log if the nth oldest entry is either not present or is older than the duration of the window",
        LIMITS + "Moving Window",
        python("MovingWindowRateLimiter"),
        store=processes.Redis,
        documented="100 in any ten seconds, which a bucket of 100 does not follow within them",
        as_documented=WINDOW,
    ),
    Product(
        "slowapi, Redis",
        '@limiter.limit("100/10 seconds")',
        "slowapi is a rate limiting library for Starlette and FastAPI adapted from flask-limiter [...] redis, memcached and memory backends to track your limits",
        "slowapi 0.1.10, README",
        python("slowapi"),
        store=processes.Redis,
        documented="the fixed window of the package limits",
        as_documented=WINDOW,
    ),
    Product(
        "limitador",
        'Limit::new("prove", 100, 10, vec![], vec!["key"])',
        "A value. The length of the period in seconds.",
        "limitador 0.14.0, src/lib.rs, Limits",
        rust("limitador"),
        documented="a period of ten seconds; \"the counters cannot be shared between several instances\"",
        as_documented=WINDOW_PER_INSTANCE,
    ),
    Product(
        "throttlecrab",
        'rate_limit(key, 100, 10, 1, 1, now)',
        "Parameters: key, max_burst, count_per_period, period (seconds), quantity, timestamp",
        "throttlecrab 0.4.40, README.md, Usage",
        rust("throttlecrab"),
        documented="a store in memory",
        as_documented=PER_INSTANCE,
    ),
    Product(
        "tower_governor",
        "per_millisecond(100).burst_size(100)",
        "the elements of the quota will be replenished after a specified period",
        "tower_governor 0.8.0, README.md",
        rust("tower_governor"),
        documented="a store in memory",
        as_documented=PER_INSTANCE,
    ),
]

# They cannot be had, or not in minutes, from Debian, PyPI, npm or crates.io: `prove/run --against` runs the loads on one that is started by hand.
NOT_RUN_HERE = {
    "limitador, Redis": "0.14.0 does not compile with `redis_storage` unless `disk_storage` (RocksDB) is built too",
    "Envoy with envoyproxy/ratelimit": "no registry has the service",
    "Kong": "no registry has it",
    "APISIX": "no registry has it",
    "Caddy with mholt/caddy-ratelimit": "Debian's Caddy is built without the module",
}
