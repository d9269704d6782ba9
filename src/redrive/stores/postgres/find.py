"""Looking on PostgreSQL: `get`, `find`, `ids`, `tally`, `causes`, and when to look again.

Each is one statement, so one picture. Readers keep nobody from writing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from redrive.core import codec, select
from redrive.core.item import BLOCKERS, Attempt, Deed, Failure, History, Instant, Millis
from redrive.core.meters import gives_again
from redrive.core.select import Selection
from redrive.core.verbs import CauseTally, IdPage, Page, QueueTally, RouteTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores import bodies, residue
from redrive.stores.cursor import Place, order_of
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.postgres.compile import Compiled, Value, compiled, storable, tables
from redrive.stores.postgres.named import by_ids
from redrive.stores.postgres.rows import Row, item_of, settings_of, tombstone_of
from redrive.stores.postgres.walk import Walk, walk_of
from redrive.stores.tagged import FEW_TAGGED, tagged_of

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

_FIRST, _LAST = -1, 2**63 - 1
"""Before and behind all places."""
_PLACE = 35
"""Where get.whole has the place, after what item_of reads; get.history has `omitted` there."""


Asked = tuple[str, tuple[Value, ...]]
"""A statement and its values, without how many are wanted."""


async def get(session: Session, item_id: str) -> History:
    statement = session.sql("get", "history").replace("{found}", session.sql("get", "by_id"))
    rows = await session.read(statement, (item_id, BLOCKERS)) if storable((item_id,)) else []
    if not rows:
        pruned = await tombstone(session, item_id) is not None
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    (row,) = rows
    omitted, attempts, blockers, *deeds = row[_PLACE:]
    done = zip(*deeds, strict=True) if deeds[0] is not None else ()
    return History(
        item_of(row),
        tuple([codec.decode(body, Attempt) for body in attempts]),
        omitted,
        tuple([Deed(*deed) for deed in done]),
        tuple(blockers),
    )


async def tombstone(session: Session, item_id: str) -> Tombstone | None:
    rows = await session.read(session.sql("get", "tombstone"), (item_id,)) if storable((item_id,)) else []
    return tombstone_of(rows[0]) if rows else None


class Search(NamedTuple):
    """What finds a page: a statement that gives places and numbers from one end, and what it needs."""

    statement: str
    values: tuple[Value, ...]
    order: str
    limit: int
    oldest: bool

    def in_order(self, rows: list[Row]) -> list[Row]:
        """get.sql has the last first."""
        return rows[::-1] if self.oldest else rows

    def next(self, rows: list[Row], seq: int, place: int) -> str | None:
        """One more than wanted was asked for, to know whether there is another page. `seq`, `place`: columns."""
        if len(rows) <= self.limit:
            return None
        last = rows[self.limit - 1]
        return write_cursor(self.order, (last[place], last[seq]))


async def search_for(
    session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool = False
) -> Search:
    letters = select.pins_dead(selection)
    order = order_of(letters=letters, oldest=oldest)
    end, first = ("first_", _FIRST) if oldest else ("", _LAST)
    place = read_cursor(order, cursor) or (first, first)
    selection = await by_ids(session, session.page, selection)
    statement, values = await (_letters if letters else _items)(session, selection, place, end)
    return Search(statement, (*values, limit + 1), order, limit, oldest)


async def _letters(session: Session, selection: Selection, place: Place, end: str) -> Asked:
    tagged, walk = tagged_of(selection), walk_of(selection)
    few = None if tagged is None else await _few(session, tagged.tag)
    if tagged is not None and few is not None:
        statement, values = matching(session, tagged.rest, session.pinned(), f"{end}letters", few)
    elif walk is not None:
        return _walked(session, walk, place, end)
    else:
        statement, values = matching(session, selection, session.pinned(), f"{end}letters")
    return statement, (*values, *place)


async def _items(session: Session, selection: Selection, place: Place, end: str) -> Asked:
    tagged = tagged_of(selection)
    if tagged is None or select.ids_of(selection) is not None or {"id", "state"} & select.fields_of(selection):
        # Of those with such an id, or of those that are leased, there may be fewer than have the tag.
        statement, values = matching(session, selection, session.pinned(), f"{end}items")
        return statement, (*values, place[1])
    statement, values = matching(session, tagged.rest, session.pinned(), f"{end}tagged_items")
    return statement, (tagged.tag, _bound(place, end), tagged.tag, *values)


def _bound(place: Place, end: str) -> int:
    """With <= or >= the planner counts in what equals the bound, and expects no fewer than there are."""
    return place[1] + 1 if end else place[1] - 1


async def _few(session: Session, tag: str) -> Compiled | None:
    """Those that have the tag, by their numbers; None if they are many."""
    rows = await session.page(session.sql("find", "tagged"), (tag, FEW_TAGGED + 1))
    return None if len(rows) > FEW_TAGGED else Compiled("l.seq = any(%b::bigint[])", ([row[0] for row in rows],))


def _walked(session: Session, walk: Walk, place: Place, end: str) -> Asked:
    text, values = matching(session, walk.rest, session.pinned(), f"{end}walked_letters", *walk.also)
    text = text.replace("{columns}", ", ".join(walk.columns)).replace("{values}", ", ".join(["%b"] * len(walk.values)))
    text = text.replace("{descending}", ", ".join([f"{column} desc" for column in walk.columns]))
    return text, (*walk.values, place[0], _bound(place, end), *walk.values, *values)


def matching(session: Session, selection: Selection, pinned: int | None, name: str, *also: Compiled) -> Asked:
    """A statement of find.sql for this selection, and the selection's values."""
    letters = name.endswith("letters")
    way = "letters" if letters else "items"
    asked = (compiled(selection, pinned, letters=letters), *also)
    read = tables(selection, letters=letters)
    joined = [("i", "item"), ("c", "course") if letters else ("l", "letter"), ("t", "terms")]
    joins = " ".join(session.sql("find", f"{way}_join_{table}") for alias, table in joined if alias in read)
    where = filled(session, " and ".join(one.text for one in asked))
    text = session.sql("find", name).replace("{joins}", joins).replace("{where}", where)
    return text, tuple(value for one in asked for value in one.values)


def filled(session: Session, text: str) -> str:
    return text.replace("{schema}", session.schema)


async def find(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> Page:
    return await residue.page(_looks(session, oldest=oldest), selection, limit, cursor)


async def ids(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> IdPage:
    return await residue.ids(_looks(session, oldest=oldest), selection, limit, cursor)


def _looks(session: Session, *, oldest: bool) -> residue.Looks:
    find, ids = partial(_find, session, oldest=oldest), partial(_ids, session, oldest=oldest)
    return residue.Looks(find, ids, partial(_now, session), oldest)


async def _find(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> Page:
    search = await search_for(session, selection, limit, cursor, oldest=oldest)
    whole = session.sql("get", "whole").replace("{found}", search.statement)
    rows = search.in_order(await session.page(whole, search.values))
    items = await bodies.whole(tuple([item_of(row) for row in rows[:limit]]))
    return Page(items, search.next(rows, 3, _PLACE), len(rows))


async def _ids(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> IdPage:
    search = await search_for(session, selection, limit, cursor, oldest=oldest)
    names = session.sql("get", "names").replace("{found}", search.statement)
    rows = search.in_order(await session.page(names, search.values))
    return IdPage(tuple([row[0] for row in rows[:limit]]), search.next(rows, 1, 2))


async def _now(session: Session) -> Instant:
    ((instant,),) = await session.read(session.sql("find", "now"), (session.pinned(),))
    return int(instant)


async def tally(session: Session) -> Tally:
    rows = await session.read(session.sql("tally", "queues"), (session.pinned(),))
    queues = [_queue(row) for row in rows if row[1] is not None]
    routes = [RouteTally(row[15], row[2], row[16]) for row in rows if row[15] is not None]
    return Tally(rows[0][0], tuple(queues), tuple(routes))


def _queue(row: Row) -> QueueTally:
    """From a row of tally.queues."""
    name, ready, leased, done, opened, archived, trash, cancelled, oldest, paused, by, reason, held, parked = row[1:15]
    settings = settings_of(row[17:30])
    return QueueTally(
        name,
        ready,
        leased,
        done,
        opened,
        archived,
        trash,
        cancelled,
        oldest,
        paused,
        by,
        reason,
        held,
        parked,
        settings,
        gives_again(settings.rate, row[30], row[0]),
    )


async def patience(session: Session, queues: Iterable[str]) -> Millis | None:
    """How long until something of these queues is due; 0 or less: now. None if nothing will be by itself."""
    pinned = session.pinned()
    ((span,),) = await session.read(session.sql("tally", "patience"), (pinned, pinned, storable(queues)))
    return None if span is None else int(span)


async def causes(session: Session, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    if queue is not None and not storable((queue,)):
        return ()
    rows = await session.read(session.sql("causes", "causes"), (queue, queue, max(0, limit)))
    return tuple([_cause(*row) for row in rows])


def _cause(queue: str, count: int, evidence: bytes, first_at: int, last_at: int) -> CauseTally:
    failure = codec.decode(evidence, Failure)
    return CauseTally(failure.cause, queue, count, failure.type, failure.text, first_at, last_at)
