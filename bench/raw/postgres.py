"""The bare loops on PostgreSQL: one plain connection that calls the store's functions, and COPY into its tables."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

import psycopg

from bench.load import QUEUE
from bench.raw import BATCH, FIRST, SHARE, TTL, WORKER
from bench.seeds import story
from redrive.core import codec
from redrive.engine.ids import new_id, new_ids
from redrive.stores.postgres.arrays import bigints, integers, texts
from redrive.stores.postgres.options import SCHEMA
from redrive.stores.postgres.session import FOLD_AFTER
from redrive.stores.postgres.wire import teach
from redrive.stores.statements import load

_LINE = 2
"""Crashes from which on an item is a suspect; there are none here."""
_ANY = -1
"""As many retries as there are."""
_NO_FLOOR = (-1, 0)
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_QUEUE = QUEUE.encode()
_ITEM = struct.Struct(f">h iq i24s i{len(_QUEUE)}s iq iq ih i")
_COURSE = struct.Struct(f">h iq i{len(_QUEUE)}s i5s iq iq")
_READY = b"ready"

# The store itself puts by a function. These are the least that leaves the same rows.
_NUMBERS = f"""
select "{SCHEMA}".now_ms(null), array(select nextval('"{SCHEMA}".item_seq') from generate_series(1, %s))
"""
_COPY_ITEM = f'copy "{SCHEMA}".item (seq, id, queue, enqueued_at, crc, packing, body) from stdin (format binary)'
_COPY_COURSE = f'copy "{SCHEMA}".course (seq, queue, state, due_at, renewed_at) from stdin (format binary)'
_COUNT = f'insert into "{SCHEMA}".counter (queue, ready) values (%s, %s)'

Row = tuple[Any, ...]
Rows = list[Row]


class Postgres:
    def __init__(self, url: str) -> None:
        story.create(url)
        self.db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        teach(self.db)  # type: ignore[arg-type]  # a plain connection learns as well
        self._writes = 0

    def close(self) -> None:
        self.db.close()

    def drain(self, batch: int = BATCH) -> tuple[float, float]:
        done, start, cpu = 0, time.perf_counter(), time.thread_time()
        rows = self._call("lease", "call", (None, *_request(batch, _NO_FLOOR)))
        while rows:
            last = rows[-1]
            seqs = [row[1] for row in rows]
            held = (bigints(seqs), None, integers([FIRST] * len(seqs)), False)
            rows = self._call("settle", "finish", (None, *held, *_request(batch, (last[8], last[1]))))
            done += len(seqs)
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
        ((settled,),) = self.db.execute(f'select count(*) from "{SCHEMA}".course where state = %s', ("done",))
        assert settled == done > 0, f"{done} were leased, {settled} are done"
        return done / took, cpu / done

    def _call(self, verb: str, name: str, params: Sequence[Any]) -> Rows:
        """And what the store does now and then beside it."""
        rows = self._rows(verb, name, params)
        self._writes += 1
        if self._writes % FOLD_AFTER == 0:
            self._rows("fold", "call", ())
        return rows

    def _rows(self, verb: str, name: str, params: Sequence[Any] = ()) -> Rows:
        cursor = self.db.cursor(binary=True)
        return cursor.execute(_sql(verb, name), params or None).fetchall()

    def insert(self, payload: object, count: int, chunk: int) -> float:
        body = codec.encode(payload)
        chunks = [[key.encode() for key in new_ids(chunk)] for _ in range(count // chunk)]
        start = time.perf_counter()
        for keys in chunks:
            self._put(keys, body)
        return count // chunk * chunk / (time.perf_counter() - start)

    def _put(self, keys: Sequence[bytes], body: bytes) -> None:
        with self.db.transaction():
            ((now, numbers),) = self.db.cursor(binary=True).execute(_NUMBERS, (len(keys),)).fetchall()
            crc, size = zlib.crc32(body), len(body)
            self._copy(
                _COPY_ITEM,
                [
                    _ITEM.pack(7, 8, seq, 24, key, len(_QUEUE), _QUEUE, 8, now, 8, crc, 2, 0, size) + body
                    for seq, key in zip(numbers, keys, strict=True)
                ],
            )
            self._copy(
                _COPY_COURSE,
                [_COURSE.pack(5, 8, seq, len(_QUEUE), _QUEUE, 5, _READY, 8, now, 8, now) for seq in numbers],
            )
            self.db.execute(_COUNT, (QUEUE, len(keys)))

    def _copy(self, statement: str, rows: Sequence[bytes]) -> None:
        with self.db.cursor().copy(statement.encode()) as copy:
            copy.write(b"".join([_HEAD, *rows, _TAIL]))


def _sql(verb: str, name: str) -> bytes:
    return load("postgres", verb)[name].replace("{schema}", f'"{SCHEMA}"').encode()


def _request(batch: int, floor: tuple[int, int]) -> tuple[Any, ...]:
    """As the store makes it: above what was taken last."""
    due, seq = floor
    wants = (texts([QUEUE]), integers([batch]), bigints([TTL]), integers([_LINE]))
    of_retries = (integers([_ANY]), bigints([0]), integers([SHARE]))
    return (WORKER, f"0:{new_id()}", 0, *wants, bigints([due]), bigints([seq]), *of_retries, "", None)
