"""Databases with a million rows in half a minute: what the verbs would have written, written by plain SQL.

tests/bench/test_seed.py lets the verbs do to each item what its rows tell, and compares every table.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.harness import PAYLOAD, QUEUE, remove
from redrive.core import codec
from redrive.core.classify import fingerprint
from redrive.core.item import Attempt, Ending, Failure, Frame, Instant, Millis
from redrive.stores.sqlite import SqliteStore

DAY: Millis = 24 * 60 * 60 * 1000
SPAN: Millis = 30 * DAY
"""The letters died within so long."""
WORKER = "host-1-seeder"
REASON = "max_attempts"
PAUSED = "held-back"
QUEUES = ("emails", "invoices", "webhooks", "exports", "thumbnails", "search", "billing", "sync", "reports", "push")
CAUSES = 200
ERRORS = (
    ("ConnectionError", "network"),
    ("TimeoutError", "timeout"),
    ("requests.exceptions.HTTPError", "server"),
    ("requests.exceptions.ReadTimeout", "timeout"),
    ("botocore.exceptions.ClientError", "throttled"),
    ("psycopg.errors.SerializationFailure", "conflict"),
    ("shop.errors.PaymentDeclined", "rejected"),
    ("shop.errors.UnknownCustomer", "data"),
    ("KeyError", "data"),
    ("ValueError", "data"),
    ("PermissionError", "auth"),
    ("redrive.errors.HandlerTimeout", "timeout"),
)
LOTS = 50_000
OFTEN = 200
"""Letters draw their kind from so many lots; kinds after the first so many have one lot each."""

_STORIES = """
create temp table story (seq integer primary key, id text, at integer, n integer);
create temp table kind (number integer primary key, queue text, cause text, error text, error_short text,
                        category text, rule text, failure blob, head text, middle text, tail text);
create temp table lot (number integer primary key, kind integer);
"""
# Ids as ours look: 24 random characters of a-z and 2-7.
_TELL = """
insert into story
with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < :count)
select :last + n + 1,
       replace(replace(replace(replace(lower(hex(randomblob(12))), '0', 'g'), '1', 'h'), '8', 'i'), '9', 'j'),
       :since + n * :span / :count, n
from n
"""
_PAYLOADS = "insert into payload (seq, crc, body) select seq, ?, ? from story"
_WAIT = """
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at)
select seq, id, :queue, 'ready', at, at + case when :delay then :delay + n else 0 end, at from story
"""
# How long an item ran and which kind its failure was look random, yet are the same in every run.
_DIE = """
create temp view death as
select seq, id, at, s.n * 7919 % :day as ran, k.*
from story s
join lot l on l.number = s.n * 40503 % (select count(*) from lot)
join kind k on k.number = l.kind
"""
_DEAD_ITEMS = """
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at, deliveries, attempt, errors, worker,
                  leased_at, ended_at)
select seq, id, queue, 'dead', at, at, at, 1, 1, 1, ?, at, at + ran from death
"""
_LETTERS = """
insert into letter (seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure)
select seq, queue, ?, at + ran, 'open', cause, error, error_short, category, rule, failure from death
"""
_ATTEMPTS = """
insert into attempt (seq, delivery, body)
select seq, 1, cast(head || at || middle || ran || tail as blob) from death
"""
_COUNT = (
    """
    insert into queue (name, ready, open)
    select queue, sum(state = 'ready'), sum(state = 'dead') from item group by queue
    """,
    "insert into cause (cause, queue, n) select cause, queue, count(*) from letter group by cause, queue",
    "update sequence set n = (select max(seq) from item) where name = 'item'",
)


def waiting(path: Path, ready: int, *, delayed: int = 0, paused: int = 0) -> Path:
    """A new database with items that are due, due within the days to come, or in a paused queue."""
    now = _now()
    with _planting(path) as db:
        _wait(db, ready, QUEUE, now - 3 * DAY)
        _wait(db, delayed, QUEUE, now - 2 * DAY, delay=3 * DAY)
        _wait(db, paused, PAUSED, now - DAY)
        _count(db)
        db.execute("update queue set paused = 1 where name = ?", (PAUSED,))
    return path


def letters(path: Path, count: int) -> Path:
    """A new database with open letters of many causes, a few of which are most of them, over the last month."""
    with _planting(path) as db:
        _tell(db, count, _now() - SPAN - DAY, SPAN)
        known = kinds()
        db.executemany(
            "insert into kind values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(number, *_columns(queue, failure)) for number, (queue, failure) in enumerate(known)],
        )
        weights = [1 / (rank + 1) for rank in range(len(known))]
        often = random.Random(1).choices(range(OFTEN), weights[:OFTEN], k=LOTS - len(known) + OFTEN)
        lots = [*often, *range(OFTEN, len(known))]
        db.executemany("insert into lot values (?, ?)", list(enumerate(lots)))
        db.execute(_DIE.replace(":day", str(DAY)))
        db.execute(_DEAD_ITEMS, (WORKER,))
        db.execute(_LETTERS, (REASON,))
        db.execute(_ATTEMPTS)
        _count(db)
    return path


def kinds() -> list[tuple[str, Failure]]:
    """Each cause with its queue. A fifth of the causes is met in two queues, and a tenth in the bench's own."""
    found = []
    for number in range(CAUSES):
        failure = _failure(number)
        found.append((QUEUE if number % 10 == 3 else QUEUES[number % len(QUEUES)], failure))
        if number % 5 == 0:
            found.append((QUEUES[(number + 3) % len(QUEUES)], failure))
    return found


def _failure(number: int) -> Failure:
    kind, category = ERRORS[number % len(ERRORS)]
    name = chr(97 + number // 26) + chr(97 + number % 26)
    frames = tuple(
        Frame(f"/srv/shop/lib/shop/{place}/{name}.py", 10 + number, f"{place}_{name}")
        for place in ("handlers", "services", "clients")
    )
    text = f"the {name} service answered 503 to request 7f3a-{number}: try again later"
    cause = fingerprint(kind, text, frames)
    return Failure(kind, text, category, f"builtin:{category}", cause, frames=frames)


def _columns(queue: str, failure: Failure) -> tuple[object, ...]:
    """A row of `kind`; its last three are the attempt around the two numbers that differ from letter to letter."""
    at, ran = 111_222_333, 444_555_666
    attempt = codec.encode(Attempt(1, 1, WORKER, at, ran, Ending.FAILED, failure)).decode()
    head, rest = attempt.split(str(at))
    short = failure.type.rpartition(".")[2]
    names = (failure.cause, failure.type, short, failure.category, failure.rule)
    return (queue, *names, codec.encode(failure), head, *rest.split(str(ran)))


@contextmanager
def _planting(path: Path) -> Iterator[sqlite3.Connection]:
    """A new database of the store's making, for one transaction; wholly on the disk afterwards."""
    asyncio.run(_create(remove(path)))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # If it breaks, it is thrown away; so nothing is kept for a rollback.
        for pragma in ("journal_mode = off", "synchronous = off", "cache_size = -1000000", "temp_store = memory"):
            db.execute(f"pragma {pragma}").fetchone()
        db.executescript(_STORIES)
        db.execute("begin immediate")
        yield db
        db.execute("commit")
        db.execute("pragma journal_mode = wal").fetchone()
    with path.open("rb") as file:
        os.fsync(file.fileno())


async def _create(path: Path) -> None:
    store = await SqliteStore(path).open()
    await store.close()


def _tell(db: sqlite3.Connection, count: int, since: Instant, span: Millis) -> None:
    """So many items were put one after the other within `span`."""
    (last,) = db.execute("select ifnull(max(seq), 0) from item").fetchone()
    db.execute("delete from story")
    db.execute(_TELL, {"count": count, "last": last, "since": since, "span": span})
    body = codec.encode(PAYLOAD)
    db.execute(_PAYLOADS, (zlib.crc32(body), body))


def _wait(db: sqlite3.Connection, count: int, queue: str, since: Instant, *, delay: Millis = 0) -> None:
    if count:
        _tell(db, count, since, DAY)
        db.execute(_WAIT, {"queue": queue, "delay": delay})


def _count(db: sqlite3.Connection) -> None:
    for statement in _COUNT:
        db.execute(statement)


def _now() -> Instant:
    return time.time_ns() // 1_000_000
