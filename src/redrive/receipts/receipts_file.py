"""Keeps a receipts.json equal to the open dead letters of a queue, while a client or a dead letter queue is open.

The store is the truth, the file a mirror of it, which one process per host writes. The file is replaced atomically. A
file that this queue has not written is imported before it is replaced.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from redrive import events as ev
from redrive.app import Redrive
from redrive.app.internals import clock_of, in_thread, store_of
from redrive.core import codec
from redrive.core.states import State
from redrive.core.verbs import DocumentWrite
from redrive.engine.mirror import Mirror
from redrive.errors import ConfigError
from redrive.observe.logs import log
from redrive.office import files
from redrive.receipts import receipts_json
from redrive.receipts.dead_receipts import dead_receipts, letters_of, logger

KIND = "receipts-file"


class KnownFile(Struct, frozen=True):
    """What the store keeps of a file that was imported or written: the hash of its contents."""

    hash: str


async def is_known(app: Redrive, path: Path, digest: str) -> bool:
    """Whether a file was imported or written with these contents."""
    known = await store_of(app).document(KIND, str(path))
    return known is not None and codec.decode(known.body, KnownFile).hash == digest


async def remember(app: Redrive, path: Path, digest: str) -> None:
    await store_of(app).write_documents([DocumentWrite(KIND, str(path), codec.encode(KnownFile(digest)))])


class ReceiptsFile:
    """`load` imports the file if its contents are not known."""

    def __init__(self, app: Redrive, queue: str, path: Path, load: Callable[[], Awaitable[object]]) -> None:
        self._app = app
        self._queue = queue
        self._path = path
        self._load = load
        self._mirror: Mirror | None = None
        self._written: object = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def open(self) -> None:
        self._path = await receipts_json.resolve(self._path)
        name = hashlib.sha256(f"{platform.node()}:{self._path}".encode()).hexdigest()[:16]
        self._mirror = Mirror(
            f"receipts.json-{name}",
            store_of(self._app),
            clock_of(self._app),
            signature=self._signature,
            write=self._write,
            failed=self._failed,
            is_intact=self._is_intact,
        )
        self._unsubscribe = self._app.events.subscribe(self._on_event)

    async def close(self) -> None:
        """Writes what is not written yet."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            self._unsubscribe()
            await mirror.close()

    def _on_event(self, event: ev.Event) -> None:
        dead = isinstance(event, ev.Finished) and event.state == State.DEAD and event.queue == self._queue
        if self._mirror is not None and (dead or (isinstance(event, ev.Amended) and event.changed)):
            self._mirror.change()

    def _failed(self, error: Exception) -> None:
        log(logger, logging.WARNING, f"{self._path} is not up to date, the write is tried again: {error}")

    async def _signature(self) -> object:
        """Changes when open letters come or go: the counters of the queue, and the letter that died last."""
        row = (await self._app.tally(members=(self._queue,))).row(self._queue)
        page = await self._app.letters.find(letters_of(self._queue), limit=1)
        last = [(item.id, item.letter and item.letter.died_at) for item in page]
        return row.open, row.archived, row.trash, last

    async def _is_intact(self) -> bool:
        return await _stamp(self._path) == self._written

    async def _write(self) -> None:
        there = await receipts_json.read(self._path)
        if there is not None:
            await self._load()
            if there.faults and await files.set_aside(self._path, there.hash) is None:
                hint = "make room for a copy beside it, or move it away"
                raise ConfigError(f"{self._path} is damaged and cannot be copied", field="storage_path", hint=hint)
        entries = [each.entry for each in await dead_receipts(self._app, self._queue)]
        data = await in_thread(receipts_json.dump)(entries)
        digest = hashlib.sha256(data).hexdigest()
        if there is None or there.hash != digest:
            await files.replace_file(self._path, data)
            await remember(self._app, self._path, digest)
        self._written = await _stamp(self._path)


@in_thread
def _stamp(path: Path) -> object:
    """Changes with the file; None if there is none. Raises OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
