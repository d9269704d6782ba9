"""R22 backlog. Waiting items do not slow down a lease; on PostgreSQL neither does an old snapshot."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import sql

from proofs.conftest import SHARED
from redrive.core.item import NewItem
from redrive.core.verbs import QueueChange
from redrive.stores.base import Store
from redrive.stores.postgres.lease import Floors
from redrive.stores.statements import load
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import asking, finished
from tests.support.folders import quick_folder
from tests.support.rig.effort import Effort, measured, still_believe_empty
from tests.support.rig.size import PINNED, WAITING, proof_size

SIZE = f"{WAITING[proof_size()]:,} waiting, {PINNED[proof_size()]:,} under a snapshot"

ROUNDS = 60
MOST = 2.0
"""Times the effort with next to nothing waiting. It is 3 for the time a lease takes; counters are more exact."""
AT_ONCE = 10
HOUR = 3_600_000

numbers = itertools.count(1)


def place_of(url: str) -> tuple[str, str]:
    """The address of a PostgreSQL server, and the schema."""
    parts = urlsplit(url)
    (schema,) = parse_qs(parts.query)["schema"]
    return parts._replace(query="").geturl(), schema


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await store_from_url(url).open()
    try:
        yield store
    finally:
        await store.close()


async def put(store: Store, queue: str, count: int, delay: int = 0) -> None:
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await store.put([NewItem(f"{queue}-{next(numbers)}", queue, b"{}", delay) for _ in range(size)])


async def effort_of(url: str, effort: Effort, rounds: int, limit: int) -> int:
    """Of leasing and settling, without that of opening."""
    marks = [effort()]
    async with opened(url):
        pass
    marks.append(effort())
    async with opened(url) as store:
        for _ in range(rounds):
            leases = await store.lease(asking(limit, queue="q"))
            assert len(leases.items) == limit
            await store.settle([finished(item) for item in leases.items])
    marks.append(effort())
    opening, all_of_it = (after - before for before, after in itertools.pairwise(marks))
    return all_of_it - opening


async def ratio_with_so_many_waiting(url: str, effort: Effort, count: int) -> float:
    """The effort as a multiple of that with nothing else there. Most are not due, or in a queue that is paused."""
    async with opened(url) as store:
        await put(store, "q", ROUNDS)
    alone = await effort_of(url, effort, ROUNDS, 1)
    async with opened(url) as store:
        await store.configure("paused", QueueChange(paused=True, by="r22", reason="to wait"))
        await put(store, "q", ROUNDS + count // 10)
        await put(store, "q", count // 2, delay=HOUR)
        await put(store, "paused", count * 4 // 10)
    crowded = await effort_of(url, effort, ROUNDS, 1)
    print(f"{alone / ROUNDS:.1f} alone, {crowded / ROUNDS:.1f} with {count} waiting")  # noqa: T201 - shown by -s
    assert alone > ROUNDS, "nothing was counted: this proves nothing"
    return crowded / alone


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SHARED)
async def test_r22_a_lease_does_not_look_at_what_waits(tmp_path: Path, kind: str) -> None:
    with quick_folder(tmp_path) as folder, measured(kind, folder) as (url, effort):
        assert await ratio_with_so_many_waiting(url, effort, WAITING[proof_size()]) <= MOST


@pytest.mark.timeout(180)
async def test_r22_a_lease_whose_plan_is_left_to_the_statistics_would_be_seen_to_cost(tmp_path: Path) -> None:
    """The proof that on PostgreSQL this measure begins with bad ones, and measures what they do."""
    with measured("postgres", tmp_path) as (url, effort):
        address, schema = place_of(url)
        text = load("postgres", "lease")["function"].replace("{schema}", f'"{schema}"')
        assert "any (array[p.seq])" in text
        text = text.replace("any (array[p.seq])", "p.seq")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(text.encode())
        ratio = await ratio_with_so_many_waiting(url, effort, 3_000)
        still_believe_empty(address, schema)
        assert ratio > MOST


# -- PostgreSQL with an old snapshot ---------------------------------------------------------------------------------


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """Somebody's report, backup or forgotten transaction: nothing that is replaced meanwhile can be cleared away."""
    address, schema = place_of(url)
    with psycopg.connect(address) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(sql.SQL("select count(*) from {}.item").format(sql.Identifier(schema)))
        yield


async def ratio_with_a_snapshot(folder: Path, items: int) -> float:
    """The effort to drain so many while somebody has an old snapshot, as a multiple of that without."""
    efforts = []
    for pinned in (False, True):
        with measured("postgres", folder) as (url, effort):
            async with opened(url) as store:
                await put(store, "q", items)
            if pinned:
                with old_snapshot(url):
                    efforts.append(await effort_of(url, effort, items // AT_ONCE, AT_ONCE))
            else:
                efforts.append(await effort_of(url, effort, items // AT_ONCE, AT_ONCE))
    plain, pinned_too = efforts
    print(f"{plain / items:.1f} an item, {pinned_too / items:.1f} with an old snapshot")  # noqa: T201 - by -s
    assert plain > items, "nothing was counted: this proves nothing"
    return pinned_too / plain


@pytest.mark.timeout(900)
async def test_r22_an_old_snapshot_costs_little(tmp_path: Path) -> None:
    assert await ratio_with_a_snapshot(tmp_path, PINNED[proof_size()]) <= MOST


@pytest.mark.timeout(90)
async def test_r22_without_a_floor_an_old_snapshot_would_be_seen_to_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that this measure measures it."""
    monkeypatch.setattr(Floors, "KEEP", 0.0)
    monkeypatch.setattr(Floors, "SHARE", 0)
    assert await ratio_with_a_snapshot(tmp_path, 2_000) > MOST
