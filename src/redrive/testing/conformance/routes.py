"""Routes: a label on a letter, by which letters are found and counted, and a capacity that never costs an item."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import (
    Archive,
    Discard,
    Replay,
    Restore,
)
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Ending, Item, Millis, Terms
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    Answer,
    QueueChange,
    RouteTally,
    Settlement,
    Verdict,
)
from redrive.errors import ConfigError
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    World,
    act,
    asking,
    dead,
    ended,
    failure,
    finished,
    ids,
    new,
    news,
    next_leases,
    verdicts,
)

BILLING = "billing"


def lost(item: Item, route: str = BILLING, charge: Charge = Charge.ERROR, otherwise: Millis = 60_000) -> Settlement:
    why = failure()
    decision = ToDead("max_attempts", charge, why, route, otherwise)
    return Settlement(item.id, item.deliveries, decision, ended(item, Ending.FAILED, why))


async def letters(world: World, count: int, route: str = BILLING) -> tuple[Item, ...]:
    """So many that died on this route, one second apart."""
    found = []
    for _ in range(count):
        made = new()
        await world.put(made)
        await world.finish(lost(await world.grab(made.id), route))
        found.append(await world.item(made.id))
        world.tick(SECOND)
    return tuple(found)


async def routes(world: World) -> tuple[RouteTally, ...]:
    return (await world.store.tally()).routes


async def test_route_is_on_the_letter(world: World) -> None:
    (letter,) = await letters(world, 1)
    assert letter.letter is not None
    assert letter.letter.route == BILLING
    plain = await world.letter()
    assert plain.letter is not None
    assert plain.letter.route == ""


async def test_route_is_found(world: World) -> None:
    mine = await letters(world, 3)
    others = await letters(world, 2, "other")
    plain = await world.letter()
    await world.put(*news(3))
    assert ids((await world.store.find(Match("route", "=", BILLING))).items) == ids(mine[::-1])
    assert ids((await world.store.find(Match("route", "glob", "o*"))).items) == ids(others[::-1])
    assert ids((await world.store.find(Match("route", "=", ""))).items) == (plain.id,)
    both = And((Match("route", "=", BILLING), Match("disposition", "=", "open")))
    await world.store.amend(Ids((mine[0].id,)), Archive(), act())
    page = await world.store.find(both, 1)
    rest = await world.store.find(both, 5, page.next)
    assert ids((*page.items, *rest.items)) == ids(mine[:0:-1])


async def test_routes_are_tallied_by_name(world: World) -> None:
    assert await routes(world) == ()
    await letters(world, 2, "b")
    await letters(world, 1, "a ☃")
    await world.letter()
    await world.store.configure_route("empty", 7)
    await world.store.configure_route("b", 5)
    assert await routes(world) == (
        RouteTally("", 1),
        RouteTally("a ☃", 1),
        RouteTally("b", 2, 5),
        RouteTally("empty", 0, 7),
    )
    await world.store.configure_route("empty", None)
    assert [row.route for row in await routes(world)] == ["", "a ☃", "b"]


async def test_routes_count_open_letters_only(world: World) -> None:
    one, two, three = await letters(world, 3)
    await world.store.amend(Ids((one.id,)), Archive(), act())
    await world.store.amend(Ids((two.id,)), Discard(), act())
    assert await routes(world) == (RouteTally(BILLING, 1),)
    await world.store.amend(Ids((three.id,)), Replay(), act())
    assert await routes(world) == ()
    await world.store.amend(Ids((one.id, two.id)), Restore(), act())
    assert await routes(world) == (RouteTally(BILLING, 2),)
    await world.store.amend(Ids((two.id,)), Discard(), act())
    await world.store.prune(Ids((two.id,)), 1, act())
    assert await routes(world) == (RouteTally(BILLING, 1),)


# --- capacity ---


async def test_route_that_is_full_keeps_the_item_live(world: World) -> None:
    """Nothing is evicted to make place, and nothing is lost for want of it."""
    (first,) = await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    made = new()
    await world.put(made)
    item = await world.lease_one()
    settlement = lost(item, otherwise=45 * SECOND)
    assert (await world.settle(settlement)).answers == (Answer(item.id, Verdict.KEPT),)
    history = await world.store.get(item.id)
    after = history.item
    assert (after.state, after.due_at, after.letter, after.ended_at) == (
        State.READY,
        world.clock.now() + 45 * SECOND,
        None,
        None,
    )
    assert (after.errors, after.attempt, after.lease_until) == (1, 1, None)
    assert history.attempts == (settlement.attempt,)
    assert await world.item(first.id) == first
    assert await routes(world) == (RouteTally(BILLING, 1, 1),)
    await world.sound()
    assert (await world.settle(settlement)).answers == (Answer(item.id, Verdict.ALREADY),)


async def test_route_with_room_again_takes_the_next(world: World) -> None:
    (first,) = await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await world.put(new())
    item = await world.lease_one()
    await world.settle(lost(item, otherwise=SECOND))
    await world.store.amend(Ids((first.id,)), Archive(), act())
    world.tick(SECOND)
    item = await world.lease_one()
    assert verdicts(await world.settle(lost(item))) == (Verdict.APPLIED,)
    assert (await world.item(item.id)).state is State.DEAD


async def test_route_capacity_is_exact_within_a_batch(world: World) -> None:
    await world.store.configure_route(BILLING, 2)
    await world.put(*news(5))
    one, two, three, four, five = await world.lease(5)
    settled = await world.settle(lost(one), finished(two), lost(three), lost(four), lost(five, "other"))
    assert verdicts(settled) == (
        Verdict.APPLIED,
        Verdict.APPLIED,
        Verdict.APPLIED,
        Verdict.KEPT,
        Verdict.APPLIED,
    )
    assert await routes(world) == (RouteTally(BILLING, 2, 2), RouteTally("other", 1))
    await world.sound()


@pytest.mark.parametrize(
    ("charge", "counted"), [(Charge.ERROR, (1, 0, 1)), (Charge.CRASH, (0, 1, 1)), (Charge.NOTHING, (0, 0, 0))]
)
async def test_route_that_is_full_charges_as_decided(
    world: World, charge: Charge, counted: tuple[int, int, int]
) -> None:
    await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await world.put(new())
    item = await world.lease_one()
    await world.settle(lost(item, charge=charge))
    after = await world.item(item.id)
    assert (after.errors, after.crashes, after.attempt) == counted


async def test_route_that_is_full_puts_no_follow_ups(world: World) -> None:
    """They would tell of a death that has not been: only the letters that are there have them."""
    await world.store.configure_route(BILLING, 1)
    await world.put(*news(3))
    items = await world.lease(3)
    children = news(3, "replies")
    ends = (lost(items[0]), lost(items[1]), finished(items[2]))
    batch = [structs.replace(end, follow_ups=(child,)) for end, child in zip(ends, children, strict=True)]
    assert verdicts(await world.settle(*batch)) == (Verdict.APPLIED, Verdict.KEPT, Verdict.APPLIED)
    assert ids(await world.lease(5, queue="replies")) == (children[0].id, children[2].id)
    assert await world.history(children[1].id) is None
    await world.sound()


async def test_route_that_is_full_leases_on(world: World) -> None:
    await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    following = new()
    await world.put(new(), following)
    settled = await world.settle(lost(await world.lease_one(), otherwise=SECOND), then=asking(5))
    assert verdicts(settled) == (Verdict.KEPT,)
    assert ids(next_leases(settled).items) == (following.id,)


async def test_route_with_room_again_puts_the_follow_up_then(world: World) -> None:
    """Once, by the delivery that dies in the end; also if its reply was lost."""
    (first,) = await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await world.put(new())
    child = new(queue="replies")
    kept = structs.replace(lost(await world.lease_one(), otherwise=SECOND), follow_ups=(child,))
    assert verdicts(await world.settle(kept)) == (Verdict.KEPT,)
    assert verdicts(await world.settle(kept)) == (Verdict.ALREADY,)
    assert await world.history(child.id) is None
    await world.store.amend(Ids((first.id,)), Archive(), act())
    world.tick(SECOND)
    dies = structs.replace(lost(await world.lease_one()), follow_ups=(child,))
    assert verdicts(await world.settle(dies)) == (Verdict.APPLIED,)
    assert verdicts(await world.settle(dies)) == (Verdict.ALREADY,)
    assert (await world.count("replies")).ready == 1


async def test_route_that_is_full_keeps_the_head_of_a_line(world: World) -> None:
    await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await world.set(QueueChange(order="skip"))
    head, follower = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    await world.put(head, follower)
    await world.settle(lost(await world.lease_one(), otherwise=SECOND))
    assert await world.holds(head, follower) == ["", "order"]
    world.tick(SECOND)
    assert ids(await world.lease(5)) == (head.id,)


async def test_route_that_is_full_is_no_reason_to_keep_those_who_die_along(world: World) -> None:
    """They are letters without a route."""
    await world.store.configure_route(BILLING, 1)
    first = new()
    children = [new(terms=Terms(after=(first.id,), on_dead="die")) for _ in range(3)]
    await world.put(first, *children)
    await world.finish(lost(await world.lease_one()))
    assert (await world.count()).open == 4
    assert await routes(world) == (RouteTally("", 3), RouteTally(BILLING, 1, 1))


async def test_route_without_a_name_has_no_capacity(world: World) -> None:
    await world.store.configure_route(BILLING, 1)
    for _ in range(3):
        await world.put(new())
        await world.finish(dead(await world.lease_one()))
    assert (await world.count()).open == 3


async def test_route_takes_back_what_an_operator_restores(world: World) -> None:
    """The capacity is for what dies; acts are let through."""
    one, _ = await letters(world, 2)
    await world.store.amend(Ids((one.id,)), Archive(), act())
    await world.store.configure_route(BILLING, 1)
    assert (await world.store.amend(Ids((one.id,)), Restore(), act())).changed == (one.id,)
    assert await routes(world) == (RouteTally(BILLING, 2, 1),)


async def test_route_capacity_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await world.store.close()
    world.store = await world.another()
    assert await routes(world) == (RouteTally(BILLING, 1, 1),)
    await world.put(new())
    item = await world.lease_one(queue=QUEUE)
    assert verdicts(await world.settle(lost(item))) == (Verdict.KEPT,)


@pytest.mark.parametrize(
    ("route", "capacity", "field"),
    [("", 5, "route"), ("\0", 5, "route"), ("r", 0, "capacity"), (BILLING, 1, "capacity")],
)
async def test_route_capacity_that_cannot_be_kept_is_refused(
    world: World, route: str, capacity: int, field: str
) -> None:
    await letters(world, 2)
    with pytest.raises(ConfigError) as caught:
        await world.store.configure_route(route, capacity)
    assert caught.value.field == field
    assert await routes(world) == (RouteTally(BILLING, 2),)
