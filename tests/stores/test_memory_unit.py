"""What only the memory store can show: its insides, and threads beside the loop. For the rest see the suite."""

import asyncio
import random
import threading
from collections import Counter

import pytest
from blockbuster import BlockBuster

from redrive.core.acts import (
    Act,
    Cancel,
    Discard,
)
from redrive.core.decide import Charge, ToDead, ToDone, ToReady
from redrive.core.item import Dedupe, Failure, Item, NewItem, Terms
from redrive.core.select import EVERYTHING, Match
from redrive.core.verbs import (
    TRASH_KEPT,
    LeaseRequest,
    QueueChange,
    Settlement,
    Want,
)
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.memory._agenda import Agenda, Slot
from redrive.stores.memory._table import Table
from redrive.stores.memory._waiters import Waiter
from redrive.testing import FakeClock

FAILURE = Failure("E", "text", "category", "rule", "cause")


def asking(nonce: str, limit: int = 100, worker: str = "w", ttl: int = 1_000) -> LeaseRequest:
    return LeaseRequest(worker, (Want("q", limit, ttl, 3),), nonce)


def items(count: int, prefix: str = "i", delay: int = 0) -> list[NewItem]:
    return [NewItem(f"{prefix}{number}", "q", b"", delay) for number in range(count)]


def test_it_is_a_store() -> None:
    store: Store = MemoryStore()
    assert store.info().durability == "none"


@pytest.mark.parametrize("seed", range(5))
def test_the_agenda_agrees_with_a_sorted_list(seed: int) -> None:
    luck, agenda, truth = random.Random(seed), Agenda(), dict[str, Slot]()
    for seq in range(1_000):
        name = str(luck.randrange(200))
        if name in truth:
            agenda.remove(name)
            del truth[name]
        if luck.random() < 0.6:
            truth[name] = Slot(luck.randrange(50), seq, name)
            agenda.add(*truth[name])
        now = luck.randrange(50)
        assert agenda.first() == min(truth.values(), default=None)
        assert sorted(agenda.until(now)) == sorted(slot for slot in truth.values() if slot.when <= now)
        assert len(agenda) == len(truth)


def test_the_agenda_does_not_grow_with_what_it_forgot() -> None:
    agenda = Agenda()
    agenda.add(0, 0, "first")
    for seq in range(1, 10_000):
        agenda.add(seq, seq, "again")
        agenda.remove("again")
    assert len(agenda._heap) < 100  # noqa: SLF001 - its size is what this is about


async def test_a_lease_looks_only_at_what_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the backlog nor dead letters are touched: the cost of a lease is its own size."""
    store = await MemoryStore(FakeClock()).open()
    await store.put(items(5_000))
    dead = (await store.lease(asking("n1", 1_000))).items
    end = ToDead("rule", Charge.ERROR, FAILURE)
    await store.settle([Settlement(item.id, item.deliveries, end) for item in dead])
    looks: Counter[str] = Counter()
    first = Agenda.first

    def counted(agenda: Agenda) -> Slot | None:
        looks["first"] += 1
        return first(agenda)

    def forbidden(*_: object) -> list[Slot]:
        raise AssertionError("a lease must not read the whole agenda")

    monkeypatch.setattr(Agenda, "first", counted)
    monkeypatch.setattr(Agenda, "until", forbidden)
    assert len((await store.lease(asking("n2", 100))).items) == 100
    assert looks["first"] <= 110


async def test_every_index_is_empty_when_every_item_is_gone() -> None:
    """Prune leaves tombstones and counters at zero, nothing else."""
    store = await MemoryStore(FakeClock()).open()
    await store.put(items(30))
    leases = (await store.lease(asking("n1", 20))).items
    dead = [Settlement(item.id, item.deliveries, ToDead("rule", Charge.ERROR, FAILURE)) for item in leases[:10]]
    crashed = [Settlement(item.id, item.deliveries, ToReady(0, Charge.CRASH)) for item in leases[10:]]
    await store.settle([*dead, *crashed])
    await store.amend(EVERYTHING, Cancel(), Act("me", "why", "r1"))
    await store.amend(Match("state", "=", "dead"), Discard(), Act("me", "why", "r2"))
    assert len(await store.prune(EVERYTHING, 100, Act("me", "why", "r3"))) == 30
    table = store._table  # noqa: SLF001 - the insides are what this is about
    lane = table.lanes["q"]
    assert not table.items
    assert not any((table._ids, table._enqueued, table._died, table._causes, table._trails))  # noqa: SLF001 - see above
    assert [len(agenda) for agenda in (*lane.ready.values(), lane.leased)] == [0, 0]
    assert not any(lane.counts.values())


async def test_every_bond_is_gone_when_every_item_is_gone() -> None:
    """Lines, dependencies, dedupe keys and places under limit keys leave nothing behind."""
    store = await MemoryStore(FakeClock()).open()
    await store.configure("q", QueueChange(max_per_key=1, order="park"))
    bound = Terms("order", "limit", Dedupe("one"), (), "die")
    made = [NewItem("i0", "q", b"", terms=bound)]
    made += [NewItem(f"i{number}", "q", b"", terms=Terms("order", "limit", None, ("i0",))) for number in range(1, 6)]
    made += [NewItem(f"j{number}", "q", b"", terms=Terms(limit_key="limit")) for number in range(5)]
    await store.put(made)
    (item,) = (await store.lease(asking("n1"))).items
    assert len(store._table.aside) == 1  # noqa: SLF001 - the insides are what this is about
    await store.settle([Settlement(item.id, 1, ToDead("rule", Charge.ERROR, FAILURE))])
    await store.amend(EVERYTHING, Cancel(), Act("me", "why", "r1"))
    await store.amend(Match("state", "=", "dead"), Discard(), Act("me", "why", "r2"))
    assert len(await store.prune(EVERYTHING, 100, Act("me", "why", "r3"))) == 11
    table, bonds = store._table, store._bonds  # noqa: SLF001 - see above
    assert not any((table.aside, +table.running, +table.routes, table._counted))  # noqa: SLF001 - see above
    assert not any((table.lines._lines, table.lines._places))  # noqa: SLF001 - see above
    assert not any((bonds.keys.holders, bonds.edges.waiting, bonds.edges.missing))


async def test_a_long_line_costs_each_head_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next of a key is found where the last one was: no look at those behind it."""
    store = await MemoryStore(FakeClock()).open()
    await store.put([NewItem(f"i{number}", "q", b"", terms=Terms(order_key="k")) for number in range(2_000)])
    saved: Counter[str] = Counter()
    save = Table.save

    def counted(table: Table, item: Item) -> None:
        saved["items"] += 1
        save(table, item)

    monkeypatch.setattr(Table, "save", counted)
    for turn in range(100):
        (item,) = (await store.lease(asking(f"n{turn}"))).items
        await store.settle([Settlement(item.id, 1, ToDone())])
    assert saved["items"] == 300


async def test_an_order_that_nobody_knows_is_refused() -> None:
    store = await MemoryStore(FakeClock()).open()
    with pytest.raises(ConfigError, match="sideways"):
        await store.configure("q", QueueChange(order="sideways"))  # type: ignore[arg-type]  # what a program may pass
    assert (await store.tally()).queues == ()


async def test_a_clock_that_is_set_back_puts_nothing_off() -> None:
    clock = FakeClock()
    store = await MemoryStore(clock).open()
    await store.put(items(1, delay=1_000))
    clock.jump_wall(-3_600_000)
    clock.advance(1_000)
    (item,) = (await store.lease(asking("n1"))).items
    clock.advance(1_000)
    assert [lost.id for lost in await store.reclaim("r", ["q"], 1_000, 1)] == [item.id]


async def test_a_clock_that_is_set_forward_is_followed() -> None:
    clock = FakeClock()
    store = await MemoryStore(clock).open()
    await store.put(items(1, delay=3_600_000))
    clock.jump_wall(3_600_000)
    assert len((await store.lease(asking("n1"))).items) == 1


async def test_a_loop_of_verbs_does_not_starve_other_tasks() -> None:
    store = await MemoryStore(FakeClock()).open()
    task = asyncio.create_task(store.put(items(1)))
    for _ in range(10):
        await store.tally()
    assert task.done()


async def test_a_cancelled_verb_has_not_happened() -> None:
    store = await MemoryStore(FakeClock()).open()
    task = asyncio.create_task(store.put(items(1)))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await store.tally()).queues == ()


async def test_a_put_from_another_thread_wakes_the_waiter(blockbuster: BlockBuster) -> None:
    blockbuster.deactivate()  # see below: two threads may meet at the lock
    clock = FakeClock()
    store = await MemoryStore(clock).open()
    waiting = asyncio.create_task(store.wait(["q"], 1_000))
    await clock.tick(0)
    assert not waiting.done()
    thread = threading.Thread(target=lambda: asyncio.run(store.put(items(1))))
    thread.start()
    async with asyncio.timeout(10):
        await waiting
    thread.join(10)


def test_a_waiter_whose_loop_is_gone_does_no_harm() -> None:
    async def waiter() -> Waiter:
        return Waiter(["q"])

    asyncio.run(waiter()).wake()


async def test_closing_ends_every_wait() -> None:
    clock = FakeClock()
    store = await MemoryStore(clock).open()
    waiting = asyncio.create_task(store.wait(["q"], 1_000))
    await clock.tick(0)
    await store.close()
    async with asyncio.timeout(10):
        await waiting
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.tally()


async def test_opening_again_finds_what_was_there() -> None:
    store = await MemoryStore().open()
    await store.put(items(1))
    await store.close()
    await store.open()
    assert (await store.get("i0")).item.id == "i0"


async def test_threads_do_not_get_in_each_others_way(blockbuster: BlockBuster) -> None:
    """Four threads with loops of their own, one store: every item is leased once."""
    blockbuster.deactivate()  # a lock that is held for microseconds may be met here, and that is meant
    store = await MemoryStore().open()
    await store.put(items(400))
    taken: list[str] = []

    async def take(worker: str) -> None:
        for turn in range(1_000):
            leases = (await store.lease(asking(f"{turn}", 3, worker))).items
            taken.extend(item.id for item in leases)
            if not leases:
                return

    threads = [threading.Thread(target=lambda name=f"w{n}": asyncio.run(take(name))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert sorted(taken) == sorted(item.id for item in items(400))


async def test_no_trash_is_without_end() -> None:
    """None gives the time of a new queue."""
    store = await MemoryStore().open()
    await store.configure("q", QueueChange(keep_trash=1))
    await store.configure("q", QueueChange(keep_trash=None))
    assert (await store.settings("q")).keep_trash == TRASH_KEPT
