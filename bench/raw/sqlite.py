"""The bare loops on SQLite. `minimal` is the smallest table that is still a durable queue."""

from __future__ import annotations

import sqlite3
import time
import zlib

from bench.load import QUEUE
from bench.raw import BATCH, FIRST, TTL, WORKER
from redrive.core import codec
from redrive.engine.ids import new_id, new_ids
from redrive.stores.sqlite.binding import choose
from redrive.stores.sqlite.checkpoint import Checkpoints
from redrive.stores.sqlite.connect import Settings, open_writer
from redrive.stores.statements import load

_COUNT = load("sqlite", "count")
_LEASE = load("sqlite", "lease")
_PUT = load("sqlite", "put")
_SETTLE = load("sqlite", "settle")


class Own:
    """Our schema at full durability, one transaction per batch."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        settings = Settings(path, "power-loss", 5_000, choose("auto", path))
        self.db = open_writer(settings, _now())
        self._checkpoints = Checkpoints(settings)
        self._checkpoints.begin(self.db)

    def close(self) -> None:
        self._checkpoints.close()
        self.db.close()

    def drain(self, batch: int = BATCH) -> tuple[float, float]:
        held: list[int] = []
        done, start, cpu = 0, time.perf_counter(), time.thread_time()
        while True:
            self.db.execute("begin immediate")
            now = _now()
            self.db.execute(_SETTLE["to_done"], (now, FIRST, 0, _json(held)))
            done += len(held)
            leases = self._lease(now, batch)
            move = (-len(leases), len(leases) - len(held), len(held), 0, 0, 0, 0, 0, 0, QUEUE)
            self.db.execute(_COUNT["move"], move).fetchall()
            self.db.execute("commit")
            self._checkpoint()
            if not leases:
                break
            held = leases
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
        (settled,) = self.db.execute("select count(*) from item where state = 'done'").fetchone()
        assert settled == done > 0, f"{done} were leased, {settled} are done"
        return done / took, cpu / done

    def _lease(self, now: int, batch: int) -> list[int]:
        """All a lease of the store asks for, in its order; the numbers of what was given."""
        nonce = new_id()
        self.db.execute(_LEASE["last_nonce"], (WORKER, 0, nonce)).fetchall()
        self.db.execute(_LEASE["holds_alone"], (WORKER,)).fetchall()
        self.db.execute(_LEASE["queue"], (QUEUE, QUEUE)).fetchall()
        rows = self.db.execute(_LEASE["pick"], (QUEUE, "", 0, now, batch)).fetchall()
        seqs = [row[3] for row in rows]
        self.db.execute(_LEASE["mark"], (WORKER, now, now + TTL, 0, _json(seqs)))
        given = [number for row in rows for number in (row[3], row[7])]
        self.db.execute(_LEASE["keep_nonce"], (WORKER, 0, nonce, now, _json(given)))
        return seqs

    def insert(self, payload: object, count: int, chunk: int) -> float:
        body = codec.encode(payload)
        chunks = [[(key, body) for key in new_ids(chunk)] for _ in range(count // chunk)]
        self.db.execute(_COUNT["declare"], (QUEUE,))
        start = time.perf_counter()
        for items in chunks:
            self._put(items)
        return count // chunk * chunk / (time.perf_counter() - start)

    def _put(self, items: list[tuple[str, bytes]]) -> None:
        self.db.execute("begin immediate")
        now = _now()
        (seq,) = self.db.execute(_PUT["last_seq"]).fetchone()
        self.db.execute(_PUT["any_tombstone"]).fetchone()
        rows = [(seq + n, key, QUEUE, now, now, now, "") for n, (key, _) in enumerate(items, 1)]
        bodies = [(seq + n, zlib.crc32(body), "", body) for n, (_, body) in enumerate(items, 1)]
        self.db.executemany(_PUT["insert_item"], rows)
        self.db.executemany(_PUT["insert_payload"], bodies)
        self.db.execute(_PUT["keep_seq"], (seq + len(items),))
        self.db.execute(_COUNT["declare"], (QUEUE,))
        self.db.execute(_COUNT["move"], (len(items), 0, 0, 0, 0, 0, 0, 0, 0, QUEUE)).fetchall()
        self.db.execute("commit")
        self._checkpoints.weigh(sum(len(body) for _, body in items))
        self._checkpoint()

    def _checkpoint(self) -> None:
        """As often as the store's writer does."""
        if self._checkpoints.passed(self.db) and self._checkpoints.due():
            self._checkpoints.run(self.db)


MINIMAL = """
create table job (id integer primary key, state int not null default 0, due real not null default 0, lease real,
                  attempts int not null default 0, payload text not null);
create index job_ready on job (due, id) where state = 0;
"""
_MINIMAL_LEASE = """
update job set state = 1, lease = ?, attempts = attempts + 1
where id in (select id from job where state = 0 and due <= ? order by due, id limit ?) returning id, payload
"""


class Minimal:
    """The smallest durable queue: two transactions a batch (lease, then update to done), as the peers were measured."""

    def __init__(self, url: str) -> None:
        self.db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self.db.execute("pragma journal_mode = wal").fetchone()
        self.db.execute("pragma synchronous = full")
        self.db.executescript(MINIMAL)

    def close(self) -> None:
        self.db.close()

    def fill(self, payload: object, count: int) -> None:
        text = codec.encode(payload).decode()
        self.db.execute("begin immediate")
        self.db.executemany("insert into job (payload) values (?)", [(text,)] * count)
        self.db.execute("commit")
        self.db.execute("pragma wal_checkpoint(truncate)").fetchone()

    def drain(self, batch: int = BATCH) -> float:
        done, start = 0, time.perf_counter()
        while True:
            now = time.time()
            self.db.execute("begin immediate")
            rows = self.db.execute(_MINIMAL_LEASE, (now + 30, now, batch)).fetchall()
            self.db.execute("commit")
            if not rows:
                break
            self.db.execute("begin immediate")
            self.db.executemany("update job set state = 2 where id = ?", [(row[0],) for row in rows])
            self.db.execute("commit")
            done += len(rows)
        return done / (time.perf_counter() - start)


def _json(numbers: list[int]) -> str:
    return codec.encode(numbers).decode()


def _now() -> int:
    return time.time_ns() // 1_000_000
