"""Settings of a queue: kept, seen by every handle, changed one by one, and refused where they make no sense."""

from __future__ import annotations

from redrive.core.meters import Rate
from redrive.core.verbs import QueueChange, QueueSettings
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    World,
    new,
    refusal,
)


async def test_settings_of_a_new_queue_are_none(world: World) -> None:
    assert await world.store.settings("never heard of") == QueueSettings()
    assert (await world.store.tally()).queues == ()
    await world.put(new())
    assert await world.store.settings(QUEUE) == QueueSettings()


async def test_settings_are_kept_and_seen_by_every_handle(world: World) -> None:
    wanted = QueueSettings(
        3, 2, Rate(100, 60_000, 5), 1_000, "park", "gentle", "smtp", 7 * SECOND, SECOND, 0.25, encrypt=True
    )
    change = QueueChange(
        max_running=3,
        max_per_key=2,
        rate=Rate(100, 60_000, 5),
        capacity=1_000,
        order="park",
        policy="gentle",
        gate="smtp",
        keep=7 * SECOND,
        keep_results=SECOND,
        encrypt=True,
        retry_share=0.25,
    )
    await world.set(change)
    other = await world.another()
    assert await other.settings(QUEUE) == wanted
    assert (await world.count()).settings == wanted
    await other.configure(QUEUE, QueueChange(max_per_key=None, policy=""))
    left = await world.store.settings(QUEUE)
    assert (left.max_running, left.max_per_key, left.policy, left.gate) == (3, None, "", "smtp")


async def test_settings_and_pause_leave_each_other_alone(world: World) -> None:
    await world.set(QueueChange(paused=True, by="ada", reason="down"))
    await world.set(QueueChange(max_running=1))
    count = await world.count()
    assert (count.paused, count.paused_by, count.settings.max_running) == (True, "ada", 1)
    await world.set(QueueChange(paused=False))
    assert (await world.store.settings(QUEUE)).max_running == 1


async def test_settings_survive_reopening(world: World) -> None:
    world.needs(DURABLE)
    await world.set(QueueChange(max_running=3, rate=Rate(5), retry_share=0.5, order="skip"))
    await world.store.close()
    world.store = await world.another()
    assert await world.store.settings(QUEUE) == QueueSettings(
        max_running=3, rate=Rate(5), retry_share=0.5, order="skip"
    )


BAD_SETTINGS = (
    (QueueChange(max_running=0), "max_running"),
    (QueueChange(max_per_key=-1), "max_per_key"),
    (QueueChange(capacity=0), "capacity"),
    (QueueChange(rate=Rate(0)), "rate"),
    (QueueChange(rate=Rate(1, 0)), "rate"),
    (QueueChange(rate=Rate(1, 1, 0)), "rate"),
    (QueueChange(keep=-1), "keep"),
    (QueueChange(keep_results=-1), "keep_results"),
    (QueueChange(retry_share=0), "retry_share"),
    (QueueChange(retry_share=1.5), "retry_share"),
    (QueueChange(policy="\0"), "policy"),
)


async def test_settings_that_cannot_be_kept_are_refused(world: World) -> None:
    for change, field in BAD_SETTINGS:
        assert (await refusal(world.set(change), change)).field == field
    assert (await world.store.tally()).queues == ()
