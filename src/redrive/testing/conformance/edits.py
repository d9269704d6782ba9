"""Edited payloads: a new revision that is delivered, and every earlier one kept byte for byte."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import (
    EDITS_LIMIT,
    Amended,
    Archive,
    Cancel,
    Discard,
    Edit,
    Move,
    Park,
    Recall,
    Replay,
    Restore,
    SetPolicy,
    Skipped,
    Tag,
    Unpark,
)
from redrive.core.item import History, Item, Revision, Terms
from redrive.core.select import Ids, Match
from redrive.core.states import State
from redrive.stores import audit
from redrive.testing.conformance.kit import (
    DURABLE,
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
    sha256,
    skipped_ids,
)
from redrive.testing.conformance.large import LARGE, is_exactly
from redrive.testing.conformance.waiting import only

FIRST, SECOND_BODY, THIRD = b'{"to": "a"}', b"\x00 not JSON \xff", b""


async def edit(world: World, item_id: str, payload: bytes, revision: int | None = None) -> None:
    """And insist that it was done."""
    assert await world.store.amend(only(item_id), Edit(payload, revision), act()) == Amended((item_id,))


async def test_edit_of_a_letter_keeps_the_original_and_changes_nothing_else(world: World) -> None:
    letter = await world.letter()
    world.tick(SECOND)
    by = act()
    assert await world.store.amend(only(letter), Edit(SECOND_BODY), by) == Amended((letter.id,))
    history = await world.store.get(letter.id)
    assert history.item == structs.replace(letter, payload=SECOND_BODY, terms=Terms(revision=1))
    assert history.revisions == (Revision(0, letter.payload, world.clock.now(), by.actor, by.reason),)
    assert [deed.change for deed in history.deeds] == ["edit"]
    assert [item.payload for item in await world.store.find(Match("state", "=", "dead"))] == [SECOND_BODY]
    await world.sound()


async def test_edited_payload_is_delivered_after_a_replay(world: World) -> None:
    letter = await world.letter()
    await edit(world, letter.id, SECOND_BODY)
    await world.store.amend(only(letter), Replay(), act())
    leased = await world.lease_one()
    assert (leased.payload, leased.revision, leased.errors) == (SECOND_BODY, 1, 0)
    await world.finish(failed(leased))
    assert (await world.lease_one()).payload == SECOND_BODY
    await world.sound()


async def test_edit_again_and_again(world: World) -> None:
    item = new(FIRST, delay=TTL)
    await world.put(item)
    for number, payload in enumerate((SECOND_BODY, THIRD, SECOND_BODY)):
        world.tick(SECOND)
        await edit(world, item.id, payload, number)
    history = await world.store.get(item.id)
    assert (history.item.payload, history.item.revision) == (SECOND_BODY, 3)
    assert [(one.number, one.payload) for one in history.revisions] == [(0, FIRST), (1, SECOND_BODY), (2, THIRD)]
    times = [one.at for one in history.revisions]
    assert times == sorted(set(times))
    world.tick(TTL)
    assert (await world.lease_one()).payload == SECOND_BODY
    await world.sound()


async def test_edit_of_another_revision_is_skipped(world: World) -> None:
    letter = await world.letter()
    await edit(world, letter.id, SECOND_BODY, 0)
    for wrong in (0, 2):
        amended = await world.store.amend(only(letter), Edit(THIRD, wrong), act())
        assert amended.skipped == (Skipped(letter.id, f"it is at revision 1, not {wrong}", "revision"),)
    fresh = await world.letter()
    amended = await world.store.amend(only(fresh), Edit(THIRD, 1), act())
    assert [one.reason for one in amended.skipped] == ["it is at revision 0, not 1"]
    history = await world.store.get(letter.id)
    assert (history.item.payload, len(history.revisions)) == (SECOND_BODY, 1)


async def test_edit_of_what_runs_or_is_over_is_refused(world: World) -> None:
    running, done, cancelled = await world.held(), await world.done(), new(delay=TTL)
    await world.put(cancelled)
    await world.store.amend(only(cancelled.id), Cancel(), act())
    everyone = only(running, done, cancelled.id)
    before = [await world.store.get(each) for each in everyone.ids]
    amended = await world.store.amend(everyone, Edit(SECOND_BODY), act())
    assert (amended.changed, skipped_ids(amended)) == ((), everyone.ids)
    assert [(one.reason.partition(";")[0], one.code) for one in amended.skipped] == [
        ("it is running", "leased"),
        ("it is done", "done"),
        ("it is cancelled", "cancelled"),
    ]
    assert "park" not in amended.skipped[0].reason, "what runs cannot be parked"
    assert [await world.store.get(each) for each in everyone.ids] == before
    await world.finish(finished(running))


async def test_edit_of_letters_wherever_they_lie(world: World) -> None:
    archived, trash, worked_on, put_off = await world.letters(4)
    await world.store.amend(only(archived), Archive(), act())
    await world.store.amend(only(trash), Discard(), act())
    await world.store.lease_letters([worked_on.id], "w-9", TTL)
    amended = await world.store.amend(only(archived, trash, worked_on, put_off), Edit(SECOND_BODY), act())
    assert amended.changed == (archived.id, put_off.id)
    assert [one.reason for one in amended.skipped] == ["it is in the trash; restore it first", "it is leased by w-9"]
    world.tick(TTL + 1)
    await world.store.amend(only(trash), Restore(), act())
    assert (await world.store.amend(only(trash, worked_on), Edit(THIRD), act())).changed == (trash.id, worked_on.id)
    assert (await world.item(worked_on.id)).deliveries == worked_on.deliveries + 2
    await world.sound()


async def test_edit_of_held_and_parked_items(world: World) -> None:
    line = [new(terms=Terms("k", policy="gentle")) for _ in range(2)]
    parked = new()
    await world.put(*line, parked)
    await world.store.amend(only(parked.id), Park("schema"), act())
    for item in (*line, parked):
        await edit(world, item.id, SECOND_BODY)
    assert await world.holds(*line, parked) == ["", "order", "parked:schema"]
    await world.sound()
    await world.store.amend(only(parked.id), Unpark(), act())
    for expected in ((line[0].id, parked.id), (line[1].id,)):
        leased = await world.lease(5)
        assert (ids(leased), {item.payload for item in leased}) == (expected, {SECOND_BODY})
        await world.finish(*(finished(item) for item in leased))
    await world.sound()


async def test_edited_items_keep_their_terms(world: World) -> None:
    """And their revision, whatever else is changed."""
    letter = await world.letter()
    await edit(world, letter.id, SECOND_BODY)
    await world.store.amend(only(letter), Tag(("x",)), act())
    await world.store.amend(only(letter), Tag((), ("x",)), act())
    await world.store.amend(only(letter), Move("elsewhere"), act())
    await world.store.amend(only(letter), Replay(delay=TTL), act())
    await world.store.amend(only(letter), SetPolicy("gentle"), act())
    assert (await world.item(letter.id)).terms == Terms(policy="gentle", revision=1)
    await world.store.amend(only(letter), Park("schema"), act())
    await world.store.amend(only(letter), SetPolicy(""), act())
    await world.store.amend(only(letter), Unpark(), act())
    item = await world.item(letter.id)
    assert (item.terms, item.payload, item.hold, item.tags) == (Terms(revision=1), SECOND_BODY, "", ())
    await edit(world, letter.id, THIRD, 1)
    assert [one.payload for one in (await world.store.get(letter.id)).revisions] == [letter.payload, SECOND_BODY]
    await world.sound()


async def test_edit_happens_once_for_a_request(world: World) -> None:
    """Also where it names the revision before it."""
    letter, by = await world.letter(), act()
    await world.store.amend(only(letter), Edit(SECOND_BODY, 0), by)
    assert await world.store.amend(only(letter), Edit(SECOND_BODY, 0), by) == Amended(already=(letter.id,))
    assert len((await world.store.get(letter.id)).revisions) == 1


async def test_edit_of_a_letter_is_a_change_of_it(world: World) -> None:
    first, second = await world.letters(2)
    seen = await world.store.changes()
    await edit(world, first.id, SECOND_BODY)
    (changed,) = await world.store.changes(seen[-1].number)
    assert changed.item == await world.item(first.id)
    assert [one.id for one in await world.store.changes()] == [second.id, first.id]


async def test_edited_item_keeps_its_payload_when_its_replay_is_recalled(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay(), act())
    await world.store.amend(only(letter), Park("schema"), act())
    await edit(world, letter.id, SECOND_BODY)
    assert (await world.store.amend(only(letter), Recall(), act())).changed == (letter.id,)
    history = await world.store.get(letter.id)
    assert history.item == structs.replace(letter, payload=SECOND_BODY, terms=Terms(revision=1))
    assert [one.payload for one in history.revisions] == [letter.payload]
    await world.sound()


async def test_edit_of_a_selection(world: World) -> None:
    letters = await world.letters(3)
    amended = await world.store.amend(Match("state", "=", "dead"), Edit(SECOND_BODY), act(), expect=3)
    assert amended.changed == ids(letters)
    assert [len((await world.store.get(one.id)).revisions) for one in letters] == [1, 1, 1]


async def test_edits_have_an_end(world: World) -> None:
    item = new(delay=TTL)
    await world.put(item)
    for number in range(EDITS_LIMIT):
        await edit(world, item.id, b"%d" % number)
    amended = await world.store.amend(only(item.id), Edit(b"one more"), act())
    assert [one.reason for one in amended.skipped] == [f"it was edited {EDITS_LIMIT} times; {EDITS_LIMIT} are the most"]
    history = await world.store.get(item.id)
    assert (history.item.payload, len(history.revisions)) == (b"99", EDITS_LIMIT)


async def test_edited_bodies_may_be_large(world: World) -> None:
    letter = await world.letter()
    for body in LARGE:
        await edit(world, letter.id, body)
        assert is_exactly((await world.item(letter.id)).payload, body)
    history = await world.store.get(letter.id)
    earlier = (letter.payload, *LARGE[:-1])
    assert all(is_exactly(one.payload, body) for one, body in zip(history.revisions, earlier, strict=True))
    await world.store.amend(only(letter), Replay(), act())
    assert is_exactly((await world.lease_one()).payload, LARGE[-1])
    await world.sound()


async def test_pruned_items_leave_the_digest_of_the_last_revision(world: World) -> None:
    letter = await world.letter()
    await edit(world, letter.id, SECOND_BODY)
    await world.store.amend(only(letter), Discard(), act())
    (stone,) = await world.store.prune(only(letter), 10, act())
    assert stone.payload_sha256 == sha256(SECOND_BODY)
    await world.sound()


async def test_edits_are_audited_without_the_payload(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Edit(b"secret " * 20, 0), act())
    (entry,) = await world.store.journal(audit.TOPIC)
    assert b"secret" not in entry.body
    assert b'"edit"' in entry.body


@pytest.mark.parametrize(("field", "change"), [("revision", Edit(b"", -1)), ("payload", Edit("text"))])  # type: ignore[arg-type] # refused
async def test_edit_refuses_what_is_no_payload_and_no_revision(world: World, field: str, change: Edit) -> None:
    letter = await world.letter()
    error = await refusal(world.store.amend(only(letter), change, act()), change)
    assert error.field in {field, ""}
    assert await world.item(letter.id) == letter


async def edited(world: World) -> Item:
    letter = await world.letter()
    await edit(world, letter.id, SECOND_BODY)
    await edit(world, letter.id, LARGE[0])
    return await world.item(letter.id)


async def test_edits_last(world: World) -> None:
    world.needs(DURABLE)
    letter = await edited(world)
    here = await world.store.get(letter.id)
    assert await (await world.another()).get(letter.id) == here


async def test_taken_in_letters_have_their_revisions(world: World) -> None:
    history = await world.store.get((await edited(world)).id)
    there = structs.replace(history, item=structs.replace(history.item, id="there"))
    bare = structs.replace(there, item=structs.replace(there.item, id="bare"), revisions=())
    assert (await world.store.take_in([there, bare], act())).added == ("there", "bare")
    taken = await world.store.get("there")
    assert (taken.item.payload, taken.item.revision, taken.revisions) == (LARGE[0], 2, history.revisions)
    without = await world.store.get("bare")
    assert (without.item.payload, without.item.terms, without.revisions) == (LARGE[0], None, ())
    await edit(world, "there", THIRD, 2)
    assert [one.number for one in (await world.store.get("there")).revisions] == [0, 1, 2]
    await world.sound()


async def test_take_in_refuses_revisions_that_do_not_fit(world: World) -> None:
    history: History = await world.store.get((await edited(world)).id)
    item = structs.replace(history.item, id="there")
    for wrong in (history.revisions[1:], (structs.replace(history.revisions[0], flaw="damaged"),)):
        spoiled = structs.replace(history, item=item, revisions=wrong)
        error = await refusal(world.store.take_in([spoiled], act()), wrong)
        assert error.field == "revisions"
    assert (await world.store.find(Ids(("there",)))).items == ()


async def test_edited_letter_dies_again_with_its_revision(world: World) -> None:
    letter = await edited(world)
    await world.store.amend(only(letter), Replay(), act())
    await world.finish(dead(await world.grab(letter.id, QUEUE)))
    history = await world.store.get(letter.id)
    assert (history.item.state, history.item.revision, len(history.revisions)) == (State.DEAD, 2, 2)
    await world.sound()
