"""A fresh namespace on the shared Redis for each test; its keys are removed afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator

import redis

from tests.support import held
from tests.support.servers import shared
from tests.support.servers.server import with_options

PREFIX = "redrive-test-"
PATIENCE = 60
"""Seconds. The client's own 5 s are not enough for a server that a test keeps busy on a busy machine."""


@contextlib.contextmanager
def fresh(flavour: str | None = None) -> Iterator[str]:
    """Its URL, for as long as the test takes."""
    server = shared.redis(flavour)
    name = PREFIX + secrets.token_hex(6)
    try:
        yield with_options(server.url, {"namespace": name})
    finally:
        client = _client(server.admin, os.getpid())
        # A key names its namespace, so there is no need to know how.
        keys = list(client.scan_iter(match=f"*{name}*", count=1000))
        if keys:
            client.unlink(*keys)


@functools.cache
def _client(url: str, pid: int) -> redis.Redis:
    """Of this process: a connection does not survive a fork."""
    client = redis.Redis.from_url(url, socket_timeout=PATIENCE)
    with held.lasting():
        client.ping()
    return client
