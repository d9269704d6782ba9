"""What lies on the disk and in the memory of the servers: nothing of an encrypted queue can be read there."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from redrive.core.decide import ToDone
from redrive.core.item import NewItem
from redrive.core.schedule import Schedule
from redrive.core.select import Match
from redrive.core.verbs import QueueChange, Settlement
from redrive.office.schedules import declare_schedules
from redrive.stores.keyring import Keyring
from redrive.stores.url import store_from_url
from tests.stores.postgres_kit import rows
from tests.stores.sqlite_kit import asking
from tests.support.stores import SERVERS, StoreUrl

CARD, IBAN, TOKEN = b"4111-1111-1111-1111", b"DE02120300000000202051", b"tok_live_51H8"
PLANNED = b"5500-0000-0000-0004"
IN_BASE64 = b64encode(b'{"card": "%s"}' % PLANNED)
"""As a document has the payload of a schedule."""
KEYS = Keyring({"k1": bytes(range(32))}, current="k1")


async def _sqlite(url: str) -> bytes:
    """The file and its log."""
    path = url.removeprefix("sqlite:///").partition("?")[0]

    def read() -> bytes:
        return b"".join(Path(f"{path}{end}").read_bytes() for end in ("", "-wal"))

    return await asyncio.to_thread(read)


async def _postgres(url: str) -> bytes:
    tables = ("item", "result", "document")
    found = await rows(url, " union all ".join([f"select body from {table}" for table in tables]))
    return b"".join(bytes(body) for (body,) in found)


async def _redis(url: str) -> bytes:
    prefix = f"{{{parse_qs(urlsplit(url).query)['namespace'][0]}}}:"

    def read() -> bytes:
        with redis.Redis.from_url(url.partition("?")[0]) as server:
            found: list[Any] = [server.hvals(f"{prefix}{name}") for name in ("body", "result", "documents:schedule")]
        return b"".join(value for values in found for value in values)

    return await asyncio.to_thread(read)


LOOKS: dict[str, Callable[[str], Awaitable[bytes]]] = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SERVERS)) for kind in LOOKS])
async def test_bodies_of_an_encrypted_queue_cannot_be_read_where_they_are_kept(kind: str, store_url: StoreUrl) -> None:
    url = store_url(kind)
    store = await store_from_url(url).open()
    try:
        store.use_keys(KEYS)
        for queue, encrypt in (("secret", True), ("plain", False)):
            await store.configure(queue, QueueChange(encrypt=encrypt))
            await store.put([NewItem(f"{queue}-1", queue, b'{"card": "%s"}' % CARD)])
            (item,) = (await store.lease(asking(1, queue, nonce=queue))).items
            child = NewItem(f"{queue}-2", queue, b'{"token": "%s"}' % TOKEN)
            await declare_schedules(store, [Schedule(queue, queue, b'{"card": "%s"}' % PLANNED, every=3_600_000)])
            await store.settle([Settlement(item.id, 1, ToDone(b'"%s"' % IBAN), None, (child,), queue=queue)])
            kept = await LOOKS[kind](url)
            # The look itself is proved by the queue that is not encrypted.
            assert [secret in kept for secret in (CARD, IBAN, TOKEN, IN_BASE64)] == [not encrypt] * 4
        page = await store.find(Match("queue", "=", "secret"))
        assert {item.payload for item in page} == {b'{"card": "%s"}' % CARD, b'{"token": "%s"}' % TOKEN}
    finally:
        await store.close()
