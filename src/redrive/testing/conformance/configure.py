"""`configure`: pause and resume, seen by every worker at its next lease, with who did it and why."""

from __future__ import annotations

from redrive.core.verbs import QueueChange, QueueTally
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    asking,
    failed,
    finished,
    held,
    ids,
    new,
    news,
    next_leases,
)


async def test_configure_declares_the_queue(world: World) -> None:
    await world.store.configure("new queue", QueueChange())
    assert (await world.store.tally()).queues == (QueueTally("new queue"),)


async def test_configure_pause_is_shown_with_its_reason(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(paused=True, by="ada", reason="mail server is down"))
    count = await (await world.another()).tally()
    assert count.queues == (QueueTally(QUEUE, paused=True, paused_by="ada", paused_reason="mail server is down"),)


async def test_configure_pause_stops_leases_on_every_handle(world: World) -> None:
    made = new()
    await world.put(made)
    other = await world.another()
    await world.store.configure(QUEUE, QueueChange(paused=True))
    assert (await other.lease(asking(5))).items == ()
    await other.configure(QUEUE, QueueChange(paused=False))
    assert ids(await world.lease(5)) == (made.id,)


async def test_configure_pause_stops_then_too(world: World) -> None:
    await world.put(*news(2))
    item = await world.lease_one()
    await world.store.configure(QUEUE, QueueChange(paused=True))
    settled = await world.settle(finished(item), then=asking(5))
    assert next_leases(settled).items == ()


async def test_configure_pause_lets_the_running_finish(world: World) -> None:
    """Paused means no new leases: what runs may be prolonged, settled and reclaimed."""
    await world.put(*news(2))
    one, two = await world.lease(2)
    await world.store.configure(QUEUE, QueueChange(paused=True))
    assert (await world.store.extend([held(one)], 2 * TTL)).lost == ()
    await world.finish(failed(one))
    world.tick(TTL + 1)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 5)) == (two.id,)


async def test_configure_pause_still_takes_puts(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(paused=True))
    await world.put(new())
    assert (await world.count()).ready == 1


async def test_configure_resume_forgets_the_reason(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(paused=True, by="ada", reason="down"))
    await world.store.configure(QUEUE, QueueChange(paused=False, by="bob", reason="up"))
    count = await world.count()
    assert not count.paused
    assert (count.paused_by, count.paused_reason) == ("", "")


async def test_configure_without_paused_leaves_it(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(paused=True, by="ada", reason="down"))
    await world.store.configure(QUEUE, QueueChange(by="bob", reason="other"))
    count = await world.count()
    assert (count.paused, count.paused_by, count.paused_reason) == (True, "ada", "down")


async def test_configure_pause_survives_puts_and_time(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(paused=True, by="ada", reason="down"))
    await world.put(new())
    world.tick(1_000 * SECOND)
    assert await world.lease(5) == ()
    assert (await world.count()).paused


async def test_configure_pause_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    await world.put(new())
    await world.store.configure(QUEUE, QueueChange(paused=True, by="ada", reason="down"))
    await world.store.close()
    reopened = await world.another()
    assert (await reopened.lease(asking(5))).items == ()
    (row,) = (await reopened.tally()).queues
    assert (row.paused_by, row.paused_reason) == ("ada", "down")


async def test_configure_pauses_only_its_queue(world: World) -> None:
    made = new(queue="b")
    await world.put(new(queue="a"), made)
    await world.store.configure("a", QueueChange(paused=True))
    assert ids(await world.lease(5, queue="b")) == (made.id,)
