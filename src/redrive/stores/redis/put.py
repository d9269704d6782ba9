"""`put` on Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError
from redrive.stores.redis.rows import packed_body
from redrive.stores.redis.texts import packed

MOST = 500_000
"""Items of one put: the server takes at most a million arguments."""


Run = Callable[[str, Sequence[Any]], Awaitable[Any]]


async def put(run: Run, items: Sequence[NewItem]) -> PutResult:
    if not items:
        return PutResult()
    if len(items) > MOST:
        raise ConfigError(f"{len(items):,} items are too many for one put", field="items", hint=f"put at most {MOST:,}")
    heads = packed([(new.id, new.queue, new.delay) for new in items])
    places = await run("put", [heads, *[packed_body(new.payload) for new in items]])
    if not places:
        return PutResult(tuple([new.id for new in items]))
    there = set(places)
    added = tuple([new.id for place, new in enumerate(items, 1) if place not in there])
    return PutResult(added, tuple([items[place - 1].id for place in places]))
