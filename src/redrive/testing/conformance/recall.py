"""Recall: a replayed item that no worker has leased since becomes the letter that it was before."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from redrive.core.acts import (
    ENDED_SINCE,
    LEASED_SINCE,
    MISSING,
    NOT_REPLAYED,
    NOT_REPLAYED_LETTER,
    Amended,
    Archive,
    Expire,
    Move,
    Recall,
    Replay,
    RunNow,
    Skipped,
    Tag,
)
from redrive.core.item import Dedupe, Item, NewItem, Terms
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.terms import DEPENDENCY
from redrive.core.verbs import Leases, QueueChange
from redrive.errors import Conflict
from redrive.testing.conformance.kit import (
    DURABLE,
    PARKED,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    asking,
    dead,
    failed,
    failure,
    finished,
    fresh,
    held,
    ids,
    new,
    released,
)
from redrive.testing.conformance.order import BLOCK, PARK, SKIP, A, broken_line
from redrive.testing.conformance.routes import BILLING, letters, routes

OTHER = "other"


def these(*items: Item | NewItem) -> Ids:
    return Ids(ids(items))


async def worn(world: World) -> Item:
    """A letter with a number in each counter: replayed once before, for one attempt, and dead again."""
    first = new(item_id=fresh("worn"))
    await world.put(first)
    await world.crashed(await world.grab(first.id))
    await world.finish(dead(await world.grab(first.id)))
    await world.store.amend(these(first), Replay("once"), act())
    await world.crashed(await world.grab(first.id))
    await world.finish(dead(await world.grab(first.id), "crashes", failure("c2"), route=BILLING))
    return await world.item(first.id)


async def replayed(world: World, letter: Item, change: Replay | None = None) -> None:
    world.tick(SECOND)
    assert (await world.store.amend(these(letter), change or Replay(), act())).changed == (letter.id,)
    world.tick(SECOND)


async def recall(world: World, *items: Item | NewItem) -> None:
    assert await world.store.amend(these(*items), Recall(), act()) == Amended(ids(items))
    await world.sound()


# --- the letter that it was ---


@pytest.mark.parametrize("change", [Replay(), Replay("once", delay=TTL)], ids=["fresh", "once"])
@pytest.mark.parametrize("archived", [False, True], ids=["open", "archived"])
async def test_recall_makes_the_letter_that_it_was(world: World, change: Replay, archived: bool) -> None:  # noqa: FBT001 - drawn
    letter = await worn(world)
    assert (letter.errors, letter.crashes, letter.replays, letter.last_chance) == (1, 1, 1, True)
    if archived:
        await world.store.amend(these(letter), Archive(), act())
    before, tally, causes = await world.store.get(letter.id), await world.store.tally(), await world.store.causes()
    await replayed(world, letter, change)
    await recall(world, letter)
    after = await world.store.get(letter.id)
    assert after.item == before.item
    assert (after.attempts, after.blocked_by) == (before.attempts, ())
    assert [deed.change for deed in after.deeds[len(before.deeds) :]] == ["replay", "recall"]
    now = await world.store.tally()
    assert (now.queues, now.routes, await world.store.causes()) == (tally.queues, tally.routes, causes)
    died = And((Match("state", "=", "dead"), Match("cause", "=", "c2"), Match("route", "=", BILLING)))
    assert (await world.store.find(died)).items == (before.item,)
    assert await world.lease(5) == ()


async def test_recall_is_audited(world: World) -> None:
    letter = await world.letter()
    await replayed(world, letter)
    await recall(world, letter)
    entries = await world.store.journal("audit", 0, 10)
    assert b'"recall"' in entries[-1].body
    assert letter.id.encode() in entries[-1].body


async def test_recall_keeps_what_people_did_meanwhile(world: World) -> None:
    letter = await world.letter()
    await replayed(world, letter, Replay(delay=TTL))
    await world.store.amend(these(letter), Tag(("seen",)), act())
    await world.store.amend(these(letter), RunNow(reset=True), act())
    await recall(world, letter)
    assert await world.item(letter.id) == structs.replace(letter, tags=("seen",))


async def test_recall_leaves_a_letter_like_any_other(world: World) -> None:
    letter = await world.letter()
    for _ in range(2):
        await replayed(world, letter)
        await recall(world, letter)
    await replayed(world, letter)
    again = await world.lease_one()
    assert (again.id, again.deliveries, again.attempt, again.replays) == (letter.id, 2, 1, 1)
    await world.finish(finished(again))
    await world.sound()


async def test_recall_gives_the_letter_of_the_last_replay(world: World) -> None:
    letter = await world.letter(cause="c1")
    await replayed(world, letter)
    await world.finish(dead(await world.lease_one(), "rule", failure("c2")))
    second = await world.item(letter.id)
    await replayed(world, letter)
    await recall(world, letter)
    assert await world.item(letter.id) == second


async def test_recall_of_a_letter_taken_from_a_lapsed_lease(world: World) -> None:
    """The replay counted a delivery against the one that had it; the recall does not give that back."""
    letter = await world.letter()
    (lent,) = await world.store.lease_letters([letter.id], "w-9", TTL)
    world.tick(TTL + 1)
    await replayed(world, letter)
    await recall(world, letter)
    after = await world.item(letter.id)
    assert after == structs.replace(lent, deliveries=lent.deliveries + 1, lease_until=None)
    assert (await world.store.extend([held(lent)], TTL)).lost == (letter.id,)


async def test_recall_of_many_by_a_selection(world: World) -> None:
    made = await world.letters(5)
    await world.store.amend(Match("state", "=", "dead"), Replay(), act())
    ready = And((Match("queue", "=", QUEUE), Match("state", "=", "ready")))
    with pytest.raises(Conflict):
        await world.store.amend(ready, Recall(), act(), expect=4)
    amended = await world.store.amend(ready, Recall(), act(), expect=5)
    assert sorted(amended.changed) == sorted(ids(made))
    assert (await world.store.find(Match("state", "=", "dead"))).items == made[::-1]
    await world.sound()


# --- what is not recalled ---


async def test_recall_refuses_what_no_letter_is_kept_of(world: World) -> None:
    letter, done, running, waiting = await world.letter(), await world.done(), await world.held(), new(delay=TTL)
    await world.put(waiting)
    everyone = Ids((letter.id, done.id, running.id, waiting.id, "unknown"))
    before = [await world.item(each) for each in everyone.ids[:4]]
    amended = await world.store.amend(everyone, Recall(), act())
    reasons = [NOT_REPLAYED_LETTER, NOT_REPLAYED, NOT_REPLAYED, NOT_REPLAYED, MISSING]
    told = {skip.id: (skip.reason, skip.code) for skip in amended.skipped}
    assert (amended.changed, [told[each] for each in everyone.ids]) == ((), reasons)
    assert [await world.item(each) for each in everyone.ids[:4]] == before
    await world.sound()


@pytest.mark.parametrize("end", [None, released, failed, finished, dead], ids=["runs", "back", "retry", "done", "dead"])
async def test_recall_refuses_what_a_worker_has_leased_since(world: World, end: object) -> None:
    letter = await world.letter()
    await replayed(world, letter)
    item = await world.lease_one()
    if callable(end):
        await world.finish(end(item))
    before = await world.store.get(letter.id)
    assert await world.store.amend(these(letter), Recall(), act()) == Amended(
        skipped=(Skipped(letter.id, *LEASED_SINCE),)
    )
    assert await world.store.get(letter.id) == before
    await world.sound()


async def test_recall_refuses_what_has_ended_or_was_recalled_since(world: World) -> None:
    expired, recalled = await world.letter(), await world.letter()
    await replayed(world, expired)
    await replayed(world, recalled)
    await world.store.amend(these(expired), Expire(), act())
    await recall(world, recalled)
    before = [await world.item(each.id) for each in (expired, recalled)]
    amended = await world.store.amend(these(expired, recalled), Recall(), act())
    assert {skip.id: (skip.reason, skip.code) for skip in amended.skipped} == {
        expired.id: ENDED_SINCE,
        recalled.id: NOT_REPLAYED_LETTER,
    }
    assert [await world.item(each.id) for each in (expired, recalled)] == before


async def test_recall_happens_once_for_a_request(world: World) -> None:
    letter, by = await world.letter(), act()
    await replayed(world, letter)
    await world.store.amend(these(letter), Recall(), by)
    assert await world.store.amend(these(letter), Recall(), by) == Amended(already=(letter.id,))
    await replayed(world, letter)
    assert await world.store.amend(these(letter), Recall(), by) == Amended(already=(letter.id,))
    assert (await world.item(letter.id)).state is State.READY


async def test_recall_after_prune_finds_nothing(world: World) -> None:
    letter = await world.letter()
    await replayed(world, letter)
    await recall(world, letter)
    await replayed(world, letter)
    await world.finish(finished(await world.lease_one()))
    assert ids(await world.store.prune(these(letter), 5, act())) == (letter.id,)
    assert await world.store.amend(these(letter), Recall(), act()) == Amended(skipped=(Skipped(letter.id, *MISSING),))
    await world.sound()


# --- what is bound to others ---


async def test_recall_is_let_into_a_full_route(world: World) -> None:
    (first,) = await letters(world, 1)
    await world.store.configure_route(BILLING, 1)
    await replayed(world, first, Replay(delay=TTL))
    await letters(world, 1)
    await recall(world, first)
    assert await world.item(first.id) == first
    assert [(row.route, row.open, row.capacity) for row in await routes(world)] == [(BILLING, 2, 1)]


@pytest.mark.parametrize("change", [BLOCK, PARK])
async def test_recall_of_a_dead_head_keeps_the_others_back_again(world: World, change: QueueChange) -> None:
    one, two, three = await broken_line(world, change)
    before, count = await world.item(one.id), await world.count()
    await replayed(world, before)
    await recall(world, before)
    assert (await world.item(one.id), await world.count()) == (before, count)
    hold = PARKED if change is PARK else "order"
    assert await world.holds(two, three) == [hold, hold]
    assert await world.drain() == ()
    await world.store.amend(these(one), Replay(), act())
    assert await world.drain() == ids((one, two, three))


async def test_recall_of_a_skipped_letter_leaves_the_line_as_it_was(world: World) -> None:
    one, two, three = await broken_line(world, SKIP)
    before = await world.item(one.id)
    await replayed(world, before)
    assert await world.holds(one, two, three) == ["order", "", "order"]
    await recall(world, before)
    assert await world.item(one.id) == before
    assert await world.holds(two, three) == ["", "order"]
    await world.end(two, finished)
    # They go on past the letter again.
    assert (await world.item(three.id)).gap == one.id
    assert await world.drain() == (three.id,)
    await world.sound()


async def test_recall_of_a_letter_that_headed_nothing_lets_its_followers_go_on(world: World) -> None:
    """It was no head as a letter, and came to the front of an empty line when it was replayed."""
    (one,) = await broken_line(world, SKIP, 1)
    letter, late = await world.item(one.id), new(terms=A)
    await replayed(world, letter)
    await world.put(late)
    assert await world.holds(one, late) == ["", "order"]
    await world.set(BLOCK)
    await recall(world, letter)
    assert await world.holds(late) == [""]
    assert await world.drain() == (late.id,)


async def test_recall_gives_a_letter_its_old_place_back(world: World) -> None:
    """The replay had taken it to the tail. What others wait for comes back at its place, and so shows which it is."""
    one, two, three = await broken_line(world, SKIP)
    letter = await world.item(one.id)
    await replayed(world, letter)
    await recall(world, letter)
    waits = new(terms=Terms(after=(one.id,)))
    await world.put(waits)
    await world.store.amend(these(one), Replay(), act())
    assert await world.drain() == ids((two, one, three, waits))


async def test_recall_of_a_whole_line(world: World) -> None:
    """All that ends leaves before any line goes on: none of them is moved to the front first."""
    made = [new(terms=A) for _ in range(3)]
    await world.set(SKIP)
    await world.put(*made)
    for one in made:
        await world.end(one, dead)
    before = [await world.item(one.id) for one in made]
    await world.store.amend(these(*made), Replay(), act())
    assert await world.holds(*made) == ["", "order", "order"]
    await recall(world, *made)
    assert [await world.item(one.id) for one in made] == before
    assert (await world.count()).open == 3
    late = new(terms=A)
    await world.put(late)
    assert await world.drain() == (late.id,)


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
async def test_recall_brings_a_letter_back_from_another_queue(world: World, ordered: bool) -> None:  # noqa: FBT001 - drawn
    made = new(terms=A if ordered else None)
    await world.put(made)
    await world.end(made, dead)
    before = await world.item(made.id)
    await replayed(world, before, Replay(queue=OTHER))
    behind = new(queue=OTHER, terms=A)
    await world.put(behind)
    await recall(world, before)
    assert await world.item(made.id) == before
    assert ((await world.count()).open, (await world.count(OTHER)).open) == (1, 0)
    assert await world.drain(OTHER) == (behind.id,)
    late = new(terms=A)
    await world.put(late)
    # The head of its key again, as it was.
    assert await world.holds(late) == ["order" if ordered else ""]
    await world.sound()


async def test_recall_from_another_queue_leaves_who_came_to_the_front(world: World) -> None:
    made = new(terms=A)
    await world.put(made)
    await world.end(made, dead)
    before = await world.item(made.id)
    await replayed(world, before, Replay(queue=OTHER))
    late = new(terms=A)
    await world.put(late)
    await recall(world, before)
    assert await world.holds(late) == [""]
    assert await world.store.amend(these(made), Move(OTHER), act()) == Amended((made.id,))
    await world.sound()


async def test_recall_frees_keys_and_ends_those_that_die_with_it(world: World) -> None:
    first = new(terms=Terms(dedupe=Dedupe("d")))
    await world.put(first)
    await world.end(first, dead)
    letter = await world.item(first.id)
    await replayed(world, letter)
    dies, waits = new(terms=Terms(after=(first.id,), on_dead="die")), new(terms=Terms(after=(first.id,)))
    await world.put(dies, waits)
    await recall(world, letter)
    gone = await world.item(dies.id)
    assert gone.letter is not None
    assert (gone.letter.reason, (await world.item(waits.id)).hold) == (DEPENDENCY, "after")
    await world.put(new(terms=Terms(dedupe=Dedupe("d"))))
    await world.sound()


async def test_recall_ends_a_wait_for_others(world: World) -> None:
    first = new()
    second = new(terms=Terms(after=(first.id,)))
    await world.put(first, second)
    await world.store.amend(these(second), Expire(), act())
    letter = await world.item(second.id)
    await replayed(world, letter)
    assert (await world.item(second.id)).hold == "after"
    await recall(world, letter)
    assert await world.item(second.id) == letter
    await world.end(first, finished)
    assert (await world.item(second.id)).state is State.DEAD
    await world.sound()


async def test_recall_of_what_was_set_aside_for_its_limit_key(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    keyed = Terms(limit_key="l")
    made = [new(terms=keyed) for _ in range(3)]
    await world.put(made[0])
    await world.end(made[0], dead)
    letter = await world.item(made[0].id)
    await world.put(made[1])
    running = await world.lease_one()
    await replayed(world, letter)
    assert await world.lease(5) == ()
    assert (await world.item(letter.id)).hold == "limit"
    await recall(world, letter)
    assert await world.item(letter.id) == letter
    await world.put(made[2])
    await world.finish(finished(running))
    assert await world.drain() == (made[2].id,)


# --- at the same time, and afterwards ---


async def test_race_of_recall_and_lease_has_one_winner(world: World) -> None:
    """Either a worker has it, or it is a letter: never both."""
    other = await world.another()
    for turn in range(6):
        letter = await world.letter()
        await replayed(world, letter)
        leasing = other.lease(asking(1, worker=fresh("w")))
        recalling = world.store.amend(these(letter), Recall(), act())
        results = await asyncio.gather(*((leasing, recalling) if turn % 2 else (recalling, leasing)))
        leased = next(result.items for result in results if isinstance(result, Leases))
        amended = next(result for result in results if isinstance(result, Amended))
        assert ids(leased) + amended.changed == (letter.id,)
        if leased:
            await world.finish(finished(leased[0]))
        else:
            assert await world.item(letter.id) == letter
    await world.sound()


async def test_recall_finds_the_letter_after_a_restart(world: World) -> None:
    world.needs(DURABLE)
    letter = await worn(world)
    await replayed(world, letter, Replay(queue=OTHER))
    store = await world.another()
    assert (await store.amend(these(letter), Recall(), act())).changed == (letter.id,)
    assert (await (await world.another()).get(letter.id)).item == letter
