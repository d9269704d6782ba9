"""Schedules as people manage them: listed, paused, resumed, removed and run by hand, on the record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import Instant, NewItem
from redrive.core.schedule import (
    CHANGES,
    CLOCK,
    KIND,
    PROGRESS,
    Kept,
    Progress,
    Schedule,
    last_ticks,
    next_tick,
    tick_id,
)
from redrive.core.verbs import Document, DocumentWrite, NewEntry
from redrive.engine.ids import new_id
from redrive.engine.schedule import ready
from redrive.engine.schedule_payloads import encrypted_queues, opened, sealed, shown
from redrive.errors import Conflict, NotFound
from redrive.office.gates import audit_entry
from redrive.office.letters import check_actor, check_reason, default_actor
from redrive.stores.base import Store

AT_ONCE = 500
FEW = 20
BREATH = 100


class ScheduleView(Struct, frozen=True):
    """`next_at` is None while it is paused. `last_at` is the latest tick that was dealt with, `last_item` the id of its
    item; one that its catch-up rule left out has none.
    """

    name: str
    queue: str
    when: str
    catch_up: str
    next_at: Instant | None
    last_at: Instant | None
    last_item: str
    paused: bool
    paused_at: Instant | None
    paused_by: str
    paused_reason: str
    schedule: Schedule


async def _nothing() -> None:
    return


class Schedules:
    """`before` comes before each look at the store: what an app still has to declare is declared by then."""

    def __init__(
        self,
        store: Store,
        *,
        actor: str | None = None,
        before: Callable[[], Awaitable[object]] = _nothing,
        release: str = "",
    ) -> None:
        self._store = store
        self._release = release
        self._before = before
        self._actor = actor or default_actor()

    async def list(self) -> tuple[ScheduleView, ...]:
        """All of them, by name."""
        await self._before()
        now, dealt = await self._times()
        all_kept = [codec.decode(document.body, Kept) for document in await self._store.documents(KIND)]
        await ready([kept.schedule for kept in all_kept])
        views = []
        for number, kept in enumerate(all_kept):
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
            views.append(self._view(kept, now, dealt))
        return tuple(views)

    async def get(self, name: str) -> ScheduleView:
        """Raises NotFound."""
        kept = codec.decode((await self._document(name)).body, Kept)
        await ready([kept.schedule])
        return self._view(kept, *await self._times())

    async def pause(self, name: str, *, reason: str, actor: str | None = None) -> ScheduleView:
        """No ticks until it is resumed; those that come meanwhile are not made up for."""
        by = self._act(reason, actor)

        def paused(kept: Kept, now: Instant, _: Instant) -> Kept:
            return replace(kept, paused_at=now, paused_by=by.actor, paused_reason=by.reason)

        return await self._change(name, paused, "schedule pause", by)

    async def resume(self, name: str, *, reason: str, actor: str | None = None) -> ScheduleView:
        """Goes on with the next tick."""

        def resumed(kept: Kept, now: Instant, dealt: Instant) -> Kept:
            return kept if kept.paused_at is None else Kept(kept.schedule, now, last=_last(kept, now, dealt))

        return await self._change(name, resumed, "schedule resume", self._act(reason, actor))

    async def remove(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Its items stay. One that an app still declares comes back when that app is opened."""
        by = self._act(reason, actor)
        while True:
            document = await self._document(name)
            with suppress(Conflict):
                write = DocumentWrite(KIND, name, None, document.version)
                return await _write(self._store, [write], audit_entry("schedule remove", name, by))

    async def run(self, name: str, *, reason: str, actor: str | None = None) -> str:
        """Once more, now, besides its ticks and also while it is paused. The id of the item."""
        by = self._act(reason, actor)
        schedule = opened(codec.decode((await self._document(name)).body, Kept).schedule, self._store.keyring())
        item_id = f"{name}@run-{new_id()[:12]}"
        item = NewItem(
            item_id,
            schedule.queue,
            schedule.payload,
            priority=schedule.priority,
            terms=schedule.terms,
            kind=schedule.kind,
            release=self._release,
        )
        result = await self._store.put([item], audit=audit_entry("schedule run", name, by))
        if result.duplicates:
            held = result.duplicates[0].of
            raise Conflict(f"schedule {name!r} runs already: its dedupe key is held by {held}", hint="wait for it")
        return item_id

    async def _change(
        self, name: str, change: Callable[[Kept, Instant, Instant], Kept], word: str, by: Act
    ) -> ScheduleView:
        while True:
            document = await self._document(name)
            now, dealt = await self._times()
            kept = codec.decode(document.body, Kept)
            await ready([kept.schedule])
            kept = change(kept, now, dealt)
            with suppress(Conflict):
                write = DocumentWrite(KIND, name, codec.encode(kept), document.version)
                await _write(self._store, [write], audit_entry(word, name, by))
                return self._view(kept, now, dealt)

    def _view(self, kept: Kept, now: Instant, dealt: Instant) -> ScheduleView:
        return _view(replace(kept, schedule=shown(kept.schedule, self._store.keyring())), now, dealt)

    async def _document(self, name: str) -> Document:
        await self._before()
        document = await self._store.document(KIND, name)
        if document is None:
            near = get_close_matches(name, [each.key for each in await self._store.documents(KIND)], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "list them with redrive schedule list"
            raise NotFound(f"no schedule {name!r}", hint=hint)
        return document

    async def _times(self) -> tuple[Instant, Instant]:
        """Now, and up to when ticks have been dealt with."""
        document = await self._store.document(CLOCK, PROGRESS)
        progress = Progress() if document is None else codec.decode(document.body, Progress)
        return (await self._store.tally(members=False)).at, progress.claimed

    def _act(self, reason: str, actor: str | None) -> Act:
        return Act(self._actor if actor is None else check_actor(actor), check_reason(reason), new_id())


async def declare_schedules(store: Store, schedules: Sequence[Schedule]) -> None:
    """As the code says. One that is there already keeps its pause, and counts anew only if it was changed."""
    encrypted = await encrypted_queues(store, [schedule.queue for schedule in schedules])
    there = await _there(store, schedules)
    for start in range(0, len(schedules), AT_ONCE):
        chunk = schedules[start : start + AT_ONCE]
        while True:
            try:
                await _write(store, await _differing(store, chunk, there, encrypted))
            except Conflict:
                there = await _there(store, schedules)
                continue
            break


async def _there(store: Store, schedules: Sequence[Schedule]) -> dict[str, Document]:
    if len(schedules) > FEW:
        return {document.key: document for document in await store.documents(KIND)}
    found = [await store.document(KIND, schedule.name) for schedule in schedules]
    return {document.key: document for document in found if document is not None}


async def reencrypt_schedules(
    store: Store, queue: str | None, by: Act, *, dry_run: bool
) -> tuple[int, int, Counter[str]]:
    """As `reencrypt` does for items: how many have the current key now, do not decrypt, and have which key."""
    documents = await store.documents(KIND)
    found = [(document, codec.decode(document.body, Kept)) for document in documents]
    found = [one for one in found if queue in (None, one[1].schedule.queue)]
    encrypted = {kept.schedule.queue for _, kept in found}
    encrypted = {name for name in encrypted if (await store.settings(name)).encrypt}
    ring = None if dry_run else store.keyring()
    keys: Counter[str] = Counter()
    rewritten = unreadable = 0
    for document, kept in found:
        schedule = kept.schedule
        if not schedule.sealed and schedule.queue not in encrypted:
            continue
        key = schedule.sealed
        if ring is not None and key != ring.current:
            whole = shown(schedule, ring)
            if whole.sealed:
                unreadable += 1
            else:
                after = codec.encode(replace(kept, schedule=sealed(whole, ring)))
                with suppress(Conflict):  # it was changed just now: whoever did it has encrypted it
                    write = DocumentWrite(KIND, document.key, after, document.version)
                    await _write(store, [write], audit_entry("reencrypt", document.key, by))
                    key, rewritten = ring.current, rewritten + 1
        keys[key] += 1
    return rewritten, unreadable, keys


async def _differing(
    store: Store, schedules: Sequence[Schedule], there: Mapping[str, Document], encrypted: frozenset[str]
) -> list[DocumentWrite]:
    writes = []
    ring = store.keyring()
    now: Instant | None = None
    for schedule in schedules:
        document = there.get(schedule.name)
        kept = None if document is None else codec.decode(document.body, Kept)
        same = kept is not None and shown(kept.schedule, ring) == schedule
        if kept is not None and same and bool(kept.schedule.sealed) == (schedule.queue in encrypted):
            continue
        if now is None:
            now = (await store.tally(members=False)).at
        stored = sealed(schedule, ring) if ring is not None and schedule.queue in encrypted else schedule
        since = kept.since if kept is not None and same else now
        after = Kept(stored, now) if kept is None else replace(kept, schedule=stored, since=since)
        expect = 0 if document is None else document.version
        writes.append(DocumentWrite(KIND, schedule.name, codec.encode(after), expect))
    return writes


async def _write(store: Store, writes: Sequence[DocumentWrite], audit: NewEntry | None = None) -> None:
    """With the document that tells schedulers to look again."""
    if writes:
        await store.write_documents([*writes, DocumentWrite(CLOCK, CHANGES, b"{}")], audit)


def _last(kept: Kept, now: Instant, dealt: Instant) -> Instant | None:
    """The latest tick that was dealt with, also if it was before a pause."""
    upto = min(dealt, now if kept.paused_at is None else kept.paused_at)
    ticks, _ = last_ticks(kept.schedule, kept.since, upto, 1)
    return ticks[0] if ticks else kept.last


def _view(kept: Kept, now: Instant, dealt: Instant) -> ScheduleView:
    schedule, last = kept.schedule, _last(kept, now, dealt)
    return ScheduleView(
        name=schedule.name,
        queue=schedule.queue,
        when=schedule.when,
        catch_up=schedule.catch_up,
        next_at=None if kept.paused_at is not None else next_tick(schedule, now),
        last_at=last,
        last_item="" if last is None else tick_id(schedule.name, last),
        paused=kept.paused_at is not None,
        paused_at=kept.paused_at,
        paused_by=kept.paused_by,
        paused_reason=kept.paused_reason,
        schedule=schedule,
    )
