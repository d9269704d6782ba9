import asyncio
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from redrive.core.select import EVERYTHING
from redrive.core.verbs import Checkup
from redrive.errors import ConfigError, StoreUnavailable, UnsafeFileSystem
from redrive.stores import migrate
from redrive.stores.memory import MemoryStore
from redrive.stores.migrate import Migration
from redrive.stores.sqlite import SqliteStore, checkup, ground
from redrive.stores.sqlite.binding import BindingName
from tests.stores.sqlite_kit import Open, asking, new
from tests.stores.upkeep_kit import execute, fill, filled, of_first_schema, rows, spoil, upkeep
from tests.support.migrations import add_migration

pytestmark = pytest.mark.slow
"""Each test makes and reads whole databases."""

NEWEST = max(migration.number for migration in migrate.known("sqlite"))


@pytest.fixture(params=["stdlib", "apsw"])
def binding(request: pytest.FixtureRequest) -> BindingName:
    name: BindingName = request.param
    return name


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Migration:
    """A migration after those of the files."""
    return add_migration(monkeypatch, "sqlite")


# --- check -----------------------------------------------------------------------------------------------------------

HARM = {
    "a counter": ("update queue set ready = 7", "counters", "q: ready 7 (there are 2)"),
    "an undeclared queue": ("delete from queue", "counters", "q"),
    "a cause's count": ("update cause set n = 5", "causes", "c1 in q: 5 (there are 1)"),
    "a lost cause": ("delete from cause", "causes", "c1 in q: 0 (there are 1)"),
    "the sequence": ("update sequence set n = 3", "sequence", None),
    "no sequence": ("delete from sequence", "sequence", None),
    "a dead item without a letter": ("delete from letter where cause = 'c1'", "letters", "b"),
    "a letter without a change number": ("delete from change where seq = 2", "changes", "b"),
    "a letter of the living": ("update item set state = 'ready', ended_at = null where id = 'b'", "letters", "b"),
    "a letter without an item": ("delete from item where id = 'b'", "letters", "#2"),
    "a letter of another queue": ("update letter set queue = 'x' where seq = 2", "letters", "b"),
    "a letter nowhere": ("update letter set disposition = 'lost' where seq = 2", "letters", "b"),
    "evidence of another cause": ("update letter set cause = 'c9' where seq = 2", "letters", "b"),
    "unreadable evidence": ("update letter set failure = x'7b' where seq = 2", "letters", "b"),
    "no payload": ("delete from payload where seq = 1", "payloads", "a"),
    "another payload": ("update payload set body = x'7b7d' where seq = 1", "payloads", "a"),
    "another checksum": ("update payload set crc = crc + 1 where seq = 1", "payloads", "a"),
    "a payload that is text": ("update payload set body = 'text' where seq = 1", "payloads", "a"),
    "packed in an unknown way": ("update payload set packing = 99 where seq = 1", "payloads", "a"),
    "a payload alone": ("insert into payload (seq, crc, body) values (99, 0, x'')", "payloads", "#99"),
    "a result that does not unpack": ("update result set packing = 1", "results", "c"),
    "a result alone": ("insert into result (seq, body) values (99, x'')", "results", "#99"),
    "an attempt alone": ("update attempt set seq = 99 where seq = 4", "history", "#99"),
    "an unreadable attempt": ("update attempt set body = x'' where seq = 4", "history", "d"),
    "an attempt of a later delivery": ("update attempt set delivery = 0 where seq = 4", "history", "d"),
    "a deed alone": ("update deed set seq = 99", "history", "#99"),
    "a deed without its entry": ("delete from journal", "history", "#5"),
    "an unknown state": ("update item set state = 'lost' where id = 'a'", "states", "a"),
    "leased to nobody": ("update item set lease_until = null where id = 'a'", "states", "a"),
    "held although it ended": ("update item set lease_until = 1 where id = 'c'", "states", "c"),
    "ended at no time": ("update item set ended_at = null where id = 'c'", "states", "c"),
    "pruned and there": (
        "insert into tombstone values ('a', 'q', 'done', '', 0, 'x', 'y')",
        "tombstones",
        "a",
    ),
    "other contents of a migration": ("update redrive_migration set checksum = 'x' where number = 1", "schema", "1"),
    "a lost index": ("drop index item_ready", "schema", "item_ready is missing"),
    "a lost table": ("drop table tombstone", "schema", "tombstone is missing"),
    "another table": (
        "alter table payload rename column crc to sum",
        "schema",
        "payload has the columns seq, sum, release, body, packing",
    ),
}
BODIES = {
    "evidence of another cause",
    "unreadable evidence",
    "another payload",
    "another checksum",
    "a payload that is text",
    "packed in an unknown way",
    "a result that does not unpack",
    "an unreadable attempt",
    "an attempt of a later delivery",
}
"""What a quick check does not look at."""


@pytest.mark.parametrize("harm", HARM)
async def test_each_harm_is_found_and_named(path: Path, harm: str) -> None:
    statement, kind, example = HARM[harm]
    execute(await filled(path), statement)
    before = rows(path, "select name, sql from sqlite_master")
    found = [finding for finding in (await upkeep(path).check(quick=False)).findings if finding.kind == kind]
    assert found
    assert example is None or example in [each for finding in found for each in finding.examples]
    quickly = [finding.kind for finding in (await upkeep(path).check(quick=True)).findings]
    assert (kind in quickly) is (harm not in BODIES)
    assert rows(path, "select name, sql from sqlite_master") == before


async def test_the_harmless_is_not_found(path: Path, binding: BindingName) -> None:
    """Tables and indexes of the user's own, beside ours, are his affair."""
    execute(await filled(path, binding), "create index mine on item (enqueued_at)", "create table notes (text)")
    assert await upkeep(path, binding).check(quick=False) == Checkup(6)


async def test_many_are_counted_and_few_are_named(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new(f"i{number:04}") for number in range(2_500)])
    await store.close()
    execute(path, "update payload set body = x'00'")
    (finding,) = (await upkeep(path).check(quick=False)).findings
    assert finding.count == 2_500
    assert finding.examples == tuple(f"i{number:04}" for number in range(10))


async def test_a_payload_damaged_in_the_file_is_found(path: Path, binding: BindingName) -> None:
    """SQLite's own check does not see it: the page is sound, its contents are not what was put."""
    store = await SqliteStore(path, binding=binding).open()
    await store.put([new("a", payload=b'{"amount": 100}'), new("b")])
    await store.close()
    spoil(path, b'"amount": 100', b'"amount": 900')
    (finding,) = (await upkeep(path, binding).check(quick=False)).findings
    assert (finding.kind, finding.examples) == ("payloads", ("a",))


async def test_wherever_a_byte_is_flipped_the_check_answers(path: Path, binding: BindingName) -> None:
    """Damage is told as a finding, or it changed nothing that is kept; never a traceback."""
    sound = (await filled(path, binding)).read_bytes()
    # Most of a new file is empty space, where a flipped byte changes nothing.
    places = random.Random(7).sample([place for place, byte in enumerate(sound) if byte], 60)
    told = 0
    for place in [0, 20, 100, *places]:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
        told += not (await upkeep(path, binding).check(quick=False)).sound
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    assert told > 3


async def test_a_tree_out_of_order_does_not_lead_round_and_round(path: Path, binding: BindingName) -> None:
    """The third of six rows says that it is the 77th, and so comes before the fourth and after the last."""
    data = bytearray((await filled(path, binding)).read_bytes())
    ((root,),) = rows(path, "select rootpage from sqlite_master where name = 'item'")
    assert isinstance(root, int)
    page = (root - 1) * 4096
    third = page + int.from_bytes(data[page + 12 : page + 14])
    assert data[third + 1] == 3
    data[third + 1] = 77
    path.write_bytes(data)
    found = (await upkeep(path, binding).check(quick=False)).findings
    assert "the table item is out of order" in {finding.text for finding in found}


async def test_a_list_of_migrations_that_is_damaged_is_a_finding(path: Path, binding: BindingName) -> None:
    spoil(await filled(path, binding), b"number integer primary key,", b"number_integer primary key,")
    found = (await upkeep(path, binding).check(quick=False)).findings
    assert {finding.kind for finding in found} == {"pages"}
    assert (await upkeep(path, binding).status()).trouble


@pytest.mark.parametrize("left", [0.5, 0.9])
async def test_a_file_cut_short_is_found(path: Path, binding: BindingName, left: float) -> None:
    data = (await filled(path, binding)).read_bytes()
    path.write_bytes(data[: int(len(data) * left) // 4096 * 4096])
    found = (await upkeep(path, binding).check(quick=False)).findings
    assert "pages" in {finding.kind for finding in found}


async def test_what_is_no_database_is_a_finding(path: Path, binding: BindingName) -> None:
    path.write_bytes(b"whatever its name says" * 500)
    checked = await upkeep(path, binding).check(quick=False)
    assert {finding.kind for finding in checked.findings} == {"pages"}
    assert path.read_bytes() == b"whatever its name says" * 500


async def test_text_that_is_none_is_a_finding(path: Path, binding: BindingName) -> None:
    execute(
        await filled(path, binding), "update item set id = cast(x'ff' as text) where id = 'd'", "delete from payload"
    )
    found = (await upkeep(path, binding).check(quick=False)).findings
    assert "the table item cannot be read" in {finding.text for finding in found}


async def test_a_strangers_database_is_refused(path: Path, binding: BindingName) -> None:
    execute(path, "create table customers (name)")
    for act in (lambda: upkeep(path, binding).check(quick=True), upkeep(path, binding).status, upkeep(path).pending):
        with pytest.raises(ConfigError, match="customers"):
            await act()


async def test_a_network_file_system_is_refused_as_it_is_by_a_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path)
    monkeypatch.setattr(ground, "kind_of", lambda _: "nfs4")
    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        await upkeep(path).check(quick=True)
    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        await upkeep(path).backup(str(path.with_name("copy.db")), force=False)
    found = await upkeep(path).status()
    assert (found.file_system, found.schema, "nfs4" in found.trouble) == ("nfs4", 0, True)
    allowed = SqliteStore(path, network="allow").upkeep()
    assert (await allowed.check(quick=True)).sound
    assert (await allowed.status()).schema == NEWEST


@pytest.mark.parametrize("act", ["status", "pending", "check", "repair", "backup", "migrate"])
@pytest.mark.parametrize("empty", [True, False])
async def test_where_there_is_no_database_none_is_made(path: Path, act: str, empty: bool) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "check": {"quick": False},
        "backup": {"path": str(path.with_name("copy")), "force": False},
        "migrate": {"now": 0},
    }
    if empty:
        path.touch()
    with pytest.raises(StoreUnavailable, match="no database at"):
        await getattr(upkeep(path), act)(**arguments.get(act, {}))
    assert [each.stat().st_size for each in path.parent.iterdir()] == [0] * empty


async def test_another_schema_is_checked_as_far_as_it_is_known(path: Path, more: Migration) -> None:
    old = await upkeep(of_first_schema(path)).check(quick=False)
    assert (old.sound, old.items) == (True, 0)
    assert f"redrive db migrate brings it to {more.number}" in old.left_out[0]
    execute(path, "insert into redrive_migration values (99, 'x', 0)")
    new_ = await upkeep(path).check(quick=False)
    assert new_.sound
    assert "it has schema 99" in new_.left_out[0]
    assert not checkup.can_repair(new_)


async def test_writers_do_not_wait_for_a_check(opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it holds a state, and what is written meanwhile is not taken for a fault."""
    store = await opened()
    await fill(store)
    inside, written = threading.Event(), threading.Event()
    kept = checkup._kept  # noqa: SLF001 - between the two that are compared

    def held(connection: Any) -> Any:
        found = kept(connection)
        inside.set()
        assert written.wait(10)
        return found

    monkeypatch.setattr(checkup, "_kept", held)
    checking = asyncio.ensure_future(store.check())
    await asyncio.to_thread(inside.wait, 10)
    await store.put([new("meanwhile")])
    assert len((await store.lease(asking(10, nonce="m"))).items) == 2
    written.set()
    assert (await checking).sound


async def test_who_is_cancelled_leaves_nothing_running(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(path)
    inside = threading.Event()
    look = checkup._Check._look_for  # noqa: SLF001 - in the middle of it

    def counted(self: Any, *args: Any) -> None:
        inside.set()
        while True:
            look(self, *args)

    monkeypatch.setattr(checkup._Check, "_look_for", counted)  # noqa: SLF001
    checking = asyncio.ensure_future(upkeep(path, "stdlib").check(quick=False))
    await asyncio.to_thread(inside.wait, 10)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    monkeypatch.undo()
    assert (await upkeep(path, "apsw").check(quick=False)).sound, "and its connection is closed"


async def test_memory_that_counts_wrong_is_found() -> None:
    store = await MemoryStore().open()
    await store.put([new("a"), new("b")])
    store._table.lanes["q"].counts["ready"] += 1  # noqa: SLF001 - no verb does it
    (finding,) = (await store.check()).findings
    assert finding.examples == ("q: ready 3 (there are 2)",)


# --- repair ----------------------------------------------------------------------------------------------------------


async def test_repair_counts_anew_and_touches_no_item(path: Path, binding: BindingName) -> None:
    await filled(path, binding)
    before = rows(path, "select * from queue"), rows(path, "select * from cause"), rows(path, "select * from sequence")
    items = rows(path, "select * from item")
    execute(path, "update queue set ready = -1, trash = 8", "delete from cause", "delete from sequence")
    found = await upkeep(path, binding).check(quick=True)
    assert checkup.can_repair(found)
    assert await upkeep(path, binding).repair() == found.findings
    assert (await upkeep(path, binding).check(quick=False)).sound
    assert rows(path, "select * from item") == items
    assert (rows(path, "select * from queue"), rows(path, "select * from cause")) == before[:2]
    assert rows(path, "select * from sequence") == before[2]


async def test_repair_declares_what_has_items_and_keeps_a_pause(path: Path) -> None:
    execute(await filled(path), "delete from queue", "insert into queue (name, paused, ready) values ('other', 1, 4)")
    await upkeep(path).repair()
    assert (await upkeep(path).check(quick=True)).sound
    assert rows(path, "select name, ready, paused from queue") == [("other", 0, 1), ("q", 2, 0)]


async def test_a_sequence_that_is_ahead_stays_there(path: Path) -> None:
    """It is: numbers of pruned items never come again."""
    execute(await filled(path), "update sequence set n = 500", "update queue set ready = 0")
    await upkeep(path).repair()
    assert rows(path, "select n from sequence") == [(500,), (500,)]


async def test_repair_numbers_letters_that_have_no_number(path: Path, binding: BindingName) -> None:
    """After the last one given, so that whoever reads on comes to them."""
    execute(await filled(path, binding), "delete from change where seq = 2", "insert into change values (77, 1, null)")
    found = await upkeep(path, binding).check(quick=True)
    assert [(each.kind, each.examples) for each in found.findings] == [("changes", ("b",)), ("changes", ("#77",))]
    assert await upkeep(path, binding).repair() == found.findings
    assert rows(path, "select seq, n from change order by n") == [(5, 3), (2, 4)]
    assert (await upkeep(path, binding).check(quick=False)).sound


async def test_repair_beside_work_is_right(opened: Open, path: Path) -> None:
    store = await opened()
    await fill(store)
    await store._write(lambda tx: tx.execute("update queue set ready = 70, done = 70").fetchall())  # noqa: SLF001

    async def work() -> None:
        for number in range(30):
            await store.put([new(f"w{number}")])
            await store.lease(asking(1, nonce=f"n{number}"))

    working = asyncio.ensure_future(work())
    await store.upkeep().repair()
    await working
    assert (await store.check()).sound
    (tally,) = (await store.tally()).queues
    assert len((await store.find(EVERYTHING)).items) == tally.ready + tally.leased + tally.done + 2


async def test_nothing_is_repaired_in_a_damaged_file(path: Path) -> None:
    execute(await filled(path), "update queue set ready = 7")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    assert not checkup.can_repair(await upkeep(path).check(quick=True))


# --- status and migrate ----------------------------------------------------------------------------------------------


async def test_status_of_a_database_in_use(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new(str(number), payload=b"x" * 5_000) for number in range(100)])
    found = await store.upkeep().status()
    assert (found.schema, found.known, found.pending, found.changed) == (NEWEST, NEWEST, (), ())
    assert (found.durability, found.trouble, found.location) == ("power-loss", "", str(path))
    assert found.log_size == path.with_name("redrive.db-wal").stat().st_size > 500_000
    assert found.size == path.stat().st_size
    assert found.pages * found.page_size > 500_000
    assert found.version == sqlite3.sqlite_version


async def test_status_shows_pages_that_will_be_used_again(path: Path) -> None:
    store = await SqliteStore(path).open()
    await store.put([new(str(number), payload=b"x" * 5_000) for number in range(100)])
    await store.close()
    assert (await upkeep(path).status()).free_pages == 0
    execute(path, "delete from payload")
    assert (await upkeep(path).status()).free_pages >= 100


async def test_status_neither_migrates_nor_writes(path: Path, binding: BindingName, more: Migration) -> None:
    before = of_first_schema(path).read_bytes()
    found = await upkeep(path, binding).status()
    assert (found.schema, found.known, found.trouble) == (1, more.number, "")
    assert found.pending == (more.name,)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


async def test_status_of_a_newer_and_of_a_changed_database(path: Path) -> None:
    execute(
        await filled(path),
        "insert into redrive_migration values (99, 'x', 0)",
        "update redrive_migration set checksum = 'x' where number = 1",
    )
    found = await upkeep(path).status()
    assert (found.schema, found.known, found.changed) == (99, NEWEST, (1,))


async def test_status_of_what_cannot_be_read_says_why(path: Path, binding: BindingName) -> None:
    path.write_bytes(b"x" * 10_000)
    found = await upkeep(path, binding).status()
    assert (found.size, found.schema) == (10_000, 0)
    assert "is not a usable database" in found.trouble


async def test_migrate_brings_an_old_database_up_to_date(path: Path, binding: BindingName, more: Migration) -> None:
    assert await upkeep(of_first_schema(path), binding).pending() == (more,)
    assert await upkeep(path, binding).migrate(now=5) == (more.number,)
    assert await upkeep(path, binding).pending() == ()
    assert await upkeep(path, binding).migrate(now=6) == ()
    assert await upkeep(path, binding).check(quick=False) == Checkup()
    assert rows(path, "select max(applied_at) from redrive_migration") == [(5,)]
