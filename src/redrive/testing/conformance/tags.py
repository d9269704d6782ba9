"""Tags and notes: labels that people give an item, and what they say of it. Neither moves anything."""

from __future__ import annotations

from redrive.core.acts import (
    Amended,
    Archive,
    Change,
    Discard,
    Move,
    Note,
    Replay,
    Restore,
    Tag,
)
from redrive.core.item import Terms
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import Held
from redrive.testing.conformance.amend import audit, only
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    dead,
    finished,
    names,
    new,
    refusal,
    skipped_ids,
)

MOST = 50


async def tag(world: World, *item_ids: str, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
    amended = await world.store.amend(Ids(item_ids), Tag(add, remove), act())
    assert amended == Amended(item_ids)


async def tags(world: World, item_id: str) -> tuple[str, ...]:
    """As every way of looking shows them."""
    found = (await world.item(item_id)).tags
    pages = [await world.store.find(EVERYTHING, 100), await world.store.find(Ids((item_id,)), 100)]
    for page in pages:
        assert [item.tags for item in page.items if item.id == item_id] == [found]
    return found


async def test_tag_adds_and_removes(world: World) -> None:
    letter = await world.letter()
    assert letter.tags == ()
    await tag(world, letter.id, add=("zeta", "alpha", "Ümlaut☃"))
    assert await tags(world, letter.id) == ("alpha", "zeta", "Ümlaut☃")
    await tag(world, letter.id, add=("beta", "alpha"), remove=("zeta", "never-there"))
    assert await tags(world, letter.id) == ("alpha", "beta", "Ümlaut☃")
    await tag(world, letter.id, remove=("beta", "alpha", "Ümlaut☃"))
    assert await world.item(letter.id) == letter
    await tag(world, letter.id, add=("back",))
    assert await tags(world, letter.id) == ("back",)
    await world.sound()


async def test_tag_that_changes_nothing_counts_as_changed(world: World) -> None:
    letter = await world.letter()
    await tag(world, letter.id, remove=("a",))
    await tag(world, letter.id, add=("a",))
    await tag(world, letter.id, add=("a", "a"))
    history = await world.store.get(letter.id)
    assert (history.item.tags, [deed.change for deed in history.deeds]) == (("a",), ["tag"] * 3)
    assert len(await audit(world)) == 3


async def test_tag_is_legal_in_every_state_and_moves_nothing(world: World) -> None:
    """Held or not: whoever runs an item goes on, and everybody sees the tags that it has by then."""
    letter, done, delayed, cancelled = await world.letter(), await world.done(), new(delay=SECOND), new(delay=SECOND)
    running = await world.held()
    bound = new(terms=Terms("o", "l", after=(running.id,)))
    await world.put(delayed, cancelled, bound)
    everyone = (letter.id, done.id, delayed.id, cancelled.id, running.id, bound.id)
    before = [await world.item(item_id) for item_id in everyone]
    for change in (Tag(("one", "two")), Tag((), ("one",)), Note()):
        amended = await world.store.amend(Ids(everyone), change, act())
        assert amended == Amended(everyone)
    for item in before:
        after = await world.item(item.id)
        assert after.tags == ("two",)
        assert (after.state, after.deliveries, after.due_at, after.lease_until, after.hold, after.ended_at) == (
            item.state,
            item.deliveries,
            item.due_at,
            item.lease_until,
            item.hold,
            item.ended_at,
        )
    extended = await world.store.extend([Held(running.id, running.deliveries)], TTL)
    assert extended.lost == extended.cancel_requested == ()
    await world.finish(finished(running))
    assert await world.holds(bound) == [""]
    await world.sound()


async def test_tags_stay_whatever_becomes_of_the_item(world: World) -> None:
    letter = await world.letter()
    await tag(world, letter.id, add=("vip", "eu"))
    steps: tuple[Change, ...] = (
        Archive(),
        Restore(),
        Discard(),
        Restore(),
        Move("elsewhere"),
        Move("emails"),
        Replay(),
    )
    for change in steps:
        assert (await world.store.amend(only(letter), change, act())).changed == (letter.id,)
        assert await tags(world, letter.id) == ("eu", "vip")
    item = await world.lease_one()
    assert item.tags == ("eu", "vip")
    await world.crashed(item)
    item = await world.lease_one()
    assert (item.tags, item.crashes) == (("eu", "vip"), 1)
    await world.finish(dead(item))
    assert await tags(world, letter.id) == ("eu", "vip")
    await world.store.amend(only(letter), Replay(), act())
    await world.finish(finished(await world.lease_one()))
    after = await world.item(letter.id)
    assert (after.state, after.tags) == (State.DONE, ("eu", "vip"))
    await world.sound()


async def test_tags_are_given_with_every_lease(world: World) -> None:
    """Those of each item, to each: in one batch with others that have none."""
    made = [new() for _ in range(4)]
    await world.put(*made)
    await tag(world, made[1].id, add=("b", "a"))
    await tag(world, made[3].id, add=("c",))
    items = await world.lease(4)
    assert [item.tags for item in items] == [(), ("a", "b"), (), ("c",)]
    world.tick(TTL + 1)
    reclaimed = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert {item.id: item.tags for item in reclaimed}[made[1].id] == ("a", "b")


async def test_tags_are_gone_with_a_pruned_item(world: World) -> None:
    done, other = await world.done(), await world.done()
    await tag(world, done.id, other.id, add=("old",))
    await world.store.prune(Ids((done.id,)), 10, act())
    assert await world.history(done.id) is None
    assert await tags(world, other.id) == ("old",)
    await world.sound()


async def test_tags_are_as_many_as_an_item_may_have(world: World) -> None:
    full, free = await world.letters(2)
    many = tuple(f"t{number:02d}" for number in range(MOST))
    await tag(world, full.id, add=many)
    assert skipped_ids(await world.store.amend(only(full, free), Tag(("more",)), act())) == (full.id,)
    assert await tags(world, free.id) == ("more",)
    assert await tags(world, full.id) == many
    await tag(world, full.id, add=("more",), remove=("t00",))
    assert len(await tags(world, full.id)) == MOST


BAD_TAGS = (
    Tag(),
    Tag(("",)),
    Tag(("x" * 101,)),
    Tag(("two words",)),
    Tag(("a,b",)),
    Tag(("tab\there",)),
    Tag(("line\n",)),
    Tag(("nul\0",)),
    Tag(("half\ud800",)),
    Tag(("esc\x1b[31m",)),
    Tag((), ("a b",)),
    Tag(("same",), ("same",)),
)


async def test_tag_of_a_bad_word_is_refused(world: World) -> None:
    letter = await world.letter()
    before = await world.store.get(letter.id)
    for change in BAD_TAGS:
        error = await refusal(world.store.amend(only(letter), change, act()), change)
        assert names(error, "tag", *change.add)
        assert await world.store.get(letter.id) == before
    assert await audit(world) == ()


async def test_tag_once_per_request(world: World) -> None:
    letter = await world.letter()
    by = act()
    assert (await world.store.amend(only(letter), Tag(("a",)), by)).changed == (letter.id,)
    await tag(world, letter.id, remove=("a",))
    assert await world.store.amend(only(letter), Tag(("a",)), by) == Amended(already=(letter.id,))
    assert await tags(world, letter.id) == ()


async def test_tag_by_filter(world: World) -> None:
    mine, other = await world.letter(cause="c1"), await world.letter(cause="c2")
    assert (await world.store.amend(Match("cause", "=", "c1"), Tag(("seen",)), act())).changed == (mine.id,)
    assert [await tags(world, item.id) for item in (mine, other)] == [("seen",), ()]


async def test_note_is_a_deed_and_an_audit_entry_and_nothing_else(world: World) -> None:
    letter = await world.letter()
    by = act(reason="asked the customer ☃\nsecond line")
    assert await world.store.amend(only(letter, "nobody"), Note(), by) == Amended(
        (letter.id,), skipped=(await world.store.amend(only("nobody"), Note(), by)).skipped
    )
    history = await world.store.get(letter.id)
    assert history.item == letter
    (deed,) = history.deeds
    assert (deed.change, deed.actor, deed.reason) == ("note", by.actor, by.reason)
    (entry,) = await audit(world)
    assert (entry.reason, entry.request_id) == (by.reason, by.request_id)


async def test_tags_are_still_there_after_a_reopen(world: World) -> None:
    world.needs(DURABLE)
    letter = await world.letter()
    await tag(world, letter.id, add=("vip", "eu"))
    assert (await (await world.another()).get(letter.id)).item.tags == ("eu", "vip")
