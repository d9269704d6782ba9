import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redrive.core.select import EVERYTHING
from redrive.core.states import State
from redrive.errors import ConfigError, Conflict, RedriveError, StoreCorrupt, StoreForbidden, StoreFull
from redrive.stores.base import IDS_LIMIT
from redrive.stores.sqlite import SqliteStore, backup
from redrive.stores.sqlite.binding import BindingName
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, asking, new
from tests.stores.upkeep_kit import execute, fill, filled, of_first_schema, rows, upkeep
from tests.support.migrations import add_migration

pytestmark = pytest.mark.slow
"""Each test makes and copies whole databases."""


@pytest.fixture(params=["stdlib", "apsw"])
def binding(request: pytest.FixtureRequest) -> BindingName:
    name: BindingName = request.param
    return name


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder / "copy.db"


async def test_a_copy_is_one_file_that_opens_with_everything(opened: Open, target: Path, binding: BindingName) -> None:
    store = await opened(binding=binding)
    await fill(store)
    made = await store.backup(str(target))
    assert [each.name for each in target.parent.iterdir()] == [target.name]
    assert (made.path, made.size) == (str(target), target.stat().st_size)
    copy = await opened(target, binding=binding)
    assert [await copy.get(item.id) for item in await copy.find(EVERYTHING)] == [
        await store.get(item.id) for item in await store.find(EVERYTHING)
    ]
    assert (await copy.tally()).queues == (await store.tally()).queues
    assert await copy.journal("audit") == await store.journal("audit")
    assert await copy.check() == await store.check()


async def test_what_ran_when_it_was_made_runs_again_from_it(opened: Open, target: Path) -> None:
    clock = FakeClock()
    store = await opened(clock=clock)
    await store.put([new("a")])
    (held,) = (await store.lease(asking())).items
    await store.backup(str(target))
    clock.advance(60_000)
    copy = await opened(target, clock=clock)
    (lost,) = await copy.reclaim("reaper", ["q"], 30_000, 10)
    assert (lost.id, lost.worker) == (held.id, held.worker)


async def test_a_copy_made_under_load_has_all_that_was_acknowledged(
    opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "PAGES", 5)
    store = await opened()
    acknowledged: list[str] = []
    enough, over = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            name = f"i{len(acknowledged)}"
            await store.put([new(name, payload=b"x" * 2_000)])
            acknowledged.append(name)
            if len(acknowledged) == 100:
                enough.set()

    loading = asyncio.ensure_future(load())
    await enough.wait()
    before = set(acknowledged)
    await store.backup(str(target))
    over.set()
    await loading
    copy = await opened(target)
    assert before <= set((await copy.ids(EVERYTHING, IDS_LIMIT)).ids)
    assert (await copy.check()).sound


async def test_a_commit_between_two_steps_does_not_make_it_begin_again(
    opened: Open, target: Path, binding: BindingName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would never end while everything works."""
    monkeypatch.setattr(backup, "PAGES", 10)
    store = await opened(binding=binding)
    await store.put([new(str(number), payload=b"x" * 3_000) for number in range(200)])
    loop = asyncio.get_running_loop()
    steps = 0
    apart = threading.Event.is_set

    def put_more(event: threading.Event) -> bool:
        """In the thread that copies: a commit of the writer before each step."""
        nonlocal steps
        if threading.current_thread().name == "redrive-aside":
            steps += 1
            asyncio.run_coroutine_threadsafe(store.put([new(f"more{steps}")]), loop).result(10)
        return apart(event) or steps > 500

    monkeypatch.setattr(threading.Event, "is_set", put_more)
    made = await store.backup(str(target))
    monkeypatch.undo()
    assert made.size // 4096 // 10 <= steps < made.size // 4096
    copy = await opened(target, binding=binding)
    assert len((await copy.ids(EVERYTHING)).ids) == 200


class Refused(NamedTuple):
    prepare: Callable[[Path, Path], object]
    kind: type[RedriveError]
    said: str
    force: bool = True


REFUSED = {
    "a file that is there": Refused(lambda _, to: to.write_text("precious"), Conflict, "is there already", force=False),
    "a folder": Refused(lambda _, to: to.mkdir(), ConfigError, "not a plain file"),
    "a link": Refused(lambda path, to: to.symlink_to(path.parent / "elsewhere"), ConfigError, "not a plain file"),
    "a link to the database": Refused(lambda path, to: to.symlink_to(path), ConfigError, "the database itself"),
    "another name of the database": Refused(lambda path, to: to.hardlink_to(path), ConfigError, "the database itself"),
    "no folder": Refused(lambda _, to: to.parent.rmdir(), ConfigError, "no folder"),
    "the log of another database": Refused(
        lambda _, to: Path(f"{to}-wal").write_text("pages"), Conflict, "belongs to another database"
    ),
    "the journal of another database": Refused(
        lambda _, to: Path(f"{to}-journal").write_text("pages"), Conflict, "belongs to another database"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_must_not_be_written_is_refused(opened: Open, path: Path, target: Path, case: str) -> None:
    refused = REFUSED[case]
    store = await opened()
    await fill(store)
    refused.prepare(path, target)
    before = sorted(target.parent.iterdir()) if target.parent.exists() else []
    with pytest.raises(refused.kind, match=refused.said):
        await store.backup(str(target), force=refused.force)
    assert (sorted(target.parent.iterdir()) if target.parent.exists() else []) == before
    assert (await store.check()).sound


@pytest.mark.parametrize("name", ["redrive.db", "redrive.db-wal", "redrive.db-shm", "redrive.db-wake", "./redrive.db"])
async def test_the_files_of_the_database_are_never_the_target(opened: Open, path: Path, name: str) -> None:
    store = await opened()
    await fill(store)
    with pytest.raises(ConfigError, match="the database itself"):
        await store.backup(f"{path.parent}/{name}", force=True)
    assert (await store.check()).sound


@pytest.mark.parametrize("name", ["", "a\0b"])
async def test_what_names_no_file_is_refused(opened: Open, name: str) -> None:
    with pytest.raises(ConfigError, match="names no file"):
        await (await opened()).backup(name)


async def test_force_replaces_a_file_only_when_the_copy_is_whole(
    opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    await fill(store)
    target.write_text("precious")

    def fails(*_: object) -> None:
        assert target.read_text() == "precious"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "_to_disk", fails)
    with pytest.raises(StoreFull, match="No space left on device"):
        await store.backup(str(target), force=True)
    assert target.read_text() == "precious"
    assert list(target.parent.iterdir()) == [target]
    monkeypatch.undo()
    await store.backup(str(target), force=True)
    assert rows(target, "select count(*) from item") == [(6,)]


async def test_without_room_nothing_is_begun(opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that the copy fills up would stop the work too."""
    store = await opened()
    await fill(store)

    class Usage(NamedTuple):
        free: int = 10_000

    monkeypatch.setattr("redrive.stores.sqlite.backup.shutil.disk_usage", lambda _: Usage())
    with pytest.raises(StoreFull, match=r"10,000 are free"):
        await store.backup(str(target))
    assert list(target.parent.iterdir()) == []


async def test_who_is_cancelled_leaves_no_half_copy(
    opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "PAGES", 1)
    store = await opened()
    await fill(store)
    begun, go_on = threading.Event(), threading.Event()
    create = backup._create  # noqa: SLF001 - in the middle of it

    def held(*args: Any, **options: Any) -> None:
        create(*args, **options)
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(backup, "_create", held)
    copying = asyncio.ensure_future(store.backup(str(target)))
    await asyncio.to_thread(begun.wait, 10)
    copying.cancel()
    await asyncio.sleep(0)  # noqa: TID251 - one turn, in which the task hears of it
    assert len(list(target.parent.iterdir())) == 1
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o640])
async def test_a_copy_is_readable_by_nobody_else(path: Path, target: Path, mode: int) -> None:
    (await filled(path)).chmod(mode)
    await upkeep(path).backup(str(target), force=False)
    assert stat.S_IMODE(target.stat().st_mode) & ~mode == 0


async def test_a_damaged_database_is_not_copied(path: Path, target: Path, binding: BindingName) -> None:
    data = bytearray((await filled(path, binding)).read_bytes())
    (root,) = rows(path, "select rootpage from sqlite_master where name = 'journal'")[0]
    assert isinstance(root, int)
    data[(root - 1) * 4096 + 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=str(path)):
        await upkeep(path, binding).backup(str(target), force=False)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("schema", [1, 99])
async def test_a_database_of_another_schema_is_copied_as_it_is(
    path: Path, target: Path, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an upgrade is when a backup is wanted most."""
    add_migration(monkeypatch, "sqlite")
    of_first_schema(path)
    if schema > 1:
        execute(path, f"insert into redrive_migration values ({schema}, 'x', 0)")
    await upkeep(path).backup(str(target), force=False)
    assert rows(target, "select max(number) from redrive_migration") == [(schema,)]
    assert rows(path, "select max(number) from redrive_migration") == [(schema,)]


async def test_a_folder_that_may_not_be_written(opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened()

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("redrive.stores.sqlite.backup.os.open", denied)
    with pytest.raises(StoreForbidden, match="Permission denied"):
        await store.backup(str(target))


async def test_the_copy_is_on_the_disk_before_it_has_its_name(
    opened: Open, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the name is on the disk before anybody is told."""
    store = await opened()
    await fill(store)
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        synced.append((name, target.exists()))
        fsync(descriptor)

    monkeypatch.setattr("redrive.stores.sqlite.backup.os.fsync", note)
    await store.backup(str(target))
    (half, named_then), (folder, named_now) = synced
    assert (half.startswith(f"{target}."), named_then) == (True, False)
    assert (folder, named_now) == (str(target.parent), True)


async def test_a_copy_works_on_by_itself(opened: Open, target: Path) -> None:
    """It is a store like any other: what is put into it stays there, and nothing of it comes back."""
    store = await opened()
    await store.put([new("a")])
    await store.backup(str(target))
    copy = await opened(target)
    await copy.put([new("b")])
    (item,) = (await copy.lease(asking(1))).items
    assert (item.id, item.state) == ("a", State.LEASED)
    assert len((await store.find(EVERYTHING)).items) == 1


def test_sqlite_itself_can_read_a_copy_without_writing(tmp_path: Path, target: Path) -> None:
    async def make() -> None:
        store = await SqliteStore(tmp_path / "redrive.db").open()
        await fill(store)
        await store.backup(str(target))
        await store.close()

    asyncio.run(make())
    connection = sqlite3.connect(f"file:{target}?immutable=1", uri=True)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()
