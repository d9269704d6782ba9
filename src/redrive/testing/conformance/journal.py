"""The journal: append-only, read by topic and position. An audit entry is in the write that it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import structs

from redrive.core.acts import Archive
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import DocumentWrite, Entry, GateWrite, NewEntry, QueueChange
from redrive.errors import ConfigError, Conflict
from redrive.stores.base import Store
from redrive.testing.conformance.kit import DURABLE, QUEUE, SECOND, World, act, dead, new

Write = Callable[[Store, int, NewEntry], Awaitable[object]]
"""The first, the second … of its kind."""
WRITES: dict[str, Write] = {
    "documents": lambda store, _, entry: store.write_documents([DocumentWrite("plan", "a", b"1")], entry),
    "queue": lambda store, number, entry: store.configure(QUEUE, QueueChange(paused=True, by=str(number)), entry),
    "route": lambda store, number, entry: store.configure_route("billing", number, entry),
    "gate": lambda store, number, entry: store.set_gate(GateWrite("smtp", number - 1), entry),
    "put": lambda store, number, entry: store.put([new(item_id=f"one-{number}")], audit=entry),
}
REFUSED: dict[str, Write] = {
    "documents": lambda store, _, entry: store.write_documents(
        [DocumentWrite("plan", "b", b"1"), DocumentWrite("plan", "a", b"2", expect=7)], entry
    ),
    "queue": lambda store, _, entry: store.configure(QUEUE, QueueChange(capacity=1), entry),
    "route": lambda store, _, entry: store.configure_route("billing", 1, entry),
    "gate": lambda store, _, entry: store.set_gate(GateWrite("smtp", 7), entry),
    "put": lambda store, _, entry: store.put([new(item_id="one")], audit=entry),
    "text": lambda store, _, entry: store.configure(QUEUE, QueueChange(), structs.replace(entry, actor="a\0")),
}


def entry_of(name: str) -> NewEntry:
    return NewEntry("audit", b"\x00 \xff body", "ada ☃", name, "r-1")


async def in_force(store: Store, name: str) -> int:
    """The number of the last of these writes that can be seen."""
    if name == "documents":
        document = await store.document("plan", "a")
        return 0 if document is None else document.version
    if name == "gate":
        gate = await store.gate("smtp")
        return 0 if gate is None else gate.version
    tally = await store.tally()
    if name == "route":
        return max([row.capacity or 0 for row in tally.routes], default=0)
    row = tally.row(QUEUE)
    return row.ready if name == "put" else int(row.paused_by or 0)


async def reasons(store: Store) -> list[str]:
    return [entry.reason for entry in await store.journal("audit")]


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
        await write(world.store, 1, entry)
        (found,) = await other.journal("audit", last)
        last = found.position
        assert found == Entry(last, world.clock.now(), "audit", entry.body, "ada ☃", name, "r-1")
        assert await in_force(other, name) == 1
    await world.store.configure_route("billing", None, entry_of("no route"))
    assert await reasons(other) == [*WRITES, "no route"]


async def test_audit_says_nothing_of_what_was_refused(world: World) -> None:
    """Nor of a put that adds nothing."""
    items = [new(item_id="one"), new(), new(), new()]
    await world.put(*items)
    for item in items[2:]:
        await world.finish(dead(await world.grab(item.id), route="billing"))
    before = await world.store.tally(), await world.store.find(EVERYTHING)
    for write in REFUSED.values():
        with suppress(Conflict, ConfigError):
            await write(world.store, 1, entry_of("x"))
    assert (await reasons(world.store), await world.store.documents("plan"), await world.store.gates()) == ([], (), ())
    assert (await world.store.tally(), await world.store.find(EVERYTHING)) == before


async def test_audit_and_its_write_are_one_step_to_those_who_look(world: World) -> None:
    """So no crash can come between them."""
    reader, early = await world.another(), []

    async def work(name: str, write: Write) -> None:
        for number in range(1, 11):
            await write(world.store, number, entry_of(name))

    for name, write in WRITES.items():
        working = asyncio.ensure_future(work(name, write))
        while not working.done():
            seen = await in_force(reader, name)
            if (await reasons(reader)).count(name) < seen:
                early.append((name, seen))
        await working
    assert early == []
