"""Endpoints: documents of the store, each with a queue of its own whose settings follow the document."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Unpack, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redrive import Keyring, Redrive
from redrive.app.internals import PAGE_LIMIT, clock_of, parts_of, store_of
from redrive.core import codec, durations, rates
from redrive.core.acts import Act
from redrive.core.durations import Duration
from redrive.core.filters import parse as parse_filter
from redrive.core.gate import gate_config
from redrive.core.instants import moment
from redrive.core.item import Instant, Millis
from redrive.core.quantity import shown
from redrive.core.verbs import DocumentWrite, NewEntry, QueueChange
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.net.guard import Guard
from redrive.net.signing import MOST_SIGNATURES, SIGNING, new_signing_secret, read_keys, verifying_key
from redrive.net.urls import check_http_url
from redrive.net.verification import Verification
from redrive.office.doors import mark
from redrive.office.gates import declare_gate
from redrive.office.settings import settings_entry
from redrive.webhooks.endpoint_options import VERIFYING, EndpointOptions, check_options, verification_of
from redrive.webhooks.model import DAY, ENDPOINT, FAMILIES, STATUSES, Endpoint, EndpointStatus, Via

FRESH: Millis = 1_000
"""How old a document may be when a webhook is delivered or received."""
CACHED = 10_000
HOUR: Millis = 3_600_000
PAUSES = 100
BREAKER = gate_config(retry_share=None)
"""Without a budget for retries: an endpoint has a schedule of its own."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Secrets(Struct, frozen=True, omit_defaults=True):
    """Of an endpoint. `signing` with the instant until which each is used, None for ever; the newest first."""

    verification: tuple[str, ...] = ()
    signing: tuple[tuple[str, Instant | None], ...] = ()


class NewEndpoint(Struct, frozen=True):
    """`secret` is what a receiver verifies events with, a shared secret or a public key. It is shown here only; ""
    without `events`.
    """

    endpoint: Endpoint
    secret: str = ""


class EndpointStats(Struct, frozen=True):
    """`success_rate`: of the webhooks that ended and are kept, how many were delivered; None if none ended."""

    endpoint_id: str
    pending: int
    delivered: int
    failed: int
    dead_letter: int
    success_rate: float | None
    oldest_pending_at: datetime | None
    status: EndpointStatus


Change = Callable[[Endpoint, Instant], Endpoint]


class Endpoints:
    """The endpoints of a relay."""

    def __init__(self, app: Redrive, guard: Guard, keys: Keyring | None) -> None:
        self._app = app
        self._guard = guard
        self._keys = keys
        self._cache: dict[str, tuple[Millis, Endpoint | None]] = {}
        self._subscribed: tuple[Millis, tuple[Endpoint, ...]] | None = None

    async def create(
        self, url: str = "", *, id: str | None = None, via: Via = "direct", **options: Unpack[EndpointOptions]
    ) -> NewEndpoint:
        """A new endpoint. With an `id` that exists, Conflict. `via` hub: hubs deliver to it, and the URL may be left to
        them; it does not change later.
        """
        name = new_id() if id is None else _check_id(id)
        now = clock_of(self._app).now()
        if via not in get_args(Via):
            raise ConfigError(f"must be direct or hub, got {shown(via)}", field="via", hint="use direct or hub")
        given = Endpoint(id=name, url=url, via=via, created_at=now, updated_at=now, status_since=now)
        endpoint, secrets = self._with(given, Secrets(), options)
        self._check_url(endpoint)
        made = ""
        if endpoint.events:
            made = new_signing_secret(endpoint.signing)
            secrets = replace(secrets, signing=((made, None),))
        endpoint = self._sealed(endpoint, secrets)
        try:
            await self._write(endpoint, 0, self._entry("create", endpoint, self._act("created")))
        except Conflict:
            hint = f"update it with endpoints.update({name!r}, ...), or choose another id"
            raise Conflict(f"endpoint {name} exists already", hint=hint) from None
        await self._apply(name)
        return NewEndpoint(endpoint, made and verifying_key(made))

    async def get(self, id: str) -> Endpoint:
        """As it is now. Raises NotFound."""
        return (await self._read(id))[0]

    async def list(self) -> tuple[Endpoint, ...]:
        """All of them, by id."""
        found = await store_of(self._app).documents(ENDPOINT)
        return tuple([codec.decode(document.body, Endpoint) for document in found])

    async def update(self, id: str, url: str | None = None, **options: Unpack[EndpointOptions]) -> Endpoint:
        """Change what is given. In force from the next attempt on, also for webhooks that wait; only those that came
        while `order` was none stay without order, and are sent one at a time.
        """

        def change(endpoint: Endpoint, now: Instant) -> Endpoint:
            secrets = self.secrets(endpoint)
            given = endpoint if url is None else replace(endpoint, url=url)
            changed, secrets = self._with(given, secrets, options)
            self._check_url(changed)
            if changed.events and not secrets.signing:
                hint = f"make one: endpoints.rotate_secret({id!r}), redrive webhook endpoint rotate-secret {id}"
                raise ConfigError("the endpoint has no secret to sign events with", field="events", hint=hint)
            return self._sealed(replace(changed, updated_at=now), secrets)

        endpoint = await self._change(id, change, "update", "updated")
        await self._apply(id)
        return endpoint

    async def mute(self, id: str, *, reason: str = "muted") -> Endpoint:
        """Store what comes, deliver nothing. What waits keeps its order and does not age."""
        return await self._set_status(id, "muted", reason)

    async def unmute(self, id: str, *, reason: str = "unmuted") -> Endpoint:
        return await self._set_status(id, "active", reason)

    async def disable(self, id: str, *, reason: str = "disabled") -> Endpoint:
        """As `mute`, for an endpoint that does not work. A 410 and failures for long disable it by themselves."""
        return await self._set_status(id, "disabled", reason)

    async def enable(self, id: str, *, reason: str = "enabled") -> Endpoint:
        """Active again: what waited is delivered, in order."""
        return await self._set_status(id, "active", reason)

    async def delete(self, id: str, *, reason: str = "deleted") -> None:
        """What waits is cancelled. Failed and dead webhooks stay as letters until they are replayed or discarded."""
        endpoint, store, act = await self.get(id), store_of(self._app), self._act(reason)
        await store.configure(endpoint.queue, QueueChange(paused=True, by=act.actor, reason=reason))
        waiting, why = parse_filter(f"queue:{endpoint.queue} state:ready"), f"endpoint {id} was deleted: {reason}"
        while ids := (await store.ids(waiting, PAGE_LIMIT)).ids:
            if not (await self._app.cancel(ids, reason=why, request_id=act.request_id)).changed:
                break
        await store.write_documents([DocumentWrite(ENDPOINT, endpoint.id, None)], self._entry("delete", endpoint, act))
        self._forget(endpoint.id)
        await store.configure(endpoint.queue, QueueChange(paused=False))  # what still comes becomes a letter

    async def rotate_secret(self, id: str, *, overlap: Duration = "24h", secret: str | None = None) -> str:
        """A new secret for signing, or `secret`, which another system had. The ones before sign as well until `overlap`
        is over, at most 10 in all. Gives what a receiver verifies with, which is shown here only.
        """
        still = durations.parse(overlap, field="overlap")
        made = secret or new_signing_secret((await self.get(id)).signing)
        read_keys((made,), SIGNING, field="secret")

        def change(endpoint: Endpoint, now: Instant) -> Endpoint:
            secrets = self.secrets(endpoint)
            old = [(each, now + still if until is None else until) for each, until in secrets.signing]
            kept = [(each, until) for each, until in old if until > now and each != made]
            signing = ((made, None), *kept[: MOST_SIGNATURES - 1])
            return self._sealed(replace(endpoint, updated_at=now), replace(secrets, signing=signing))

        await self._change(id, change, "rotate", "a new secret for signing")
        return verifying_key(made)

    async def recover(self, id: str, *, since: datetime | str, reason: str = "recovered") -> int:
        """Send again what failed or died since then: a time with a zone, or a duration before now. Gives how many."""
        endpoint = await self.get(id)
        if isinstance(since, datetime):
            died = f"died_at>={since.isoformat()}"
            if since.tzinfo is None:
                raise ConfigError(f"{since} has no time zone", field="since", hint="use datetime.now(UTC) - ...")
        else:
            died = f"died<={durations.format(durations.parse(since, field='since'))}"
        done = await self._app.letters.replay(f"queue:{endpoint.queue} {died}", reason=reason)
        return len(done.changed)

    async def stats(self, id: str) -> EndpointStats:
        endpoint = await self.get(id)
        row = (await self._app.tally(members=(endpoint.queue,))).row(endpoint.queue)
        dead = await self._app.letters.count(f"queue:{endpoint.queue} {STATUSES['dead_letter']}") if row.open else 0
        ended = row.done + row.open
        waiting = parse_filter(f"queue:{endpoint.queue} {STATUSES['pending']}")
        oldest = (await store_of(self._app).find(waiting, 1, oldest=True)).items
        return EndpointStats(
            endpoint.id,
            pending=row.live,
            delivered=row.done,
            failed=row.open - dead,
            dead_letter=dead,
            success_rate=row.done / ended if ended else None,
            oldest_pending_at=moment(oldest[0].enqueued_at) if oldest else None,
            status=endpoint.status,
        )

    # --- for delivery and ingest ---

    async def cached(self, id: str, *, fresh: Millis = FRESH) -> Endpoint | None:
        """As it was up to a second ago; None if there is none."""
        if not _ID.fullmatch(id):
            return None
        now = clock_of(self._app).monotonic()
        known = self._cache.get(id)
        if known is not None and now - known[0] <= fresh:
            return known[1]
        document = await store_of(self._app).document(ENDPOINT, id)
        endpoint = None if document is None else codec.decode(document.body, Endpoint)
        if len(self._cache) >= CACHED:
            self._cache.clear()
        self._cache[id] = now, endpoint
        return endpoint

    async def subscribed(self) -> tuple[Endpoint, ...]:
        """Those to which events are published, as of up to a second ago."""
        now = clock_of(self._app).monotonic()
        if self._subscribed is None or now - self._subscribed[0] > FRESH:
            self._subscribed = now, tuple([endpoint for endpoint in await self.list() if endpoint.events])
        return self._subscribed[1]

    def secrets(self, endpoint: Endpoint) -> Secrets:
        """Decrypted. Raises DecryptionFailed, and ConfigError without keys."""
        if not endpoint.sealed:
            return Secrets()
        text = self._keyring().open_text(endpoint.sealed, f"{ENDPOINT}/{endpoint.id}")
        return msgspec.json.decode(text, type=Secrets)

    def verification(self, endpoint: Endpoint) -> Verification:
        """With its secrets."""
        return replace(endpoint.verification, secrets=self.secrets(endpoint).verification)

    async def note_delivered(self, id: str) -> None:
        await self._change(id, lambda now, _: replace(now, failing_since=None))

    async def note_failure(self, id: str) -> Endpoint:
        """Remember since when it fails, and disable it when it does for too long. Gives the endpoint as it is now."""

        def change(endpoint: Endpoint, now: Instant) -> Endpoint:
            since, pause = endpoint.failing_since, now - endpoint.failed_at
            if since is None or pause > DAY:  # a day without attempts says nothing
                return replace(endpoint, failing_since=now, failed_at=now)
            return replace(endpoint, failed_at=now) if pause >= HOUR else endpoint

        endpoint = await self._change(id, change)
        failing = clock_of(self._app).now() - (endpoint.failing_since or 0)
        if endpoint.disable_after is not None and failing >= endpoint.disable_after:
            return await self.disable(id, reason=f"every attempt failed for {durations.format(failing)}")
        return endpoint

    async def restore_settings(self) -> None:
        """Give each queue the settings of its document: a process may have ended between the two writes. A queue that
        an operator paused stays so.
        """
        paused = {row.queue: row.paused_reason for row in (await self._app.tally()).queues if row.paused}
        for endpoint in await self.list():
            ours = paused.get(endpoint.queue, "muted: ").startswith(("muted: ", "disabled: "))
            with suppress(NotFound):
                await self._apply(endpoint.id, pause=ours)

    # --- documents ---

    async def _read(self, id: str) -> tuple[Endpoint, int]:
        document = await store_of(self._app).document(ENDPOINT, str(id))
        if document is None:
            hint = "endpoints.list() and `redrive webhook endpoint list` show those there are"
            raise NotFound(f"no endpoint {shown(id)}", hint=hint)
        return codec.decode(document.body, Endpoint), document.version

    async def _write(self, endpoint: Endpoint, expect: int, audit: NewEntry | None) -> None:
        write = DocumentWrite(ENDPOINT, endpoint.id, codec.encode(endpoint), expect)
        await store_of(self._app).write_documents([write], audit)
        self._forget(endpoint.id)

    async def _change(self, id: str, change: Change, word: str = "", reason: str = "") -> Endpoint:
        """Again from the start when another process was first: a change is a function of what is there. `word`: the
        audit's, of a change that it is to have.
        """
        while True:
            endpoint, version = await self._read(id)
            changed = change(endpoint, clock_of(self._app).now())
            if changed == endpoint:
                return endpoint
            with suppress(Conflict):
                await self._write(changed, version, self._entry(word, changed, self._act(reason)) if word else None)
                return changed

    async def _set_status(self, id: str, status: EndpointStatus, reason: str) -> Endpoint:
        def change(endpoint: Endpoint, now: Instant) -> Endpoint:
            if endpoint.status == status:
                return endpoint
            pauses = endpoint.pauses
            if endpoint.status != "active":
                pauses = (*pauses, (endpoint.status_since, now))[-PAUSES:]
            return replace(
                endpoint,
                status=status,
                status_reason=reason,
                status_since=now,
                pauses=pauses,
                failing_since=None if status == "active" else endpoint.failing_since,
                updated_at=now,
            )

        endpoint = await self._change(id, change, status, reason)
        await self._apply(id)
        return endpoint

    async def _apply(self, id: str, *, pause: bool = True) -> None:
        """Configure the queue as the document says, until it is the current one: the last of two processes to
        configure must be the one that has it.
        """
        store, actor = store_of(self._app), parts_of(self._app).actor
        while True:
            endpoint, version = await self._read(id)
            status = endpoint.status
            if endpoint.breaker:
                await declare_gate(store, endpoint.queue, BREAKER)
            change = QueueChange(
                paused=status != "active" if pause else None,
                by=actor,
                reason=f"{status}: {endpoint.status_reason}" if status != "active" else "",
                order="skip" if endpoint.order == "none" else endpoint.order,
                max_running=1 if endpoint.ordered else endpoint.concurrency,
                rate=None if endpoint.rate is None else rates.parse(endpoint.rate),
                policy=endpoint.retry,
                gate=endpoint.queue if endpoint.breaker else "",
            )
            await store.configure(endpoint.queue, change)
            if (await self._read(id))[1] == version:
                return

    def _act(self, reason: str) -> Act:
        return Act(parts_of(self._app).actor, reason, new_id())

    def _entry(self, word: str, endpoint: Endpoint, act: Act) -> NewEntry:
        return settings_entry(f"webhook_endpoint_{word}", endpoint.id, {"url": endpoint.url}, act)

    def _forget(self, id: str) -> None:
        self._cache.pop(id, None)
        self._subscribed = None

    # --- checks ---

    def _with(self, endpoint: Endpoint, secrets: Secrets, options: EndpointOptions) -> tuple[Endpoint, Secrets]:
        checked = check_options(options)
        if not VERIFYING.isdisjoint(options):
            checked["verification"], own = verification_of(endpoint.verification, secrets.verification, options)
            secrets = replace(secrets, verification=own)
        changed = replace(endpoint, **checked)
        if changed.ordered and checked.get("concurrency", 1) > 1:
            hint = "add order='none', or leave it out"
            raise ConfigError(f"order={changed.order!r} sends one at a time", field="concurrency", hint=hint)
        return changed, secrets

    def _check_url(self, endpoint: Endpoint) -> None:
        if endpoint.via == "hub" and not endpoint.url:
            return
        instead = "headers={'Authorization': ...}"
        host = check_http_url(endpoint.url, field="url", secret=instead).hostname or ""
        if endpoint.via == "direct":
            denied = "" if not _is_address(host) else self._guard.denies(host)
            if denied:
                hint = "use a public address, or allow its network: Relay(allow=['10.0.0.0/8']), [webhooks] allow"
                raise ConfigError(f"{host} is not public ({denied})", field="url", hint=hint)

    def _sealed(self, endpoint: Endpoint, secrets: Secrets) -> Endpoint:
        if secrets == Secrets():
            return replace(endpoint, sealed=b"")
        text = msgspec.json.encode(secrets).decode()
        return replace(endpoint, sealed=self._keyring().seal_text(text, f"{ENDPOINT}/{endpoint.id}"))

    def _keyring(self) -> Keyring:
        if self._keys is None:
            hint = "give keys: Relay(..., encryption=Keyring({'k1': key}, current='k1')), or REDRIVE_ENCRYPTION_KEYS"
            raise ConfigError("secrets are stored encrypted, and there is no key", field="secret", hint=hint)
        return self._keys


async def declare(app: Redrive) -> None:
    """Whose queues they are: what `redrive item show` and `health` ask for."""
    for family in FAMILIES:
        await mark(store_of(app), family, "webhooks")


def _check_id(id: object) -> str:
    if not isinstance(id, str) or not _ID.fullmatch(id):
        hint = "use 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit; left out, a random one is made"
        raise ConfigError(f"{shown(id)} is not an id of an endpoint", field="id", hint=hint)
    return id


def _is_address(host: str) -> bool:
    return ":" in host or re.fullmatch(r"[0-9.]+", host) is not None
