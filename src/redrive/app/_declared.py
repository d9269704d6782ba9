"""What the code of an app declares about queues and routes, and when that is written to the store.

Only what differs from what the code said the last time is written, so that a restart does not undo what an operator
changed, and a release with another value does. Why: ADR 21.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.verbs import Document, DocumentWrite, QueueChange
from redrive.engine.asks import known_policy
from redrive.engine.registry import Registry
from redrive.errors import ConfigError, Conflict
from redrive.office.settings import said
from redrive.stores.base import Store

KIND = "declared"
TRIES = 10
logger = logging.getLogger("redrive")

Settings = dict[str, Any]


class Declared:
    """`pending`: something was declared since the last write."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueChange] = {}
        self.routes: dict[str, int | None] = {}
        self.pending = False

    def copy(self) -> Declared:
        other = Declared()
        other.queues, other.routes, other.pending = dict(self.queues), dict(self.routes), True
        return other

    def queue(self, name: str, change: QueueChange) -> None:
        """Several may speak of one queue: its handler, and whoever limits it."""
        before = said(self.queues.get(name, QueueChange()))
        now = said(change)
        for field in before.keys() & now.keys():
            if before[field] != now[field]:
                hint = "declare it in one place"
                raise ConfigError(f"queue {name!r} has {before[field]!r} already", field=field, hint=hint)
        settings = {field: getattr(change, field) for field in now}
        self.queues[name] = replace(self.queues.get(name, QueueChange()), **settings)
        self.pending = True

    def route(self, name: str, capacity: int | None) -> None:
        self.routes[name] = capacity
        self.pending = True

    async def write(self, store: Store, registry: Registry) -> None:
        self.pending = False
        try:
            for queue in sorted(registry.declared | self.queues.keys()):
                await self._write_queue(store, registry, queue)
            for route, capacity in sorted(self.routes.items()):
                await _once(store, f"route:{route}", {"capacity": capacity}, _route_writer(store, route))
        except BaseException:
            self.pending = True
            raise

    async def _write_queue(self, store: Store, registry: Registry, queue: str) -> None:
        change = self.queues.get(queue)
        settings = {} if change is None else said(change)
        if settings.get("policy"):
            known_policy(settings["policy"], registry.policies)
        # Also a queue without settings is declared: its name is known from now on.
        await store.configure(queue, QueueChange())
        if settings:
            await _once(store, f"queue:{queue}", settings, _queue_writer(store, queue))


Write = Callable[[Settings], Awaitable[Settings]]
"""Writes these, and tells which of them it could."""


async def _once(store: Store, key: str, settings: Settings, write: Write) -> None:
    document = await store.document(KIND, key)
    for _ in range(TRIES):
        last = _read(document)
        differs = {name: value for name, value in settings.items() if name not in last or last[name] != value}
        if not differs:
            return
        # First the setting, then that it was said: whoever dies in between says it again.
        written = await write(differs)
        version = 0 if document is None else document.version
        try:
            await store.write_documents([DocumentWrite(KIND, key, codec.encode(last | written), version)])
        except Conflict:
            document = await store.document(KIND, key)
        else:
            return
    raise Conflict(f"{key} is declared by others at the same time", hint="declare it in one place")


def _read(document: Document | None) -> Settings:
    return {} if document is None else codec.decode(document.body, Settings)


def _queue_writer(store: Store, queue: str) -> Write:
    async def write(settings: Settings) -> Settings:
        rest = {name: value for name, value in settings.items() if name != "capacity"}
        if rest:
            await store.configure(queue, convert(rest, QueueChange))
        if "capacity" not in settings:
            return rest
        capacity = settings["capacity"]
        if not await _fits(store.configure(queue, QueueChange(capacity=capacity)), f"queue {queue!r}"):
            return rest
        return settings

    return write


def _route_writer(store: Store, route: str) -> Write:
    async def write(settings: Settings) -> Settings:
        fits = await _fits(store.configure_route(route, settings["capacity"]), f"route {route!r}")
        return settings if fits else {}

    return write


async def _fits(writing: Awaitable[None], what: str) -> bool:
    """More than fits is there already. The workers that would mend it must be able to start: said, and tried again."""
    try:
        await writing
    except ConfigError as error:
        if error.field != "capacity":
            raise
        logger.warning("the declared capacity of %s is left as it was: %s", what, error)
        return False
    return True
