"""R3: a fixed scenario that uses every mutating verb, and the drain that follows it in a new process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Instant
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.keyring import Keyring
from redrive.stores.url import store_from_url
from tests.support.rig import records as r
from tests.support.rig.bonds import Hand, mend, put_bound, register_bonds
from tests.support.rig.handlers import Scribe
from tests.support.rig.log import Log, Write, now_ns, read_all
from tests.support.rig.producer import Producer
from tests.support.rig.survey import changes_after, lies, survey
from tests.support.rig.verdict import judge
from tests.support.rig.waiting_acts import act_on_waiting
from tests.support.rig.worker import transcriber

KEYS = Keyring({"k1": bytes(range(32))}, current="k1")
QUEUES = ("ok", "flaky", "doomed", "chain", "thread", "ok", "chain", "doomed")


class LaterClock:
    """An hour later: leases of the dead have lapsed and delays are over, without anybody waiting for it."""

    def __init__(self) -> None:
        # Not a system clock itself: a store that has one of those goes by the clock of its server.
        self._clock = SystemClock()
        self.monotonic, self.sleep, self.wait = self._clock.monotonic, self._clock.sleep, self._clock.wait

    def now(self) -> Instant:
        return self._clock.now() + 3_600_000


@dataclass(frozen=True)
class Place:
    """Where the scenario is played, and where its records are kept."""

    url: str
    logs: Path

    @property
    def pid(self) -> int:
        return os.getpid()

    def log(self, kind: str) -> Write:
        return Log(self.logs / f"{kind}-{self.pid}.log")

    def records(self) -> list[r.Record]:
        return read_all(self.logs)


def build(place: Place, store: Store, clock: Clock) -> Redrive:
    app = Redrive(store, log=False, clock=clock, actor="scenario", encryption=KEYS)
    app.events.subscribe(transcriber(place.log("events"), clock, place.pid))
    scribe = Scribe(place.log("runs"), clock, place.pid)
    quick = Policy(backoff=constant("1ms"), max_attempts=3)

    @app.handler("ok", policy=quick, concurrency=3)
    async def ok(item: Item) -> str:
        scribe.start(item)
        scribe.end(item, "done")
        return item.id

    @app.handler("thread", policy=quick, concurrency=2)
    def thread(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done")

    @app.handler("flaky", policy=quick, concurrency=3)
    async def flaky(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done" if item.errors else "failed")
        if not item.errors:
            raise ConnectionError("works the second time")

    @app.handler("doomed", policy=quick, concurrency=3)
    async def doomed(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "failed")
        raise ValueError("never works")

    @app.handler("chain", policy=quick, concurrency=3)
    async def chain(item: Item) -> None:
        scribe.start(item)
        child = app.follow_up("ok", {"parent": item.id})
        scribe.log(r.Follow(str(child), item.id, item.deliveries, now_ns()))
        scribe.end(item, "done")

    register_bonds(app, scribe, quick)
    return app


async def play(place: Place, store: Store, items: int, clock: Clock | None = None) -> None:
    """Everything a store can be asked to write: until the end, or until the process dies."""
    clock = clock or SystemClock()
    app = build(place, store, clock)
    asked = place.log("producer")
    producer = Producer(app, asked, clock)
    async with app:
        for number in range(items):
            await producer.enqueue(QUEUES[number % len(QUEUES)], f"item-{number:02}")
        await producer.enqueue("ok", "delayed", None, delay="30m")
        await producer.enqueue("ok", "unwanted", None, delay="30m")
        await app.pause("thread", reason="to see a pause")
        await app.pause("fam:c", reason="to see a pause of a member")
        await app.cancel("unwanted", reason="changed our minds")
        await put_bound(store, asked)
        await act_on_waiting(app, store, clock, asked)
        hand = Hand(store, Scribe(place.log("hand"), clock, place.pid))
        await hand.work()
        await hand.work_in_place()
        await read_on(place, store)
        await app.run(until_idle=True, queues=["flaky", "doomed", "chain", "lines", "fam:*"])
        await app.resume("thread")
        await app.resume("fam:c")
        await app.letters.skip("d-1", reason="the others need not wait for it")
        await read_on(place, store)
        await _operate(app)
        await read_on(place, store)
        await mend(app)
        await app.prune("id:unwanted", reason="tidy")
        await app.cancel("delayed", reason="enough waiting")
        await app.run(until_idle=True)
        await hand.sweep()


async def read_on(place: Place, store: Store) -> None:
    """As a mirror of letters does: from the last change that was read, by this process or one that is dead."""
    log = place.log("reader")
    last = max((one.number for one in place.records() if isinstance(one, r.Seen)), default=0)
    for one in await changes_after(store, last):
        log(r.Seen(one.number, one.id, lies(one.item), now_ns()))


async def _operate(app: Redrive) -> None:
    letters = [item.id for item in await app.letters.find("queue:doomed")]
    await app.configure("doomed", encrypt=True, reason="secrets")
    await app.reencrypt("doomed")
    await app.letters.tag(letters, add="doomed")
    for item_id in letters[:1]:
        await app.letters.replay(item_id, reason="once more", budget="once", background=True)
    for item_id in letters[1:2]:
        await app.letters.replay(item_id, reason="too soon", delay="30m")
        await app.letters.recall(item_id, reason="it was too soon")
        await app.letters.note(item_id, "recalled")
        await app.letters.discard(item_id, reason="not needed")
        await app.letters.restore(item_id, reason="it was")
        started = await app.letters.replay(item_id, reason="gently", pace="1/h")
        await app.replays.cancel(started.replay, reason="not yet")
        await app.letters.move(item_id, "ok", reason="theirs")
        await app.letters.archive(item_id, reason="known")


async def drain(place: Place, store: Store | None = None, clock: Clock | None = None) -> dict[str, dict[str, str]]:
    """What a fresh worker makes of what was left, an hour later. The faults, by class."""
    clock = clock or LaterClock()
    store = store or store_from_url(place.url, clock=clock)
    app = build(place, store, clock)
    async with app:
        for row in (await app.tally()).queues:
            if row.paused:
                await app.resume(row.queue)
        await app.run(until_idle=True)
        if await mend(app):
            await app.run(until_idle=True)
        await read_on(place, store)
        records = place.records()
        asked = [record.id for record in records if isinstance(record, r.Invoke)]
        faults = judge(records, await survey(store, asked)).faults
        findings = (await store.check()).findings
    damage = {finding.kind: f"{finding.count} {finding.text}" for finding in findings}
    return {**faults, "damaged": damage} if damage else faults
