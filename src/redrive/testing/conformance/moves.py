"""`Move` and `Replay(queue=…)`: a letter goes to another queue, with all that is counted and bound by its queue."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core import codec
from redrive.core.acts import (
    Amended,
    Archive,
    Change,
    Discard,
    Move,
    Replay,
    Restore,
    Skip,
)
from redrive.core.item import Dedupe, Priority, Terms
from redrive.core.select import And, Ids, Match
from redrive.core.states import Disposition, State
from redrive.core.verbs import QueueChange
from redrive.stores.audit import AuditRecord
from redrive.testing.conformance.amend import audit, only
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    World,
    act,
    dead,
    failure,
    finished,
    ids,
    names,
    new,
    refusal,
    skipped_ids,
)
from redrive.testing.conformance.steps import cut_off

OTHER = "other"
AWAY: tuple[Change, ...] = (Move(OTHER), Replay(queue=OTHER))


async def move(world: World, item_id: str, queue: str = OTHER) -> None:
    assert await world.store.amend(only(item_id), Move(queue), act()) == Amended((item_id,))


async def test_move_changes_the_queue_and_nothing_else(world: World) -> None:
    letter = await world.letter()
    before = await world.store.get(letter.id)
    world.tick(SECOND)
    by = act(reason="wrong queue")
    assert await world.store.amend(only(letter), Move(OTHER), by) == Amended((letter.id,))
    after = await world.store.get(letter.id)
    assert after.item.queue == OTHER
    for name in (name for name in letter.__struct_fields__ if name != "queue"):
        assert getattr(after.item, name) == getattr(before.item, name), name
    assert after.attempts == before.attempts
    assert [(deed.change, deed.reason) for deed in after.deeds] == [("move", "wrong queue")]
    (entry,) = await audit(world)
    assert codec.decode(entry.body, AuditRecord) == AuditRecord("move", only(letter), (letter.id,), Move(OTHER))


async def test_move_takes_counters_causes_and_places_along(world: World) -> None:
    """Of both queues, at once; the new one is declared if it was not there."""
    first, second = await world.letter("c1"), await world.letter("c1")
    await move(world, first.id)
    assert [(await world.count(queue)).open for queue in (QUEUE, OTHER)] == [1, 1]
    assert sorted((row.queue, row.count) for row in await world.store.causes()) == [(QUEUE, 1), (OTHER, 1)]
    for queue, expected in ((QUEUE, second), (OTHER, first)):
        selection = And((Match("state", "=", "dead"), Match("queue", "=", queue)))
        assert ids(await world.store.find(selection)) == (expected.id,)
        selection = And((Match("cause", "=", "c1"), Match("queue", "=", queue)))
        assert ids(await world.store.find(selection)) == (expected.id,)
    await move(world, second.id)
    assert [(row.queue, row.count) for row in await world.store.causes()] == [(OTHER, 2)]
    await world.sound()


async def test_move_leaves_routes_as_they_are(world: World) -> None:
    made = new()
    await world.put(made)
    await world.finish(dead(await world.lease_one(), route="billing"))
    await move(world, made.id)
    assert [(row.route, row.open) for row in (await world.store.tally()).routes] == [("billing", 1)]
    letter = (await world.item(made.id)).letter
    assert letter is not None
    assert letter.route == "billing"


async def test_move_of_what_is_archived(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Archive(), act())
    await move(world, letter.id)
    after = await world.item(letter.id)
    assert after.letter is not None
    assert (after.queue, after.letter.disposition) == (OTHER, Disposition.ARCHIVED)
    assert [(await world.count(queue)).archived for queue in (QUEUE, OTHER)] == [0, 1]
    await world.store.amend(only(letter), Restore(), act())
    assert [row.queue for row in await world.store.causes()] == [OTHER]
    await world.sound()


async def test_move_skips_what_it_may_not_touch(world: World) -> None:
    letter, trash, done, there = (
        await world.letter(),
        await world.letter(),
        await world.done(),
        await world.letter(queue=OTHER),
    )
    await world.store.amend(only(trash), Discard(), act())
    running, ready = await world.held(), new(delay=SECOND)
    await world.put(ready)
    others = (trash.id, done.id, there.id, running.id, ready.id, "nobody")
    before = [await world.history(item_id) for item_id in others]
    amended = await world.store.amend(Ids((letter.id, *others)), Move(OTHER), act())
    assert (amended.changed, set(skipped_ids(amended))) == ((letter.id,), set(others))
    assert {one.id: one.reason for one in amended.skipped}[there.id] == f"it is in {OTHER} already"
    assert [await world.history(item_id) for item_id in others] == before
    await world.sound()


async def test_move_to_a_bad_name_is_refused(world: World) -> None:
    letter = await world.letter()
    for queue in ("", "nul\0", "half\ud800"):
        assert names(await refusal(world.store.amend(only(letter), Move(queue), act()), queue), "queue", queue)
    assert [row.queue for row in (await world.store.tally()).queues] == [QUEUE]


async def test_moved_letters_are_replayed_where_they_are(world: World) -> None:
    letter = await world.letter()
    await move(world, letter.id)
    await world.store.amend(only(letter), Replay(), act())
    assert await world.lease(5) == ()
    item = await world.lease_one(queue=OTHER)
    assert (item.id, item.deliveries) == (letter.id, letter.deliveries + 1)
    await world.finish(finished(item))
    assert ((await world.count(OTHER)).done, (await world.count()).done) == (1, 0)
    await world.sound()


async def test_move_once_per_request_there_and_back(world: World) -> None:
    letter = await world.letter()
    by = act()
    assert (await world.store.amend(only(letter), Move(OTHER), by)).changed == (letter.id,)
    await move(world, letter.id, QUEUE)
    assert await world.store.amend(only(letter), Move(OTHER), by) == Amended(already=(letter.id,))
    assert (await world.item(letter.id)).queue == QUEUE


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_move_cut_off_is_all_or_none(world: World, turns: int) -> None:
    """Never in two queues, and in none of them half."""
    letters = await world.letters(3)
    by = act()
    await cut_off(world, world.store.amend(only(*letters), Move(OTHER), by), turns)
    amended = await world.store.amend(only(*letters), Move(OTHER), by)
    assert (amended.changed, amended.already) in {(ids(letters), ()), ((), ids(letters))}
    assert [(await world.count(queue)).open for queue in (QUEUE, OTHER)] == [0, 3]
    await world.sound()


async def test_move_by_two_at_once_is_once(world: World) -> None:
    """Two operators with overlapping sets: each letter is moved by one of them, wherever it ends up."""
    letters = await world.letters(4)
    other = await world.another()
    results = await asyncio.gather(
        world.store.amend(only(*letters[:3]), Move(OTHER), act()), other.amend(only(*letters[1:]), Move(OTHER), act())
    )
    assert sorted(one for result in results for one in result.changed) == sorted(ids(letters))
    for letter in letters:
        assert len((await world.store.get(letter.id)).deeds) == 1
    await world.sound()


# --- replay to another queue ---


async def test_replay_to_another_queue_is_one_act(world: World) -> None:
    made = new(priority=Priority.HIGH, terms=Terms(limit_key="l"))
    await world.put(made)
    await world.finish(dead(await world.lease_one(), why=failure(cause="c9")))
    world.tick(SECOND)
    change = Replay("once", 2 * SECOND, queue=OTHER)
    assert await world.store.amend(only(made.id), change, act()) == Amended((made.id,))
    history, now = await world.store.get(made.id), world.clock.now()
    after = history.item
    assert (after.queue, after.state, after.due_at, after.renewed_at) == (OTHER, State.READY, now + 2 * SECOND, now)
    assert (after.replays, after.last_chance, after.priority, after.terms) == (1, True, Priority.HIGH, made.terms)
    assert [deed.change for deed in history.deeds] == ["replay"]
    (entry,) = await audit(world)
    assert codec.decode(entry.body, AuditRecord).detail == change
    assert await world.store.causes() == ()
    world.tick(2 * SECOND)
    assert await world.lease(5) == ()
    assert ids(await world.lease(5, queue=OTHER)) == (made.id,)
    await world.sound()


async def test_replay_to_its_own_queue_by_name_is_a_plain_one(world: World) -> None:
    """A bulk replay to one queue also sends back those that are there."""
    here, there = await world.letter(), await world.letter(queue=OTHER)
    amended = await world.store.amend(only(here, there), Replay(queue=OTHER), act())
    assert amended.changed == (here.id, there.id)
    assert sorted(ids(await world.lease(5, queue=OTHER))) == sorted((here.id, there.id))


async def test_replay_to_another_queue_goes_past_its_capacity(world: World) -> None:
    letter = await world.letter()
    await world.put(new(queue=OTHER))
    await world.set(QueueChange(capacity=1), OTHER)
    assert (await world.store.amend(only(letter), Replay(queue=OTHER), act())).changed == (letter.id,)
    assert (await world.count(OTHER)).ready == 2


async def test_replay_to_another_queue_is_held_to_its_dedupe_key_there(world: World) -> None:
    """A key for one queue is free in the other, and taken if a twin lives there."""
    bound = Terms(dedupe=Dedupe("d"))
    letter, here = new(terms=bound), new(terms=bound)
    await world.put(letter)
    await world.finish(dead(await world.lease_one()))
    await world.put(here)
    assert skipped_ids(await world.store.amend(only(letter.id), Replay(), act())) == (letter.id,)
    twin = new(queue=OTHER, terms=bound)
    await world.put(twin)
    assert skipped_ids(await world.store.amend(only(letter.id), Replay(queue=OTHER), act())) == (letter.id,)
    await world.end(twin, finished)
    assert (await world.store.amend(only(letter.id), Replay(queue=OTHER), act())).changed == (letter.id,)
    again = await world.store.put([new(queue=OTHER, terms=bound)])
    assert [one.of for one in again.duplicates] == [letter.id]
    await world.sound()


# --- what binds a letter to its queue ---


@pytest.mark.parametrize("change", AWAY, ids=["move", "replay"])
@pytest.mark.parametrize("order", ["block", "park"])
async def test_move_skips_a_head_that_others_wait_behind(world: World, order: str, change: Change) -> None:
    await world.set(QueueChange(order=order))  # type: ignore[arg-type]
    head, follower = new(terms=Terms("o")), new(terms=Terms("o"))
    await world.put(head, follower)
    await world.end(head, dead)
    (skipped,) = (await world.store.amend(only(head.id), change, act())).skipped
    assert skipped.reason == "others wait behind it under its order key; skip it first"
    await world.store.amend(only(head.id), Skip(), act())
    assert await world.holds(follower) == [""]
    assert (await world.store.amend(only(head.id), change, act())).changed == (head.id,)
    await world.sound()
    assert await world.drain() == (follower.id,)


@pytest.mark.parametrize("order", ["block", "park", "skip"])
async def test_move_of_a_head_nobody_waits_behind_ends_its_line(world: World, order: str) -> None:
    """Whoever is put under its key afterwards has nothing before it, and passes no gap."""
    await world.set(QueueChange(order=order))  # type: ignore[arg-type]
    head = new(terms=Terms("o"))
    await world.put(head)
    await world.end(head, dead)
    await move(world, head.id)
    late = new(terms=Terms("o"))
    await world.put(late)
    item = await world.lease_one()
    assert (item.id, item.gap) == (late.id, "")
    await world.sound()


async def test_moved_letters_stand_behind_all_that_wait_under_their_key(world: World) -> None:
    """In their new queue they are the last, though they were put first; and nobody there waits for a letter."""
    letter = new(terms=Terms("o"))
    await world.put(letter)
    await world.end(letter, dead)
    there = [new(queue=OTHER, terms=Terms("o")) for _ in range(2)]
    await world.put(*there)
    await move(world, letter.id)
    assert await world.holds(*there) == ["", "order"]
    await world.sound()
    await world.store.amend(only(letter.id), Replay(), act())
    assert await world.holds(letter) == ["order"]
    assert await world.blocked_by(letter.id) == (there[0].id,)
    await world.sound()
    assert await world.drain(OTHER) == (*ids(there), letter.id)


async def test_replay_to_another_queue_stands_behind_all_that_wait_under_its_key(world: World) -> None:
    letter, there = new(terms=Terms("o", "l")), new(queue=OTHER, terms=Terms("o", "l"))
    await world.put(letter, there)
    await world.end(letter, dead)
    await world.store.amend(only(letter.id), Replay(queue=OTHER), act())
    assert await world.holds(letter) == ["order"]
    await world.sound()
    assert await world.drain(OTHER) == (there.id, letter.id)
    assert await world.drain() == ()


@pytest.mark.parametrize("change", AWAY, ids=["move", "replay"])
async def test_move_skips_what_others_wait_for_under_an_order_key(world: World, change: Change) -> None:
    """Behind one of them, under the key of another queue, they would wait for each other for ever."""
    letter_id = new().id
    waits = new(queue=OTHER, terms=Terms("o", after=(letter_id,)))
    letter = new(item_id=letter_id, terms=Terms("o"))
    await world.put(waits, letter)
    await world.end(letter, dead)
    assert skipped_ids(await world.store.amend(only(letter.id), change, act())) == (letter.id,)
    await world.store.amend(only(letter.id), Replay(), act())
    assert await world.drain(QUEUE, OTHER) == (letter.id, waits.id)


async def test_moved_letters_are_still_waited_for(world: World) -> None:
    first = new()
    last = new(terms=Terms(after=(first.id,)))
    await world.put(first, last)
    await world.end(first, dead)
    await move(world, first.id)
    assert await world.holds(last) == ["after"]
    assert await world.blocked_by(last.id) == (first.id,)
    await world.store.amend(only(first.id), Replay(), act())
    assert await world.drain(OTHER, QUEUE) == (first.id, last.id)
    await world.sound()


async def test_moved_letters_wait_again_for_what_they_waited_for(world: World) -> None:
    """At the place they have had since the move: whoever waits for them comes later, what they wait for sooner."""
    first_id = new().id
    letter = new(terms=Terms("o", after=(first_id,), on_dead="die"))
    first = new(item_id=first_id, queue=OTHER, terms=Terms("o"))
    await world.put(letter, first)
    await world.set(QueueChange(order="skip"), OTHER)
    await world.end(first, dead)
    assert (await world.item(letter.id)).state is State.DEAD
    await move(world, letter.id)
    last = new(queue=OTHER, terms=Terms("o", after=(letter.id,)))
    await world.put(last)
    await world.store.amend(only(letter.id), Replay(), act())
    await world.store.amend(only(first.id), Replay(), act())
    await world.sound()
    assert await world.drain(OTHER) == (first.id, letter.id, last.id)


async def test_move_closes_the_gap_it_left(world: World) -> None:
    await world.set(QueueChange(order="skip"))
    made = [new(terms=Terms("o")) for _ in range(3)]
    await world.put(*made)
    await world.end(made[0], dead)
    assert (await world.item(made[1].id)).gap == made[0].id
    await move(world, made[0].id)
    await world.end(made[1], finished)
    assert (await world.item(made[2].id)).gap == ""
    await world.sound()
