"""The bench seeds by plain SQL what would take the verbs hours: it must be what the verbs would have written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import seed
from redrive.core import codec
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Attempt, Ending, Failure, NewItem
from redrive.core.verbs import LeaseRequest, QueueChange, Settlement, Want
from redrive.stores.sqlite import SqliteStore
from redrive.testing import FakeClock

OTHERWISE = {"redrive_migration", "nonce"}
"""When the schema was made, and what a worker was given last: no part of what happened to the items."""
STORY = """
select i.id, i.queue, i.enqueued_at, i.due_at, i.leased_at, l.died_at, l.failure, p.body
from item i join payload p using (seq) left join letter l using (seq) order by i.seq
"""

Rows = list[tuple[Any, ...]]


def tables(path: Path) -> dict[str, Rows]:
    """Everything in a database."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
        return {name: sorted(db.execute(f"select * from {name}")) for name in names if name not in OTHERWISE}


def live(seeded: Path, path: Path, paused: str | None = None) -> None:
    """Let the verbs do, at the same instants, what the seeded rows say was done."""
    with closing(sqlite3.connect(seeded)) as db:
        rows = db.execute(STORY).fetchall()
    asyncio.run(_live(rows, path, paused))


async def _live(rows: Rows, path: Path, paused: str | None) -> None:
    clock = FakeClock(min(row[2] for row in rows))
    store = await SqliteStore(path, clock=clock, durability="process-crash").open()
    for at, row, dies in sorted(_events(rows), key=lambda event: event[0]):
        clock.advance(at - clock.now())
        await (_die(store, row) if dies else _put(store, row))
    if paused is not None:
        await store.configure(paused, QueueChange(paused=True))
    await store.close()


def _events(rows: Rows) -> Iterator[tuple[int, tuple[Any, ...], bool]]:
    for row in rows:
        yield row[2], row, False
        if row[5] is not None:
            yield row[5], row, True


async def _put(store: SqliteStore, row: tuple[Any, ...]) -> None:
    """And lease, if it was: right away, so that nothing else is due."""
    item_id, queue, put_at, due_at, leased_at, _, _, body = row
    await store.put([NewItem(item_id, queue, body, due_at - put_at)])
    if leased_at is not None:
        leases = await store.lease(LeaseRequest(seed.WORKER, (Want(queue, 1, 3 * seed.DAY, 3),), item_id))
        assert [item.id for item in leases.items] == [item_id]


async def _die(store: SqliteStore, row: tuple[Any, ...]) -> None:
    item_id, _, _, _, leased_at, died_at, failure, _ = row
    why = codec.decode(failure, Failure)
    attempt = Attempt(1, 1, seed.WORKER, leased_at, died_at - leased_at, Ending.FAILED, why)
    await store.settle([Settlement(item_id, 1, ToDead(seed.REASON, Charge.ERROR, why), attempt)])


def assert_same(seeded: Path, lived: Path) -> None:
    ours, theirs = tables(seeded), tables(lived)
    assert ours.keys() == theirs.keys()
    for name, rows in theirs.items():
        assert ours[name] == rows, name


def test_seeded_letters_are_what_the_verbs_would_leave(tmp_path: Path) -> None:
    seeded = seed.letters(tmp_path / "seeded.db", 150)
    live(seeded, tmp_path / "lived.db")
    assert_same(seeded, tmp_path / "lived.db")


def test_seeded_items_wait_as_if_they_had_been_put(tmp_path: Path) -> None:
    seeded = seed.waiting(tmp_path / "seeded.db", 40, delayed=30, paused=20)
    live(seeded, tmp_path / "lived.db", seed.PAUSED)
    assert_same(seeded, tmp_path / "lived.db")


def test_seeded_letters_are_of_many_causes_some_common_and_some_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed, "LOTS", 2_000)
    seeded = seed.letters(tmp_path / "seeded.db", 2_000)
    counts = sorted(n for _, _, n in tables(seeded)["cause"])
    assert counts[-1] > 200
    assert counts[0] == 1
    assert len(counts) > seed.CAUSES // 2
