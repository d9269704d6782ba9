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
    import starlette  # noqa: F401 - the applications need it
    from uvicorn import Config, Server

    from redrive.net.server_protocol import Protocol
except ModuleNotFoundError as missing:
    what = f"serving HTTP needs the package {missing.name}"
    raise MissingExtra(what, field="http", hint="pip install 'redrive[webhooks]'") from None

KEEP_ALIVE = 15
"""Seconds that a connection may rest between requests."""
CONNECTIONS = 1_000
"""At once. Requests beyond them are answered 503."""
LAST_REQUESTS = 5
"""Seconds for requests that are under way at the end. With `server.force_exit` they get none."""


class Served(NamedTuple):
    """`address`: HOST:PORT on which it listens."""

    server: Server
    address: str


@asynccontextmanager
async def serving(app: Any, host: str, port: int) -> AsyncIterator[Served]:
    """Serve until the block is left. Port 0: any that is free."""
    listener = await aside(partial(_listen, host, port))
    config = Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_REQUESTS,
    )
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup([listener])
    except SystemExit:  # as uvicorn says it; it would end the loop
        listener.close()
        raise RuntimeError("the application did not start") from None
    turning = asyncio.create_task(server.main_loop())
    try:
        found, number = listener.getsockname()[:2]
        yield Served(server, f"[{found}]:{number}" if ":" in found else f"{found}:{number}")
    finally:
        server.should_exit = True
        await turning
        await server.shutdown([listener])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        hint = "choose another address; port 0 takes any that is free"
        said = f"{host}:{port} cannot be listened on: {error.strerror or error}"
        raise ConfigError(said, field="http", hint=hint) from None
    return listener
