"""Seeds on PostgreSQL: plain SQL into a schema of the store's making."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.load import PAYLOAD
from bench.seeds import story
from bench.seeds.story import Wait
from redrive.core import codec
from redrive.core.item import Instant, Millis
from redrive.stores.postgres.options import SCHEMA

_STORIES = (
    "create temp table story (seq bigint, id text, at bigint, n bigint)",
    """
    create temp table kind (number integer primary key, queue text, cause text, error text, error_short text,
                            category text, rule text, failure bytea, head text, middle text, tail text)
    """,
    "create temp table lot (number integer primary key, kind integer)",
)
# Ids as ours look: 24 random characters of a-z and 2-7.
_TELL = """
insert into story
select nextval('item_seq'), translate(left(md5(random()::text || n), 24), '0189', 'ghij'),
       %(since)s::bigint + n * %(span)s / %(count)s, n
from generate_series(0, %(count)s::bigint - 1) as s (n)
"""
_ITEMS = """
insert into item (seq, id, queue, enqueued_at, crc, body)
select seq, id, %(queue)s, at, %(crc)s, %(body)s from story order by seq
"""
_WAIT = """
insert into course (seq, queue, state, due_at, renewed_at)
select seq, %(queue)s, 'ready', at + case when %(delay)s::bigint > 0 then %(delay)s + n else 0 end, at
from story order by seq
"""
_DIE = f"""
create temp view death as
select s.seq, s.id, s.at, s.n * {story.RAN_STEP} % {story.DAY} as ran, k.*
from story s
join lot l on l.number = s.n * {story.LOT_STEP} % {{lots}}
join kind k on k.number = l.kind
"""
_DEAD_ITEMS = """
insert into item (seq, id, queue, enqueued_at, crc, body)
select seq, id, queue, at, %(crc)s, %(body)s from death order by seq
"""
_DEAD = """
insert into course (
    seq, queue, state, due_at, renewed_at, deliveries, attempt, errors, level, worker, leased_at, ended_at
)
select seq, queue, 'dead', at, at, 1, 1, 1, 3, %(worker)s, at, at + ran from death order by seq
"""
_LETTERS = """
insert into letter (seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure)
select seq, queue, %(reason)s, at + ran, 'open', cause, error, error_short, category, rule, failure
from death order by at + ran
"""
_ATTEMPTS = """
insert into attempt (seq, delivery, body)
select seq, 1, convert_to(head || at || middle || ran || tail, 'UTF8') from death order by at + ran
"""
_COUNT = (
    """
    insert into counter (queue, ready, open)
    select queue, count(*) filter (where state = 'ready'), count(*) filter (where state = 'dead')
    from course group by queue
    """,
    "insert into cause (cause, queue, n) select cause, queue, count(*) from letter group by cause, queue",
    "insert into unnumbered (seq) select seq from letter order by died_at, seq",
)


def waiting(url: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
    with _planting(url) as db:
        for wait in story.waits(ready, delayed, paused):
            _wait(db, wait)
    if paused:
        story.pause(url)
    return url


def letters(url: str, count: int) -> str:
    with _planting(url) as db:
        _tell(db, count, story.first_death(), story.SPAN)
        kinds = story.kinds()
        lots = story.lots(len(kinds))
        with db.cursor() as cursor:
            rows = [(number, *kind) for number, kind in enumerate(kinds)]
            cursor.executemany("insert into kind values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", rows)
            cursor.executemany("insert into lot values (%s, %s)", list(enumerate(lots)))
        db.execute(_DIE.format(lots=len(lots)).encode())
        db.execute(_DEAD_ITEMS, _body())
        db.execute(_DEAD, {"worker": story.WORKER})
        db.execute(_LETTERS, {"reason": story.REASON})
        db.execute(_ATTEMPTS)
    return url


@contextmanager
def _planting(url: str) -> Iterator[psycopg.Connection]:
    """A new schema of the store's making, for one transaction."""
    story.create(url)
    with psycopg.connect(url) as db:
        db.execute(f'set local search_path = "{SCHEMA}"')
        for statement in _STORIES:
            db.execute(statement)
        yield db
        for statement in _COUNT:
            db.execute(statement)


def _tell(db: psycopg.Connection, count: int, since: Instant, span: Millis) -> None:
    """So many items were put one after the other within `span`."""
    db.execute("delete from story")
    db.execute(_TELL, {"count": count, "since": since, "span": span})
    db.execute("analyze story")


def _wait(db: psycopg.Connection, wait: Wait) -> None:
    _tell(db, wait.size, wait.since, story.DAY)
    db.execute(_ITEMS, {"queue": wait.queue, **_body()})
    db.execute(_WAIT, {"queue": wait.queue, "delay": wait.delay})


def _body() -> dict[str, object]:
    body = codec.encode(PAYLOAD)
    return {"crc": zlib.crc32(body), "body": body}
