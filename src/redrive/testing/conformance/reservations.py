"""Reservations: letters that stay letters, kept for a replay that sends them later."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from redrive.core.acts import (
    Amended,
    Archive,
    Cancel,
    Change,
    Discard,
    Edit,
    Expire,
    Move,
    Note,
    Park,
    Recall,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Skipped,
    Tag,
    Unpark,
    Unreserve,
    not_reserved,
    reserved_for,
)
from redrive.core.decide import ToDone
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import Settlement, Verdict
from redrive.errors import ConfigError
from redrive.testing.conformance.kit import DURABLE, SECOND, TTL, World, act, finished, ids, new
from redrive.testing.conformance.order import BLOCK, broken_line
from redrive.testing.conformance.recall import these

X = "replay-x"
MINE = And((Match("state", "=", "dead"), Match("reserved", "=", X)))


async def test_reserved_letter_stays_the_letter_it_is(world: World) -> None:
    letter, other = await world.letter(), await world.letter()
    tally, causes = await world.store.tally(), await world.store.causes()
    world.tick(SECOND)
    assert await world.store.amend(these(letter), Reserve(X), act()) == Amended((letter.id,))
    after = await world.store.get(letter.id)
    assert letter.letter is not None
    assert after.item == structs.replace(letter, letter=structs.replace(letter.letter, reserved=X))
    assert [deed.change for deed in after.deeds] == ["reserve"]
    assert ((await world.store.tally()).queues, await world.store.causes()) == (tally.queues, causes)
    assert ids((await world.store.find(MINE)).items) == (letter.id,)
    assert ids((await world.store.find(Match("reserved", "=", ""))).items) == (other.id,)
    await world.store.amend(these(letter), Unreserve(), act())
    assert await world.item(letter.id) == letter
    assert (await world.store.find(MINE)).items == ()
    await world.sound()


@pytest.mark.parametrize(
    "change",
    [
        Replay(),
        Replay(force=True),
        Replay(reserved="replay-y"),
        Archive(),
        Discard(),
        Restore(),
        Move("other"),
        Reserve("replay-y"),
        Reserve(X),
        Edit(b"other"),
        Edit(b"other", 7),
    ],
    ids=repr,
)
@pytest.mark.parametrize("archived", [False, True], ids=["open", "archived"])
async def test_reserved_letter_refuses_every_other_act(world: World, change: Change, archived: bool) -> None:  # noqa: FBT001 - drawn
    letter = await world.letter()
    if archived:
        await world.store.amend(these(letter), Archive(), act())
    await world.store.amend(these(letter), Reserve(X), act())
    before = await world.store.get(letter.id)
    amended = await world.store.amend(these(letter), change, act())
    assert amended == Amended(skipped=(Skipped(letter.id, *reserved_for(X)),))
    assert await world.store.lease_letters([letter.id], "w-9", TTL) == ()
    assert await world.store.lease_letters([letter.id], "w-9", TTL, early=True) == ()
    assert await world.store.get(letter.id) == before
    await world.sound()


async def test_reserved_letter_refuses_acts_on_live_items_as_any_letter_does(world: World) -> None:
    reserved, free = await world.letters(2)
    await world.store.amend(these(reserved), Reserve(X), act())
    for change in (Cancel(), RunNow(), Expire(), Park("x"), Unpark(), SetPolicy("")):
        one, two = (await world.store.amend(these(reserved, free), change, act())).skipped
        assert one.reason == two.reason, change


async def test_reserved_head_is_not_skipped(world: World) -> None:
    one, two, _ = await broken_line(world, BLOCK)
    await world.store.amend(these(one), Reserve(X), act())
    assert (await world.store.amend(these(one), Skip(), act())).skipped == (Skipped(one.id, *reserved_for(X)),)
    assert await world.holds(two) == ["order"]
    await world.store.amend(these(one), Replay(reserved=X), act())
    assert await world.holds(one, two) == ["", "order"]
    await world.sound()


async def test_reserved_letter_can_be_tagged_and_noted(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(these(letter), Reserve(X), act())
    for change in (Tag(("seen",)), Note()):
        assert (await world.store.amend(these(letter), change, act())).changed == (letter.id,)
    assert (await world.item(letter.id)).tags == ("seen",)
    assert ids((await world.store.find(MINE)).items) == (letter.id,)


async def test_reserved_letters_are_sent_by_their_replay_alone(world: World) -> None:
    mine, other, theirs = await world.letter(), await world.letter(), await world.letter()
    await world.store.amend(these(mine), Reserve(X), act())
    await world.store.amend(these(theirs), Reserve("replay-y"), act())
    amended = await world.store.amend(these(mine, other, theirs), Replay("once", reserved=X), act())
    assert amended.changed == (mine.id,)
    assert {skip.id: (skip.reason, skip.code) for skip in amended.skipped} == {
        other.id: not_reserved(X),
        theirs.id: reserved_for("replay-y"),
    }
    item = await world.lease_one()
    assert (item.id, item.last_chance, item.replays) == (mine.id, True, 1)
    await world.finish(finished(item))
    assert (await world.store.find(MINE)).items == ()
    await world.sound()


async def test_reserved_letters_are_leased_by_their_replay_alone(world: World) -> None:
    mine, free, theirs = await world.letters(3)
    await world.store.amend(these(mine), Reserve(X), act())
    await world.store.amend(these(theirs), Reserve("replay-y"), act())
    three = ids((mine, free, theirs))
    assert ids(await world.store.lease_letters(three, "other", TTL, early=True)) == (free.id,)
    (lent,) = await world.store.lease_letters(three, "w-9", TTL, reserved=X)
    assert lent.id == mine.id
    for refused in (Replay(reserved=X), Archive()):
        assert (await world.store.amend(these(mine), refused, act())).skipped[0].code == "leased"
    settlement = Settlement(lent.id, lent.deliveries, ToDone(None), follow_ups=(new(item_id="instead"),))
    assert (await world.store.settle_letters([settlement]))[0].verdict is Verdict.APPLIED
    assert ((await world.item(mine.id)).state, (await world.item("instead")).state) == (State.DONE, State.READY)
    assert (await world.store.find(MINE)).items == ()
    await world.sound()


async def test_unreserve_takes_the_letter_from_the_replay_that_is_about_to_send_it(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(these(letter), Reserve(X), act())
    (lent,) = await world.store.lease_letters([letter.id], "w-9", TTL, reserved=X)
    assert (await world.store.amend(these(letter), Unreserve(), act())).changed == (letter.id,)
    (answer,) = await world.store.settle_letters([Settlement(lent.id, lent.deliveries, ToDone(None))])
    assert answer.verdict is Verdict.REFUSED
    assert (await world.store.amend(these(letter), Archive(), act())).changed == (letter.id,)
    await world.sound()


async def test_reserved_letters_are_listed_oldest_first(world: World) -> None:
    made = await world.letters(5)
    await world.store.amend(Ids(ids(made[1:])), Reserve(X), act())
    await world.store.amend(these(made[2]), Replay(reserved=X), act())
    expected = tuple(made[place].id for place in (1, 3, 4))
    page = await world.store.ids(MINE, 2, oldest=True)
    rest = await world.store.ids(MINE, 2, page.next, oldest=True)
    assert page.ids + rest.ids == expected
    assert ids((await world.store.find(MINE)).items) == expected[::-1]
    released = await world.store.amend(MINE, Unreserve(), act())
    assert sorted(released.changed) == sorted(expected)
    await world.sound()


async def test_reservation_is_over_after_a_recall(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(these(letter), Reserve(X), act())
    await world.store.amend(these(letter), Replay(reserved=X), act())
    assert (await world.store.amend(these(letter), Recall(), act())).changed == (letter.id,)
    assert await world.item(letter.id) == letter
    assert (await world.store.find(MINE)).items == ()
    await world.sound()


async def test_reserve_refuses_what_is_no_letter_or_in_the_trash(world: World) -> None:
    running, trash, leased, free = await world.held(), await world.letter(), await world.letter(), await world.letter()
    await world.store.amend(these(trash), Discard(), act())
    await world.store.lease_letters([leased.id], "w-9", TTL)
    amended = await world.store.amend(these(running, trash, leased, free), Reserve(X), act())
    assert amended.changed == (free.id,)
    told = {skip.id: skip.reason for skip in amended.skipped}
    assert "not a dead letter" in told[running.id]
    assert "trash" in told[trash.id]
    assert told[leased.id] == "it is leased by w-9"
    unreserved = await world.store.amend(these(leased, free), Unreserve(), act())
    assert unreserved.changed == (free.id,)
    assert (await world.store.amend(these(free), Unreserve(), act())).skipped == (Skipped(free.id, *not_reserved("")),)
    await world.sound()


async def test_reserve_takes_a_lapsed_lease_away(world: World) -> None:
    letter = await world.letter()
    (lent,) = await world.store.lease_letters([letter.id], "w-9", TTL)
    world.tick(TTL + 1)
    await world.store.amend(these(letter), Reserve(X), act())
    after = await world.item(letter.id)
    assert (after.deliveries, after.lease_until) == (lent.deliveries + 1, None)
    await world.sound()


async def test_reserve_happens_once_for_a_request(world: World) -> None:
    letter, by = await world.letter(), act()
    await world.store.amend(these(letter), Reserve(X), by)
    assert await world.store.amend(these(letter), Reserve(X), by) == Amended(already=(letter.id,))
    window = act()
    await world.store.amend(these(letter), Replay(reserved=X), window)
    await world.store.amend(these(letter), Expire(), act())
    assert await world.store.amend(these(letter), Replay(reserved=X), window) == Amended(already=(letter.id,))
    assert (await world.item(letter.id)).state is State.DEAD


@pytest.mark.parametrize(
    "change", [Reserve(""), Reserve("x" * 129), Replay(reserved="a\0b")], ids=["empty", "long", "nul"]
)
async def test_reservation_for_a_bad_id_is_refused(world: World, change: Change) -> None:
    letter = await world.letter()
    with pytest.raises(ConfigError):
        await world.store.amend(these(letter), change, act())
    assert await world.item(letter.id) == letter


async def test_race_of_two_reservations_has_one_winner(world: World) -> None:
    made = await world.letters(4)
    other = await world.another()
    calls = [store.amend(these(*made), Reserve(name), act()) for store, name in ((world.store, "a"), (other, "b"))]
    first, second = await asyncio.gather(*calls)
    assert sorted(first.changed + second.changed) == sorted(ids(made))
    for name, amended in (("a", first), ("b", second)):
        found = await world.store.find(And((Match("state", "=", "dead"), Match("reserved", "=", name))))
        assert sorted(ids(found.items)) == sorted(amended.changed)
    await world.sound()


async def test_reservation_lasts(world: World) -> None:
    world.needs(DURABLE)
    letter = await world.letter()
    await world.store.amend(these(letter), Reserve(X), act())
    here = await world.store.get(letter.id)
    store = await world.another()
    assert await store.get(letter.id) == here
    assert (await store.ids(MINE, oldest=True)).ids == (letter.id,)
