"""The trash: a letter that was discarded can be brought back for a time, and only then does retention remove it."""

from __future__ import annotations

from redrive.core.acts import (
    Archive,
    Discard,
    Restore,
)
from redrive.core.item import Item
from redrive.core.select import Ids
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    TRASH_KEPT,
    QueueChange,
    QueueSettings,
    Swept,
)
from redrive.testing.conformance.amend import only
from redrive.testing.conformance.kit import QUEUE, SECOND, World, act, ids, refusal
from redrive.testing.conformance.retention import left, swept

HOUR = 3_600 * SECOND


async def discard(world: World, *letters: Item) -> None:
    assert (await world.store.amend(only(*letters), Discard(), act())).changed == ids(letters)


async def test_trash_knows_when_a_letter_was_discarded(world: World) -> None:
    letter = await world.letter()
    died_at = world.clock.now()
    assert letter.ended_at == died_at
    world.tick(7)
    await discard(world, letter)
    after = await world.item(letter.id)
    assert after.letter is not None
    assert (after.ended_at, after.letter.died_at) == (died_at + 7, died_at)
    world.tick(7)
    await world.store.amend(only(letter), Restore(), act())
    assert (await world.item(letter.id)).ended_at == died_at
    await world.store.amend(only(letter), Archive(), act())
    assert (await world.item(letter.id)).ended_at == died_at
    world.tick(7)
    await discard(world, letter)
    assert (await world.item(letter.id)).ended_at == world.clock.now()


async def test_trash_is_swept_when_its_time_is_over(world: World) -> None:
    """To the millisecond, from the discard and not from the death, though the queue keeps what is finished for ever."""
    await world.set(QueueChange(keep_trash=HOUR))
    first, second, kept = await world.letters(3)
    world.tick(10 * HOUR)
    await discard(world, first)
    world.tick(SECOND)
    await discard(world, second)
    world.tick(HOUR - SECOND - 1)
    assert await swept(world) == Swept()
    world.tick(1)
    assert await swept(world) == Swept(1)
    assert await left(world) == {second.id, kept.id}
    stone = await world.store.tombstone(first.id)
    assert stone is not None
    assert (stone.state, stone.actor, stone.at) == (State.DEAD, "retention", world.clock.now())
    (entry,) = [entry for entry in await world.store.journal("audit") if entry.actor == "retention"]
    assert first.id.encode() in entry.body
    world.tick(SECOND)
    assert await swept(world) == Swept(1)
    assert (await world.count()).trash == 0
    await world.sound()


async def test_trash_is_kept_a_month_unless_the_queue_says_otherwise(world: World) -> None:
    mine, others = await world.letter(), await world.letter(queue="other")
    assert (await world.store.settings(QUEUE)).keep_trash == TRASH_KEPT
    await world.set(QueueChange(keep_trash=0), "other")
    assert (await world.store.settings("other")) == QueueSettings(keep_trash=0)
    assert (await world.count("other")).settings == QueueSettings(keep_trash=0)
    await discard(world, mine, others)
    assert await swept(world) == Swept(1)
    world.tick(TRASH_KEPT - 1)
    assert await swept(world) == Swept()
    assert await left(world) == {mine.id}
    world.tick(1)
    assert await swept(world) == Swept(1)


async def test_trash_that_was_restored_stays(world: World) -> None:
    """And one that was discarded again has its whole time once more."""
    await world.set(QueueChange(keep_trash=HOUR))
    restored, again = await world.letters(2)
    await discard(world, restored, again)
    world.tick(HOUR - 1)
    await world.store.amend(only(restored, again), Restore(), act())
    await discard(world, again)
    world.tick(HOUR - 1)
    assert await swept(world) == Swept()
    world.tick(1)
    assert await swept(world) == Swept(1)
    after = await world.item(restored.id)
    assert after.letter is not None
    assert after.letter.disposition is Disposition.OPEN


async def test_trash_is_the_only_place_that_letters_are_swept_from(world: World) -> None:
    await world.set(QueueChange(keep=0, keep_results=0, keep_trash=0))
    opened, archived, trashed = await world.letters(3)
    await world.store.amend(only(archived), Archive(), act())
    await discard(world, trashed)
    world.tick(10**12)
    assert await swept(world) == Swept(1)
    assert await left(world) == {opened.id, archived.id}


async def test_trash_is_swept_in_bites(world: World) -> None:
    await world.set(QueueChange(keep_trash=0))
    letters = await world.letters(7)
    await discard(world, *letters[::2])
    first = await world.store.sweep(2, act())
    assert first.pruned <= 2
    assert first.next is not None
    assert first.pruned + (await swept(world, 2)).pruned == 4
    assert await left(world) == set(ids(letters[1::2]))
    await world.sound()


async def test_trash_goes_by_the_queue_it_lies_in(world: World) -> None:
    """A new value counts for what lies there already."""
    letter = await world.letter()
    await discard(world, letter)
    world.tick(HOUR)
    assert await swept(world) == Swept()
    await world.set(QueueChange(keep_trash=HOUR + 1))
    assert await swept(world) == Swept()
    await world.set(QueueChange(keep_trash=HOUR))
    assert await swept(world) == Swept(1)


async def test_trash_hold_that_makes_no_sense_is_refused(world: World) -> None:
    for value in (-1, 2**62):
        assert (await refusal(world.set(QueueChange(keep_trash=value)), value)).field == "keep_trash"


async def test_trash_can_be_pruned_at_once_by_hand(world: World) -> None:
    letter = await world.letter()
    await discard(world, letter)
    assert ids(await world.store.prune(Ids((letter.id,)), 10, act())) == (letter.id,)
