"""Looking on SQLite: `get`, `tally`, `causes`, and when to look again. Pages are found in search.py."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core import codec
from redrive.core.item import BLOCKERS, Attempt, Deed, Failure, History, Instant, Item
from redrive.core.lanes import is_retry
from redrive.core.meters import gives_again
from redrive.core.verbs import CauseTally, QueueSettings, QueueTally, RouteTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores.sqlite import edges, limits
from redrive.stores.sqlite.limits import Firsts
from redrive.stores.sqlite.rows import SEQ, Row, item_of, tombstone_of
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
    return History(item, attempts, row[-1], deeds, _blocked_by(tx, item) if item.hold else ())


def _blocked_by(tx: Tx, item: Item) -> tuple[str, ...]:
    """Longest enqueued first; what was pruned is older than anything."""
    ahead = tx.execute(_GET["head"], (item.seq,)).fetchall()
    found = {(seq, item_id) for item_id, seq in (*ahead, *edges.missing(tx, item.seq))}
    return tuple([item_id for _, item_id in sorted(found)[:BLOCKERS]])


def tombstone(tx: Tx, item_id: str) -> Tombstone | None:
    row = tx.execute(_GET["tombstone"], (item_id,)).fetchone()
    return None if row is None else tombstone_of(row)


def items_at(tx: Tx, rows: list[Row]) -> list[Item]:
    """The items of rows that a search found, in one statement: a page may have a thousand."""
    seqs = [row[1] for row in rows]
    read = tx.execute(_GET["by_seqs"], (codec.encode(seqs).decode(),)).fetchall()
    by_seq = {row[SEQ]: row for row in read}
    return [item_of(by_seq[seq]) for seq in seqs]


def ids_at(_: Tx, rows: list[Row]) -> list[str]:
    return [str(row[2]) for row in rows]


def tally(tx: Tx) -> Tally:
    queues = []
    for name, ready, leased, done, *lying, cancelled, held, parked, kept, paused, by, reason, rate_at in tx.execute(
        _TALLY["queues"]
    ).fetchall():
        opened, archived, trash = lying
        settings = QueueSettings() if kept is None else codec.decode(kept, QueueSettings)
        oldest = _earliest(_firsts(tx, name)) if ready else None
        counts = (ready, leased, done, opened, archived, trash, cancelled)
        again = gives_again(settings.rate, rate_at, tx.now)
        queues.append(QueueTally(name, *counts, oldest, paused != 0, by, reason, held, parked, settings, again))
    routes = [RouteTally(*row) for row in tx.execute(_TALLY["routes"])]
    # Letters without a route are counted nowhere: they are what is left.
    unrouted = sum([queue.open for queue in queues]) - sum([route.open for route in routes])
    return Tally(tx.now, tuple(queues), (*([RouteTally("", unrouted)] if unrouted else []), *routes))


def _firsts(tx: Tx, queue: str) -> Firsts:
    levels = [0, *(level for (level,) in tx.execute(_LEASE["levels"], (queue, queue)))]
    times = [(is_retry(n), tx.execute(_TALLY["oldest_due"], (queue, n)).fetchone()[0]) for n in levels]
    plain, retry = [
        min([when for was_tried, when in times if when is not None and was_tried == tried], default=None)
        for tried in (False, True)
    ]
    return Firsts(plain, retry)


def _earliest(firsts: Firsts) -> Instant | None:
    return min([when for when in firsts if when is not None], default=None)


def next_due(tx: Tx, queues: Iterable[str]) -> Instant | None:
    """The earliest time, past or to come, at which something of these queues is due and may be given."""
    times: list[Instant] = []
    for queue in queues:
        row = tx.execute(_LEASE["queue"], (queue, queue)).fetchone()
        if row is None or row[0]:
            continue
        _, _, kept, running = row
        first = _earliest(firsts := _firsts(tx, queue))
        if kept is not None:
            first = limits.next_change(tx, queue, codec.decode(kept, QueueSettings), running, firsts)
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
