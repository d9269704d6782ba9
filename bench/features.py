"""What binding items to others costs: each figure stands beside that of plain items, taken in one breath.

Costs and not rates, because what is asked for is `at most 1.5 times`. One key is serial by nature, so there one item at
a time is compared with one item at a time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from bench.harness import ANSWER, ROOT, CannotMeasure, Child, cpu_seconds
from bench.lab import PLAIN, Lab, Reading, check
from bench.load import PAYLOAD, QUEUE
from redrive.core import codec
from redrive.core.decide import ToDone
from redrive.core.item import Dedupe, Item, NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.verbs import GateWrite, LeaseRequest, QueueChange, Settlement, Want
from redrive.engine.ids import new_id, new_ids
from redrive.stores.base import Store
from redrive.stores.url import store_from_url

MOST = 1.5
NOISE = 1.1
KEYS = 10_000
KINDS = 8
ONE_KEY = 100_000
CHUNK = 1_000
PUTS = 20_000
SERIAL = 1_500
FAMILY = "member:*"
MEMBERS = 100_000
BUSY = 10
MOST_FOR_MEMBERS = 1.3
TTL = 600_000
FAR = 1_000_000
"""A limit that nobody comes near."""
SCHEDULES = 10_000
SETTLED = 10.0
"""Seconds after which a leader has read all there is to read."""
WATCHED = 20.0
BEFORE = "BENCH_BEFORE"
"""In the environment: a checkout of redrive without these features, to be measured against."""

Make = Callable[[int, str], Terms | None]
"""The terms of the n-th item, behind the one with that id."""


def plain(_number: int, _behind: str) -> None:
    return None


def ordered(lab: Lab) -> list[Reading]:
    return _used(lab, f"ordered, {KEYS:,} keys", lambda number, _: Terms(order_key=f"key-{number % KEYS}"))


def dedupe(lab: Lab) -> list[Reading]:
    return _used(lab, "dedupe", lambda number, _: Terms(dedupe=Dedupe(f"key-{number}")))


def after(lab: Lab) -> list[Reading]:
    """Every second one waits for the one before it."""
    return _used(lab, "after", lambda number, behind: Terms(after=(behind,)) if number % 2 else None)


def limits(lab: Lab) -> list[Reading]:
    change = QueueChange(max_running=FAR, max_per_key=FAR, rate=Rate(FAR, burst=FAR), capacity=100 * FAR)
    return _used(lab, "limits, not reached", lambda number, _: Terms(limit_key=f"key-{number % 1_000}"), change)


def kinds(lab: Lab) -> list[Reading]:
    """One worker with a handler for all of them."""
    count = lab.drain_size()
    several = 1e6 / float(lab.work(_filled(lab, f"{KINDS} kinds", plain, count, kinds=KINDS))["rate"])
    base = 1e6 / float(lab.work(_filled(lab, "plain", plain, count))["rate"])
    return [Reading(f"drain, {KINDS} kinds", several, "µs an item", "plain", base, at_most=1 / 0.9)]


def _used(lab: Lab, what: str, make: Make, change: QueueChange | None = None) -> list[Reading]:
    """A drain by a worker, and puts, each against plain ones."""
    count = lab.drain_size()
    bound = 1e6 / float(lab.work(_filled(lab, what, make, count, change))["rate"])
    base = 1e6 / float(lab.work(_filled(lab, "plain", plain, count))["rate"])
    puts, plain_puts = asyncio.run(_puts(lab, make, change))
    return [
        Reading(f"drain, {what}", bound, "µs an item", "plain", base, at_most=MOST),
        Reading(f"put of {CHUNK:,}, {what}", puts, "µs an item", "plain", plain_puts),
    ]


def _filled(
    lab: Lab,
    what: str,
    make: Make,
    count: int,
    change: QueueChange | None = None,
    *,
    store: str = "queue",
    kinds: int = 0,
) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{what} {count}")
    return lab.prepared(name, lambda url: asyncio.run(_fill(url, make, count, change, kinds)), store)


async def _fill(url: str, make: Make, count: int, change: QueueChange | None, kinds: int) -> None:
    store = await store_from_url(url).open()
    try:
        await store.configure(QUEUE, change or QueueChange())
        for first in range(0, count, CHUNK):
            await store.put(_items(make, first, kinds))
        (row,) = (await store.tally()).queues
    finally:
        await store.close()
    check(row.ready + row.held, count, "put")


def _items(make: Make, first: int, kinds: int = 0) -> list[NewItem]:
    body = codec.encode(PAYLOAD)
    ids = new_ids(CHUNK)
    behind = ("", *ids)
    return [
        NewItem(
            item_id,
            QUEUE,
            body,
            terms=make(first + number, behind[number]),
            kind=f"kind-{number % kinds}" if kinds else "",
        )
        for number, item_id in enumerate(ids)
    ]


async def _puts(lab: Lab, make: Make, change: QueueChange | None) -> tuple[float, float]:
    """Microseconds an item, bound and plain, by turns."""
    spent = [0.0, 0.0]
    names, makes = ("bound", "unbound"), (make, plain)
    stores = [await store_from_url(lab.engine.empty(name)).open() for name in names]
    try:
        await stores[0].configure(QUEUE, change or QueueChange())
        for first in range(0, PUTS, CHUNK):
            for side in (0, 1) if first // CHUNK % 2 else (1, 0):
                items = _items(makes[side], first)
                start = time.perf_counter()
                await stores[side].put(items)
                spent[side] += time.perf_counter() - start
    finally:
        for store in stores:
            await store.close()
        for name in names:
            lab.engine.drop(name)
    return spent[0] / PUTS * 1e6, spent[1] / PUTS * 1e6


# --- one key ----------------------------------------------------------------------------------------------------------


class Serial:
    """One item at a time: each write settles one and leases the next."""

    def __init__(self, url: str, queue: str) -> None:
        self._store = store_from_url(url)
        self._queue = queue
        self._held: tuple[Item, ...] = ()

    async def __aenter__(self) -> Self:
        await self._store.open()
        self._held = (await self._store.lease(self._request())).items
        return self

    async def __aexit__(self, *_: object) -> None:
        """The last one ends too: whoever comes next could not pass it."""
        await self._store.settle(self._ends())
        await self._store.close()

    async def step(self) -> float:
        settlements = self._ends()
        request = self._request()
        start = time.perf_counter()
        settled = await self._store.settle(settlements, request)
        took = time.perf_counter() - start
        self._held = settled.leases.items if settled.leases is not None else ()
        if len(self._held) != 1:
            raise CannotMeasure(f"{len(self._held)} were leased, not 1")
        return took

    def _ends(self) -> list[Settlement]:
        return [Settlement(item.id, item.deliveries, ToDone()) for item in self._held]

    def _request(self) -> LeaseRequest:
        return LeaseRequest("bench", (Want(self._queue, 1, TTL, 3),), new_id())


def ordered_one(lab: Lab) -> list[Reading]:
    """Also without the fsync, behind which all else could hide."""
    bound = _filled(lab, "one key", lambda _number, _behind: Terms(order_key="key"), ONE_KEY)
    base = _filled(lab, "plain", plain, ONE_KEY, store="beside")
    beside = "plain, one at a time"
    readings = [_serial(f"one key, {ONE_KEY:,} waiting", bound, beside, base)]
    with lab.engine.lax(bound) as lax, lab.engine.lax(base) as lax_base:
        line = f"one key, {ONE_KEY:,} waiting, without waiting for the disk"
        readings.append(_serial(line, lax, beside, lax_base))
    return readings


def _serial(line: str, ours: str, beside: str, base: str, *, queue: str = QUEUE, at_most: float = MOST) -> Reading:
    async def both() -> tuple[float, float]:
        spent = [0.0, 0.0]
        async with Serial(ours, queue) as one, Serial(base, queue) as other:
            for turn in range(SERIAL):
                for side in (0, 1) if turn % 2 else (1, 0):
                    spent[side] += await (one, other)[side].step()
        return spent[0] / SERIAL * 1e6, spent[1] / SERIAL * 1e6

    spent, theirs = asyncio.run(both())
    return Reading(line, spent, "µs an item", beside, theirs, at_most=at_most)


# --- families ---------------------------------------------------------------------------------------------------------


async def _pause(store: Store, member: str) -> None:
    await store.configure(member, QueueChange(paused=True))


async def _open_breaker(store: Store, member: str) -> None:
    await store.set_gate(GateWrite(member, 0, FAR * FAR, shut=True))


SHUT: dict[str, Callable[[Store, str], Awaitable[None]]] = {"paused": _pause, "behind open breakers": _open_breaker}
"""What keeps a member that has work from giving it."""


def members(lab: Lab) -> list[Reading]:
    """Members without work, and those that may not give theirs, cost a lease of their family nothing. Also without the
    fsync.
    """
    readings = []
    for shut in ("", *SHUT):
        many, few = _family(lab, MEMBERS, shut, "queue"), _family(lab, BUSY, shut, "beside")
        which = f"of which {BUSY} have work" if not shut else f"with work, all but {BUSY} {shut}"
        line, beside = f"lease and settle, {MEMBERS:,} members {which}", f"{BUSY} of {BUSY} members"
        readings.append(_serial(line, many, beside, few, queue=FAMILY, at_most=MOST_FOR_MEMBERS))
        with lab.engine.lax(many) as lax, lab.engine.lax(few) as lax_few:
            line += ", without waiting for the disk"
            readings.append(_serial(line, lax, beside, lax_few, queue=FAMILY, at_most=MOST_FOR_MEMBERS))
    return readings


def _family(lab: Lab, count: int, shut: str, store: str) -> str:
    name = f"members-{count}-{shut.replace(' ', '-')}"
    return lab.engine.tidied(
        lab.prepared(name, lambda url: asyncio.run(_fill_family(url, count, SHUT.get(shut))), store)
    )


async def _fill_family(url: str, count: int, shut: Callable[[Store, str], Awaitable[None]] | None) -> None:
    """Each member had an item, and the first of them have as many as are leased. The others are `shut`, with an item
    each, or have none.
    """
    names = [FAMILY.replace("*", str(number)) for number in range(count)]
    store = await store_from_url(url).open()
    try:
        await store.configure(FAMILY, QueueChange(gate="*" if shut is _open_breaker else ""))
        for first in range(0, count, CHUNK):
            await store.put([NewItem(new_id(), name, b"{}") for name in names[first : first + CHUNK]])
        done = await _finish(store)
        if shut is not None:
            for first in range(BUSY, count, CHUNK):
                some = names[first : first + CHUNK]
                await store.put([NewItem(new_id(), name, b"{}") for name in some])
                await asyncio.gather(*(shut(store, name) for name in some))
            done += await _finish(store)
        body = codec.encode(PAYLOAD)
        for _ in range(0, 2 * SERIAL + CHUNK, CHUNK):
            await store.put([NewItem(item_id, names[at % BUSY], body) for at, item_id in enumerate(new_ids(CHUNK))])
    finally:
        await store.close()
    check(done, count, "done")


async def _finish(store: Store) -> int:
    """Whatever the family gives. How many that was."""
    done, more = 0, True
    while more:
        leases = await store.lease(LeaseRequest("bench", (Want(FAMILY, CHUNK, TTL, 3),), new_id()))
        await store.settle([Settlement(item.id, item.deliveries, ToDone()) for item in leases.items])
        done, more = done + len(leases.items), leases.more or bool(leases.items)
    return done


# --- unused, and idle ---------------------------------------------------------------------------------------------


def unused(lab: Lab) -> list[Reading]:
    """A plain drain by this code and by that of a checkout from before, each with a store of its own making."""
    root = os.environ.get(BEFORE)
    if root is None:
        raise CannotMeasure(f"the row unused needs {BEFORE}=<a checkout of redrive without these features>")
    count = lab.drain_size()
    base = _plain_drain(lab, count, Path(root))
    ours = _plain_drain(lab, count, ROOT)
    return [Reading("drain, features unused", ours, "µs an item", "without them", base, at_most=NOISE)]


def _plain_drain(lab: Lab, count: int, root: Path) -> float:
    config = PLAIN | {"url": lab.engine.empty("queue"), "concurrency": lab.concurrency, "fill": count}
    with Child("drain", lab.scratch, config, root=root) as child:
        return 1e6 / float(child.line(ANSWER)["rate"])


def schedules_idle(lab: Lab) -> list[Reading]:
    """CPU of a worker that leads so many schedules of which none is due, and of its server."""
    url = lab.engine.empty("schedules")
    with Child("schedules", lab.scratch, {"url": url, "count": SCHEDULES}) as leader:
        leader.line(ANSWER)
        time.sleep(SETTLED)
        before, served, start = cpu_seconds(leader.pid), lab.engine.server_cpu(), time.monotonic()
        time.sleep(WATCHED)
        spent = sum(seconds - before.get(thread, 0.0) for thread, seconds in cpu_seconds(leader.pid).items())
        took, server = time.monotonic() - start, lab.engine.server_cpu() - served
    lab.engine.drop("schedules")
    line = f"{SCHEDULES:,} idle schedules, share of a core"
    readings = [Reading(line, spent / took * 100, "%", at_most=1.0)]
    if server:
        readings.append(Reading(f"server of {line}", server / took * 100, "%"))
    return readings
