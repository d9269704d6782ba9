"""R28: SQLite used wrongly: by many processes, across forks, through two libraries, over a network, in a risky version.

Whoever could lose something by it is refused or kept apart; nobody who waits for a lock hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.errors import BindingConflict, UnsafeFileSystem
from redrive.stores.sqlite import SqliteStore, checkpoint, ground
from redrive.stores.sqlite import forks as process_forks
from redrive.stores.sqlite.binding import SAFE_SINCE, STDLIB, Connection, Stdlib, is_risky
from redrive.stores.url import store_from_url
from tests.stores.sqlite_kit import lane, new

# A real fork would take pytest along: what follows does what the process does before and after one.


async def test_r28_a_fork_does_not_wait_for_who_waits_for_it(tmp_path: Path) -> None:
    """A second fork finds the writer about to open its connection again, which waits until nobody forks."""
    store = await SqliteStore(tmp_path / "redrive.db").open()
    state = process_forks._forks  # noqa: SLF001 - as said above
    begun, asked, ready, over = (threading.Event() for _ in range(4))

    def fork_twice() -> None:
        state.before()
        state.after_in_parent()
        with state.gate:
            begun.set()
            asked.wait(20)
            state.before()
            ready.set()
            over.wait(20)
            state.after_in_parent()

    forking = threading.Thread(target=fork_twice, daemon=True)
    forking.start()
    assert await asyncio.to_thread(begun.wait, 20)
    putting = asyncio.ensure_future(store.put([new("one")]))
    await asyncio.wait({putting}, timeout=0.01)
    while not lane(store)._queue.empty():  # noqa: SLF001 - until the writer has taken it
        await asyncio.wait({putting}, timeout=0.01)
    asked.set()
    assert await asyncio.to_thread(ready.wait, 20), "the fork hangs"
    assert not putting.done()
    over.set()
    assert (await putting).added == ("one",)
    await store.close()
    await asyncio.to_thread(forking.join, 20)


async def test_r28_a_fork_waits_for_a_store_that_is_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore(tmp_path / "redrive.db").open()
    state = process_forks._forks  # noqa: SLF001 - as said above
    writer, closing, go = lane(store), threading.Event(), threading.Event()
    close, order = writer._close, list[str]()  # noqa: SLF001 - the moment at which it matters

    def slowly(connection: Connection | None) -> None:
        closing.set()
        go.wait(20)
        close(connection)
        order.append("closed")

    def fork() -> None:
        state.before()
        order.append("forked")
        state.after_in_parent()

    monkeypatch.setattr(writer, "_close", slowly)
    leaving = asyncio.ensure_future(store.close())
    assert await asyncio.to_thread(closing.wait, 20)
    forking = threading.Thread(target=fork, daemon=True)
    forking.start()
    while not order and writer._queue.empty():  # noqa: SLF001 - until the fork has asked the writer, or has not
        await asyncio.wait({leaving}, timeout=0.01)
    go.set()
    await leaving
    await asyncio.to_thread(forking.join, 20)
    assert order == ["closed", "forked"]


# --- one library for each file and process ---


@pytest.mark.parametrize("first", ["stdlib", "apsw"])
@pytest.mark.parametrize("name", ["itself", "link", "folder link", "relative"])
async def test_r28_a_second_library_on_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, name: str
) -> None:
    second = "apsw" if first == "stdlib" else "stdlib"
    place = tmp_path / "place"
    place.mkdir()
    path = place / "redrive.db"
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(place)
    monkeypatch.chdir(tmp_path)
    other = {
        "itself": str(path),
        "link": str(tmp_path / "link.db"),
        "folder link": str(tmp_path / "folder" / "redrive.db"),
        "relative": "place/../place/redrive.db",
    }[name]
    store = await SqliteStore(path, binding=first).open()  # type: ignore[arg-type]
    await store.put([NewItem("one", "q", b"{}")])
    with pytest.raises(BindingConflict) as caught:
        await store_from_url(f"sqlite:///{other}?binding={second}").open()
    for part in (str(path), first, second):
        assert part in str(caught.value)
    # The same one is welcome, and so is whoever does not mind which.
    for wanted in (first, "auto"):
        again = await SqliteStore(other, binding=wanted).open()  # type: ignore[arg-type]
        assert again.info().library.endswith(f"({first})")
        await again.put([NewItem(wanted, "q", b"{}")])
        await again.close()
    await store.close()
    after = await SqliteStore(other, binding=second).open()  # type: ignore[arg-type]
    assert (await after.tally()).queues[0].ready == 3
    await after.close()


# --- where it lies ---


async def test_r28_a_network_file_system_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel's list of mounts is faked; that it is read rightly is tested in tests/stores/test_ground.py."""
    place = tmp_path / "place"
    place.mkdir()
    device = place.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 {os.major(device)}:{os.minor(device)} / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(ground, "MOUNTS", str(mounts))
    ground._warn_allowed.cache_clear()  # noqa: SLF001 - as in a new process
    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        await SqliteStore(place / "redrive.db").open()
    assert list(place.iterdir()) == []
    store = await SqliteStore(place / "redrive.db", network="allow").open()
    await store.put([NewItem("one", "q", b"{}")])
    await store.close()
    assert [record.levelno for record in caplog.records if "nfs4" in record.getMessage()] == [logging.WARNING]


# --- a version with the bug ---


class Watched:
    """Whether somebody else could have written at the moments at which the log was moved."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writable: list[bool] = []
        move = checkpoint.Checkpoints._move  # noqa: SLF001 - the moment at which it matters

        def watched(checkpoints: checkpoint.Checkpoints) -> bool:
            self.writable.append(_can_write(path))
            return move(checkpoints)

        monkeypatch.setattr(checkpoint.Checkpoints, "_move", watched)
        monkeypatch.setattr(checkpoint, "LOOK", 1)
        monkeypatch.setattr(checkpoint, "AFTER", 1)


def _can_write(path: Path) -> bool:
    """Asked through the same library: in this process there must be no other one."""
    other = STDLIB.connect(str(path), 0)
    try:
        other.execute("begin immediate")
        other.execute("rollback")
    except STDLIB.errors:
        return False
    finally:
        other.close()
    return True


@pytest.mark.parametrize(("version", "risky"), [("3.51.2", True), ("3.40.1", True), ("3.51.3", False), ("4.0", False)])
async def test_r28_a_risky_version_moves_the_log_only_while_nobody_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, risky: bool
) -> None:
    monkeypatch.setattr(Stdlib, "version", property(lambda self: version))
    checkpoint._warn.cache_clear()  # noqa: SLF001 - as in a new process
    assert is_risky(STDLIB) is risky
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    for path in paths:
        watched = Watched(path, monkeypatch)
        store = await SqliteStore(path, binding="stdlib").open()
        for number in range(5):
            await store.put([NewItem(f"i-{number}", "q", b"x" * 5_000)])
        await store.close()
        assert len(watched.writable) >= 5
        # A safe version does most of it beside the writers, and only the last part under the lock.
        assert any(watched.writable) is not risky
        monkeypatch.setattr(checkpoint.Checkpoints, "_move", checkpoint.Checkpoints._move)  # noqa: SLF001
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (1 if risky else 0)
    assert all(version in text and 'pip install "redrive[sqlite]"' in text for text in warnings)


def test_r28_safe_is_what_sqlite_says_is_safe() -> None:
    assert SAFE_SINCE == (3, 51, 3)
