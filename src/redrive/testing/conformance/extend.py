"""`extend`: prolongs what is still held; never revives, never shortens."""

from __future__ import annotations

from redrive.core.states import State
from redrive.core.verbs import Extended, Held
from redrive.testing.conformance.kit import QUEUE, TTL, World, failed, finished, held, ids, news


async def test_extend_prolongs_from_now(world: World) -> None:
    item = await world.held()
    world.tick(TTL - 1)
    assert await world.store.extend([held(item)], TTL) == Extended()
    after = await world.item(item.id)
    assert after.lease_until == world.clock.now() + TTL
    assert (after.leased_at, after.deliveries, after.attempt) == (item.leased_at, 1, 1)
    world.tick(TTL - 1)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10) == ()


async def test_extend_never_shortens(world: World) -> None:
    item = await world.held(ttl=10 * TTL)
    assert await world.store.extend([held(item)], TTL) == Extended()
    assert (await world.item(item.id)).lease_until == item.lease_until


async def test_extend_never_revives(world: World) -> None:
    """An expired lease may be in the reaper's hands at any moment: prolonging it would make two holders."""
    item = await world.held()
    world.tick(TTL + 1)
    assert await world.store.extend([held(item)], TTL) == Extended((item.id,))
    assert (await world.item(item.id)).lease_until == item.lease_until
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 10)) == (item.id,)


async def test_extend_and_reclaim_agree_on_the_last_millisecond(world: World) -> None:
    """At the very end of the lease it is either prolonged or lost, and the reaper sees the same."""
    await world.put(*news(2))
    one, _two = await world.lease(2)
    world.tick(TTL)
    lost = (await world.store.extend([held(one)], TTL)).lost
    taken = ids(await world.store.reclaim("reaper", [QUEUE], TTL, 10))
    assert (one.id in lost) == (one.id in taken)


async def test_extend_reports_what_ended(world: World) -> None:
    await world.put(*news(3))
    done, retried, kept = await world.lease(3)
    await world.finish(finished(done), failed(retried))
    result = await world.store.extend([held(done), held(kept), held(retried)], 3 * TTL)
    assert sorted(result.lost) == sorted((done.id, retried.id))
    assert (await world.item(kept.id)).lease_until == world.clock.now() + 3 * TTL
    assert (await world.item(retried.id)).lease_until is None
    assert (await world.item(done.id)).state is State.DONE


async def test_extend_by_a_stale_holder_is_lost_while_the_new_one_runs(world: World) -> None:
    """Same id, same worker name, older delivery: the lease of the new holder must not move."""
    item = await world.held()
    await world.finish(failed(item))
    again = await world.lease_one()
    assert (await world.store.extend([held(item)], 50 * TTL)).lost == (item.id,)
    assert await world.item(item.id) == again
    assert (await world.store.extend([held(again)], 2 * TTL)).lost == ()


async def test_extend_by_the_lost_holder_does_not_touch_the_reaper_s_lease(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    assert (await world.store.extend([held(item)], 50 * TTL)).lost == (item.id,)
    assert (await world.item(item.id)).lease_until == taken.lease_until
    assert (await world.store.extend([held(taken)], 2 * TTL)).lost == ()


async def test_extend_of_the_unknown_is_lost(world: World) -> None:
    item = await world.held()
    result = await world.store.extend([Held("nobody", 1), Held(item.id, item.deliveries + 1), held(item)], TTL)
    assert sorted(result.lost) == sorted(("nobody", item.id))


async def test_extend_of_nothing_is_nothing(world: World) -> None:
    assert await world.store.extend([], TTL) == Extended()
