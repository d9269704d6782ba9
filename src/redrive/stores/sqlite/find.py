"""Looking on SQLite: `get`, `tally`, `causes`, and when to look again. Pages are found in search.py."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core import codec
from redrive.core.item import Attempt, Deed, Failure, History, Instant, Item
from redrive.core.verbs import CauseTally, QueueTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores.sqlite.rows import Row, item_of, tombstone_of
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_GET = load("sqlite", "get")
_TALLY = load("sqlite", "tally")
_CAUSES = load("sqlite", "causes")
_LEASE = load("sqlite", "lease")


def get(tx: Tx, item_id: str) -> History:
    row = tx.execute(_GET["item"], (item_id,)).fetchone()
    if row is None:
        pruned = tombstone(tx, item_id) is not None
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    item = item_of(row)
    attempts = tuple([codec.decode(body, Attempt) for (body,) in tx.execute(_GET["attempts"], (item.seq,))])
    deeds = tuple([Deed(*deed) for deed in tx.execute(_GET["deeds"], (item.seq,))])
    return History(item, attempts, row[27], deeds)


def tombstone(tx: Tx, item_id: str) -> Tombstone | None:
    row = tx.execute(_GET["tombstone"], (item_id,)).fetchone()
    return None if row is None else tombstone_of(row)


def item_at(tx: Tx, row: Row) -> Item:
    """The item of a row that a search found."""
    return item_of(tx.execute(_GET["by_seq"], (row[1],)).fetchone())


def id_at(_: Tx, row: Row) -> str:
    return str(row[2])


def tally(tx: Tx) -> Tally:
    queues = []
    for name, ready, leased, done, *lying, cancelled, paused, by, reason in tx.execute(_TALLY["queues"]).fetchall():
        opened, archived, trash = lying
        oldest = _oldest_due(tx, name) if ready else None
        counts = (ready, leased, done, opened, archived, trash, cancelled)
        queues.append(QueueTally(name, *counts, oldest, paused != 0, by, reason))
    return Tally(tx.now, tuple(queues))


def _oldest_due(tx: Tx, queue: str) -> Instant | None:
    levels = [0, *(level for (level,) in tx.execute(_LEASE["levels"], (queue, queue)))]
    times = [tx.execute(_TALLY["oldest_due"], (queue, level)).fetchone()[0] for level in levels]
    return min((when for when in times if when is not None), default=None)


def next_due(tx: Tx, queues: Iterable[str]) -> Instant | None:
    """The earliest due time, past or to come, among what is ready in these queues and not paused."""
    times: list[Instant] = []
    for queue in queues:
        row = tx.execute(_LEASE["queue"], (queue, queue)).fetchone()
        first = None if row is None or row[0] else _oldest_due(tx, queue)
        if first is not None:
            times.append(first)
    return min(times, default=None)


def causes(tx: Tx, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    most = max(0, limit)
    rows = tx.execute(_CAUSES["all"], (most,)) if queue is None else tx.execute(_CAUSES["of_queue"], (queue, most))
    return tuple([_cause(tx, cause, where, count) for cause, where, count in rows.fetchall()])


def _cause(tx: Tx, cause: str, queue: str, count: int) -> CauseTally:
    error, failure, first_at, last_at = tx.execute(_CAUSES["example"], (cause, queue) * 2).fetchone()
    return CauseTally(cause, queue, count, error, codec.decode(failure, Failure).text, first_at, last_at)
