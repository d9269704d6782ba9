"""The relay: webhooks come in and go out over one store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from redrive import Keyring, Redrive
from redrive.app.internals import Store, clock_of, parts_of, store_of
from redrive.core import codec
from redrive.core.durations import Duration
from redrive.core.filters import parse as parse_filter
from redrive.core.instants import format as instant_text
from redrive.core.item import History, NewItem, Terms
from redrive.core.quantity import shown
from redrive.core.sizes import Size
from redrive.core.sizes import parse as parse_size
from redrive.engine.asks import KEY_LIMIT
from redrive.engine.ids import ItemId, new_id
from redrive.engine.store_retry import retry_unknown
from redrive.errors import ConfigError, NotFound
from redrive.net.guard import Guard
from redrive.net.http import HttpClient, Tls
from redrive.office.letters import Which, replay_within
from redrive.office.replay import Replayed
from redrive.stores.clock import Clock
from redrive.webhooks import model
from redrive.webhooks.delivery import POLICY, Delivery, Send, sent
from redrive.webhooks.endpoints import Endpoints, declare
from redrive.webhooks.maintenance import QUEUE, Maintained, Maintenance, Notices, Notify, notified
from redrive.webhooks.model import FAMILIES, ORDER_KEY, STATUSES, Endpoint, Envelope, Status, Webhook
from redrive.webhooks.tokens import Tokens

if TYPE_CHECKING:
    from redrive.net.server import Served
    from redrive.webhooks.hub import Hub

MAX_BODY = "10MiB"
HEAD = 1024 * 1024
"""Bytes of a payload beside the body."""
CONCURRENCY = 50
LEASE = "60s"
_EVENT_TYPE = r"[A-Za-z0-9_.-]{1,128}"
_EVENT_ID = r"[A-Za-z0-9_][A-Za-z0-9_+/@~-]{0,62}"
"""Without dots, which separate the id, the time and the body for the signature, and the signs of filters."""


class WebhookPage(Struct, frozen=True):
    """`next` is the cursor of the page after this one, None at the end."""

    webhooks: tuple[Webhook, ...]
    next: str | None

    def __iter__(self) -> Iterator[Webhook]:
        return iter(self.webhooks)

    def __len__(self) -> int:
        return len(self.webhooks)


class Webhooks:
    """The webhooks of a relay."""

    def __init__(self, app: Redrive, endpoints: Endpoints) -> None:
        self._app = app
        self._endpoints = endpoints

    async def get(self, id: str) -> Webhook:
        """As it is now. Raises NotFound."""
        history = await self._app.history(id)
        if why := model.not_ours(history.item.queue):
            raise NotFound(f"{id}: {why.reason}")
        return model.webhook_of(history, notified=await notified(store_of(self._app), history.item))

    async def list(
        self, endpoint: str | None = None, *, status: Status | None = None, limit: int = 100, cursor: str | None = None
    ) -> WebhookPage:
        """A page, last received first, without those in the trash. Only `get` gives `notification_sent`, `blocked_by`,
        the `error_message` of one that waits, and the whole `reason` of one that died of age.
        """
        if status is not None and status not in STATUSES:
            raise ConfigError(f"{shown(status)} is not a status", field="status", hint=f"use {', '.join(STATUSES)}")
        text = f"{model.queues_of(endpoint or '*')} -disposition:trash {STATUSES[status] if status else ''}"
        page = await self._app.find(text, limit=limit, cursor=cursor)
        if endpoint is not None and not page.items and cursor is None:
            await self._endpoints.get(endpoint)  # raises NotFound
        return WebhookPage(tuple([model.webhook_of(History(item)) for item in page]), page.next)

    async def replay(self, which: Which, *, reason: str) -> Replayed:
        """Send failed and dead webhooks again, the longest dead first: pending, with attempts from 0 and a new window.
        Behind those that wait; where the order is block or park, at their own place. A filter means webhooks only; of
        ids, others are skipped, each with its reason.
        """
        store, ours = store_of(self._app), model.queues_of()
        return await replay_within(self._app.letters, store, ours, "webhook", which, reason=reason)


class Relay:
    """Webhooks on one store: endpoints, what was received for them, deliveries, events to publish.

    `allow`: private networks that endpoints may be in, as "10.1.0.0/16". `encryption`: keys for secrets of endpoints.
    `capacity`: how many webhooks may wait in all. `keep`: how long delivered ones are kept. `retention` seed: failed
    and dead ones are discarded after 7 and 14 days. `notify` is called once for each webhook that failed or died, and
    `on_dead_letter` with how many died of age since the last round of maintenance; each is tried until it returns.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///hooks.db",
        *,
        allow: Iterable[str] = (),
        encryption: Keyring | None = None,
        capacity: int | None = None,
        keep: Duration = "7d",
        retention: Literal["letters", "seed"] = "letters",
        notify: Notify | None = None,
        on_dead_letter: Callable[[int], object] | None = None,
        max_body: Size = MAX_BODY,
        concurrency: int = CONCURRENCY,
        proxy: str | None = None,
        proxy_filters: bool = False,
        tls: Tls | None = None,
        actor: str | None = None,
        log: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.stopping = False
        self.max_body = parse_size(max_body, field="max_body")
        if retention not in ("letters", "seed"):
            raise ConfigError(f"must be letters or seed, got {shown(retention)}", field="retention", hint="use one")
        guard = Guard(allow)
        self._client = HttpClient(
            guard=guard, connections=concurrency, proxy=proxy, proxy_filters=proxy_filters, tls=tls, packed=True
        )
        self.app = Redrive(
            store, max_payload=self.max_body + HEAD, encryption=encryption, actor=actor, log=log, clock=clock
        )
        parts_of(self.app).entered_by = "async with relay:"
        self.endpoints = Endpoints(self.app, guard, encryption)
        self.webhooks = Webhooks(self.app, self.endpoints)
        self.tokens = Tokens(self.app, self.endpoints)
        self.notices = Notices(self.app, notify, on_dead_letter)
        self.maintenance = Maintenance(self.app, self.endpoints, self.notices, retention=retention)
        for family in FAMILIES:
            self.app.queue(family, keep=keep, capacity=capacity)
        self.app.handler(FAMILIES[0], policy=POLICY, lease=LEASE, concurrency=concurrency)(
            self.delivery(lambda _item, make: sent(self._client, make())).handle
        )

    def delivery(self, send: Send) -> Delivery:
        """A handler whose requests are brought to their targets by `send`."""
        return Delivery(self.endpoints, clock_of(self.app), send, self.notices.put)

    async def open(self) -> Self:
        await self._client.open()
        try:
            await self.app.open()
            await declare(self.app)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        try:
            await self.app.close()
        finally:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def publish(self, event_type: str, payload: object, *, id: str | None = None) -> list[str]:
        """Send an event to every endpoint that subscribes to its type, in one write. Gives the ids of the webhooks.

        With an `id` of the event, a repeat adds nothing.
        """
        if not _is(_EVENT_TYPE, event_type):
            hint = "use 1 to 128 of A-Z a-z 0-9 . _ -, such as order.paid"
            raise ConfigError(f"{shown(event_type)} is not a type of event", field="event_type", hint=hint)
        parts_of(self.app).check_open()
        event = new_id() if id is None else id
        if not _is(_EVENT_ID, event):
            hint = "use 1 to 63 of A-Z a-z 0-9 _ + / @ ~ -, beginning with a letter, a digit or _"
            raise ConfigError(f"{shown(event)} is not an id of an event", field="id", hint=hint)
        chosen = [
            endpoint
            for endpoint in await self.endpoints.subscribed()
            if any(fnmatchcase(event_type, pattern) for pattern in endpoint.events)
        ]
        envelope = self._event(event_type, payload)
        return await self._put([_new_item(f"{event}_{endpoint.id}", endpoint, envelope) for endpoint in chosen])

    def _event(self, event_type: str, payload: object) -> bytes:
        data = {"type": event_type, "timestamp": instant_text(clock_of(self.app).now()), "data": payload}
        body = codec.dump_payload(data, limit=self.max_body, queue="webhook:*")
        return Envelope(body, event_type=event_type).encode()

    async def _put(self, items: list[NewItem]) -> list[str]:
        if items:
            await retry_unknown(lambda: store_of(self.app).put(items), clock=clock_of(self.app))
        return [item.id for item in items]

    async def send_test(self, endpoint_id: str) -> str:
        """Put a test event for one endpoint, whatever it subscribes to. Gives the id of the webhook."""
        endpoint = await self.endpoints.get(endpoint_id)
        envelope = self._event("redrive.test", {"endpoint": endpoint.id})
        (put,) = await self._put([_new_item(new_id(), endpoint, envelope)])
        return put

    async def receive(self, endpoint: Endpoint, envelope: Envelope, *, delivery_id: str = "") -> ItemId:
        """Store a webhook that came in. With the provider's own id, a repeat within a day adds nothing."""
        return await self.app.enqueue(
            endpoint.queue,
            envelope.encode(),
            order_key=ORDER_KEY if endpoint.ordered else None,
            dedupe_key=delivery_id[:KEY_LIMIT] or None,
            dedupe_window="1d" if delivery_id else None,
        )

    async def run(self, *, until_idle: bool = False, grace: Duration = "30s", deliver: bool = True) -> None:
        """Deliver, and maintain at once and then hourly, until `stop`. Without `deliver`, maintain only: an edge, whose
        hubs deliver.
        """
        self.stopping = False
        await self.app.enqueue(QUEUE, dedupe_key=QUEUE)
        await self.app.run(until_idle=until_idle, grace=grace, queues=None if deliver else [QUEUE])

    async def stop(self, *, grace: Duration | None = None) -> None:
        self.stopping = True
        await self.app.stop(grace=grace)

    async def maintain(self) -> Maintained:
        """The hourly work, now: age, retention, notices that are missing."""
        return await self.maintenance.run()

    async def hubs(self) -> tuple[Hub, ...]:
        """Those that are or were connected."""
        from redrive.webhooks.hub import hubs

        return await hubs(self)

    def asgi(self) -> Any:
        """An ASGI application that receives webhooks at /h/ENDPOINT, and serves hubs at /hub."""
        from redrive.webhooks.ingest import application

        return application(self)

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 8080) -> AsyncIterator[Served]:
        """Serve `asgi()` until the block is left, with bounds on the time and size of what comes in."""
        server = await asyncio.to_thread(import_module, "redrive.net.server")
        async with server.serving(await asyncio.to_thread(self.asgi), host, port) as served:
            yield served


def _is(pattern: str, text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(pattern, text) is not None


def _new_item(id: str, endpoint: Endpoint, payload: bytes) -> NewItem:
    terms = Terms(order_key=ORDER_KEY) if endpoint.ordered else None
    return NewItem(id, endpoint.queue, payload, terms=terms)


async def get_pending_webhooks(relay: Relay, limit: int = 100) -> tuple[Webhook, ...]:
    """Those that may be sent now, longest waiting first: due, first in their order, of endpoints that are active."""
    resting = [f"-queue:{each.queue}" for each in await relay.endpoints.list() if each.status != "active"]
    text = " ".join([model.queues_of(), "state:ready -state:blocked due>=0s", *resting])
    page = await store_of(relay.app).find(parse_filter(text), limit, oldest=True)
    return tuple([model.webhook_of(History(item)) for item in page])


async def replay_webhook(relay: Relay, id: str, *, reason: str = "replayed") -> Replayed:
    return await relay.webhooks.replay([id], reason=reason)


async def mark_old_webhooks_as_dead_letter(relay: Relay) -> int:
    """As the relay does hourly by itself, now. Gives how many became dead letters."""
    return (await relay.maintain()).dead_lettered


async def delete_old_webhooks(relay: Relay) -> int:
    """As with `retention="seed"`, now: old failed and dead ones go into the trash. Delivered ones go by `keep`."""
    return await relay.maintenance.discard_old()
