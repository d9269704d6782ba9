"""SQLite with several handles or processes on one file: forking, waking each other, files that are gone."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.core.states import State
from redrive.errors import StoreForbidden, StoreUnavailable
from redrive.stores.sqlite import SqliteStore
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, asking, exists, lane, new

PRELUDE = """
import asyncio, os, resource, sys
from redrive.core.item import NewItem
from redrive.errors import StoreForbidden, StoreUnavailable
from redrive.stores.sqlite import SqliteStore

path, name = sys.argv[1:]

def say(*words):
    print(*words, flush=True)
"""

FORKS = """
store = SqliteStore(path, binding=os.environ["BINDING"])
with asyncio.Runner() as runner:
    runner.run(store.open())
    child = os.fork()
    if child == 0:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(store.put([NewItem("child", "q", b"{}")])).added == ("child",)
        if name == "closing":
            loop.run_until_complete(store.close())
        # Not sys.exit: asyncio would close the parent's loop, whose epoll the two share.
        os._exit(7)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    runner.run(store.put([NewItem(name, "q", b"{}")]))
    say(len(runner.run(store.tally()).queues))
    runner.run(store.close())
"""


def said(script: str, path: Path, name: str) -> list[str]:
    """What a process that runs it prints. Not one of asyncio, whose pipes may outlive the loop of a test."""
    command = [sys.executable, "-c", PRELUDE + script, str(path), name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("binding", "name"), [("stdlib", "leaving"), ("apsw", "closing")])
async def test_a_forked_child_gets_connections_of_its_own(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch, binding: str, name: str
) -> None:
    monkeypatch.setenv("BINDING", binding)
    assert said(FORKS, path, name) == ["7", "1"]
    store = await opened()
    assert await exists(store, "child")
    assert await exists(store, name)


async def waits(store: SqliteStore, clock: FakeClock) -> asyncio.Future[None]:
    waiting = asyncio.ensure_future(store.wait(["q"], 60_000))
    while not clock.sleepers:
        await asyncio.wait({waiting}, timeout=0.005)
    return waiting


async def test_a_path_too_long_for_a_socket_address_wakes_too(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    clock = FakeClock()
    waiter, putter = await opened(folder / "redrive.db", clock=clock), await opened(folder / "redrive.db", clock=clock)
    waiting = await waits(waiter, clock)
    await putter.put([new("one")])
    async with asyncio.timeout(10):
        await waiting


async def test_without_sockets_a_waiter_looks_by_itself(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    clock = FakeClock()
    waiter, putter = await opened(clock=clock), await opened(clock=clock)
    assert not Path(f"{path}-wake").exists()
    waiting = await waits(waiter, clock)
    await putter.put([new("one")])
    clock.advance(1_000)
    async with asyncio.timeout(10):
        await waiting


async def test_sockets_of_the_dead_are_removed(opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened()
    folder = Path(f"{path}-wake")
    monkeypatch.chdir(folder)  # the whole path may be too long for a socket's address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind("gone")
    assert (folder / "gone").exists()
    await store.put([new("one")])
    assert not (folder / "gone").exists()
    assert len(list(folder.iterdir())) == 1


async def test_close_takes_its_socket_along(opened: Open, path: Path) -> None:
    store, other = await opened(), await opened()
    assert len(list(Path(f"{path}-wake").iterdir())) == 2
    await other.close()
    assert len(list(Path(f"{path}-wake").iterdir())) == 1
    await store.close()
    assert sorted(found.name for found in path.parent.iterdir()) == ["redrive.db"]


async def test_a_wait_ends_when_the_store_is_closed(opened: Open) -> None:
    clock = FakeClock()
    store = await opened(clock=clock)
    waiting = await waits(store, clock)
    await store.close()
    async with asyncio.timeout(10):
        await waiting


async def test_a_wait_ends_when_the_time_of_a_suspect_comes(opened: Open) -> None:
    clock = FakeClock()
    store = await opened(clock=clock)
    await store.put([NewItem("one", "q", b"{}", delay=2_500)])
    await lane(store).submit(lambda tx: tx.change("update item set crashes = 2"))
    waiting = await waits(store, clock)
    async with asyncio.timeout(10):
        while not waiting.done():
            clock.advance(500)
            await asyncio.wait({waiting}, timeout=0.01)
    assert (await store.lease(asking())).items[0].alone
    assert (await store.get("one")).item.state is State.LEASED


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
async def test_a_file_that_is_gone_takes_nothing_more(opened: Open, path: Path, how: str) -> None:
    """No silent fallback: what is written to a file without a name would be lost."""
    store = await opened()
    await store.put([new("kept")])
    if how == "moved":
        path.rename(path.with_suffix(".old"))
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="was removed, moved or replaced"):
            await store.put([new("lost")])


async def test_a_file_that_comes_back_is_used_again(opened: Open, path: Path) -> None:
    store = await opened()
    aside = path.with_suffix(".aside")
    path.rename(aside)
    with pytest.raises(StoreUnavailable):
        await store.put([new("one")])
    aside.rename(path)
    assert (await store.put([new("one")])).added == ("one",)


@pytest.mark.parametrize("binding", ["stdlib", "apsw"])
async def test_a_log_that_is_gone_takes_nothing_more_and_loses_nothing(opened: Open, path: Path, binding: str) -> None:
    """People remove it when they read "database is locked" somewhere."""
    store = await opened(binding=binding)
    await store.put([new("before")])
    path.with_name("redrive.db-wal").unlink()
    with pytest.raises(StoreUnavailable, match=r"the log .* was removed"):
        await store.put([new("after")])
    await store.close()
    again = await opened(binding=binding)
    assert await exists(again, "before")
    assert not await exists(again, "after")
    assert (await again.check()).sound


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root makes files for others")
async def test_what_root_makes_beside_a_database_belongs_to_its_owner(opened: Open, path: Path) -> None:
    """Or the service could neither be woken nor use the room in reserve."""
    store = await opened()
    await store.close()
    os.chown(path, 65534, 65534)
    store = await opened(ballast="512KiB")
    await store.put([new(f"i-{n}", payload=os.urandom(100_000)) for n in range(30)])
    await store.put([new("one more")])
    beside = [path.with_name("redrive.db-wake"), *path.with_name("redrive.db-wake").iterdir()]
    beside.append(path.with_name("redrive.db-ballast"))
    assert {file.stat().st_uid for file in beside} == {65534}


FORBIDDEN = """
async def main():
    store = await SqliteStore(path).open()
    await store.close()
    os.chmod(path, 0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        await SqliteStore(path).open()
    except StoreUnavailable as error:
        say(type(error).__name__, error.hint)
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_file_that_may_not_be_read_is_forbidden_and_says_what_to_check(path: Path) -> None:
    (line,) = said(FORBIDDEN, path, "p")
    assert line.startswith("StoreForbidden check the permissions")


async def test_a_missing_folder_is_told_from_a_forbidden_one(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="its folder is not there") as caught:
        await SqliteStore(tmp_path / "nowhere" / "redrive.db").open()
    assert not isinstance(caught.value, StoreForbidden)
