"""Gates as `lease` sees them: a meter for a dependency that is down, a budget for retries, both for the whole fleet."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.verbs import Gate, GateWrite, QueueChange, Want
from redrive.errors import Conflict
from redrive.stores.base import Store
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    asking,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    refusal,
)
from redrive.testing.conformance.wait import returns, started, waiter

NAME = "smtp"
MICROS = 1_000
"""Microseconds in a millisecond."""
INTERVAL = 30 * SECOND * MICROS
SHUT = GateWrite(NAME, 0, INTERVAL, shut=True, body=b'{"open": true}')
BUDGET = GateWrite(NAME, 0, share=100, cap=5_000, floor=10 * SECOND * MICROS)
"""One retry for ten first attempts, at most five saved up, and one each ten seconds whatever happens."""


async def behind(world: World, write: GateWrite, *queues: str) -> Gate:
    """The gate as written, with these queues behind it."""
    for queue in queues or (QUEUE,):
        await world.set(QueueChange(gate=NAME), queue)
    return await world.store.set_gate(write)


async def current(store: Store) -> Gate:
    gate = await store.gate(NAME)
    assert gate is not None
    return gate


async def retries(world: World, count: int) -> tuple[str, ...]:
    """So many that failed once and are due now."""
    await world.put(*news(count))
    items = await world.lease(count)
    await world.finish(*(failed(item) for item in items))
    return ids(items)


# --- kept by versions ---


async def test_gate_is_written_by_versions(world: World) -> None:
    assert await world.store.gate(NAME) is None
    assert await world.store.gates() == ()
    gate = await world.store.set_gate(GateWrite(NAME, 0, 5, 2, 100, 3_000, 7, body=b"\x00one"))
    assert gate == Gate(NAME, 1, 5, 2, 100, 3_000, 7, body=b"\x00one")
    again = await (await world.another()).set_gate(GateWrite(NAME, 1, body=b"two"))
    assert again == Gate(NAME, 2, body=b"two")
    assert await current(world.store) == again


@pytest.mark.parametrize("expect", [0, 2])
async def test_gate_of_another_version_is_a_conflict(world: World, expect: int) -> None:
    gate = await world.store.set_gate(SHUT)
    with pytest.raises(Conflict):
        await world.store.set_gate(structs.replace(SHUT, expect=expect, body=b"other"))
    assert await current(world.store) == gate


async def test_gate_that_is_not_there_is_a_conflict(world: World) -> None:
    with pytest.raises(Conflict):
        await world.store.set_gate(structs.replace(SHUT, expect=1))
    assert await world.store.gates() == ()


async def test_gates_come_by_name(world: World) -> None:
    for name in ("b", "a", "c ☃"):
        await world.store.set_gate(GateWrite(name, 0))
    assert [gate.name for gate in await world.store.gates()] == ["a", "b", "c ☃"]


async def test_gate_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    gate = await behind(world, SHUT)
    await world.store.close()
    world.store = await world.another()
    assert await current(world.store) == gate
    await world.put(new())
    assert await world.lease(1) == ()


BAD_GATES = (
    (GateWrite("", 0), "gate"),
    (GateWrite("\0", 0), "gate"),
    (GateWrite("g", 0, 0), "interval"),
    (GateWrite("g", 0, 5, 0), "burst"),
    (GateWrite("g", 0, floor=0), "floor"),
)


async def test_gate_that_cannot_be_kept_is_refused(world: World) -> None:
    for write, field in BAD_GATES:
        assert (await refusal(world.store.set_gate(write), write)).field == field


# --- open and shut ---


async def test_gate_without_a_meter_lets_everything_through(world: World) -> None:
    await behind(world, GateWrite(NAME, 0))
    await world.put(*news(5))
    assert len(await world.lease(10)) == 5


async def test_gate_that_nobody_wrote_lets_everything_through(world: World) -> None:
    await world.set(QueueChange(gate="never written"))
    await world.put(*news(5))
    assert len(await world.lease(10)) == 5


async def test_gate_that_is_shut_gives_nothing_until_its_interval_is_over(world: World) -> None:
    await behind(world, SHUT)
    made = news(5)
    await world.put(*made)
    assert await world.lease(10) == ()
    world.tick(30 * SECOND - 1)
    assert await world.lease(10) == ()
    world.tick(1)
    assert len(await world.lease(10)) == 1
    assert await world.lease(10) == ()
    world.tick(30 * SECOND)
    assert len(await world.lease(10)) == 1
    # Those that were kept back paid nothing for it.
    after = await world.item(made[4].id)
    assert (after.deliveries, after.attempt, after.due_at) == (0, 0, after.enqueued_at)


async def test_gate_lets_so_many_probes_through_at_once(world: World) -> None:
    await behind(world, structs.replace(SHUT, burst=3))
    await world.put(*news(9))
    world.tick(30 * SECOND)
    assert len(await world.lease(10)) == 1
    world.tick(10 * 30 * SECOND)
    assert len(await world.lease(10)) == 3


async def test_gate_is_one_for_all_its_queues_and_workers(world: World) -> None:
    await behind(world, structs.replace(SHUT, shut=False, burst=3), QUEUE, "other")
    await world.put(*news(5), *news(5, queue="other"))
    other = await world.another()
    wants = (Want(QUEUE, 2, TTL, 3), Want("other", 5, TTL, 3))
    assert len(await world.lease(wants=wants)) == 3
    assert (await other.lease(asking(5, worker="w-2"))).items == ()
    assert await world.lease(5, queue="other", worker="w-3") == ()


async def test_gate_stands_only_before_its_own_queues(world: World) -> None:
    await behind(world, SHUT)
    await world.put(new(), new(queue="other"))
    assert len(await world.lease(5, queue="other")) == 1
    await world.set(QueueChange(gate=""))
    assert len(await world.lease(5)) == 1


async def test_gate_that_opens_lets_everything_through_at_once(world: World) -> None:
    await behind(world, SHUT)
    await world.put(*news(5))
    gate = await current(world.store)
    await world.store.set_gate(GateWrite(NAME, gate.version))
    assert len(await world.lease(10)) == 5


async def test_gate_written_anew_goes_on_with_what_was_spent(world: World) -> None:
    """The outcome of a probe is written while others ask: that must not hand out a second one."""
    await behind(world, structs.replace(SHUT, shut=False))
    await world.put(*news(5))
    assert len(await world.lease(5)) == 1
    gate = await current(world.store)
    assert gate.version == 1
    written = await world.store.set_gate(structs.replace(SHUT, expect=1, shut=False, body=b"still down"))
    assert (written.next_at, written.body) == (gate.next_at, b"still down")
    assert await world.lease(5) == ()
    world.tick(29 * SECOND)
    await world.store.set_gate(structs.replace(SHUT, expect=2))
    world.tick(SECOND)
    assert await world.lease(5) == ()
    world.tick(29 * SECOND)
    assert len(await world.lease(5)) == 1


async def test_gate_holds_suspects_back_without_calling_for_them(world: World) -> None:
    await world.suspect()
    await behind(world, SHUT)
    leases = await world.store.lease(asking(5, holding=1))
    assert (leases.items, leases.suspects_due) == ((), False)
    assert await world.lease(5, worker="w-2") == ()
    world.tick(30 * SECOND)
    (item,) = await world.lease(5, worker="w-2")
    assert item.alone
    assert (await current(world.store)).next_at == (world.clock.now() + 30 * SECOND) * MICROS


async def test_wait_knows_when_a_gate_lets_the_next_through(world: World) -> None:
    await behind(world, SHUT)
    await world.put(new())
    waiting = waiter(world)
    await started(world, waiting)
    world.tick(30 * SECOND)
    await returns(waiting)
    assert len(await world.lease(1)) == 1


async def test_wait_hears_of_a_gate_that_opens(world: World) -> None:
    await behind(world, SHUT)
    await world.put(new())
    waiting = waiter(world)
    await started(world, waiting)
    await (await world.another()).set_gate(GateWrite(NAME, 1))
    await returns(waiting)
    assert len(await world.lease(1)) == 1


# --- the budget of retries ---


async def test_budget_gives_retries_by_the_share_of_first_attempts(world: World) -> None:
    old = await retries(world, 20)
    await behind(world, BUDGET)
    # The floor: one, then one each ten seconds.
    assert len(await world.lease(20)) == 1
    assert await world.lease(20) == ()
    world.tick(1)
    fresh = news(30)
    await world.put(*fresh)
    given = await world.lease(50)
    assert ids(given) == ids(fresh)
    assert (await current(world.store)).credit == 3_000
    items = await world.lease(50)
    assert len(items) == 3
    assert set(ids(items)) < set(old)
    assert (await current(world.store)).credit == 0


async def test_budget_does_not_save_up_more_than_its_cap(world: World) -> None:
    await retries(world, 20)
    await behind(world, BUDGET)
    await world.put(*news(100))
    assert len(await world.lease(100, retries=0)) == 100
    assert (await current(world.store)).credit == 5_000
    assert len(await world.lease(50)) == 6


async def test_budget_is_paid_from_credit_before_the_floor(world: World) -> None:
    await retries(world, 10)
    await behind(world, BUDGET)
    await world.put(*news(10))
    assert len(await world.lease(10, retries=0)) == 10
    gate = await current(world.store)
    assert (gate.credit, gate.floor_at) == (1_000, 0)
    assert len(await world.lease(1)) == 1
    gate = await current(world.store)
    assert (gate.credit, gate.floor_at) == (0, 0)
    assert len(await world.lease(5)) == 1
    assert (await current(world.store)).floor_at == (world.clock.now() + 10 * SECOND) * MICROS


async def test_budget_lets_nothing_wait_for_ever(world: World) -> None:
    await retries(world, 3)
    await behind(world, BUDGET)
    given = 0
    for _ in range(60):
        given += len(await world.lease(5))
        world.tick(SECOND)
    assert given == 3


async def test_budget_counts_a_suspect_as_a_retry(world: World) -> None:
    await retries(world, 1)
    await world.suspect()
    await behind(world, BUDGET)
    leases = await world.store.lease(asking(5))
    assert [item.alone for item in leases.items] == [True]
    await world.finish(finished(leases.items[0]))
    assert await world.lease(5) == ()
    assert not (await world.store.lease(asking(5, holding=1))).suspects_due


async def test_budget_is_neither_asked_nor_moved_while_the_gate_meters(world: World) -> None:
    old = await retries(world, 3)
    await behind(world, structs.replace(BUDGET, interval=INTERVAL, burst=2))
    assert ids(await world.lease(5)) == old[:2]
    gate = await current(world.store)
    assert (gate.credit, gate.floor_at) == (0, 0)


async def test_budget_holds_within_one_settle(world: World) -> None:
    await retries(world, 5)
    await behind(world, BUDGET)
    (item,) = await world.lease(1)
    settled = await world.settle(failed(item), then=asking(5))
    assert next_leases(settled).items == ()


async def test_wait_knows_when_the_budget_gives_a_retry(world: World) -> None:
    await retries(world, 2)
    await behind(world, BUDGET)
    assert len(await world.lease(5)) == 1
    waiting = waiter(world)
    await started(world, waiting)
    world.tick(10 * SECOND)
    await returns(waiting)
    assert len(await world.lease(5)) == 1


async def test_wait_returns_for_a_first_attempt_whatever_the_budget(world: World) -> None:
    await retries(world, 2)
    await behind(world, BUDGET)
    assert len(await world.lease(5)) == 1
    waiting = waiter(world)
    await started(world, waiting)
    await world.put(new())
    await returns(waiting)
    assert len(await world.lease(5)) == 1
