"""The connections of a PostgreSQL store: lost, silent, too many, of another process, of another loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from redrive.core.select import EVERYTHING
from redrive.core.verbs import QueueChange
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.postgres import pool
from redrive.stores.postgres.pool import Pool
from redrive.stores.postgres.wire import Wire
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import MINE, Open, asking, finished, hastily, news, session_of, unopened
from tests.stores.postgres_kit import behind, rows, somebody_waits
from tests.support.links.conditions import BlackHole, CutReply, CutRequest, Refuse, Sliced
from tests.support.links.link import Link

PATIENCE = 30.0
"""Real seconds before a test gives up on an answer that must come."""


@pytest.fixture
def link(url: str) -> Iterator[Link]:
    with Link.to(url) as link:
        yield link


async def pids(url: str) -> set[int]:
    return {pid for (pid,) in await rows(url, f"select pid {MINE}")}


# --- answers that do not come ---


async def test_a_put_whose_answer_is_lost_may_have_happened(url: str, link: Link, opened: Open) -> None:
    store = await opened(where=link.through(url))
    await store.put(news(1, "before"))
    link.set(CutReply(b"i-00000", times=1))
    with pytest.raises(OutcomeUnknown):
        await store.put(news(1))
    assert (await store.put(news(1))).already == ("i-00000",)


async def test_a_put_that_never_arrives_may_have_happened_too(url: str, link: Link, opened: Open) -> None:
    store = await opened(where=link.through(url))
    await store.put(news(1, "before"))
    link.set(CutRequest(b"i-00000", times=1))
    with pytest.raises(OutcomeUnknown):
        await store.put(news(1))
    assert (await store.put(news(1))).added == ("i-00000",)


async def test_a_transaction_is_undone_when_it_is_lost_before_its_commit(url: str, link: Link, opened: Open) -> None:
    store = await opened(where=link.through(url))
    link.set(CutReply(b"paused", times=1))
    with pytest.raises(StoreUnavailable, match="was lost"):
        await store.configure("q", QueueChange(paused=True))
    assert (await store.tally()).queues == ()


async def test_a_transaction_whose_commit_is_not_answered_may_have_happened(url: str, link: Link, opened: Open) -> None:
    store = await opened(where=link.through(url))
    link.set(CutReply(b"commit", times=1))
    with pytest.raises(OutcomeUnknown):
        await store.configure("q", QueueChange(paused=True))
    assert (await store.tally()).queues[0].paused


async def test_silence_ends_at_the_deadline(url: str, link: Link, opened: Open) -> None:
    # Without notifications, which would have the connection while the put makes another.
    store = await opened("&notify=off", where=link.through(url))
    await store.put(news(1, "before"))
    link.set(BlackHole())
    # The system's own limits are minutes.
    async with asyncio.timeout(PATIENCE):
        with hastily(await session_of(store)), pytest.raises(OutcomeUnknown):
            await store.put(news(1))
        with hastily(await session_of(store)), pytest.raises(StoreUnavailable):
            await store.tally()
    before = await pids(url)
    link.heal()
    # What was sent into the silence arrives late; the repeat changes nothing.
    result = await store.put(news(1))
    assert {*result.added, *result.already} == {"i-00000"}
    assert (await store.tally()).queues[0].ready == 2
    assert before.isdisjoint({(await (await session_of(store)).read("select pg_backend_pid()"))[0][0]})


async def test_answers_in_pieces_are_whole(url: str, link: Link, opened: Open) -> None:
    link.set(Sliced(7))
    store = await opened(where=link.through(url))
    await store.put(news(60))
    items = (await store.lease(asking(60))).items
    assert len(items) == 60
    assert len((await store.settle(finished(items))).answers) == 60


async def test_a_server_that_refuses_is_asked_again_only_by_callers(url: str, link: Link, opened: Open) -> None:
    """No task of the store's own may keep trying: the engine has its own pauses."""
    store = await opened(where=link.through(url))
    link.set(Refuse())
    link.reset()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="no connection"):
            await store.tally()
    link.heal()
    assert (await store.tally()).queues == ()


async def test_all_old_connections_go_with_the_first_that_is_lost(url: str, link: Link, opened: Open) -> None:
    """After a restart every one of them would fail in its turn."""
    store = await opened(where=link.through(url))
    await asyncio.gather(*(store.find(EVERYTHING) for _ in range(6)))
    before = await pids(url)
    assert len(before) > 1
    session = await session_of(store)
    mark = "select 'the one that is cut'"
    link.set(CutReply(mark.encode(), times=1))
    with pytest.raises(StoreUnavailable):
        await session.read(mark)
    ((now,),) = await session.read("select pg_backend_pid()")
    assert now not in before


@pytest.mark.parametrize("code", ["25006", "0A000"])
async def test_a_connection_that_is_out_of_date_is_replaced(opened: Open, code: str) -> None:
    """Its server became a replica of another, or its plans are those of a schema that was changed since."""
    session = await session_of(await opened("&notify=off"))
    ((before,),) = await session.read("select pg_backend_pid()")
    with pytest.raises(StoreUnavailable, match=code):
        await session.call(f"do $$ begin raise exception sqlstate '{code}'; end $$")
    ((after,),) = await session.read("select pg_backend_pid()")
    assert before != after


# --- the pool ---


async def test_more_callers_than_connections_take_turns(url: str, opened: Open) -> None:
    # A server process may outlive its client, as one of the test before on the same schema.
    before = set(await pids(url))
    store = await opened("&pool=2")
    await asyncio.gather(*(store.find(EVERYTHING) for _ in range(30)))
    assert 1 <= len(set(await pids(url)) - before) <= 2


async def test_a_pool_that_is_used_up_says_so(url: str, opened: Open) -> None:
    store = await opened("&pool=1")
    session = await session_of(store)
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table counter in access exclusive mode")
        # It waits for the lock with the only connection there is.
        first = asyncio.ensure_future(store.tally())
        await somebody_waits(url, connection)
        with hastily(session), pytest.raises(StoreUnavailable, match=r"all 1 connections .* were in use") as caught:
            await store.tally()
        assert "raise `pool`" in caught.value.hint
        await connection.execute(b"rollback")
        await first


class _Wire:
    """As far as the pool looks at one."""

    generation = 0
    idle_since = 0.0
    closed = False
    pid = os.getpid()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[_Wire]:
    """Connections that a pool has made and not yet finished."""
    monkeypatch.setattr(pool, "_has_ended", lambda _: False)
    made: list[_Wire] = []
    monkeypatch.setattr(pool, "finish", made.remove)
    return made


def pool_of(made: list[_Wire], size: int) -> Pool:
    async def connect() -> _Wire:
        await asyncio.sleep(0)  # noqa: TID251 - a turn, as any connecting takes
        made.append(_Wire())
        return made[-1]

    return Pool(connect, size)  # type: ignore[arg-type]  # as far as it looks


async def test_who_waits_is_served_in_turn(counted: list[_Wire]) -> None:
    connections = pool_of(counted, 1)
    first = await connections.take()
    order: list[int] = []

    async def take(number: int) -> None:
        wire = await connections.take()
        order.append(number)
        connections.give(wire)

    tasks = [asyncio.ensure_future(take(number)) for number in range(5)]
    await asyncio.sleep(0)  # noqa: TID251 - they queue up
    tasks[2].cancel()
    connections.give(first)
    await asyncio.wait(tasks)
    assert order == [0, 1, 3, 4]
    assert len(counted) == 1


async def test_a_turn_that_comes_to_somebody_who_leaves_goes_on(counted: list[_Wire]) -> None:
    connections = pool_of(counted, 1)
    first = await connections.take()
    leaving, staying = asyncio.ensure_future(connections.take()), asyncio.ensure_future(connections.take())
    await asyncio.sleep(0)  # noqa: TID251 - they queue up
    connections.give(first)
    leaving.cancel()
    async with asyncio.timeout(5):
        connections.give(await staying)
    assert leaving.cancelled()


async def test_a_place_is_free_again_when_connecting_fails(counted: list[_Wire]) -> None:
    connections = pool_of(counted, 1)
    working = connections._connect  # noqa: SLF001 - to be broken for a while

    async def broken() -> Wire:
        raise StoreUnavailable("no connection")

    connections._connect = broken  # noqa: SLF001 - as above
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await connections.take()
    connections._connect = working  # noqa: SLF001 - as above
    connections.give(await connections.take())
    assert len(counted) == 1


async def test_the_last_one_used_is_used_first(counted: list[_Wire]) -> None:
    """So that those which are not needed grow old."""
    connections = pool_of(counted, 3)
    wires = [await connections.take() for _ in range(3)]
    for wire in wires:
        connections.give(wire)
    assert await connections.take() is wires[2]


async def test_a_doubt_spares_who_is_at_work_but_not_for_long(counted: list[_Wire]) -> None:
    connections = pool_of(counted, 3)
    lost, working, idle = [await connections.take() for _ in range(3)]
    connections.give(idle)
    connections.drop(lost)
    assert [*map(id, counted)] == [id(working)]
    connections.give(working)
    assert not counted
    assert await connections.take() not in (lost, working, idle)


async def test_one_that_rested_long_is_asked_first(counted: list[_Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def answers(wire: object) -> bool:
        asked.append(wire)
        return len(asked) == 1

    monkeypatch.setattr(pool, "_answers", answers)
    connections = pool_of(counted, 1)
    wire = await connections.take()
    connections.give(wire)
    assert await connections.take() is wire
    assert asked == []
    connections.give(wire)
    wire.idle_since -= pool.OLD
    assert await connections.take() is wire
    connections.give(wire)
    wire.idle_since -= pool.OLD
    fresh = await connections.take()
    assert fresh is not wire
    assert asked == [wire, wire]


# --- processes and loops ---


def test_a_store_goes_on_in_another_loop(url: str) -> None:
    store = unopened(url)

    async def put(prefix: str) -> int:
        await store.open()
        await store.put(news(1, prefix))
        return (await store.tally()).queues[0].ready

    assert [asyncio.run(put(f"run{number}")) for number in range(3)] == [1, 2, 3]
    asyncio.run(store.close())


async def test_two_loops_use_a_store_at_once(url: str, opened: Open) -> None:
    store = await opened()

    def elsewhere(number: int) -> None:
        asyncio.run(_put_often(number))

    async def _put_often(number: int) -> None:
        for turn in range(5):
            await store.put(news(3, f"{number}-{turn}"))

    await asyncio.gather(_put_often(9), *(asyncio.to_thread(elsewhere, number) for number in range(2)))
    assert (await store.tally()).queues[0].ready == 45


@pytest.mark.slow
async def test_a_child_leaves_the_connections_of_its_parent_alone(url: str, opened: Open) -> None:
    """A goodbye from the child would end the parent's session; one socket for two would mix their answers."""
    store = await opened()
    await store.put(news(5))
    before = await pids(url)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        code = 1
        try:
            asyncio.set_event_loop(None)
            asyncio._set_running_loop(None)  # noqa: SLF001 - the copy of the parent's loop must not be taken for one
            loop = asyncio.new_event_loop()
            loop.run_until_complete(store.put(news(5, "child")))
            loop.run_until_complete(store.close())
            code = 0
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await store.tally()).queues[0].ready == 10
    # The server process of the child's own connection may outlive the child.
    assert before <= await pids(url)


async def test_close_waits_for_what_is_under_way(url: str, opened: Open) -> None:
    store = await opened()
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table course in access exclusive mode")
        putting = asyncio.ensure_future(store.put(news(1)))
        await somebody_waits(url, connection)
        closing = asyncio.ensure_future(store.close())
        await somebody_waits(url, connection)
        assert not closing.done()
        with pytest.raises(StoreUnavailable):
            await store.put(news(1, "late"))
        await connection.execute(b"rollback")
    await closing
    assert (await putting).added == ("i-00000",)
