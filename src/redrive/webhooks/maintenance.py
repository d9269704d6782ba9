"""Hourly work on webhooks, in the process that leases its item: age, retention, and notices that are missing."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import groupby
from typing import Literal

from msgspec import Struct

from redrive import Redrive, Snooze
from redrive.app.internals import Store, clock_of, store_of
from redrive.core import codec, durations
from redrive.core.filters import parse as parse_filter
from redrive.core.instants import format as instant_text
from redrive.core.item import Instant, Item, Millis, NewItem
from redrive.core.states import State
from redrive.core.verbs import Page
from redrive.engine.store_retry import retry_unknown
from redrive.errors import NotFound
from redrive.observe.alerts.channels import send
from redrive.observe.alerts.model import Channel, Message
from redrive.observe.alerts.model import Notice as Alert
from redrive.office.bites import pages
from redrive.office.counting import report_count
from redrive.webhooks.endpoints import Endpoints
from redrive.webhooks.model import DAY, NEVER, STATUSES, WEEK, Endpoint, endpoint_id, not_ours, queues_of, status_of

QUEUE = "webhooks.maintenance"
EVERY = "1h"
TARGET = "webhook-notices"
RECENT: Millis = 3 * 3_600_000
"""Webhooks that ended within this time get their notice, should it be missing."""
PAGE = 100
"""Webhooks that are in memory at once, with their payloads."""


class Notice(Struct, frozen=True):
    """A webhook that failed or died. `status`: failed or dead_letter."""

    webhook_id: str
    endpoint_id: str
    status: str
    error: str
    received_at: str


Notify = Callable[[Notice], object] | Channel
"""A function, or a channel of alerts such as slack(url)."""


class Maintained(Struct, frozen=True):
    """How many webhooks died of age, and how many letters were discarded."""

    dead_lettered: int = 0
    discarded: int = 0


class Notices:
    """One notice for each webhook that fails or dies, and one with the number that died of age since the last such one,
    through an outbox queue: each is tried until it succeeds, once.
    """

    def __init__(self, app: Redrive, notify: Notify | None, on_dead_letter: Callable[[int], object] | None) -> None:
        self._app = app
        self._notify = notify
        self._on_dead_letter = on_dead_letter
        self._queue = app.outbox(TARGET, self._deliver) if notify or on_dead_letter else ""

    async def put(self, *items: Item) -> None:
        """A repeat adds nothing: the id says which webhook, and how often it was replayed."""
        if self._notify is not None:
            await self._put([(_id(item), (item.id, item.replays)) for item in items])

    async def put_count(self) -> None:
        async def count(after: Instant, until: Instant) -> int:
            died = f"died_at>{instant_text(after)} died_at<={instant_text(until)}"
            return await self._app.letters.count(f"{queues_of()} {STATUSES['dead_letter']} {died}")

        async def put(name: str, dead: int) -> None:
            await self._put([(name, ("", dead))])

        if self._on_dead_letter is not None:
            await report_count(store_of(self._app), "webhook.died", count, put, first=RECENT)

    async def _put(self, notices: Iterable[tuple[str, tuple[str, int]]]) -> None:
        new = [NewItem(name, self._queue, codec.encode(body)) for name, body in notices]
        store = store_of(self._app)
        if new:
            await retry_unknown(lambda: store.put(new), clock=clock_of(self._app))

    async def _deliver(self, notice: Item) -> None:
        webhook_id, number = codec.decode(notice.payload, tuple[str, int])
        done = await self._notice(webhook_id, number) if webhook_id else (self._on_dead_letter or bool)(number)
        if inspect.isawaitable(done):
            await done

    async def _notice(self, webhook_id: str, replays: int) -> object:
        try:
            item = await self._app.get(webhook_id)
        except NotFound:
            return None
        if item.replays != replays or item.state in (State.DONE, State.CANCELLED) or self._notify is None:
            return None  # it was sent again meanwhile
        if item.letter is None:  # the notice is written before the webhook has ended
            raise Snooze("5s" if item.state is State.LEASED else "1m", note="the webhook has not ended")
        text, received, endpoint = item.letter.failure.text, instant_text(item.enqueued_at), endpoint_id(item.queue)
        if not isinstance(self._notify, Channel):
            return self._notify(Notice(item.id, endpoint, status_of(item), text, received))
        died, text = item.letter.died_at, f"webhook {item.id} of {endpoint}: {text}"
        of, since = (item.queue,), item.enqueued_at
        alert = Alert("firing", item.id, status_of(item), endpoint, "error", text, of, since, died)
        return await send(self._notify, Message(_id(item), died, (alert,)))


def _id(item: Item) -> str:
    return f"notice-{item.id}-{item.replays}"


async def notified(store: Store, item: Item) -> bool:
    """Whether the notice about its last end arrived."""
    try:
        return (await store.get(_id(item))).item.state is State.DONE
    except NotFound:
        return await store.tombstone(_id(item)) is not None


class Maintenance:
    """`retention` letters: what failed or died stays until it is replayed or discarded."""

    def __init__(
        self, app: Redrive, endpoints: Endpoints, notices: Notices, *, retention: Literal["letters", "seed"]
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._notices = notices
        self._retention = retention
        app.queue(QUEUE, keep="1d")
        app.handler(QUEUE, concurrency=1, lease="2m")(self.run)
        app.schedule(QUEUE, QUEUE, every=EVERY)

    async def run(self) -> Maintained:
        await self._endpoints.restore_settings()
        dead = await self._end_old()
        await self._notices.put_count()
        async for page in self._letters(f"died<{durations.format(RECENT)}"):
            await self._notices.put(*page)
        discarded = await self.discard_old() if self._retention == "seed" else 0
        return Maintained(dead, discarded)

    async def _end_old(self) -> int:
        """Webhooks that waited for longer than their endpoint's `max_age` become dead letters; so do, after a week,
        those that came while their endpoint was deleted.
        """
        endpoints = {endpoint.queue: endpoint for endpoint in await self._endpoints.list()}
        ended = 0
        for row in (await self._app.tally()).queues:
            endpoint = endpoints.get(row.queue, Endpoint(id=endpoint_id(row.queue)))
            if row.live and not_ours(row.queue) is None and endpoint.status == "active":
                ended += await self._end_old_of(row.queue, endpoint)
        return ended

    async def _end_old_of(self, queue: str, endpoint: Endpoint) -> int:
        ended, longest, store = 0, durations.format(endpoint.max_age), store_of(self._app)
        waiting = parse_filter(f"queue:{queue} state:ready age>{longest}")
        # The longest waiting first: they die in their order, which is that of a replay.
        async for page in pages(lambda cursor: store.find(waiting, PAGE, cursor, oldest=True)):
            now = clock_of(self._app).now()
            old = [
                item for item in page if endpoint.age(await self._since(endpoint, item, now), now) > endpoint.max_age
            ]
            await self._notices.put(*old)
            for tried, items in groupby(old, lambda item: item.attempt > 0):
                reason = f"not delivered within {longest}" + ("" if tried else f": {NEVER}")
                ended += len((await self._app.expire([item.id for item in items], reason=reason)).changed)
        return ended

    async def _since(self, endpoint: Endpoint, item: Item, now: Instant) -> Instant:
        """From when its age counts: its receipt or last replay, or the first attempt since then."""
        if endpoint.window == "received":
            return item.renewed_at
        attempts = (await self._app.history(item.id)).attempts if item.attempt else ()
        return min([each.started_at for each in attempts if each.started_at >= item.renewed_at], default=now)

    async def discard_old(self) -> int:
        """As the seed deletes them, but into the trash: failed 7 days after the last attempt, dead 14 after receipt."""
        now = clock_of(self._app).now()
        discarded = 0
        for status, longest in (("failed", WEEK), ("dead_letter", 2 * WEEK)):
            reason = f"retention: {status} for longer than {longest // DAY} days"
            async for page in self._letters(f"{STATUSES[status]} age>{durations.format(longest)}"):
                old = [item.id for item in page if now - _retained_from(item) > longest]
                if old:
                    discarded += len((await self._app.letters.discard(old, reason=reason)).changed)
        return discarded

    def _letters(self, filter: str) -> AsyncIterator[Page]:
        """Open ones of all endpoints."""
        return pages(lambda cursor: self._app.letters.find(f"{queues_of()} {filter}", limit=PAGE, cursor=cursor))


def _retained_from(item: Item) -> int:
    """Dead letters from their receipt or last replay, failed ones from their last attempt."""
    return item.renewed_at if item.leased_at is None or status_of(item) == "dead_letter" else item.leased_at
