"""Cancel: a ready item ends at once, a running one is asked to, and what was asked for never runs again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from redrive.core.acts import (
    Amended,
    Cancel,
    Replay,
)
from redrive.core.decide import Charge, ToCancelled, ToDead, ToReady
from redrive.core.item import Ending, Item, Terms
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    Answer,
    Extended,
    Settlement,
    Verdict,
)
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    asking,
    dead,
    ended,
    failed,
    failure,
    finished,
    held,
    ids,
    new,
    news,
    next_leases,
    released,
    skipped_ids,
)

ASKED = "ada: no longer wanted"


def stopped(item: Item) -> Settlement:
    return Settlement(item.id, item.deliveries, ToCancelled("asked"), ended(item, Ending.CANCELLED))


async def asked(world: World, item: Item) -> Item:
    """The item after somebody asked for it to be cancelled while it runs."""
    amended = await world.store.amend(Ids((item.id,)), Cancel(), act(reason="no longer wanted"))
    assert amended == Amended(changed=(item.id,))
    return await world.item(item.id)


async def test_cancel_of_a_running_item_asks_its_holder(world: World) -> None:
    item = await world.held()
    after = await asked(world, item)
    assert (after.state, after.cancel, after.deliveries, after.lease_until) == (
        State.LEASED,
        ASKED,
        item.deliveries,
        item.lease_until,
    )
    (deed,) = (await world.store.get(item.id)).deeds
    assert (deed.change, deed.actor) == ("cancel", "ada")
    assert len(await world.store.journal("audit")) == 1
    assert (await world.count()).leased == 1


async def test_cancel_is_heard_with_the_next_extend(world: World) -> None:
    await world.put(*news(2))
    one, two = await world.lease(2)
    assert await world.store.extend([held(one), held(two)], TTL) == Extended()
    await asked(world, two)
    for _ in range(2):
        assert await world.store.extend([held(one), held(two)], TTL) == Extended(cancel_requested=(two.id,))
    world.tick(TTL + 1)
    assert await world.store.extend([held(two)], TTL) == Extended(lost=(two.id,))


async def test_cancel_is_not_told_to_who_lost_the_lease(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await asked(world, lost)
    assert await world.store.extend([held(item)], TTL) == Extended(lost=(item.id,))
    assert await world.store.extend([held(lost)], TTL) == Extended(cancel_requested=(item.id,))


async def test_cancel_by_its_holder_ends_it(world: World) -> None:
    item = await world.held()
    await asked(world, item)
    world.tick(SECOND)
    settlement = stopped(item)
    assert (await world.settle(settlement)).answers[0].verdict is Verdict.APPLIED
    history = await world.store.get(item.id)
    after = history.item
    assert (after.state, after.ended_at, after.lease_until) == (State.CANCELLED, world.clock.now(), None)
    assert (after.cancel, after.letter, after.attempt, after.errors) == (ASKED, None, 1, 0)
    assert history.attempts == (settlement.attempt,)
    assert (await world.count()).cancelled == 1
    assert (await world.settle(settlement)).answers == (Answer(item.id, Verdict.ALREADY),)
    await world.sound()


async def test_cancel_by_its_holder_needs_nobody_to_ask(world: World) -> None:
    item = await world.held()
    await world.finish(stopped(item))
    after = await world.item(item.id)
    assert (after.state, after.cancel) == (State.CANCELLED, "")


@pytest.mark.parametrize("make", [failed, released, after_crash])
async def test_cancel_that_was_asked_for_never_runs_again(world: World, make: Callable[[Item], Settlement]) -> None:
    """Whatever ends the attempt, a crash too: instead of ready it is cancelled, with what it was charged."""
    item = await world.held()
    await asked(world, item)
    settlement = make(item)
    assert (await world.settle(settlement)).answers == (Answer(item.id, Verdict.APPLIED, "cancelled"),)
    history = await world.store.get(item.id)
    after = history.item
    assert isinstance(settlement.decision, ToReady)
    charged = (settlement.decision.charge is Charge.ERROR, settlement.decision.charge is Charge.CRASH)
    assert (after.state, after.errors, after.crashes) == (State.CANCELLED, *charged)
    assert (after.cancel, after.due_at, after.ended_at) == (ASKED, item.due_at, world.clock.now())
    assert history.attempts == (settlement.attempt,)
    assert await world.lease(5) == ()
    await world.sound()


async def test_cancel_wins_over_a_full_route(world: World) -> None:
    await world.letter()
    item = await world.held()
    await world.finish(Settlement(item.id, 1, ToDead("rule", Charge.ERROR, failure(), "r")))
    await world.store.configure_route("r", 1)
    item = await world.held()
    await asked(world, item)
    settled = await world.settle(Settlement(item.id, 1, ToDead("rule", Charge.ERROR, failure(), "r")))
    assert settled.answers == (Answer(item.id, Verdict.APPLIED, "cancelled"),)
    assert (await world.item(item.id)).state is State.CANCELLED


async def test_cancel_instead_of_what_was_decided_puts_no_follow_ups(world: World) -> None:
    """They would tell of a retry, or of a death, that has not been. Who stops as asked has its own."""
    await world.store.configure_route("r", 1)
    await world.put(*news(4))
    first, retried, buried, ends = await world.lease(4)
    to_route = ToDead("rule", Charge.ERROR, failure(), "r")
    await world.finish(Settlement(first.id, 1, to_route))
    for item in (retried, buried, ends):
        await asked(world, item)
    one, two, three = news(3, "replies")
    settled = await world.settle(
        failed(retried, follow_ups=[one]),
        Settlement(buried.id, 1, to_route, ended(buried, Ending.FAILED), (two,)),
        structs.replace(stopped(ends), follow_ups=(three,)),
    )
    assert [(answer.verdict, answer.reason) for answer in settled.answers] == [
        (Verdict.APPLIED, "cancelled"),
        (Verdict.APPLIED, "cancelled"),
        (Verdict.APPLIED, ""),
    ]
    assert ids(await world.lease(5, queue="replies")) == (three.id,)
    assert [await world.history(each.id) for each in (one, two)] == [None, None]
    await world.sound()


async def test_cancel_loses_to_what_is_done_or_dead(world: World) -> None:
    """The work was done, or failed for good: that is what is told, not the wish."""
    for make, state in ((finished, State.DONE), (dead, State.DEAD)):
        item = await world.held()
        await asked(world, item)
        await world.finish(make(item))
        after = await world.item(item.id)
        assert (after.state, after.cancel) == (state, "")


async def test_cancel_asked_for_twice_is_one_request_each(world: World) -> None:
    item = await world.held()
    by = act()
    assert (await world.store.amend(Ids((item.id,)), Cancel(), by)).changed == (item.id,)
    assert await world.store.amend(Ids((item.id,)), Cancel(), by) == Amended(already=(item.id,))
    await asked(world, item)
    assert len((await world.store.get(item.id)).deeds) == 2


async def test_cancel_survives_a_takeover(world: World) -> None:
    """The worker died with the request unheard: the reaper's charge ends the item."""
    item = await world.held()
    await asked(world, item)
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    assert lost.cancel == ASKED
    settled = await world.settle(after_crash(lost))
    assert settled.answers == (Answer(item.id, Verdict.APPLIED, "cancelled"),)


async def test_cancel_by_force_takes_the_lease_over(world: World) -> None:
    item = await world.held()
    (taken,) = await world.store.reclaim("operator", [QUEUE], TTL, 1, [item.id], force=True)
    await world.finish(stopped(taken))
    assert (await world.settle(finished(item))).answers[0].verdict is Verdict.REFUSED
    assert (await world.item(item.id)).state is State.CANCELLED


async def test_cancel_by_filter_ends_some_and_asks_others(world: World) -> None:
    done = await world.done()
    running = await world.held()
    ready, waiting = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    await world.put(ready, waiting)
    amended = await world.store.amend(EVERYTHING, Cancel(), act())
    assert set(amended.changed) == {running.id, ready.id, waiting.id}
    assert skipped_ids(amended) == (done.id,)
    count = await world.count()
    assert (count.cancelled, count.leased, count.held, count.ready) == (2, 1, 0, 0)
    await world.sound()


async def test_cancel_of_a_ready_item_leaves_no_request(world: World) -> None:
    made = new()
    await world.put(made)
    await world.store.amend(Ids((made.id,)), Cancel(), act())
    after = await world.item(made.id)
    assert (after.state, after.cancel, after.hold) == (State.CANCELLED, "", "")


async def test_cancel_is_final(world: World) -> None:
    item = await world.held()
    await asked(world, item)
    await world.finish(stopped(item))
    for change in (Replay(), Cancel()):
        assert skipped_ids(await world.store.amend(Ids((item.id,)), change, act())) == (item.id,)


async def test_cancel_of_a_running_head_lets_its_line_go_on(world: World) -> None:
    one, two = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    await world.put(one, two)
    item = await world.lease_one()
    await asked(world, item)
    assert await world.holds(two) == ["order"]
    settled = await world.settle(stopped(item), then=asking(5))
    assert ids(next_leases(settled).items) == (two.id,)
    await world.sound()


async def test_cancel_request_is_not_inherited_by_a_replay(world: World) -> None:
    item = await world.held()
    await asked(world, item)
    await world.finish(dead(item))
    await world.store.amend(Ids((item.id,)), Replay(), act())
    again = await world.lease_one()
    assert await world.store.extend([held(again)], TTL) == Extended()
    await world.finish(failed(again))
    assert (await world.item(item.id)).state is State.READY


async def test_cancel_request_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    item = await world.held()
    await asked(world, item)
    await world.store.close()
    world.store = await world.another()
    assert (await world.item(item.id)).cancel == ASKED
    assert await world.store.extend([held(item)], TTL) == Extended(cancel_requested=(item.id,))
