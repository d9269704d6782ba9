"""The life of the store, and what lies beside the queue: documents, the journal, who is alive."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from redrive._version import __version__
from redrive.core import sizes
from redrive.core.item import Instant, Millis
from redrive.core.verbs import (
    Backup,
    Document,
    DocumentWrite,
    Entry,
    NewEntry,
    StoreInfo,
    WorkerBeat,
    WorkerFacts,
)
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.bodies import Bodies
from redrive.stores.checks import check_entries, check_text, check_writes
from redrive.stores.clock import Clock, StoreTime, SystemClock
from redrive.stores.keyring import Keyring
from redrive.stores.memory._shelf import Documents, Journal, Presence
from redrive.stores.memory._waiters import Waiters


class Beside:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._bodies = Bodies(sizes.MAX)
        self._lock = threading.Lock()
        self._open = False
        self._was_open = False
        self._time = StoreTime(self._clock)
        self._documents = Documents()
        self._journal = Journal()
        self._presence = Presence()
        self._waiters = Waiters()
        _stores.add(self)

    def forget_parent(self) -> None:
        """In a forked child, which goes on with a copy: no thread of the parent will ever release its lock here."""
        self._lock = threading.Lock()
        self._waiters = Waiters()

    async def open(self) -> Self:
        """What was put before a close is still there: only the end of the process loses it."""
        with self._lock:
            self._open = self._was_open = True
        return self

    async def close(self) -> None:
        with self._lock:
            self._open = False
            self._waiters.wake()

    def info(self) -> StoreInfo:
        library, bodies = f"redrive {__version__}", self._bodies
        return StoreInfo("memory", "memory:", "none", library, 1, bodies.keys, bodies.missing_keys)

    def use_keys(self, keyring: Keyring | None) -> None:
        self._bodies.keyring = keyring

    def keyring(self) -> Keyring | None:
        return self._bodies.keyring

    @asynccontextmanager
    async def _verb(self) -> AsyncIterator[Instant]:
        """The lock and the instant at which everything in the verb happens.

        Other tasks get a turn first, as with any store that does io: a loop of verbs must not starve the event loop.
        Nothing is awaited after that, so a verb that is cancelled has not happened.
        """
        await asyncio.sleep(0)
        with self._lock:
            if not self._open:
                raise StoreUnavailable(
                    f"the memory store {'is closed' if self._was_open else 'is not open'}",
                    hint="await store.open() first, and use it before close()",
                )
            yield self._time.now()

    def _wake(self, queue: str) -> None:
        self._waiters.wake(queue)

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        check_text("worker", worker)
        async with self._verb() as now:
            self._presence.beat(worker, facts, ttl, now)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        async with self._verb() as now:
            return self._presence.workers(now)

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        check_text("name", name)
        check_text("owner", owner)
        async with self._verb() as now:
            return self._presence.elect(name, owner, ttl, now)

    async def document(self, kind: str, key: str) -> Document | None:
        async with self._verb():
            return self._documents.get(kind, key)

    async def documents(self, kind: str) -> tuple[Document, ...]:
        async with self._verb():
            return self._documents.all(kind)

    async def write_documents(
        self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
    ) -> tuple[Document, ...]:
        check_writes(writes)
        check_entries((audit,))
        async with self._verb() as now:
            written = self._documents.write(writes)
            self._append(audit, now)
            return written

    def _append(self, entry: NewEntry | None, now: Instant) -> None:
        if entry is not None:
            self._journal.append(entry, now)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        check_entries(entries)
        async with self._verb() as now:
            return tuple([self._journal.append(entry, now) for entry in entries])

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        async with self._verb():
            return self._journal.read(topic, after, limit)

    async def backup(self, path: str, *, force: bool = False) -> Backup:  # noqa: ARG002 - there is no file to write
        async with self._verb():
            raise ConfigError(
                "a memory store has nothing to copy: it is gone with its process",
                field="store",
                hint="use a store that keeps its data, such as sqlite:///redrive.db",
            )


_stores: weakref.WeakSet[Beside] = weakref.WeakSet()


def _forget_parent() -> None:
    for store in tuple(_stores):
        store.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
