"""The journal: append-only, read by topic and position."""

from __future__ import annotations

import asyncio

from redrive.core.acts import Archive
from redrive.core.select import Ids
from redrive.core.verbs import Entry, NewEntry
from redrive.testing.conformance.kit import DURABLE, SECOND, World, act


async def test_journal_gives_back_what_was_appended(world: World) -> None:
    assert await world.store.journal("outbox") == ()
    entry = NewEntry("outbox", b"\x00 \xff body", "ada", "a reason ☃", "r-1")
    (position,) = await world.store.append([entry])
    expected = Entry(position, world.clock.now(), "outbox", entry.body, "ada", "a reason ☃", "r-1")
    assert await world.store.journal("outbox") == (expected,)
    assert await (await world.another()).journal("outbox") == (expected,)


async def test_journal_positions_grow(world: World) -> None:
    first = await world.store.append([NewEntry("a", b"1"), NewEntry("b", b"2"), NewEntry("a", b"3")])
    second = await world.store.append([NewEntry("a", b"4")])
    positions = [*first, *second]
    assert positions == sorted(set(positions))
    assert positions[0] > 0


async def test_journal_keeps_topics_apart(world: World) -> None:
    await world.store.append([NewEntry("a", b"1"), NewEntry("b", b"2"), NewEntry("a", b"3")])
    assert [entry.body for entry in await world.store.journal("a")] == [b"1", b"3"]
    assert [entry.body for entry in await world.store.journal("b")] == [b"2"]


async def test_journal_is_read_on_from_a_position(world: World) -> None:
    await world.store.append([NewEntry("a", b"%d" % number) for number in range(5)])
    first = await world.store.journal("a", limit=2)
    rest = await world.store.journal("a", after=first[-1].position, limit=10)
    assert [entry.body for entry in first + rest] == [b"0", b"1", b"2", b"3", b"4"]
    assert await world.store.journal("a", after=rest[-1].position) == ()


async def test_journal_append_of_nothing(world: World) -> None:
    assert await world.store.append([]) == ()


async def test_journal_holds_the_audit_between_other_topics(world: World) -> None:
    letter = await world.letter()
    (before,) = await world.store.append([NewEntry("outbox", b"1")])
    world.tick(SECOND)
    await world.store.amend(Ids((letter.id,)), Archive(), act())
    (after,) = await world.store.append([NewEntry("outbox", b"2")])
    (entry,) = await world.store.journal("audit")
    assert before < entry.position < after
    assert entry.at == world.clock.now()


async def test_journal_appends_batches_whole(world: World) -> None:
    """Batches of several writers do not mix and no position is given twice."""
    other = await world.another()
    batches = [[NewEntry("a", b"%d" % turn)] * 3 for turn in range(6)]
    calls = [handle.append(batch) for handle, batch in zip([world.store, other] * 3, batches, strict=True)]
    given = await asyncio.gather(*calls)
    entries = await world.store.journal("a")
    assert sorted(position for positions in given for position in positions) == [entry.position for entry in entries]
    bodies = [entry.body for entry in entries]
    assert [bodies[index : index + 3] for index in range(0, 18, 3)] == [
        [bodies[index]] * 3 for index in range(0, 18, 3)
    ]


async def test_journal_positions_are_not_reused_after_reopening(world: World) -> None:
    world.needs(DURABLE)
    (last,) = await world.store.append([NewEntry("a", b"1")])
    await world.store.close()
    reopened = await world.another()
    (following,) = await reopened.append([NewEntry("a", b"2")])
    assert following > last
    assert [entry.body for entry in await reopened.journal("a")] == [b"1", b"2"]
