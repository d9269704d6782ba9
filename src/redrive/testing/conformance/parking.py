"""Parked items: never leased, counted apart, and back with the hold that they would have had."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import (
    IS_PARKED,
    NOT_PARKED,
    Amended,
    Cancel,
    Change,
    Expire,
    Note,
    Park,
    Replay,
    RunNow,
    SetPolicy,
    Skip,
    Skipped,
    Tag,
    Unpark,
)
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.select import Match
from redrive.core.states import State
from redrive.core.terms import EXPIRED
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    DURABLE,
    PARKED,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    dead,
    failed,
    finished,
    ids,
    new,
    refusal,
    skipped_ids,
)
from redrive.testing.conformance.wait import returns, started, waiter
from redrive.testing.conformance.waiting import failed_once, only

UNDER_SCHEMA = "parked:schema"


async def change(world: World, what: Change, *items: NewItem | str) -> None:
    """And insist that all were changed."""
    meant = only(*(item if isinstance(item, str) else item.id for item in items))
    assert await world.store.amend(meant, what, act()) == Amended(meant.ids)


async def test_park_keeps_a_due_item_from_every_worker(world: World) -> None:
    parked, other = new(), new()
    await world.put(parked, other)
    before = await world.item(parked.id)
    await change(world, Park("schema"), parked)
    assert await world.item(parked.id) == structs.replace(before, hold=UNDER_SCHEMA)
    assert ids(await world.lease(5)) == (other.id,)
    world.tick(TTL)
    assert ids(await world.lease(5, worker="w-2")) == ()
    row = await world.count()
    assert (row.ready, row.held, row.parked, row.oldest_due) == (0, 0, 1, None)
    await world.sound()
    await change(world, Unpark(), parked)
    assert await world.item(parked.id) == before
    assert ids(await world.lease(5, worker="w-2")) == (parked.id,)
    assert [deed.change for deed in (await world.store.get(parked.id)).deeds] == ["park", "unpark"]
    await world.sound()


async def test_park_of_what_waits_for_its_next_attempt(world: World) -> None:
    item = await failed_once(world)
    await change(world, Park("schema"), item.id)
    world.tick(TTL)
    assert await world.lease(5) == ()
    await change(world, Unpark(), item.id)
    leased = await world.lease_one()
    assert (leased.id, leased.errors, leased.attempt) == (item.id, 1, 2)
    await world.sound()


async def test_park_again_changes_the_label(world: World) -> None:
    item = new()
    await world.put(item)
    await change(world, Park("schema"), item)
    await change(world, Park("bank"), item)
    assert await world.holds(item) == ["parked:bank"]
    assert (await world.count()).parked == 1
    await world.sound()


async def test_unpark_of_what_is_not_parked_is_skipped(world: World) -> None:
    letter, done, running, waiting = await world.letter(), await world.done(), await world.held(), new(delay=TTL)
    head, parked = new(queue="o", terms=Terms("k")), new(queue="o", terms=Terms("k"))
    await world.put(waiting, head, parked)
    await world.set(QueueChange(order="park"), "o")
    await world.finish(dead(await world.grab(head.id, "o")))
    assert await world.holds(parked) == [PARKED]
    meant = only(letter, done, running, waiting.id, parked.id)
    amended = await world.store.amend(meant, Unpark(), act())
    assert (amended.changed, {(one.reason, one.code) for one in amended.skipped}) == ((), {NOT_PARKED})
    assert skipped_ids(amended) == meant.ids


async def test_park_leaves_what_runs_or_is_over(world: World) -> None:
    letter, done, running = await world.letter(), await world.done(), await world.held()
    everyone = only(letter, done, running)
    before = [await world.item(each) for each in everyone.ids]
    amended = await world.store.amend(everyone, Park("schema"), act())
    assert (amended.changed, skipped_ids(amended)) == ((), everyone.ids)
    assert all("only a waiting item can be parked" in one.reason for one in amended.skipped)
    assert [await world.item(each) for each in everyone.ids] == before


@pytest.mark.parametrize("label", ["", "two words", "a,b", "order", "a:b", "x" * 101, "line\n"])
async def test_park_refuses_a_label_that_cannot_be_typed(world: World, label: str) -> None:
    item = new()
    await world.put(item)
    error = await refusal(world.store.amend(only(item.id), Park(label), act()), label)
    assert error.field == "label"
    assert await world.holds(item) == [""]


async def test_parked_items_are_found(world: World) -> None:
    parked, line = new(), [new(terms=Terms("k")) for _ in range(2)]
    await world.put(parked, *line)
    await change(world, Park("schema"), parked)
    for field, value, found in (
        ("hold", "parked", [parked.id]),
        ("hold", "schema", []),
        ("hold", "order", [line[1].id]),
    ):
        page = await world.store.find(Match(field, "=", value))
        assert [item.id for item in page] == found
    assert [item.hold for item in await world.store.find(Match("queue", "=", QUEUE), oldest=True)] == [
        UNDER_SCHEMA,
        "",
        "order",
    ]


# --- what it waits for besides ---


async def test_parked_head_blocks_its_order_key(world: World) -> None:
    line = [new(terms=Terms("k")) for _ in range(3)]
    await world.put(*line)
    await change(world, Park("schema"), line[0])
    assert await world.lease(5) == ()
    assert await world.holds(*line) == [UNDER_SCHEMA, "order", "order"]
    assert await world.blocked_by(line[1].id) == (line[0].id,)
    await world.sound()
    await change(world, Unpark(), line[0])
    assert await world.drain() == tuple(item.id for item in line)
    await world.sound()


async def test_parked_follower_stays_parked_when_it_becomes_the_head(world: World) -> None:
    line = [new(terms=Terms("k")) for _ in range(3)]
    await world.put(*line)
    await change(world, Park("schema"), line[1])
    assert (await world.count()).parked == 1
    await world.end(line[0], finished)
    assert await world.holds(*line) == ["", UNDER_SCHEMA, "order"]
    assert await world.lease(5) == ()
    await world.sound()
    await change(world, Unpark(), line[1])
    assert await world.drain() == (line[1].id, line[2].id)
    await world.sound()


async def test_parked_follower_stays_parked_among_many_lines(world: World) -> None:
    """Several heads that end in one write."""
    lines = [[new(terms=Terms(f"k{number}")) for _ in range(2)] for number in range(3)]
    await world.put(*(item for line in lines for item in line))
    await change(world, Park("schema"), *(line[1] for line in lines))
    heads = await world.lease(5)
    assert ids(heads) == tuple(line[0].id for line in lines)
    await world.finish(*(finished(head) for head in heads))
    assert await world.lease(5) == ()
    await world.sound()
    await change(world, Unpark(), *(line[1] for line in lines))
    assert await world.drain() == tuple(line[1].id for line in lines)


async def test_unpark_of_a_follower_waits_for_its_turn(world: World) -> None:
    line = [new(terms=Terms("k")) for _ in range(2)]
    await world.put(*line)
    await change(world, Park("schema"), line[1])
    await change(world, Unpark(), line[1])
    assert await world.holds(*line) == ["", "order"]
    assert ids(await world.lease(5)) == (line[0].id,)
    await world.sound()


@pytest.mark.parametrize("order", ["block", "park", "skip"])
async def test_parked_follower_of_a_head_that_dies(world: World, order: str) -> None:
    await world.set(QueueChange(order=order))  # type: ignore[arg-type] # one of the three
    line = [new(terms=Terms("k")) for _ in range(3)]
    await world.put(*line)
    await change(world, Park("schema"), line[1])
    await world.end(line[0], dead)
    others = {"block": "order", "park": PARKED, "skip": "order"}
    assert await world.holds(*line[1:]) == [UNDER_SCHEMA, others[order]]
    await world.sound()
    await change(world, Replay() if order != "skip" else Note(), line[0])
    await world.sound()
    await change(world, Unpark(), line[1])
    assert (await world.item(line[1].id)).gap == (line[0].id if order == "skip" else "")
    expected = line if order != "skip" else line[1:]
    assert await world.drain() == tuple(item.id for item in expected)
    await world.sound()


async def test_unpark_behind_a_dead_head_that_parks(world: World) -> None:
    await world.set(QueueChange(order="park"))
    line = [new(terms=Terms("k")) for _ in range(3)]
    await world.put(*line)
    await world.end(line[0], dead)
    await change(world, Park("schema"), line[1])
    assert (await world.holds(*line[1:]), (await world.count()).parked) == ([UNDER_SCHEMA, PARKED], 2)
    await world.sound()
    await change(world, Unpark(), line[1])
    assert (await world.holds(*line[1:]), (await world.count()).parked) == ([PARKED, PARKED], 2)
    await change(world, Park("schema"), line[2])
    await change(world, Skip(), line[0])
    assert await world.holds(*line[1:]) == ["", UNDER_SCHEMA]
    await world.sound()


async def test_parked_item_that_waits_for_others(world: World) -> None:
    first = new()
    await world.put(first)
    waiting = new(terms=Terms(after=(first.id,)))
    await world.put(waiting)
    await change(world, Park("schema"), waiting)
    await change(world, Unpark(), waiting)
    assert await world.holds(waiting) == ["after"]
    await change(world, Park("schema"), waiting)
    await world.sound()
    await world.end(first, finished)
    assert await world.holds(waiting) == [UNDER_SCHEMA]
    assert await world.lease(5) == ()
    await world.sound()
    await change(world, Unpark(), waiting)
    assert ids(await world.lease(5)) == (waiting.id,)
    await world.sound()


async def test_parked_item_dies_with_what_it_waits_for(world: World) -> None:
    first = new()
    await world.put(first)
    dies = new(terms=Terms(after=(first.id,), on_dead="die"))
    await world.put(dies)
    await change(world, Park("schema"), dies)
    await world.end(first, dead)
    gone = await world.item(dies.id)
    assert (gone.state, gone.hold) == (State.DEAD, "")
    await world.sound()


async def test_parked_head_makes_way_for_what_it_waits_for(world: World) -> None:
    """Replayed behind it, it would never come to its turn."""
    first, second = new(terms=Terms("k")), new(terms=Terms("k"))
    await world.put(first)
    await world.set(QueueChange(order="skip"))
    third = structs.replace(second, terms=Terms("k", after=(first.id,)))
    await world.put(third)
    await world.end(first, dead)
    await change(world, Park("schema"), third)
    await change(world, Replay(), first)
    assert ids(await world.lease(5)) == (first.id,)
    await world.finish(finished(await world.item(first.id)))
    await change(world, Unpark(), third)
    assert await world.drain() == (third.id,)
    await world.sound()


async def test_park_gives_a_promised_place_under_a_limit_key_to_the_next(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    made = [new(terms=Terms(limit_key="l")) for _ in range(3)]
    await world.put(*made)
    running = await world.lease_one()
    assert await world.lease(5) == ()
    assert await world.holds(*made) == ["", "limit", "limit"]
    await world.finish(finished(running))
    assert await world.holds(*made[1:]) == ["", "limit"]
    await change(world, Park("schema"), made[1])
    await world.sound()
    assert ids(await world.lease(5)) == (made[2].id,)
    await change(world, Unpark(), made[1])
    assert await world.lease(5) == ()
    await world.finish(finished(await world.item(made[2].id)))
    assert await world.drain() == (made[1].id,)
    await world.sound()


async def test_park_of_what_was_set_aside_for_a_limit_key(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    made = [new(terms=Terms(limit_key="l")) for _ in range(3)]
    await world.put(*made)
    running = await world.lease_one()
    assert await world.lease(5) == ()
    await change(world, Park("schema"), made[1])
    await world.sound()
    await world.finish(finished(running))
    assert await world.holds(*made[1:]) == [UNDER_SCHEMA, ""]
    await world.set(QueueChange(max_per_key=None))
    assert ids(await world.lease(5)) == (made[2].id,)
    await world.sound()


async def test_parked_item_keeps_its_dedupe_key(world: World) -> None:
    twin = Terms(dedupe=Dedupe("d"))
    parked = new(terms=twin)
    await world.put(parked)
    await change(world, Park("schema"), parked)
    again = new(terms=twin)
    assert [one.of for one in (await world.store.put([again])).duplicates] == [parked.id]


async def test_parked_items_count_against_the_capacity(world: World) -> None:
    await world.set(QueueChange(capacity=1))
    parked = new()
    await world.put(parked)
    await change(world, Park("schema"), parked)
    assert (await world.count()).live == 1


# --- other acts ---


async def test_other_acts_leave_a_parked_item_parked(world: World) -> None:
    item = new(delay=TTL)
    await world.put(item)
    await change(world, Park("schema"), item)
    world.tick(SECOND)
    for what in (SetPolicy("gentle"), Tag(("x",)), Note()):
        await change(world, what, item)
    after = await world.item(item.id)
    assert (after.hold, after.tags, after.terms) == (UNDER_SCHEMA, ("x",), Terms(policy="gentle"))
    assert await world.lease(5) == ()
    await world.sound()
    await change(world, Unpark(), item)
    await change(world, RunNow(), item)
    (leased,) = await world.lease(5)
    assert (leased.terms, leased.hold) == (Terms(policy="gentle"), "")
    await world.sound()


async def test_parked_item_is_not_run_now(world: World) -> None:
    """It would not run: it has to be unparked."""
    item = new(delay=TTL)
    await world.put(item)
    await change(world, Park("schema"), item)
    before = await world.item(item.id)
    for reset in (False, True):
        amended = await world.store.amend(only(item.id), RunNow(reset=reset), act())
        assert amended == Amended(skipped=(Skipped(item.id, *IS_PARKED),))
    assert await world.item(item.id) == before
    await world.sound()


@pytest.mark.parametrize("what", [Cancel(), Expire()], ids=["cancel", "expire"])
async def test_parked_items_can_end(world: World, what: Change) -> None:
    line = [new(terms=Terms("k", "l")) for _ in range(2)]
    plain = new()
    await world.put(*line, plain)
    await change(world, Park("schema"), line[0], plain)
    await change(world, what, line[0], plain)
    item = await world.item(plain.id)
    assert (item.hold, (await world.count()).parked) == ("", 0)
    await world.sound()
    if isinstance(what, Expire):
        assert item.letter is not None
        assert item.letter.reason == EXPIRED
        await change(world, Replay(), line[0], plain)
        assert await world.holds(line[0], plain) == ["", ""]
    assert line[0].id in await world.drain() or isinstance(what, Cancel)
    await world.sound()


async def test_unpark_wakes_who_waits(world: World) -> None:
    item = new()
    await world.put(item)
    await change(world, Park("schema"), item)
    waiting = waiter(world)
    await started(world, waiting)
    await change(world, Unpark(), item)
    await returns(waiting)
    assert ids(await world.lease(5)) == (item.id,)


async def test_park_happens_once_for_a_request(world: World) -> None:
    item, by = new(), act()
    await world.put(item)
    await world.store.amend(only(item.id), Park("schema"), by)
    await change(world, Unpark(), item)
    assert await world.store.amend(only(item.id), Park("schema"), by) == Amended(already=(item.id,))
    assert await world.holds(item) == [""]


async def test_park_and_unpark_last(world: World) -> None:
    world.needs(DURABLE)
    made = [new(terms=Terms("k")) for _ in range(2)]
    await world.put(*made)
    await change(world, Park("schema"), *made)
    await change(world, Unpark(), made[0])
    here = [await world.store.get(item.id) for item in made]
    store = await world.another()
    assert [await store.get(item.id) for item in made] == here


async def test_parked_retry_comes_back_at_its_level(world: World) -> None:
    await world.put(new(item_id="tried"))
    await world.finish(failed(await world.lease_one()))
    await change(world, Park("schema"), "tried")
    await world.put(new(item_id="fresh"))
    assert ids(await world.lease(5)) == ("fresh",)
    await change(world, Unpark(), "tried")
    assert ids(await world.lease(5, retries=1)) == ("tried",)
    await world.sound()
