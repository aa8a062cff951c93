"""The smallest servers around limiter libraries of PyPI: `libraries.py PRODUCT PORT REDIS_URL`."""

import sys
import time

import uvicorn

product, port, url = sys.argv[1:]


def of_slowapi():
    """As its documentation shows it for Starlette, with its headers."""
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    limiter = Limiter(key_func=lambda request: request.headers["x-api-key"], storage_uri=url, headers_enabled=True)

    @limiter.limit("100/10 seconds")
    def index(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", index)])
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    return app


def of_limits(strategy):
    from limits import parse
    from limits.aio import storage, strategies

    limiter, limit = getattr(strategies, strategy)(storage.RedisStorage(f"async+{url}", implementation="redispy")), parse("100/10 seconds")

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        key, headers = dict(scope["headers"])[b"x-api-key"].decode(), [(b"content-length", b"0")]
        try:
            status = 200 if await limiter.hit(limit, key) else 429
            if status == 429:
                reset = (await limiter.get_window_stats(limit, key)).reset_time
                headers.append((b"retry-after", str(max(reset - time.time(), 0)).encode()))
        except Exception:
            status = 500
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return app


app = of_slowapi() if product == "slowapi" else of_limits(product)
uvicorn.run(app, port=int(port), log_level="warning", access_log=False, lifespan="off")
