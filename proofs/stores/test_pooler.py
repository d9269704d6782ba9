"""Workers behind PgBouncer in transaction mode lose nothing when it comes and goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from redrive import Redrive
from redrive.errors import OutcomeUnknown, StoreUnavailable
from tests.stores.test_postgres_pooler import direct, pooler
from tests.support.servers import shared
from tests.support.servers.absent import absent
from tests.support.servers.pooler import PREPARING, Pooler, private_pooler, version

__all__ = ["direct", "pooler"]

Work = Counter[int]


@asynccontextmanager
async def workers(count: int, url: str, done: Work) -> AsyncIterator[Redrive]:
    """So many at once; the app given has none of its own."""

    def app() -> Redrive:
        made = Redrive(url, log=False)

        @made.handler("numbers")
        async def handle(number: int) -> None:
            done[number] += 1

        return made

    async with AsyncExitStack() as stack:
        client, *apps = [await stack.enter_async_context(app()) for _ in range(1 + count)]
        running = [asyncio.create_task(each.run()) for each in apps]
        yield client
        for each in apps:
            await each.stop()
        await asyncio.gather(*running)


async def drained(app: Redrive, count: int) -> None:
    """Until so many are done, and none is on its way."""
    async with asyncio.timeout(40):
        while True:
            rows = (await app.tally()).queues
            if sum(row.done for row in rows) >= count and not any(row.ready or row.leased for row in rows):
                return
            await asyncio.sleep(0.05)  # noqa: TID251 - workers at a real server need real time


async def enqueued(app: Redrive, number: int) -> bool:
    """Whether it was accepted; one whose fate is not known is asked for again, under the same id."""
    for _ in range(200):
        try:
            await app.enqueue("numbers", {"number": number}, id=f"n-{number}")
        except (StoreUnavailable, OutcomeUnknown):
            await asyncio.sleep(0.02)  # noqa: TID251 - as above
        else:
            return True
    return False


async def test_two_workers_share_the_work(pooler: Pooler, direct: str) -> None:
    done: Work = Counter()
    async with workers(2, pooler.url(direct, notify="off", poll="50ms"), done) as app:
        await app.enqueue_many("numbers", [{"number": number} for number in range(200)])
        await drained(app, 200)
    assert done == Counter(range(200))


async def test_prepared_statements_of_others_do_no_harm(direct: str) -> None:
    """With a pooler that keeps them apart. The store makes none itself."""
    if version() < PREPARING:
        raise absent("PgBouncer that knows prepared statements", "install 1.21 or newer", another_version=True)
    done: Work = Counter()
    with private_pooler(shared.postgres().url, max_prepared_statements=100) as pooler:
        async with workers(2, pooler.url(direct, notify="off", poll="50ms"), done) as app:
            await app.enqueue_many("numbers", [{"number": number} for number in range(50)])
            await drained(app, 50)
    assert done == Counter(range(50))


async def test_a_pooler_that_comes_and_goes_loses_nothing(pooler: Pooler, direct: str) -> None:
    done: Work = Counter()
    async with workers(2, pooler.url(direct, notify="off", poll="50ms", timeout="3s"), done) as app:
        accepted = []
        for number in range(120):
            if number % 40 == 20:
                # Without a word, and as for an upgrade.
                await asyncio.to_thread(pooler.kill if number < 40 else pooler.stop)
                coming_back = asyncio.create_task(asyncio.to_thread(pooler.start))
                accepted.append(await enqueued(app, number))
                await coming_back
            else:
                accepted.append(await enqueued(app, number))
        assert all(accepted)
        await drained(app, 120)
        assert sum(row.done for row in (await app.tally()).queues) == 120
    assert set(done) == set(range(120))
