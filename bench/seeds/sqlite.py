"""Seeds on SQLite: plain SQL into a file of the store's making."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager

from bench.load import PAYLOAD
from bench.seeds import story
from bench.seeds.story import Wait
from redrive.core import codec
from redrive.core.item import Instant, Millis

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
_DIE = f"""
create temp view death as
select seq, id, at, s.n * {story.RAN_STEP} % {story.DAY} as ran, k.*
from story s
join lot l on l.number = s.n * {story.LOT_STEP} % (select count(*) from lot)
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
    "insert into change (seq, n) select seq, row_number() over (order by died_at, seq) from letter",
    "update sequence set n = (select count(*) from change) where name = 'change'",
)


def waiting(url: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
    with _planting(url) as db:
        for wait in story.waits(ready, delayed, paused):
            _wait(db, wait)
        _count(db)
    if paused:
        story.pause(url)
    return url


def letters(url: str, count: int) -> str:
    with _planting(url) as db:
        _tell(db, count, story.first_death(), story.SPAN)
        kinds = story.kinds()
        rows = [(number, *kind) for number, kind in enumerate(kinds)]
        db.executemany("insert into kind values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.executemany("insert into lot values (?, ?)", list(enumerate(story.lots(len(kinds)))))
        db.execute(_DIE)
        db.execute(_DEAD_ITEMS, (story.WORKER,))
        db.execute(_LETTERS, (story.REASON,))
        db.execute(_ATTEMPTS)
        _count(db)
    return url


@contextmanager
def _planting(url: str) -> Iterator[sqlite3.Connection]:
    """A new database of the store's making, for one transaction; wholly on the disk afterwards."""
    story.create(url)
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # If it breaks, it is thrown away; so nothing is kept for a rollback.
        for pragma in ("journal_mode = off", "synchronous = off", "cache_size = -1000000", "temp_store = memory"):
            db.execute(f"pragma {pragma}").fetchone()
        db.executescript(_STORIES)
        db.execute("begin immediate")
        yield db
        db.execute("commit")
        db.execute("pragma journal_mode = wal").fetchone()
    with open(path, "rb") as file:  # noqa: PTH123 - a URL's text is no Path
        os.fsync(file.fileno())


def _tell(db: sqlite3.Connection, count: int, since: Instant, span: Millis) -> None:
    """So many items were put one after the other within `span`."""
    (last,) = db.execute("select ifnull(max(seq), 0) from item").fetchone()
    db.execute("delete from story")
    db.execute(_TELL, {"count": count, "last": last, "since": since, "span": span})
    body = codec.encode(PAYLOAD)
    db.execute(_PAYLOADS, (zlib.crc32(body), body))


def _wait(db: sqlite3.Connection, wait: Wait) -> None:
    _tell(db, wait.size, wait.since, story.DAY)
    db.execute(_WAIT, {"queue": wait.queue, "delay": wait.delay})


def _count(db: sqlite3.Connection) -> None:
    for statement in _COUNT:
        db.execute(statement)
