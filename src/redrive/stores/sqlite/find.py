"""Looking on SQLite: `get`, `find`, `tally`, `causes`, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core import codec, select
from redrive.core.item import Attempt, Deed, Failure, History, Instant
from redrive.core.select import Selection
from redrive.core.verbs import CauseTally, IdPage, Page, QueueTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores.base import IDS_LIMIT
from redrive.stores.checks import check_page
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.sqlite.compile import compiled
from redrive.stores.sqlite.rows import Row, item_of, tombstone_of
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_GET = load("sqlite", "get")
_FIND = load("sqlite", "find")
_TALLY = load("sqlite", "tally")
_CAUSES = load("sqlite", "causes")
_LEASE = load("sqlite", "lease")

_LAST = 2**63 - 1


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


def find(tx: Tx, selection: Selection, limit: int, cursor: str | None) -> Page:
    check_page(limit)
    rows, more = _rows(tx, selection, limit, cursor)
    items = tuple([item_of(tx.execute(_GET["by_seq"], (seq,)).fetchone()) for _, seq, _ in rows])
    return Page(items, more, len(rows) + (more is not None))


def ids(tx: Tx, selection: Selection, limit: int, cursor: str | None) -> IdPage:
    check_page(limit, IDS_LIMIT)
    rows, more = _rows(tx, selection, limit, cursor)
    return IdPage(tuple([item_id for _, _, item_id in rows]), more)


def _rows(tx: Tx, selection: Selection, limit: int, cursor: str | None) -> tuple[list[Row], str | None]:
    """(died_at, seq, id) of the matches, and the cursor of what follows them."""
    letters = select.pins_dead(selection)
    order = "died" if letters else "enqueued"
    before = read_cursor(order, cursor) or (_LAST, _LAST)
    where, values = compiled(selection, tx.now, letters=letters)
    # One more than asked for tells whether there is another page.
    place = (*before, limit + 1) if letters else (before[1], limit + 1)
    statement = _FIND["letters" if letters else "items"].replace("{where}", where)
    rows = tx.execute(statement, (*values, *place)).fetchall()
    more = write_cursor(order, rows[limit - 1][:2]) if len(rows) > limit else None
    return rows[:limit], more


def tally(tx: Tx) -> Tally:
    queues = []
    for name, ready, leased, done, *lying, cancelled, paused, by, reason in tx.execute(_TALLY["queues"]).fetchall():
        opened, archived, trash = lying
        oldest = _oldest_due(tx, name) if ready else None
        counts = (ready, leased, done, opened, archived, trash, cancelled)
        queues.append(QueueTally(name, *counts, oldest, paused != 0, by, reason))
    return Tally(tx.now, tuple(queues))


def _oldest_due(tx: Tx, queue: str) -> Instant | None:
    levels = [0, *(level for (level,) in tx.execute(_LEASE["levels"], (queue,)))]
    times = [tx.execute(_TALLY["oldest_due"], (queue, level)).fetchone()[0] for level in levels]
    return min((when for when in times if when is not None), default=None)


def next_due(tx: Tx, queues: Iterable[str]) -> Instant | None:
    """The earliest due time, past or to come, among what is ready in these queues and not paused."""
    times: list[Instant] = []
    for queue in queues:
        row = tx.execute(_LEASE["queue"], (queue,)).fetchone()
        first = None if row is None or row[0] else _oldest_due(tx, queue)
        if first is not None:
            times.append(first)
    return min(times, default=None)


def causes(tx: Tx, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    most = max(0, limit)
    rows = tx.execute(_CAUSES["all"], (most,)) if queue is None else tx.execute(_CAUSES["of_queue"], (queue, most))
    return tuple([_cause(tx, cause, where, count) for cause, where, count in rows.fetchall()])


def _cause(tx: Tx, cause: str, queue: str, count: int) -> CauseTally:
    error, failure, first_at, last_at = tx.execute(_CAUSES["example"], (cause, queue)).fetchone()
    return CauseTally(cause, queue, count, error, codec.decode(failure, Failure).text, first_at, last_at)
