"""Keeps a receipts.json equal to the open dead letters of a queue, while a client or a dead letter queue is open.

The store is the truth, the file a copy of it. One process per host writes it, elected through the store: after events
of this process, and after a look at the counters every few seconds for changes that other processes made. The file is
replaced atomically. A file that this queue has not written is imported before it is replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from redrive import events as ev
from redrive.app import Redrive
from redrive.app.internals import aside, clock_of, store_of
from redrive.core import codec
from redrive.core.item import Millis
from redrive.core.states import State
from redrive.core.verbs import DocumentWrite
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, RedriveError, StoreError
from redrive.observe.logs import log
from redrive.receipts import receipts_json
from redrive.receipts.dead_receipts import dead_receipts, letters_of

logger = logging.getLogger("redrive.receipts")

KIND = "receipts-file"
WRITE_EVERY: Millis = 1_000
"""The shortest time between two writes."""
LOOK_EVERY: Millis = 5_000
"""The time between two looks at the counters, and between two tries of a write that fails."""
TERM: Millis = 15_000
"""How long an election lasts: another process takes over this long after a crash."""


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
        self._store, self._clock = store_of(app), clock_of(app)
        self._election, self._owner = "", new_id()
        self._leads = False
        self._changed = asyncio.Event()
        self._unwritten = False
        self._failing = False
        self._seen: object = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Begins with a write, since a crash may have left an old file."""
        self._path = await receipts_json.resolve(self._path)
        name = hashlib.sha256(f"{platform.node()}:{self._path}".encode())
        self._election = f"receipts.json-{name.hexdigest()[:16]}"
        self._changed.set()
        self._unsubscribe = self._app.events.subscribe(self._on_event)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="receipts.json")

    async def close(self) -> None:
        """Writes what is not written yet, and lets another process be elected."""
        task, self._task = self._task, None
        if task is None:
            return
        self._unsubscribe()
        async with self._turn:  # a write that has begun ends before its task is cancelled
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._unwritten or self._changed.is_set():
            await self._update()
        if self._leads:
            with suppress(StoreError):
                await self._store.elect(self._election, self._owner, 1)

    def _on_event(self, event: ev.Event) -> None:
        match event:
            case ev.Finished(queue=queue, state=State.DEAD) if queue == self._queue:
                self._changed.set()
            case ev.Amended(changed=changed) if changed:
                self._changed.set()
            case _:
                pass

    async def _run(self) -> None:
        while True:
            await self._clock.wait(self._changed, LOOK_EVERY - WRITE_EVERY)
            async with self._turn:
                await self._update()
            await self._clock.sleep(WRITE_EVERY)

    async def _update(self) -> None:
        """Never raises: a failure is logged once, and the write is tried again."""
        self._unwritten |= self._changed.is_set()
        self._changed.clear()
        try:
            self._leads = await self._store.elect(self._election, self._owner, TERM)
            if not self._leads:
                self._unwritten, self._seen = False, None  # the elected process sees what changed here
                return
            seen = await self._signature()
            if self._unwritten or seen != self._seen:
                self._unwritten = True
                await self._write()
                self._unwritten, self._seen = False, seen
            self._failing = False
        except (RedriveError, OSError) as error:
            if not self._failing:
                log(logger, logging.WARNING, f"{self._path} is not up to date, the write is tried again: {error}")
            self._failing = True

    async def _signature(self) -> object:
        """Changes when open letters come or go: the counters of the queue, and the letter that died last."""
        rows = [row for row in (await self._app.tally()).queues if row.queue == self._queue]
        page = await self._app.letters.find(letters_of(self._queue), limit=1)
        last = [(item.id, item.letter and item.letter.died_at) for item in page]
        return [(row.open, row.archived, row.trash) for row in rows], last

    async def _write(self) -> None:
        there = await receipts_json.read(self._path)
        if there is not None:
            await self._load()
            if there.faults and await receipts_json.set_aside(self._path, there.hash) is None:
                hint = "make room for a copy beside it, or move it away"
                raise ConfigError(f"{self._path} is damaged and cannot be copied", field="storage_path", hint=hint)
        entries = [each.entry for each in await dead_receipts(self._app, self._queue)]
        data = await aside(partial(receipts_json.dump, entries))
        digest = hashlib.sha256(data).hexdigest()
        if there is None or there.hash != digest:
            await receipts_json.replace(self._path, data)
            await remember(self._app, self._path, digest)
