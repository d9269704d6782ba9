"""On a full disk an operator can still remove things, and what was removed makes room for others."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from redrive.core.acts import Act, Cancel
from redrive.core.select import Ids, Match
from redrive.core.verbs import WorkerFacts
from redrive.errors import StoreFull, StoreUnavailable
from redrive.stores.sqlite import SqliteStore, ballast, checkpoint
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.connect import WAL_KEPT
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, asking, exists, full, lane, new

SIZE = 1024 * 1024
SHARE = SIZE // ballast.SHARES
BY = Act("ada", "the disk is full", "r-1")


@pytest.fixture
def reserve(path: Path) -> Path:
    return path.with_name("redrive.db-ballast")


# --- the writer, on a disk that is full while the ballast is larger than what an act needs ---


class Disk:
    """Commits fail until so little of the ballast is left. What they wrote is gone, as on a full disk."""

    def __init__(self, store: SqliteStore, reserve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needs = -1
        self.refused = 0
        self._reserve = reserve
        self._commit = lane(store).commit
        monkeypatch.setattr(lane(store), "commit", self._refuse)
        monkeypatch.setattr(ballast, "free", lambda path: 0)
        monkeypatch.setattr(checkpoint, "free", lambda path: 0)

    def _refuse(self, connection: Connection) -> None:
        if self.needs < 0 or self._reserve.stat().st_size <= self.needs:
            self._commit(connection)
            return
        self.refused += 1
        connection.execute("rollback")
        raise full()


@pytest.fixture
async def store(opened: Open, path: Path, reserve: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteStore:
    monkeypatch.setattr(ballast, "WORTH", 0)
    store = await opened(ballast=SIZE)
    assert reserve.stat().st_size == SIZE
    await store.put([new(f"i-{n}") for n in range(10)])
    return store


@pytest.fixture
def disk(store: SqliteStore, reserve: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(store, reserve, monkeypatch)


async def test_an_operators_acts_use_it(store: SqliteStore, disk: Disk, reserve: Path) -> None:
    disk.needs = 3 * SHARE
    assert len((await store.amend(Ids(("i-1", "i-2")), Cancel(), BY)).changed) == 2
    assert reserve.stat().st_size == 3 * SHARE
    disk.needs = SHARE
    assert len(await store.prune(Match("state", "=", "cancelled"), 10, BY)) == 2
    assert reserve.stat().st_size == SHARE


async def test_nobody_elses_work_uses_it(store: SqliteStore, disk: Disk, reserve: Path) -> None:
    disk.needs = 0
    for work in (
        store.put([new("one")]),
        store.lease(asking()),
        store.settle([], asking()),
        store.beat("w", WorkerFacts(()), 1000),
    ):
        with pytest.raises(StoreFull):
            await work
    assert reserve.stat().st_size == SIZE
    assert not await exists(store, "one")


async def test_a_refusal_says_what_can_be_done(store: SqliteStore, disk: Disk) -> None:
    disk.needs = 0
    with pytest.raises(StoreFull) as caught:
        await store.put([new("one")])
    assert "app.prune(...)" in caught.value.hint
    assert "app.letters.discard(...)" in caught.value.hint


async def test_an_act_for_which_it_is_not_enough_says_so_and_changes_nothing(
    store: SqliteStore, disk: Disk, reserve: Path
) -> None:
    disk.needs = 0
    reserve.unlink()
    reserve.write_bytes(b"x" * SHARE)
    before = disk.refused

    def too_much(connection: Connection) -> None:
        disk.refused += 1
        connection.execute("rollback")
        raise full()

    lane(store).commit = too_much  # type: ignore[method-assign]
    with pytest.raises(StoreFull, match="limit=100") as caught:
        await store.amend(Ids(("i-1",)), Cancel(), BY)
    assert "no ballast is left" in caught.value.hint
    assert disk.refused - before >= 2
    assert reserve.stat().st_size == 0
    assert (await store.get("i-1")).item.state == "ready"


async def test_an_act_beside_others_is_tried_for_itself(store: SqliteStore, disk: Disk, reserve: Path) -> None:
    """They share a commit; the reserve is for the act alone."""
    disk.needs = 3 * SHARE
    begun, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    holding = asyncio.ensure_future(lane(store).submit(lambda tx: hold(loop, begun, over)))
    await begun.wait()
    acting = asyncio.ensure_future(store.amend(Ids(("i-1",)), Cancel(), BY))
    putting = asyncio.ensure_future(store.put([new("one")]))
    await asyncio.wait({acting, putting}, timeout=0)
    over.set()
    results = await asyncio.gather(holding, acting, putting, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["StoreFull", "Amended", "StoreFull"]
    assert (await store.get("i-1")).item.state == "cancelled"
    assert not await exists(store, "one")


def hold(loop: asyncio.AbstractEventLoop, begun: asyncio.Event, over: asyncio.Event) -> None:
    loop.call_soon_threadsafe(begun.set)
    asyncio.run_coroutine_threadsafe(over.wait(), loop).result(10)


async def test_a_call_that_was_withdrawn_is_not_tried_again(store: SqliteStore, disk: Disk) -> None:
    disk.needs = 3 * SHARE
    begun, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    holding = asyncio.ensure_future(lane(store).submit(lambda tx: hold(loop, begun, over)))
    await begun.wait()
    acting = asyncio.ensure_future(store.amend(Ids(("i-1",)), Cancel(), BY))
    other = asyncio.ensure_future(store.amend(Ids(("i-2",)), Cancel(), Act("ada", "full", "r-2")))
    await asyncio.wait({acting, other}, timeout=0)
    acting.cancel()
    await asyncio.wait({acting})
    over.set()
    await asyncio.gather(holding, other, return_exceptions=True)
    assert other.result().changed == ("i-2",)
    assert (await store.get("i-1")).item.state == "ready"


async def test_a_refused_put_is_tried_again_when_the_log_can_be_written_over(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, but all that is in the log is in the database, and the log has room of its own."""
    store = await opened(ballast="off")
    commit, refused = lane(store).commit, [True]

    def once(connection: Connection) -> None:
        if refused.pop() if refused else False:
            connection.execute("rollback")
            raise full()
        commit(connection)

    monkeypatch.setattr(lane(store), "commit", once)
    assert (await store.put([new("one")])).added == ("one",)
    assert refused == []
    assert [row.ready for row in (await store.tally()).queues] == [1]


async def test_while_the_log_finds_no_room_in_the_database_puts_are_refused_without_a_try(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would use up what an act needs. Once a second one of them sees whether there is room again."""
    clock = FakeClock()
    store = await opened(clock=clock, ballast="off")
    tries: list[str] = []

    def refuse(connection: Connection) -> None:
        tries.append("commit")
        connection.execute("rollback")
        raise full()

    def move(self: checkpoint.Checkpoints) -> bool:
        tries.append("checkpoint")
        raise full()

    with monkeypatch.context() as disk:
        disk.setattr(lane(store), "commit", refuse)
        disk.setattr(checkpoint.Checkpoints, "_move", move)
        for _ in range(3):
            with pytest.raises(StoreFull, match=r"app\.prune"):
                await store.put([new("one")])
        assert tries == ["commit", "checkpoint"]
        clock.advance(1_000)
        with pytest.raises(StoreFull):
            await store.put([new("one")])
        assert tries == ["commit", "checkpoint", "checkpoint"]
        with pytest.raises(StoreFull):
            await store.lease(asking())
        assert tries[-1] == "commit", "what is not a put is tried"
    with pytest.raises(StoreFull):
        await store.put([new("one")])
    clock.advance(1_000)
    assert (await store.put([new("one")])).added == ("one",)


class FullBelow:
    """The log finds no room in the database until so little of the ballast is left."""

    def __init__(self, reserve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needs = 0
        move = checkpoint.Checkpoints._move  # noqa: SLF001 - where SQLite would fail

        def moved(checkpoints: checkpoint.Checkpoints) -> bool:
            if reserve.stat().st_size > self.needs:
                raise full()
            return move(checkpoints)

        monkeypatch.setattr(checkpoint.Checkpoints, "_move", moved)
        monkeypatch.setattr(ballast, "free", lambda path: 0)
        monkeypatch.setattr(checkpoint, "free", lambda path: 0)


async def test_what_an_act_freed_gets_into_the_database(
    store: SqliteStore, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act itself found room in the log. Others cannot use what it freed before the log is in the database."""
    below = FullBelow(reserve, monkeypatch)
    below.needs = 2 * SHARE
    assert len((await store.amend(Ids(("i-1",)), Cancel(), BY)).changed) == 1
    assert reserve.stat().st_size == 2 * SHARE


async def test_where_it_would_not_reach_it_is_kept_for_the_act(
    store: SqliteStore, disk: Disk, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullBelow(reserve, monkeypatch)
    monkeypatch.setattr(checkpoint, "size", lambda path: -SIZE)
    disk.needs = 3 * SHARE
    assert len((await store.amend(Ids(("i-1",)), Cancel(), BY)).changed) == 1
    assert reserve.stat().st_size == 3 * SHARE


async def test_on_a_nearly_full_disk_the_log_is_short(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one would be filled long after the database has found no room for what is in it."""
    log = path.with_name("redrive.db-wal")
    monkeypatch.setattr(checkpoint, "LOOK", 1)
    store = await opened(ballast="off")
    await store.put([new(f"i-{n}", payload=b"x" * 2_000) for n in range(500)])
    long = log.stat().st_size
    assert long > 1_000_000
    monkeypatch.setattr(checkpoint, "WAL_KEPT_WHEN_TIGHT", 100_000)
    monkeypatch.setattr(checkpoint, "free", lambda path: checkpoint.TIGHT - 1)
    # The first one is followed by a checkpoint, the second one writes to the beginning of the log.
    for name in ("a", "b"):
        await store.put([new(name)])
    assert log.stat().st_size == 100_000
    monkeypatch.setattr(checkpoint, "free", lambda path: checkpoint.TIGHT)
    monkeypatch.setattr(checkpoint, "AFTER", 1)
    await store.put([new("c")])
    (kept,) = await lane(store).submit(lambda tx: tx.execute("pragma journal_size_limit").fetchone())
    assert kept == WAL_KEPT


async def test_a_disk_that_fails_otherwise_costs_nothing(
    store: SqliteStore, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(connection: Connection) -> None:
        connection.execute("rollback")
        raise sqlite3.OperationalError("something else")

    monkeypatch.setattr(lane(store), "commit", broken)
    with pytest.raises(StoreUnavailable):
        await store.amend(Ids(("i-1",)), Cancel(), BY)
    assert reserve.stat().st_size == SIZE
