"""Hourly work on webhooks, by whichever process gets its item: age, retention, and notices that are missing."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Literal

from msgspec import Struct

from redrive import Redrive, Snooze
from redrive.app.internals import Store, clock_of, store_of
from redrive.core import codec, durations
from redrive.core.instants import format as instant_text
from redrive.core.item import Item, NewItem
from redrive.core.states import State
from redrive.engine.store_retry import retry_unknown
from redrive.errors import NotFound
from redrive.webhooks.endpoints import Endpoints
from redrive.webhooks.model import AGED, DAY, FAMILIES, STATUSES, WEEK, Endpoint, endpoint_id, status_of

QUEUE = "webhooks.maintenance"
EVERY = "1h"
TARGET = "webhook-notices"
RECENT = "3h"
"""Webhooks that ended within this time get their notice, should it be missing."""
PAGE = 500


class Notice(Struct, frozen=True):
    """A webhook that failed or died. `status`: failed or dead_letter."""

    webhook_id: str
    endpoint_id: str
    status: str
    error: str
    received_at: str


Notify = Callable[[Notice], object]


class Maintained(Struct, frozen=True):
    """How many webhooks died of age, and how many letters were discarded."""

    dead_lettered: int = 0
    discarded: int = 0


class Notices:
    """One notice for each webhook that fails or dies, through an outbox queue: it is tried until it succeeds, once."""

    def __init__(self, app: Redrive, notify: Notify | None) -> None:
        self._app = app
        self._notify = notify
        self._queue = "" if notify is None else app.outbox(TARGET, self._deliver)

    async def put(self, items: Iterable[Item]) -> None:
        """A repeat adds nothing: the id says which webhook, and how often it was replayed."""
        if self._queue:
            new = [NewItem(_id(item), self._queue, codec.encode([item.id, item.replays])) for item in items]
            store = store_of(self._app)
            if new:
                await retry_unknown(lambda: store.put(new), clock=clock_of(self._app))

    async def _deliver(self, notice: Item) -> None:
        webhook_id, replays = codec.decode(notice.payload, tuple[str, int])
        try:
            item = await self._app.get(webhook_id)
        except NotFound:
            return
        if item.replays != replays or item.state in (State.DONE, State.CANCELLED):
            return  # it was sent again meanwhile
        if item.letter is None:  # the notice is written before the webhook is settled
            raise Snooze("5s" if item.state is State.LEASED else "1m", note="the webhook has not ended")
        failure = item.letter.failure
        received = instant_text(item.enqueued_at)
        done = (self._notify or print)(Notice(item.id, endpoint_id(item.queue), status_of(item), failure.text, received))
        if inspect.isawaitable(done):
            await done


def _id(item: Item) -> str:
    return f"notice-{item.id}-{item.replays}"


async def notified(store: Store, item: Item) -> bool:
    """Whether the notice about its last end arrived."""
    try:
        return (await store.get(_id(item))).item.state is State.DONE
    except NotFound:
        return await store.tombstone(_id(item)) is not None


class Maintenance:
    """`retention` letters: what failed or died stays until somebody resolves it."""

    def __init__(
        self,
        app: Redrive,
        endpoints: Endpoints,
        notices: Notices,
        *,
        retention: Literal["letters", "seed"],
        on_dead_letter: Callable[[int], object] | None,
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._notices = notices
        self._retention = retention
        self._on_dead_letter = on_dead_letter
        app.queue(QUEUE, keep="1d")
        app.handler(QUEUE, concurrency=1, lease="2m")(self._handle)
        app.schedule(QUEUE, QUEUE, every=EVERY)

    async def _handle(self) -> None:
        await self.run()

    async def run(self) -> Maintained:
        await self._endpoints.restore_settings()
        dead = await self._end_old()
        discarded = await self._discard_old() if self._retention == "seed" else 0
        async for items in self._pages(f"died<{RECENT}"):
            await self._notices.put(items)
        if dead and self._on_dead_letter is not None:
            done = self._on_dead_letter(dead)
            if inspect.isawaitable(done):
                await done
        return Maintained(dead, discarded)

    async def _end_old(self) -> int:
        """Webhooks that waited for longer than their endpoint's `max_age` become dead letters."""
        endpoints = {endpoint.queue: endpoint for endpoint in await self._endpoints.list()}
        rows = (await self._app.tally()).queues
        return sum([await self._end_old_of(endpoints[row.queue]) for row in rows if row.live and row.queue in endpoints])

    async def _end_old_of(self, endpoint: Endpoint) -> int:
        ended, cursor = 0, None
        longest = durations.format(endpoint.max_age)
        while True:
            text = f"queue:{endpoint.queue} state:ready age>{longest}"
            page = await self._app.find(text, limit=PAGE, cursor=cursor)
            now = clock_of(self._app).now()
            old = [item for item in page if endpoint.age(item, now) > endpoint.max_age]
            for tried in (True, False):
                ids = [item.id for item in old if (item.attempt > 0) is tried]
                reason = f"not delivered within {longest}" + ("" if tried else ": never attempted")
                ended += len((await self._app.expire(ids, reason=reason)).changed) if ids else 0
            cursor = page.next
            if cursor is None:
                return ended

    async def _discard_old(self) -> int:
        """As the seed deletes them, but into the trash: failed 7 days after the last attempt, dead 14 after receipt."""
        now = clock_of(self._app).now()
        discarded = 0
        for status, longest in (("failed", WEEK), ("dead_letter", 2 * WEEK)):
            reason = f"retention: {status} for longer than {longest // DAY} days"
            async for items in self._pages(f"{STATUSES[status]} age>{durations.format(longest)}"):
                old = [item.id for item in items if now - _retained_from(item) > longest]
                if old:
                    discarded += len((await self._app.letters.discard(old, reason=reason)).changed)
        return discarded

    async def _pages(self, filter: str) -> AsyncIterator[tuple[Item, ...]]:
        """Open letters of all endpoints."""
        cursor = None
        while True:
            page = await self._app.letters.find(f"queue:{','.join(FAMILIES)} {filter}", limit=PAGE, cursor=cursor)
            yield page.items
            cursor = page.next
            if cursor is None:
                return


def _retained_from(item: Item) -> int:
    """Dead letters from their receipt or last replay, failed ones from their last attempt."""
    aged = item.letter is not None and item.letter.reason in AGED
    return item.renewed_at if aged or item.leased_at is None else item.leased_at
