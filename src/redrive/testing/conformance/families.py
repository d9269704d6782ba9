"""Families of queues: members that come and go, served under one pattern, each with limits of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from redrive.core.acts import (
    Cancel,
    Replay,
    RunNow,
)
from redrive.core.item import Item, Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import (
    GateWrite,
    Leases,
    QueueChange,
    Want,
)
from redrive.errors import ConfigError, QueueFull
from redrive.testing.conformance.kinds import LONG, still_waits
from redrive.testing.conformance.kit import (
    HANDLES,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    asking,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    refusal,
    released,
)
from redrive.testing.conformance.wait import returns, started, waiter

FAMILY = "hook:*"
MICROS = 1_000


def member(name: object) -> str:
    return f"hook:{name}"


def queues_of(items: tuple[Item, ...]) -> list[str]:
    return [item.queue for item in items]


async def family(world: World, limit: int = 10, *, worker: str = "w-1") -> tuple[Item, ...]:
    return await world.lease(limit, queue=FAMILY, worker=worker)


# --- serving ---


async def test_family_lease_gives_items_of_its_members_and_of_no_other_queue(world: World) -> None:
    a, b, other = new(queue=member("a")), new(queue=member("b")), new(queue="hooks:a")
    await world.put(a, b, other, new())
    assert sorted(ids(await family(world))) == sorted(ids((a, b)))
    assert await family(world) == ()
    await world.sound()


async def test_family_members_come_and_go_while_workers_run(world: World) -> None:
    await world.set(QueueChange(), FAMILY)
    for name in ("a", "b", "c"):
        await world.put(new(queue=member(name)))
        (item,) = await family(world)
        assert item.queue == member(name)
        await world.finish(finished(item))
        assert await family(world) == ()


async def test_family_member_can_be_leased_by_its_own_name(world: World) -> None:
    await world.set(QueueChange(), FAMILY)
    await world.put(*news(2, member("a")))
    assert len(await world.lease(1, queue=member("a"))) == 1
    assert len(await family(world)) == 1
    assert await world.lease(1, queue=member("a")) == ()


async def test_family_is_served_beside_plain_queues(world: World) -> None:
    await world.put(new(), *news(3, member("a")))
    wants = (Want(QUEUE, 2, TTL, 3), Want(FAMILY, 2, TTL, 3))
    assert queues_of(await world.lease(wants=wants)) == [QUEUE, member("a"), member("a")]


async def test_family_lease_is_fair_among_members(world: World) -> None:
    """One member has a thousand items, nine have ten each: the nine are through after ten rounds."""
    await world.put(*news(500, member("big")))
    await world.put(*news(500, member("big")))
    small = [new(queue=member(number)) for number in range(9) for _ in range(10)]
    await world.put(*small)
    given: Counter[str] = Counter()
    for _ in range(10):
        items = await family(world, 10)
        assert len(items) == 10
        assert len(set(queues_of(items))) == 10
        given.update(queues_of(items))
        await world.finish(*(finished(item) for item in items))
    assert given == {member("big"): 10} | {member(number): 10 for number in range(9)}
    assert set(queues_of(await family(world, 10))) == {member("big")}


async def test_family_lease_takes_turns_one_item_at_a_time(world: World) -> None:
    names = [member(number) for number in range(5)]
    await world.put(*(new(queue=name) for _ in range(3) for name in names))
    for _ in range(3):
        assert sorted([queues_of(await family(world, 1))[0] for _ in names]) == names


async def test_family_lease_shares_what_is_left(world: World) -> None:
    await world.put(*news(20, member("a")), new(queue=member("b")))
    assert Counter(queues_of(await family(world, 10))) == {member("a"): 9, member("b"): 1}


async def test_family_lease_reaches_more_members_than_it_looks_at_in_one_call(world: World) -> None:
    await world.put(*(new(queue=member(number)) for number in range(150)))
    await world.set(QueueChange(), FAMILY)
    found: list[str] = []
    for _ in range(4):
        found += queues_of(await family(world, 100))
    assert sorted(found) == sorted(member(number) for number in range(150))


async def test_family_lease_is_repeated_by_its_nonce(world: World) -> None:
    await world.put(*news(2, member("a")), *news(2, member("b")))
    request = asking(3, queue=FAMILY)
    given = (await world.store.lease(request)).items
    assert ids((await world.store.lease(request)).items) == ids(given)
    assert len(await family(world)) == 1


async def test_family_lease_goes_with_a_settle(world: World) -> None:
    await world.put(*news(2, member("a")), *news(2, member("b")))
    for _ in range(4):
        (item,) = await family(world, 1) or (None,)
        assert item is not None
        settled = await world.settle(finished(item), then=asking(1, queue=FAMILY))
        for taken in next_leases(settled).items:
            await world.finish(released(taken))
    assert await family(world) == ()


async def test_family_keeps_the_order_of_keys_within_a_member(world: World) -> None:
    lined = [new(queue=member(name), terms=Terms(order_key="k")) for name in ("a", "b") for _ in range(3)]
    await world.put(*lined)
    ran: list[str] = []
    while items := await family(world):
        assert len(set(queues_of(items))) == len(items)
        ran += ids(items)
        await world.finish(*(finished(item) for item in items))
    assert [one.id for one in lined[:3]] == [one for one in ran if one in ids(lined[:3])]
    assert len(ran) == 6


async def test_family_gives_a_suspect_of_a_member_alone(world: World) -> None:
    suspect = await world.suspect(queue=member("a"))
    await world.put(*news(3, member("b")))
    beside = await world.store.lease(asking(5, queue=FAMILY, worker="w-2", holding=1))
    assert beside.suspects_due
    assert set(queues_of(beside.items)) == {member("b")}
    (alone,) = await family(world)
    assert (alone.id, alone.alone) == (suspect.id, True)
    assert await family(world) == ()


@pytest.mark.parametrize("change", [QueueChange(), QueueChange(policy="slow"), QueueChange(max_running=5)])
async def test_family_retries_come_back_when_they_are_due(world: World, change: QueueChange) -> None:
    await world.set(change, member("a"))
    await world.put(new(queue=member("a")))
    (item,) = await family(world)
    await world.finish(failed(item, delay=5 * SECOND))
    assert await family(world) == ()
    world.tick(4 * SECOND)
    assert await family(world) == ()
    world.tick(SECOND)
    assert ids(await family(world)) == (item.id,)


async def test_family_reclaim_stands_for_all_members(world: World) -> None:
    await world.put(new(queue=member("a")), new(queue=member("b")), new(queue="hooks:a"))
    given = await family(world)
    await world.lease(1, queue="hooks:a")
    world.tick(TTL + 1)
    lost = await world.store.reclaim("reaper", [FAMILY], TTL, 10)
    assert sorted(ids(lost)) == sorted(ids(given))
    await world.finish(*(after_crash(item) for item in lost))
    assert sorted(ids(await family(world))) == sorted(ids(given))


async def test_family_reclaim_of_named_items(world: World) -> None:
    await world.put(new(queue=member("a")))
    (given,) = await family(world)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10, [given.id], force=True) == ()
    (lost,) = await world.store.reclaim("reaper", [FAMILY], TTL, 10, [given.id], force=True)
    assert lost.id == given.id


async def test_family_declared_late_serves_what_waits(world: World) -> None:
    await world.put(*news(2, member("a")), *news(2, member("b")))
    taken = await world.lease(1, queue=member("a"))
    await world.set(QueueChange(), FAMILY)
    (row,) = (await world.store.tally()).families
    assert (row.queue, row.ready, row.leased) == (FAMILY, 3, 1)
    assert len(await family(world)) == 3
    await world.finish(*(finished(item) for item in taken))
    await world.sound()


# --- waiting ---


async def test_family_wait_returns_for_a_put_to_a_member(world: World) -> None:
    assert await family(world) == ()
    waiting = waiter(world, FAMILY)
    await started(world, waiting)
    await world.put(new(queue=member("a")))
    await returns(waiting)


async def test_family_wait_hears_another_handle(world: World) -> None:
    world.needs(HANDLES)
    assert await family(world) == ()
    other = await world.another()
    waiting = waiter(world, FAMILY)
    await started(world, waiting)
    await other.put((new(queue=member("a")),))
    await returns(waiting)
    assert len(await family(world)) == 1


async def test_family_wait_returns_at_once_if_something_is_due(world: World) -> None:
    await world.put(new(queue=member("a")))
    await world.set(QueueChange(), FAMILY)
    await returns(waiter(world, FAMILY))


async def test_family_wait_returns_when_a_member_is_due(world: World) -> None:
    await world.put(new(queue=member("a"), delay=5 * SECOND))
    assert await family(world) == ()
    await world.drive(world.store.wait([FAMILY], 3_600 * SECOND), SECOND)
    assert len(await family(world)) == 1


async def test_family_wait_returns_when_the_family_has_room_again(world: World) -> None:
    await world.set(QueueChange(max_running=1), FAMILY)
    await world.put(new(queue=member("a")), new(queue=member("b")))
    (item,) = await family(world)
    waiting = waiter(world, FAMILY)
    await started(world, waiting)
    await world.finish(finished(item))
    await returns(waiting)
    assert len(await family(world)) == 1


# --- pause ---


async def test_family_member_that_is_paused_does_not_keep_others_back(world: World) -> None:
    for number in range(100):
        await world.set(QueueChange(paused=True), member(number))
    await world.put(*(new(queue=member(number)) for number in range(100)))
    await world.put(new(queue=member("z")))
    found = [item for _ in range(3) for item in await family(world)]
    assert queues_of(tuple(found)) == [member("z")]
    await world.set(QueueChange(paused=False), member(7))
    assert queues_of(await family(world)) == [member(7)]


async def test_family_lease_that_puts_many_off_is_asked_again_at_once(world: World) -> None:
    """Or a worker would pause while a member has work behind many that have not."""
    await world.set(QueueChange(), FAMILY)
    names = [member(number) for number in range(200)]
    await world.put(*(new(queue=name) for name in names))
    await asyncio.gather(*(world.set(QueueChange(paused=True), name) for name in names))
    await world.put(live := new(queue=member("z")))
    answers: list[Leases] = []
    while not answers or (answers[-1].more and len(answers) < 10):
        answers.append(await world.store.lease(asking(5, queue=FAMILY)))
    assert [ids(leases.items) for leases in answers if leases.items] == [(live.id,)]
    assert not answers[-1].more


async def test_family_that_is_paused_gives_nothing(world: World) -> None:
    await world.put(*news(2, member("a")))
    await world.set(QueueChange(paused=True, by="ada"), FAMILY)
    assert await family(world) == ()
    assert await world.lease(1, queue=member("a")) == ()
    (row,) = (await world.store.tally()).families
    assert (row.paused, row.paused_by) == (True, "ada")
    await world.set(QueueChange(paused=False), FAMILY)
    assert len(await family(world)) == 2


# --- the whole ---


async def test_family_max_running_bounds_all_members_together(world: World) -> None:
    await world.set(QueueChange(max_running=3), FAMILY)
    await world.put(*news(3, member("a")), *news(3, member("b")))
    items = await family(world)
    assert len(items) == 3
    assert await world.lease(1, queue=member("b"), worker="w-2") == ()
    await world.finish(finished(items[0]))
    assert len(await family(world)) == 1


async def test_family_member_at_its_own_max_running_comes_back(world: World) -> None:
    await world.set(QueueChange(max_running=1), member("a"))
    await world.put(*news(3, member("a")), *news(3, member("b")))
    items = await family(world)
    assert Counter(queues_of(items)) == {member("a"): 1, member("b"): 3}
    assert await family(world) == ()
    await world.finish(*(finished(item) for item in items if item.queue == member("a")))
    assert queues_of(await family(world)) == [member("a")]


async def test_family_capacity_counts_all_members(world: World) -> None:
    await world.set(QueueChange(capacity=3), FAMILY)
    await world.put(*news(2, member("a")))
    with pytest.raises(QueueFull) as told:
        await world.store.put((*news(1, member("b")), *news(1, member("c"))))
    assert (told.value.queue, told.value.fill, told.value.capacity) == (FAMILY, 2, 3)
    assert told.value.member == member("c")
    await world.put(new(queue=member("b")))
    with pytest.raises(QueueFull):
        await world.store.put(news(1, member("a")))
    (item,) = await family(world, 1)
    with pytest.raises(QueueFull):
        await world.store.put([new(queue=member("a"), terms=Terms(order_key="k"))])
    await world.finish(finished(item))
    await world.put(new(queue=member("c")))
    with pytest.raises(ConfigError) as low:
        await world.set(QueueChange(capacity=2), FAMILY)
    assert low.value.field == "capacity"
    await world.sound()


async def test_family_tally_has_the_sums(world: World) -> None:
    await world.set(QueueChange(), FAMILY)
    await world.put(*news(2, member("a")), *news(2, member("b")), new())
    items = await family(world, 3)
    await world.finish(finished(items[0]), dead(items[1]))
    tally = await world.store.tally()
    assert [row.queue for row in tally.queues] == [QUEUE, member("a"), member("b")]
    (row,) = tally.families
    assert (row.ready, row.leased, row.done, row.open) == (1, 1, 1, 1)
    short = await world.store.tally(members=False)
    assert [row.queue for row in short.queues] == [QUEUE, FAMILY]
    assert short.queues[1] == row
    some = await world.store.tally(members=(member("b"), QUEUE, "none"))
    assert [row.queue for row in some.queues] == [QUEUE, FAMILY, member("b")]
    assert some.queues[2] == tally.queues[2]
    assert some.routes == short.routes == tally.routes


# --- bad input ---


@pytest.mark.parametrize("name", ["a:b:*", ":*", "::*"])
async def test_family_pattern_of_another_form_is_refused(world: World, name: str) -> None:
    for call in (
        world.store.configure(name, QueueChange(max_running=1)),
        world.store.lease(asking(1, queue=name)),
        world.store.wait([name], 1),
        world.store.put([new(queue=name)]),
    ):
        assert (await refusal(call, name)).field == "queue"
    assert (await world.store.tally()).queues == ()


async def test_family_takes_no_items_itself(world: World) -> None:
    error = await refusal(world.store.put([new(queue=FAMILY)]), FAMILY)
    assert error.field == "queue"
    item = await world.letter()
    with pytest.raises(ConfigError):
        await world.store.amend(Ids((item.id,)), Replay(queue=FAMILY), act())


async def test_family_breaker_of_its_own_is_refused_for_a_queue(world: World) -> None:
    assert (await refusal(world.store.configure(QUEUE, QueueChange(gate="*")), "*")).field == "gate"


async def test_family_is_not_encrypted_as_a_whole(world: World) -> None:
    """It would have to hold for members that nothing was said of; so it is said of each."""
    assert (await refusal(world.store.configure(FAMILY, QueueChange(encrypt=True)), FAMILY)).field == "encrypt"
    await world.set(QueueChange(encrypt=True), member("a"))
    assert (await world.store.settings(member("a"))).encrypt


# --- kinds ---


async def test_family_wait_does_not_return_for_other_kinds(world: World) -> None:
    """A worker must not spin because a member has only items of kinds that it does not have."""
    await world.put(*(new(queue=member(name), kind="order") for name in "abc"))
    await world.put(late := new(queue=member("a"), kind="refund", delay=SECOND))
    assert await world.lease(5, queue=FAMILY, kinds=("refund",)) == ()
    waiting = await still_waits(world, ("refund",), queue=FAMILY)
    await world.drive(waiting, SECOND // 4)
    assert ids(await world.lease(5, queue=FAMILY, kinds=("refund",))) == (late.id,)
    waiting = await still_waits(world, ("refund",), SECOND, queue=FAMILY)
    await world.put(soon := new(queue=member("b"), kind="refund"))
    await returns(waiting)
    await returns(asyncio.ensure_future(world.store.wait((FAMILY,), LONG, {FAMILY: ("refund",)})))
    assert ids(await world.lease(5, queue=FAMILY, kinds=("refund",))) == (soon.id,)
    assert len(await family(world)) == 3


async def test_family_members_of_other_kinds_go_behind_the_others(world: World) -> None:
    await world.put(*(new(queue=member(number), kind="order") for number in range(100)))
    await world.put(refund := new(queue=member("z"), kind="refund"))
    given: tuple[Item, ...] = ()
    for _ in range(3):
        given = await world.lease(5, queue=FAMILY, kinds=("refund",))
        if given:
            break
        await returns(asyncio.ensure_future(world.store.wait((FAMILY,), LONG, {FAMILY: ("refund",)})))
    assert ids(given) == (refund.id,)


async def test_family_members_of_other_kinds_are_no_reason_to_ask_again_at_once(world: World) -> None:
    await world.put(*(new(queue=member(number), kind="order") for number in range(100)))
    leases = await world.store.lease(asking(5, queue=FAMILY, kinds=("refund",)))
    assert (leases.items, leases.more) == ((), False)


# --- never too late ---


@pytest.mark.parametrize("seed", range(6))
async def test_family_lease_finds_whatever_its_members_would_give(world: World, seed: int) -> None:
    """Whatever happens to the members: after leases of the family found nothing more, none of them gives anything."""
    await _Play(world, random.Random(seed)).run(60)


class _Play:
    def __init__(self, world: World, luck: random.Random) -> None:
        self.world = world
        self.luck = luck
        self.running: list[Item] = []
        self.seen: list[str] = []
        self.gates: Counter[str] = Counter()
        self.names = [member(name) for name in "abcd"]

    async def run(self, steps: int) -> None:
        await self.world.set(QueueChange(gate="*"), FAMILY)
        acts = (self.put, self.put, self.settle, self.settle, self.pause, self.limit, self.gate, self.amend, self.tick)
        for _ in range(steps):
            for _ in range(self.luck.randint(1, 3)):
                await self.luck.choice(acts)()
            if self.luck.random() < 0.7:
                await self.drain()
        assert (await self.world.store.check()).findings == ()

    async def drain(self) -> None:
        while items := await family(self.world, self.luck.choice((1, 5, 50))):
            self.running.extend(items)
        for name in self.names:
            assert await self.world.lease(1, queue=name, worker="w-2") == (), f"{name} had something to give"

    async def put(self) -> None:
        delay = self.luck.choice((0, 0, SECOND, 3 * SECOND))
        terms = self.luck.choice((None, None, Terms(order_key="k"), Terms(limit_key="k")))
        made = [new(queue=self.luck.choice(self.names), delay=delay, terms=terms) for _ in range(3)]
        self.seen += await self.world.put(*made)

    async def settle(self) -> None:
        self.luck.shuffle(self.running)
        ends = [self.luck.choice((finished, failed, released, dead)) for _ in range(self.luck.randint(0, 3))]
        pairs = [(self.running.pop(), end) for end in ends if self.running]
        await self.world.finish(*(end(item) for item, end in pairs))

    async def pause(self) -> None:
        paused = self.luck.random() < 0.4
        await self.world.set(QueueChange(paused=paused), self.luck.choice((*self.names, *self.names, FAMILY)))

    async def limit(self) -> None:
        change = self.luck.choice(
            (
                QueueChange(rate=Rate(2, SECOND)),
                QueueChange(rate=None),
                QueueChange(max_running=2),
                QueueChange(max_running=None),
                QueueChange(max_per_key=1),
                QueueChange(max_per_key=None),
            )
        )
        await self.world.set(change, self.luck.choice((*self.names, FAMILY)))

    async def gate(self) -> None:
        name, shut = self.luck.choice(self.names), self.luck.random() < 0.5
        interval = 2 * SECOND * MICROS if shut else None
        await self.world.store.set_gate(GateWrite(name, self.gates[name], interval, shut=shut))
        self.gates[name] += 1

    async def amend(self) -> None:
        chosen = self.luck.sample(self.seen, min(2, len(self.seen)))
        change = self.luck.choice((Replay(), RunNow(), Cancel()))
        running = [one for one in chosen if (await self.world.item(one)).state is State.LEASED]
        await self.world.store.amend(Ids(tuple(one for one in chosen if one not in running)), change, act())

    async def tick(self) -> None:
        self.world.tick(self.luck.choice((1, 500, SECOND, 2 * SECOND)))
