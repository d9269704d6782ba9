"""What the conformance tests share: one `World` per test, and builders for the values that a worker would send.

A test asks for `world` and nothing else, so a test can also be called by hand with any store: that is how the suite's
own teeth are tested.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar, Unpack, get_args

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Replay,
    SkipCode,
)
from redrive.core.decide import Charge, Decision, ToDead, ToDone, ToReady
from redrive.core.item import (
    Attempt,
    Ending,
    Failure,
    Frame,
    History,
    Instant,
    Item,
    Millis,
    NewItem,
    Priority,
    Terms,
)
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    Answer,
    Held,
    LeaseRequest,
    Leases,
    QueueChange,
    QueueSettings,
    QueueTally,
    Settled,
    Settlement,
    Tombstone,
    Verdict,
    Want,
)
from redrive.errors import ConfigError, NotFound
from redrive.stores.base import Store
from redrive.testing.clock import FakeClock

DURABLE = "durable"
"""A handle that is closed and opened again finds the data."""
HANDLES = "handles"
"""Several handles on the same data, each with a life of its own (other processes, in the end)."""

PARKED = "parked:order"
QUEUE = "emails"
WORKER = "w-1"
SECOND = 1_000
TTL = 30 * SECOND
PATIENCE = 20.0
"""Real seconds before a test that waits for a signal gives up. Only a failing one waits so long."""

OpenStore = Callable[[], Awaitable[Store]]
Result = TypeVar("Result")

_numbers = itertools.count(1)


class Asked(TypedDict, total=False):
    """What a test may say about a lease request; `asking` has the defaults."""

    queue: str
    worker: str
    ttl: Millis
    max_crashes: int
    holding: int
    nonce: str
    retries: int | None
    turn: int
    wants: Sequence[Want]
    lane: int
    share: int | None
    item: str
    kinds: tuple[str, ...] | None


@dataclass
class World:
    """One store with its clock; `store` is the first handle, `another()` opens one more on the same data."""

    store: Store
    open: OpenStore
    clock: FakeClock
    capabilities: frozenset[str] = frozenset()
    handles: list[Store] = field(default_factory=list)

    async def another(self) -> Store:
        handle = await self.open()
        self.handles.append(handle)
        return handle

    def needs(self, capability: str) -> None:
        """The only way to skip a test of this suite."""
        if capability not in self.capabilities:
            pytest.skip(f"the engine does not declare {capability!r}")

    def tick(self, duration: Millis) -> None:
        self.clock.advance(duration)

    async def put(self, *items: NewItem) -> tuple[str, ...]:
        """Put and insist that all are new."""
        result = await self.store.put(items)
        assert result.added == tuple(item.id for item in items)
        return result.added

    async def lease(self, limit: int = 1, **request: Unpack[Asked]) -> tuple[Item, ...]:
        return (await self.store.lease(asking(limit, **request))).items

    async def lease_one(self, **request: Unpack[Asked]) -> Item:
        (item,) = await self.lease(1, **request)
        return item

    async def held(self, **request: Unpack[Asked]) -> Item:
        """A new item, leased by `WORKER` (or the worker named)."""
        await self.put(new())
        return await self.lease_one(**request)

    async def settle(self, *settlements: Settlement, then: LeaseRequest | None = None) -> Settled:
        return await self.store.settle(settlements, then)

    async def finish(self, *settlements: Settlement) -> None:
        """Settle and insist that all were applied."""
        answers = (await self.store.settle(settlements)).answers
        assert answers == tuple(Answer(it.id, Verdict.APPLIED) for it in settlements)

    async def item(self, item_id: str) -> Item:
        return (await self.store.get(item_id)).item

    async def blocked_by(self, item_id: str) -> tuple[str, ...]:
        return (await self.store.get(item_id)).blocked_by

    async def holds(self, *items: NewItem) -> list[str]:
        """What keeps each of them back."""
        return [(await self.item(item.id)).hold for item in items]

    async def set(self, change: QueueChange, queue: str = QUEUE) -> None:
        await self.store.configure(queue, change)

    async def end(self, item: NewItem, make: Callable[[Item], Settlement]) -> None:
        """Lease exactly this item and settle it so."""
        await self.finish(make(await self.grab(item.id, item.queue)))

    async def drain(self, *queues: str) -> tuple[str, ...]:
        """Everything that can run, done before the next lease; the ids in the order in which they ran."""
        ran: list[str] = []
        for _ in range(10_000):
            items = [item for queue in queues or (QUEUE,) for item in await self.lease(10, queue=queue)]
            if not items:
                return tuple(ran)
            ran.extend(ids(items))
            await self.finish(*(finished(item) for item in items))
        raise AssertionError("it never ends")

    async def sound(self) -> None:
        """What the store keeps agrees with its items: it says so itself, and a full count does."""
        items = (await self.store.find(EVERYTHING, 1_000)).items
        for row in (await self.store.tally()).queues:
            bare = structs.replace(row, paused=False, paused_by="", paused_reason="", settings=QueueSettings())
            assert bare == counted(items, row.queue)
        assert (await self.store.check()).findings == ()

    async def letter(self, cause: str = "c1", queue: str = QUEUE, reason: str = "max_attempts") -> Item:
        """A new item that died of `cause`."""
        made = new(queue=queue)
        await self.put(made)
        item = await self.grab(made.id, queue)
        await self.finish(dead(item, reason=reason, why=failure(cause=cause)))
        return await self.item(made.id)

    async def letters(self, count: int, queue: str = QUEUE) -> tuple[Item, ...]:
        """So many letters, one second apart."""
        found = []
        for _ in range(count):
            found.append(await self.letter(queue=queue))
            self.tick(SECOND)
        return tuple(found)

    async def done(self, queue: str = QUEUE) -> Item:
        made = new(queue=queue)
        await self.put(made)
        item = await self.grab(made.id, queue)
        await self.finish(finished(item))
        return await self.item(made.id)

    async def grab(self, item_id: str, queue: str = QUEUE) -> Item:
        """Lease exactly this item, whatever else is due: what came with it goes back uncharged."""
        items = await self.lease(50, queue=queue, worker=fresh("grab"))
        others = [released(item) for item in items if item.id != item_id]
        if others:
            await self.finish(*others)
        (item,) = [item for item in items if item.id == item_id]
        return item

    async def crashed(self, item: Item) -> None:
        """Let the lease lapse and charge the crash, as the reaper does."""
        self.tick(TTL + 1)
        (lost,) = await self.store.reclaim("reaper", [item.queue], TTL, 10, [item.id])
        await self.finish(after_crash(lost))

    async def suspect(self, crashes: int = 2, queue: str = QUEUE) -> Item:
        """A ready item that has crashed so often; due now."""
        made = new(queue=queue)
        await self.put(made)
        for _ in range(crashes):
            await self.crashed(await self.grab(made.id, queue))
        return await self.item(made.id)

    async def replay_dead(self, item_id: str) -> None:
        """Kill it if it is not dead yet, then send it back with a fresh budget."""
        if (await self.item(item_id)).state is not State.DEAD:
            await self.finish(dead(await self.lease_one()))
        amended = await self.store.amend(Ids((item_id,)), Replay(), act())
        assert amended.changed == (item_id,)

    async def count(self, queue: str = QUEUE) -> QueueTally:
        """The kept counters of one queue; a queue that is not declared is a failure."""
        (found,) = [row for row in (await self.store.tally()).queues if row.queue == queue]
        return found

    async def history(self, item_id: str) -> History | None:
        try:
            return await self.store.get(item_id)
        except NotFound:
            return None

    async def drive(self, waiting: Awaitable[Result], step: Millis) -> Result:
        """Let fake time pass until `waiting` is over; real milliseconds between steps let threads and sockets act."""
        task = asyncio.ensure_future(waiting)
        async with asyncio.timeout(PATIENCE):
            while not task.done():
                self.tick(step)
                await asyncio.wait({task}, timeout=0.01)
        return task.result()


def fresh(prefix: str = "i") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers):06d}"


def new(
    payload: bytes = b'{"to": "a"}',
    queue: str = QUEUE,
    delay: Millis = 0,
    item_id: str | None = None,
    *,
    at: Instant | None = None,
    priority: Priority = Priority.NORMAL,
    terms: Terms | None = None,
    kind: str = "",
    release: str = "",
) -> NewItem:
    return NewItem(item_id or fresh(), queue, payload, delay, at, priority, terms, kind, release)


def news(count: int, queue: str = QUEUE) -> tuple[NewItem, ...]:
    return tuple(new(queue=queue) for _ in range(count))


def asking(
    limit: int = 1,
    *,
    queue: str = QUEUE,
    worker: str = WORKER,
    ttl: Millis = TTL,
    max_crashes: int = 3,
    holding: int = 0,
    nonce: str | None = None,
    retries: int | None = None,
    turn: int = 0,
    wants: Sequence[Want] = (),
    lane: int = 0,
    share: int | None = None,
    item: str = "",
    kinds: tuple[str, ...] | None = None,
) -> LeaseRequest:
    """A lease request; every call makes a new nonce unless one is given."""
    asked = tuple(wants) or (Want(queue, limit, ttl, max_crashes, retries, turn, share, kinds),)
    return LeaseRequest(worker, asked, nonce or fresh("nonce"), holding, lane, item)


def failure(cause: str = "c1", error: str = "SMTPTimeout", text: str = "timed out after 30 s") -> Failure:
    """Evidence with every field set, so that a field that a store forgets shows."""
    frames = (Frame("mail.py", 41, "send"), Frame("smtp.py", 7, "connect ☃"))
    return Failure(error, text, "timeout", "default", cause, "retry", "ETIMEDOUT", frames)


def ended(item: Item, ending: Ending, why: Failure | None = None, note: str = "") -> Attempt:
    return Attempt(item.deliveries, item.attempt, item.worker or "", item.leased_at or 0, 12, ending, why, note)


def finished(item: Item, result: bytes | None = None, follow_ups: Iterable[NewItem] = ()) -> Settlement:
    """Done; with an attempt record only if it was not the first try."""
    record = None if item.deliveries == 1 else ended(item, Ending.DONE)
    return Settlement(item.id, item.deliveries, ToDone(result), record, tuple(follow_ups))


def failed(item: Item, delay: Millis = 0, follow_ups: Iterable[NewItem] = ()) -> Settlement:
    """Retry after an error."""
    return _settlement(item, ToReady(delay, Charge.ERROR), Ending.FAILED, failure(), follow_ups)


def after_crash(item: Item, delay: Millis = 0) -> Settlement:
    return _settlement(item, ToReady(delay, Charge.CRASH), Ending.CRASHED, failure(cause="crash"))


def released(item: Item, delay: Millis = 0) -> Settlement:
    return _settlement(item, ToReady(delay, Charge.NOTHING), Ending.RELEASED)


def dead(
    item: Item,
    reason: str = "max_attempts",
    why: Failure | None = None,
    follow_ups: Iterable[NewItem] = (),
    charge: Charge = Charge.ERROR,
    *,
    route: str = "",
) -> Settlement:
    why = why or failure()
    return _settlement(item, ToDead(reason, charge, why, route), Ending.FAILED, why, follow_ups)


def _settlement(
    item: Item,
    decision: Decision,
    ending: Ending,
    why: Failure | None = None,
    follow_ups: Iterable[NewItem] = (),
) -> Settlement:
    return Settlement(item.id, item.deliveries, decision, ended(item, ending, why), tuple(follow_ups))


def held(item: Item) -> Held:
    return Held(item.id, item.deliveries)


def act(request_id: str | None = None, actor: str = "ada", reason: str = "mail server is back") -> Act:
    return Act(actor, reason, request_id or fresh("request"))


def ids(items: Iterable[Item | NewItem | Tombstone]) -> tuple[str, ...]:
    return tuple(item.id for item in items)


def verdicts(settled: Settled) -> tuple[Verdict, ...]:
    return tuple(answer.verdict for answer in settled.answers)


def next_leases(settled: Settled) -> Leases:
    assert settled.leases is not None
    return settled.leases


def skipped_ids(amended: Amended) -> tuple[str, ...]:
    assert all(skipped.reason for skipped in amended.skipped), "a skip without a reason helps nobody"
    assert {skipped.code for skipped in amended.skipped} <= {*get_args(SkipCode)}
    return tuple(skipped.id for skipped in amended.skipped)


def sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def counted(items: Iterable[Item], queue: str) -> QueueTally:
    """What a full count of these items gives: the truth that the kept counters must equal."""
    mine = [item for item in items if item.queue == queue]
    states = [item.state for item in mine]
    lying = [str(item.letter.disposition) for item in mine if item.letter is not None]
    return QueueTally(
        queue,
        ready=sum(item.state is State.READY and not item.hold for item in mine),
        leased=states.count(State.LEASED),
        done=states.count(State.DONE),
        open=lying.count("open"),
        archived=lying.count("archived"),
        trash=lying.count("trash"),
        cancelled=states.count(State.CANCELLED),
        oldest_due=min((item.due_at for item in mine if item.state is State.READY and not item.hold), default=None),
        held=sum(bool(item.hold) and not item.hold.startswith("parked:") for item in mine),
        parked=sum(item.hold.startswith("parked:") for item in mine),
    )


def names(error: ConfigError, field: str, *texts: str) -> bool:
    """Whether it names the field. Half a character crosses no wire, and is refused there before a store can say so."""
    return error.field == field or (not error.field and any("\ud800" in text for text in texts))


async def refusal(call: Awaitable[object], value: object) -> ConfigError:
    try:
        await call
    except ConfigError as error:
        return error
    pytest.fail(f"{value!r} was accepted")
