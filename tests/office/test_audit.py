"""The chain over the audit: whatever is changed in it is found, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from redrive import Redrive
from redrive.core import chain
from redrive.core.acts import Act, Change, Replay, Reserve
from redrive.core.chain import Chain, Seal
from redrive.core.item import NewItem
from redrive.core.select import Ids
from redrive.core.verbs import DocumentWrite, Entry, NewEntry, QueueChange, WorkerFacts
from redrive.engine import seals
from redrive.engine.maintainer import Maintainer
from redrive.events import Events
from redrive.office.audit import NAMED, Audit
from redrive.office.bulk import purge
from redrive.stores.audit import AuditRecord, entry
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore
from tests.support.apps import Work, work
from tests.support.lab import Lab, lab

__all__ = ["lab", "work"]


async def test_acts_are_sealed_in_order_and_verified(work: Work) -> None:
    one, two = await work.letters(2)
    audit = work.app.audit
    assert (await audit.seal(), (await audit.verify()).seals) == (None, 0)
    await work.app.letters.archive(one, reason="known")
    first = await audit.seal()
    assert first is not None
    assert (first.number, first.count, first.before) == (1, 1, chain.GENESIS)
    assert await audit.seal() is None
    await work.app.letters.archive(two, reason="known")
    await work.app.letters.restore(two, reason="not quite")
    second = await audit.seal()
    assert second is not None
    assert (second.number, second.first, second.count, second.before) == (2, first.upto + 1, 2, first.hash)
    await work.app.letters.note(one, "later")
    found = await audit.verify(known=first.hash)
    assert (found.sound, found.seals, found.entries, found.unsealed, found.hash) == (True, 2, 3, 1, second.hash)
    assert [entry.reason for entry in await audit.last(2)] == ["not quite", "later"]


async def test_a_request_is_one_line_however_many_entries_it_has(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.office.bites.PAGE_LIMIT", 2)
    ids = await work.letters(5)
    await work.app.letters.archive(ids, reason="known")
    await work.app.letters.note(ids[0], "later")
    assert len(await work.app.audit.list()) > 2
    archived, note = await work.app.audit.requests()
    assert (archived.act, archived.reason, sorted(archived.changed), note.act) == (
        "archive",
        "known",
        sorted(ids),
        "note",
    )
    assert archived.entries == len(await work.app.audit.list()) - 1
    assert await work.app.audit.requests(1) == (note,)


async def test_a_purge_is_one_request() -> None:
    store = MemoryStore(FakeClock())
    await store.open()
    await store.put([NewItem(f"i-{number}", "q", b"") for number in range(PAGE_LIMIT + 1)])
    assert await purge(store, "q", "ada", "sent by mistake") == PAGE_LIMIT + 1
    (line,) = await Audit(store).requests()
    assert (line.act, line.count, line.entries) == ("cancel", PAGE_LIMIT + 1, 2)


async def test_acts_are_audited_in_the_write_that_does_them() -> None:
    """None has an entry in a write of its own, which a crash could keep from coming."""
    clock = FakeClock()
    faulty = FaultyStore(MemoryStore(clock))
    faulty.fail("append")
    app = Redrive(faulty, clock=clock, actor="ann", log=False)
    app.queue("q")
    app.gate("smtp")
    app.schedule("nightly", "q", every="1d")
    async with app:
        await faulty.beat("w-1-abcd", WorkerFacts(("q",)), 60_000)
        await app.pause("q", reason="x")
        await app.resume("q", reason="x")
        await app.configure("q", max_running=1, reason="x")
        await app.configure_route("billing", capacity=5, reason="x")
        await app.open_gate("smtp", reason="x")
        await app.close_gate("smtp", reason="x")
        await app.remove_gate("smtp", reason="x")
        await app.schedules.run("nightly", reason="x")
        await app.schedules.pause("nightly", reason="x")
        await app.schedules.resume("nightly", reason="x")
        await app.schedules.remove("nightly", reason="x")
        await app.views.save("mine", "queue:q")
        await app.views.remove("mine")
        silence = await app.alerts.silence("*", "1h", reason="x")
        await app.alerts.unsilence(silence.id, reason="x")
        await app.stop_worker("abcd", reason="x")
        lines = await app.audit.requests()
    assert [line.act for line in lines] == [
        *("pause", "resume", "configure", "configure_route", "gate open", "gate close", "gate remove"),
        *("schedule run", "schedule pause", "schedule resume", "schedule remove", "view save", "view remove"),
        *("alert silence", "alert unsilence", "worker drain"),
    ]
    assert {(line.actor, line.count, line.entries) for line in lines} == {("ann", 1, 1)}


def entry_of(word: str, ids: list[str], request: str, change: Change | None = None) -> NewEntry:
    return entry(AuditRecord(word, Ids(tuple(ids)), tuple(ids), change), Act("ada", "why", request))


@pytest.mark.slow
async def test_a_request_of_100_000_entries_is_one_line_and_hides_none() -> None:
    """A replay in the background with a pause in it; and the newest requests do not cost its entries."""
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock))
    audit = Audit(store)
    await store.open()
    ids = [f"i-{number}" for number in range(100_000)]
    windows = [entry_of("replay", [one], f"r-1.{n}", Replay(reserved="r-1")) for n, one in enumerate(ids)]
    await store.append([entry_of("archive", ["a"], "r-0"), entry_of("reserve", ids[:1000], "r-1", Reserve("r-1"))])
    await store.append(windows[:50_000])
    clock.advance("2h")
    await store.append([entry_of("note", ["b"], "r-2"), *windows[50_000:]])
    clock.advance("2h")
    await store.append([entry_of("note", ["c"], "r-3")])
    lines = await audit.requests()
    assert [(line.request_id, line.act, line.count, line.entries) for line in lines] == [
        ("r-0", "archive", 1, 1),
        ("r-1", "replay", 100_000, 100_001),
        ("r-2", "note", 1, 1),
        ("r-3", "note", 1, 1),
    ]
    assert (lines[1].changed, lines[1].acts) == (tuple(ids[:NAMED]), {"replay": 100_000, "reserve": 1000})
    while await audit.seal():
        pass
    before = len(store.calls_of("journal"))
    assert await audit.requests(1) == lines[3:]
    assert await audit.requests(since="30m") == lines[3:]
    assert len(store.calls_of("journal")) - before <= 6


async def test_what_comes_an_hour_later_under_the_same_id_is_another_request() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.open()
    for number, pause in enumerate(("59m", "59m", "61m", "0s")):
        await store.append([entry_of("archive", [f"i-{number}"], "ticket-88")])
        clock.advance(pause)
    lines = await Audit(store).requests()
    assert [(line.count, line.changed) for line in lines] == [(3, ("i-0", "i-1", "i-2")), (1, ("i-3",))]
    assert await Audit(store).requests(1) == lines[1:]


async def test_two_who_seal_at_once_leave_one_chain(work: Work) -> None:
    ids = await work.letters(3)
    for each in ids:
        await work.app.letters.note(each, "x")
        await asyncio.gather(*[work.app.audit.seal() for _ in range(4)])
    found = await work.app.audit.verify()
    assert (found.sound, found.entries, found.unsealed) == (True, 3, 0)


async def test_many_entries_go_under_several_seals(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "MOST", 2)
    monkeypatch.setattr(seals, "PAGE_LIMIT", 2)
    (letter,) = await work.letters(1)
    for number in range(5):
        await work.app.letters.note(letter, f"note {number}")
    made = [await work.app.audit.seal() for _ in range(4)]
    assert [seal and seal.count for seal in made] == [2, 2, 1, None]
    assert (await work.app.audit.verify()).sound


async def test_the_elected_maintainer_seals(lab: Lab) -> None:
    app = await lab.app()
    await lab.store.configure("q", QueueChange())
    await app.pause("q", reason="wait")
    maintainer = Maintainer("w", lab.store, Events(), lab.clock)
    await lab.drive(maintainer.round())
    assert (await app.audit.verify()).entries == 1
    await app.resume("q")
    await lab.drive(maintainer.round())
    assert (await app.audit.verify()).unsealed == 1, "one a minute is enough"
    await lab.pass_time("1m")
    await lab.drive(maintainer.round())
    assert (await app.audit.verify()).entries == 2


# -- what was changed is found ---------------------------------------------------------------------------------------


class Forged(MemoryStore):
    """A store in whose journal somebody writes."""

    def __init__(self) -> None:
        super().__init__()
        self.forge: Callable[[Entry], Entry | None] = lambda entry: entry

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        found = [self.forge(entry) for entry in await super().journal(topic, after, limit)]
        return tuple([entry for entry in found if entry is not None])


@pytest.fixture
async def forged() -> AsyncIterator[tuple[Redrive, Forged]]:
    """Nine entries under three seals."""
    store = Forged()
    app = Redrive(store, actor="tester", log=False)
    app.queue("q")
    async with app:
        item = await app.enqueue("q", {})
        for number in range(9):
            await app.letters.note(item, f"note {number}")
            if number % 3 == 2:
                await app.audit.seal()
        yield app, store


def changed(position: int, **fields: object) -> Callable[[Entry], Entry | None]:
    return lambda entry: msgspec.structs.replace(entry, **fields) if entry.position == position else entry


@pytest.mark.parametrize(
    "fields",
    [{"actor": "eve"}, {"reason": "forged"}, {"at": 1}, {"request_id": "x"}, {"body": b"{}"}, {"topic": "audit2"}],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_changed_entry_breaks_its_seal(forged: tuple[Redrive, Forged], fields: dict[str, object]) -> None:
    app, store = forged
    store.forge = changed(5, **fields)
    found = await app.audit.verify()
    assert (found.sound, found.seal, found.seals, found.entries) == (False, 2, 1, 3)
    assert found.fault == "the entries under seal 2 are not those that were sealed"


async def test_what_is_sealed_behind_a_fault_is_not_called_unsealed(forged: tuple[Redrive, Forged]) -> None:
    app, store = forged
    store.forge = changed(2, actor="eve")
    found = await app.audit.verify()
    assert (found.seal, found.seals, found.entries, found.unsealed) == (1, 0, 0, 0)
    await app.pause("q", reason="later")
    assert (await app.audit.verify()).unsealed == 1


async def test_a_removed_entry_is_named(forged: tuple[Redrive, Forged]) -> None:
    app, store = forged
    store.forge = lambda entry: None if entry.position == 6 else entry
    found = await app.audit.verify()
    assert (found.seal, found.missing) == (2, (6,))
    assert found.fault == "seal 2 is over 3 entries, and there are 2"


async def test_moving_text_from_field_to_field_is_found(forged: tuple[Redrive, Forged]) -> None:
    """The hash is over fields with their lengths, not over their text run together."""
    app, store = forged
    store.forge = changed(5, actor="testern", reason="ote 4")
    assert not (await app.audit.verify()).sound


async def test_a_removed_seal_is_missed(forged: tuple[Redrive, Forged]) -> None:
    app, store = forged
    for number, said in ((3, "seal 3 is missing"), (1, "seal 1 is missing")):
        await store.write_documents([DocumentWrite(chain.KIND, chain.key_of(number), None)])
        found = await app.audit.verify()
        assert (found.fault, found.seal) == (said, number)


async def test_seals_made_anew_are_found_by_a_hash_that_was_noted(forged: tuple[Redrive, Forged]) -> None:
    app, store = forged
    noted = (await app.audit.verify()).hash
    store.forge = changed(5, actor="eve")
    last = chain.UNSEALED
    for number in range(1, 4):
        kept = await store.document(chain.KIND, chain.key_of(number))
        assert kept is not None
        old = msgspec.json.decode(kept.body, type=Seal)
        anew = Chain(last)
        anew.add([each for each in await store.journal("audit", last.upto) if each.position <= old.upto])
        last = anew.seal()
        body = msgspec.json.encode(last)
        await store.write_documents(
            [DocumentWrite(chain.KIND, kept.key, body), DocumentWrite(chain.HEAD, "audit", body)]
        )
    assert (await app.audit.verify()).sound, "whoever may write everything can hide it"
    found = await app.audit.verify(known=noted)
    assert (found.sound, found.fault) == (False, f"no seal has the hash {noted}")


async def test_a_seal_that_cannot_be_read_is_a_fault(forged: tuple[Redrive, Forged]) -> None:
    app, store = forged
    await store.write_documents([DocumentWrite(chain.KIND, chain.key_of(2), b"{}")])
    assert (await app.audit.verify()).fault == "seal 2 cannot be read"


async def test_a_row_changed_in_the_file_is_found(tmp_path: object) -> None:
    path = f"{tmp_path}/redrive.db"
    app = Redrive(f"sqlite:///{path}", actor="tester", log=False)
    app.queue("q")
    async with app:
        await app.pause("q", reason="x")
        await app.audit.seal()
    with sqlite3.connect(path) as database:
        database.execute("update journal set actor = 'eve'")
    database.close()
    async with Redrive(f"sqlite:///{path}", log=False) as app:
        assert not (await app.audit.verify()).sound
