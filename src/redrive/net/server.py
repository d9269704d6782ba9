"""An ASGI application served over HTTP in the running event loop, by uvicorn without its signal handlers.

The heads of requests are bounded by `server_protocol`, bodies by the application.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from redrive.errors import ConfigError, MissingExtra
from redrive.stores.aside import aside

try:
    import starlette  # noqa: F401 - named if it is missing
    from starlette.responses import PlainTextResponse
    from uvicorn import Config, Server

    from redrive.net.server_protocol import Protocol
except ModuleNotFoundError as missing:
    what = f"serving HTTP needs the package {missing.name}"
    raise MissingExtra(what, field="http", hint="pip install 'redrive[webhooks]'") from None

KEEP_ALIVE = 15
"""Seconds that an idle connection is kept between requests."""
REQUESTS = 1_000
"""Concurrent requests. Those beyond are answered 503 with Retry-After."""
LAST_REQUESTS = 5
"""Seconds that requests under way get at shutdown; none with `server.force_exit`."""


class Served(NamedTuple):
    """`address`: HOST:PORT on which it listens."""

    server: Server
    address: str


class _Limited:
    """Middleware that bounds the concurrent requests. The limit of uvicorn counts idle connections, too."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._under_way = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._under_way >= REQUESTS:
            later = PlainTextResponse("too many requests at once", 503, {"Retry-After": "5", "Connection": "close"})
            await later(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


@asynccontextmanager
async def serving(app: Any, host: str, port: int) -> AsyncIterator[Served]:
    """Serve until the block is left. Port 0 takes a free port."""
    listener = await aside(partial(_listen, host, port))
    config = Config(
        _Limited(app),
        http=Protocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_REQUESTS,
    )
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup([listener])
    except SystemExit:  # raised by uvicorn; it would end the event loop
        listener.close()
        raise RuntimeError("the application did not start") from None
    main_loop = asyncio.create_task(server.main_loop())
    try:
        found, number = listener.getsockname()[:2]
        yield Served(server, f"[{found}]:{number}" if ":" in found else f"{found}:{number}")
    finally:
        server.should_exit = True
        await main_loop
        await server.shutdown([listener])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "choose another address; port 0 takes a free port"
        text = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise ConfigError(text, field="http", hint=hint) from None
    return listener
