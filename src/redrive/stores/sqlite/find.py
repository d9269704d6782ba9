"""Looking on SQLite: `get`, `tally`, `causes`, and when to look again. Pages are found in search.py."""

from __future__ import annotations

from collections.abc import Collection

from redrive.core import codec
from redrive.core.families import family_of, is_family, names_between
from redrive.core.item import BLOCKERS, Attempt, Deed, Failure, History, Item
from redrive.core.meters import gives_again
from redrive.core.verbs import CauseTally, LetterChange, QueueSettings, QueueTally, RouteTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores.sqlite import edges, opening
from redrive.stores.sqlite.families import inherited_rate
from redrive.stores.sqlite.rows import SEQ, Row, item_of, revision_of, tombstone_of
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_GET = load("sqlite", "get")
_TALLY = load("sqlite", "tally")
_CAUSES = load("sqlite", "causes")
_LEASE = load("sqlite", "lease")
_CHANGES = load("sqlite", "changes")


def get(tx: Tx, item_id: str) -> History:
    row = tx.execute(_GET["item"], (item_id,)).fetchone()
    if row is None:
        pruned = tombstone(tx, item_id) is not None
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    item = item_of(row)
    attempts = tuple([codec.decode(body, Attempt) for (body,) in tx.execute(_GET["attempts"], (item.seq,))])
    deeds = tuple([Deed(*deed) for deed in tx.execute(_GET["deeds"], (item.seq,))])
    revisions = [revision_of(each) for each in tx.execute(_GET["revisions"], (item.seq,))] if item.revision else []
    return History(item, attempts, row[-1], deeds, _blocked_by(tx, item) if item.hold else (), tuple(revisions))


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


def changes(tx: Tx, after: int, limit: int) -> list[LetterChange]:
    rows = tx.execute(_CHANGES["read"], (after, limit)).fetchall()
    read = tx.execute(_GET["by_seqs"], (codec.encode([seq for _, seq, gone in rows if gone is None]).decode(),))
    items = {row[SEQ]: item_of(row) for row in read.fetchall()}
    # An item that is neither there nor known as pruned is a finding of `check`.
    there = [(n, items.get(seq), gone) for n, seq, gone in rows]
    return [LetterChange(n, item.id if item else gone, item) for n, item, gone in there if item or gone]


def ids_at(_: Tx, rows: list[Row]) -> list[str]:
    return [str(row[2]) for row in rows]


def tally(tx: Tx, *, members: bool | Collection[str] = True) -> Tally:
    queues: list[QueueTally] = []
    families: list[QueueTally] = []
    rows = tx.execute(_TALLY["queues"]).fetchall() if members is True else _without_members(tx)
    named = set() if isinstance(members, bool) else {*members} - {row[0] for row in rows}
    for member in named:
        rows += tx.execute(_TALLY["queue"], (member,)).fetchall()
    for name, ready, leased, done, *lying, cancelled, held, parked, kept, paused, by, reason, rate_at in rows:
        opened, archived, trash = lying
        settings = QueueSettings() if kept is None else codec.decode(kept, QueueSettings)
        oldest = opening.earliest(opening.firsts_of(tx, name)) if ready and not is_family(name) else None
        counts = (ready, leased, done, opened, archived, trash, cancelled)
        rate = settings.rate or inherited_rate(tx, name)
        again = gives_again(rate, rate_at, tx.now)
        row = QueueTally(name, *counts, oldest, paused != 0, by, reason, held, parked, settings, again)
        if is_family(name):
            families.append(row)
        if members is not True or not is_family(name):
            queues.append(row)
    routes = [RouteTally(*row) for row in tx.execute(_TALLY["routes"])]
    # Letters without a route are counted nowhere: they are what is left.
    unrouted = sum([queue.open for queue in queues if queue.queue not in named]) - sum([route.open for route in routes])
    unnamed = [RouteTally("", unrouted)] if unrouted else []
    queues.sort(key=lambda row: row.queue)
    return Tally(tx.now, tuple(queues), (*unnamed, *routes), tuple(families))


def _without_members(tx: Tx) -> list[Row]:
    """Rows of queues and families by name, passing over the members of each family at once."""
    rows: list[Row] = []
    last = ""
    while row := tx.execute(_TALLY["next_queue"], (last,)).fetchone():
        family = family_of(row[0])
        if is_family(row[0]) or (family and tx.family(family) is not None):
            family = family or row[0]
            rows += tx.execute(_TALLY["queue"], (family,)).fetchall()
            _, last = names_between(family)
        else:
            rows.append(row)
            last = row[0] + "\0"
    return sorted(rows, key=lambda row: str(row[0]))


def kinds(tx: Tx, queue: str) -> tuple[str, ...]:
    due = [(rank[0], opening.first_due(tx, queue, rank)) for rank in opening.ranks(tx, queue, None)]
    return tuple(sorted({kind for kind, when in due if when is not None and when <= tx.now}))


def causes(tx: Tx, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    most = max(0, limit)
    rows = tx.execute(_CAUSES["all"], (most,)) if queue is None else tx.execute(_CAUSES["of_queue"], (queue, most))
    return tuple([_cause(tx, cause, where, count) for cause, where, count in rows.fetchall()])


def _cause(tx: Tx, cause: str, queue: str, count: int) -> CauseTally:
    error, failure, first_at, last_at = tx.execute(_CAUSES["example"], (cause, queue) * 2).fetchone()
    return CauseTally(cause, queue, count, error, codec.decode(failure, Failure).text, first_at, last_at)
