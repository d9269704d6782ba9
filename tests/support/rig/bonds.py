"""R3: the part of the scenario in which items are bound to others: lines, twins, dependencies, limits, gates, routes,
families and kinds.

Some of it goes through handlers; what a worker rarely meets (a full route, a cancelled run) is done by hand, leasing
and settling as a worker does, and written down like a handler's.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from redrive import Dead, Item, Policy, Redrive
from redrive.core.acts import (
    Act,
    Cancel,
    Edit,
    Park,
    Unpark,
)
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone
from redrive.core.gate import gate_config
from redrive.core.item import Attempt, Dedupe, Ending, NewItem, Priority, Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.verbs import (
    Held,
    LeaseRequest,
    NewEntry,
    QueueChange,
    Settlement,
    Want,
)
from redrive.office.gates import declare_gate
from redrive.stores.base import Store
from redrive.testing.conformance.kit import failure
from tests.support.rig import records as r
from tests.support.rig.handlers import Scribe
from tests.support.rig.log import Write, now_ns

TTL = 60_000
ORIGINAL = b'[ "as it was enqueued" ]'
QUEUES = ("lines", "gated", "hand", "swept")


def register_bonds(app: Redrive, scribe: Scribe, policy: Policy) -> None:
    """`lines`: the heads of lines `a` and `d` are refused until somebody replays them."""

    @app.handler("lines", policy=policy, concurrency=3)
    async def lines(item: Item) -> None:
        scribe.start(item)
        if item.id in {"a-1", "d-1"} and not item.replays:
            scribe.end(item, "dead")
            raise Dead("refused")
        scribe.end(item, "done")

    @app.handler("gated", policy=policy, concurrency=3)
    async def gated(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done" if item.errors else "failed")
        if not item.errors:
            raise ConnectionError("works the second time")

    @app.handler("hand", policy=policy, concurrency=3)
    async def left_over(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done")

    @app.handler("swept", policy=policy, concurrency=3)
    async def swept(item: Item) -> str:
        scribe.start(item)
        scribe.end(item, "done")
        return "soon forgotten"

    @app.handler("fam:*", policy=policy, concurrency=3)
    async def member(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done")

    @app.handler("fam:*", kind="odd", policy=policy)
    async def odd(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done" if item.errors else "failed")
        if not item.errors:
            raise ConnectionError("works the second time")


def bound_items() -> Iterator[NewItem]:
    for number in (1, 2, 3):
        yield NewItem(f"a-{number}", "lines", ORIGINAL, terms=Terms(order_key="a", limit_key="tenant"))
        yield NewItem(f"b-{number}", "lines", ORIGINAL, terms=Terms(order_key="b", limit_key="tenant"))
    yield NewItem("twin-1", "lines", ORIGINAL, terms=Terms(dedupe=Dedupe("only one")))
    yield NewItem("twin-2", "lines", ORIGINAL, terms=Terms(dedupe=Dedupe("only one")))
    yield NewItem("windowed", "lines", ORIGINAL, terms=Terms(dedupe=Dedupe("for a while", "store", 1_000)))
    # Of a line that waits for its dead head, and of one that is done at once.
    yield NewItem("waits", "gated", ORIGINAL, terms=Terms(after=("a-2", "twin-1")))
    yield NewItem("dies", "gated", ORIGINAL, terms=Terms(after=("a-1",), on_dead="die"))
    yield NewItem("dies-too", "gated", ORIGINAL, terms=Terms(after=("dies",), on_dead="die", order_key="c"))
    yield NewItem("behind", "gated", ORIGINAL, priority=Priority.LOW, terms=Terms(order_key="c"))
    yield NewItem("urgent", "gated", ORIGINAL, priority=Priority.HIGH)
    yield NewItem("swept", "swept", ORIGINAL)
    for number in (1, 2):
        yield NewItem(f"d-{number}", "lines", ORIGINAL, terms=Terms(order_key="d"))
    for name in ("a", "b", "c"):
        yield NewItem(f"even-{name}", f"fam:{name}", ORIGINAL, terms=Terms(order_key="line"))
        yield NewItem(f"odd-{name}", f"fam:{name}", ORIGINAL, kind="odd", terms=Terms(order_key="line"))
    for number in (1, 2, 3):
        yield NewItem(f"hand-{number}", "hand", ORIGINAL, terms=Terms(limit_key="hand"))


async def put_bound(store: Store, log: Write) -> None:
    """With every setting a queue can have. Two puts: a dependency may be older than who waits for it."""
    await store.configure_route("bad", 1)
    await store.configure("lines", QueueChange(order="park", max_per_key=1, max_running=3, capacity=100))
    await store.configure("gated", QueueChange(gate="dep", rate=Rate(1_000)))
    await store.configure("fam:*", QueueChange(gate="*", max_running=2, capacity=100, order="skip"))
    await store.configure("fam:b", QueueChange(rate=Rate(1_000), order="block"))
    await store.configure("swept", QueueChange(keep=0, keep_results=0))
    # It opens at the first failure, and lets a probe through sooner than anybody may ask for.
    await declare_gate(store, "dep", replace(gate_config(consecutive=1), interval=20, longest=20, retry_floor=20))
    items = list(bound_items())
    for part in (items[:8], items[8:]):
        for item in part:
            log(r.Invoke(item.id, item.queue, now_ns(), payload=item.payload))
        result = await store.put(part)
        told = {twin.id for twin in result.duplicates}
        for item in part:
            log(r.Told(item.id, "fail" if item.id in told else "ok", now_ns()))
    for change in (Park("schema"), Edit(b"[]", 0), Unpark()):
        name = type(change).__name__
        await store.amend(Ids(("b-3", "urgent")), change, Act("scenario", f"to see a {name}", f"{name} of some"))


class Hand:
    """Leases and settles what lies in the queue `hand`, as a worker of this process."""

    def __init__(self, store: Store, scribe: Scribe) -> None:
        self._store = store
        self._scribe = scribe
        self._name = f"hand-{scribe.pid}"
        scribe.log(r.Worker(self._name, scribe.pid, now_ns()))

    async def work(self) -> None:
        await self._store.configure("hand", QueueChange(max_per_key=3))
        given = [await self._lease(2, lane=1), await self._lease(1, lane=2)]
        # Both requests are under way: the answer to the second may be there before that to the first.
        assert given == [await self._lease(2, lane=1), await self._lease(1, lane=2)]
        (first, second), (third,) = given
        for item in (first, second, third):
            self._scribe.start(item)
        await self._store.amend(Ids((third.id,)), Cancel(), self._act("cancel"))
        extended = await self._store.extend([Held(third.id, third.deliveries)], TTL)
        assert extended.cancel_requested == (third.id,)
        for item, how in ((first, "failed"), (second, "failed"), (third, "cancelled")):
            self._scribe.end(item, how)
        to_route = ToDead("refused", Charge.ERROR, failure(), "bad", otherwise=1)
        # One finds room in its route. The other stays live, and is done by the handler of the queue.
        await self._store.settle(
            [
                self._settlement(first, to_route, Ending.FAILED),
                self._settlement(second, to_route, Ending.FAILED),
                self._settlement(third, ToCancelled("asked to"), Ending.CANCELLED),
            ]
        )

    async def work_in_place(self) -> None:
        """The letter is over, and what follows it is there; or neither."""
        (letter,) = await self._store.lease_letters(["in-place"], self._name, TTL)
        follows = NewItem("follows", "ok", ORIGINAL)
        self._scribe.log(r.Follow(follows.id, letter.id, letter.deliveries, now_ns()))
        entry = NewEntry("in place", b"{}", "scenario")
        await self._store.settle_letters([Settlement(letter.id, letter.deliveries, ToDone(), None, (follows,), entry)])

    async def sweep(self) -> None:
        """All there is, in small bites."""
        cursor = 0
        while True:
            swept = await self._store.sweep(10, self._act("sweep"), cursor)
            if swept.next is None:
                return
            cursor = swept.next

    async def _lease(self, limit: int, lane: int) -> tuple[Item, ...]:
        want = Want("hand", limit, TTL, max_crashes=3)
        return (await self._store.lease(LeaseRequest(self._name, (want,), f"request-{lane}", lane=lane))).items

    def _settlement(self, item: Item, decision: Decision, ending: Ending) -> Settlement:
        why = None if ending is Ending.CANCELLED else failure()
        record = Attempt(item.deliveries, item.attempt, self._name, item.leased_at or 0, 1, ending, why)
        return Settlement(item.id, item.deliveries, decision, record)

    def _act(self, what: str) -> Act:
        return Act("scenario", f"to see a {what}", f"{what} by {self._name}")


async def mend(app: Redrive) -> bool:
    """Unpark what a dead process left parked, and send back or throw away the letters that keep others waiting.

    Whether there were any.
    """
    parked = await app.unpark("state:parked", reason="the one who parked it is gone")
    back = [item.id for item in await app.letters.find("queue:lines disposition:open")]
    away = [item.id for item in await app.letters.find("queue:gated disposition:open")]
    for item_id in back:
        await app.edit(item_id, "mended", reason="the endpoint wants it so")
        await app.letters.replay(item_id, reason="the endpoint is back")
    for item_id in away:
        await app.letters.discard(item_id, reason="what it needed is not to be had")
    return bool(back or away or parked.changed)
