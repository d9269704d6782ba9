"""The journal: append-only, read by topic and position. An audit entry is in the write that it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from msgspec import structs

from redrive.core.acts import Archive
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import DocumentWrite, Entry, GateWrite, NewEntry, QueueChange
from redrive.errors import ConfigError, Conflict
from redrive.stores.base import Store
from redrive.testing.conformance.kit import DURABLE, QUEUE, SECOND, World, act, dead, new
from redrive.testing.conformance.steps import TURNS, cut_off

Write = Callable[[Store, NewEntry], Awaitable[object]]
WRITES: dict[str, Write] = {
    "documents": lambda store, entry: store.write_documents([DocumentWrite("plan", "a", b"1")], entry),
    "queue": lambda store, entry: store.configure(QUEUE, QueueChange(paused=True), entry),
    "route": lambda store, entry: store.configure_route("billing", 5, entry),
    "no route": lambda store, entry: store.configure_route("billing", None, entry),
    "gate": lambda store, entry: store.set_gate(GateWrite("smtp", 0), entry),
    "put": lambda store, entry: store.put([new(item_id="one"), new(item_id="two")], audit=entry),
}
"""Each can be done once and be cut off, but for the route that has no limit."""
REFUSED: dict[str, Write] = {
    "documents": lambda store, entry: store.write_documents(
        [DocumentWrite("plan", "b", b"1"), DocumentWrite("plan", "a", b"2", expect=7)], entry
    ),
    "queue": lambda store, entry: store.configure(QUEUE, QueueChange(capacity=1), entry),
    "route": lambda store, entry: store.configure_route("billing", 1, entry),
    "gate": lambda store, entry: store.set_gate(GateWrite("smtp", 7), entry),
    "put": lambda store, entry: store.put([new(item_id="one")], audit=entry),
    "text": lambda store, entry: store.configure(QUEUE, QueueChange(), structs.replace(entry, actor="a\0")),
}


def entry_of(name: str) -> NewEntry:
    return NewEntry("audit", b"\x00 \xff body", "ada ☃", name, "r-1")


async def in_force(world: World) -> dict[str, bool]:
    """What of WRITES is in force."""
    tally = await world.store.tally()
    return {
        "documents": await world.store.document("plan", "a") is not None,
        "queue": tally.row(QUEUE).paused,
        "route": any(row.capacity for row in tally.routes),
        "gate": await world.store.gate("smtp") is not None,
        "put": await world.history("one") is not None,
    }


async def reasons(world: World) -> list[str]:
    return [entry.reason for entry in await world.store.journal("audit")]


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


# --- with other writes ---


async def test_audit_goes_with_the_write(world: World) -> None:
    other, last = await world.another(), 0
    for name, write in WRITES.items():
        world.tick(SECOND)
        entry = entry_of(name)
        await write(world.store, entry)
        (found,) = await other.journal("audit", last)
        last = found.position
        assert found == Entry(last, world.clock.now(), "audit", entry.body, "ada ☃", name, "r-1")
    assert await in_force(world) == {"documents": True, "queue": True, "route": False, "gate": True, "put": True}


async def test_audit_says_nothing_of_what_was_refused(world: World) -> None:
    """Nor of a put that adds nothing."""
    items = [new(item_id="one"), new(), new(), new()]
    await world.put(*items)
    for item in items[2:]:
        await world.finish(dead(await world.grab(item.id), route="billing"))
    before = await world.store.tally(), await world.store.find(EVERYTHING)
    for write in REFUSED.values():
        with suppress(Conflict, ConfigError):
            await write(world.store, entry_of("x"))
    assert (await reasons(world), await world.store.documents("plan"), await world.store.gates()) == ([], (), ())
    assert (await world.store.tally(), await world.store.find(EVERYTHING)) == before


@pytest.mark.parametrize("turns", TURNS)
async def test_audit_cut_off_is_all_or_none(world: World, turns: int) -> None:
    """Who did it is known whenever it is done."""
    for name, write in WRITES.items():
        if name != "no route":
            await cut_off(world, write(world.store, entry_of(name)), turns)
    assert await reasons(world) == [name for name, there in (await in_force(world)).items() if there]
