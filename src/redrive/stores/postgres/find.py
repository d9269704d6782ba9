"""Looking on PostgreSQL: `get`, `find`, `ids`, `tally`, `causes`, and when to look again.

Each is one statement, so one picture. Readers keep nobody from writing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from redrive.core import codec, select
from redrive.core.families import family_of, is_family
from redrive.core.item import BLOCKERS, Attempt, Deed, Failure, History, Instant, Millis
from redrive.core.meters import Rate, gives_again
from redrive.core.select import Selection
from redrive.core.verbs import CauseTally, IdPage, LetterChange, Page, QueueTally, RouteTally, Tally, Tombstone
from redrive.errors import NotFound
from redrive.stores import residue
from redrive.stores.bodies import Bodies
from redrive.stores.cursor import Place, order_of
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.postgres.arrays import bigints
from redrive.stores.postgres.compile import Compiled, Value, compiled, storable, tables
from redrive.stores.postgres.lease import kind_lists
from redrive.stores.postgres.live import WALKED, Source, live_of
from redrive.stores.postgres.named import Ask, by_ids, ids_in
from redrive.stores.postgres.rows import Row, item_of, revision_of, settings_of, tombstone_of
from redrive.stores.postgres.walk import Walk, walk_of
from redrive.stores.tagged import FEW_TAGGED, tagged_of

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session
    from redrive.stores.postgres.tx import Tx

_FIRST, _LAST = -1, 2**63 - 1
"""Before and behind all places."""
_PLACE = 39
"""Where get.whole has the place, after what item_of reads; get.history has `omitted` there."""


_NO_SOURCE = Source("")


class Asked(NamedTuple):
    """A statement and its values, without how many are wanted. `guessed`: how it is run is left to the planner."""

    statement: str
    values: tuple[Value, ...]
    guessed: bool = False


async def get(session: Session, item_id: str) -> History:
    statement = session.sql("get", "history").replace("{found}", session.sql("get", "by_id"))
    rows = await session.read(statement, (item_id, BLOCKERS)) if storable((item_id,)) else []
    if not rows:
        pruned = await tombstone(session, item_id) is not None
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    (row,) = rows
    omitted, attempts, blockers, *deeds = row[_PLACE:]
    done = zip(*deeds, strict=True) if deeds[0] is not None else ()
    item = item_of(row)
    earlier: list[Row] = []
    if item.revision:
        earlier = await session.read(session.sql("get", "revisions"), (item.seq, item.revision))
    return History(
        item,
        tuple([codec.decode(body, Attempt) for body in attempts]),
        omitted,
        tuple([Deed(*deed) for deed in done]),
        tuple(blockers),
        tuple([revision_of(each) for each in earlier]),
    )


async def tombstone(session: Session, item_id: str) -> Tombstone | None:
    rows = await session.read(session.sql("get", "tombstone"), (item_id,)) if storable((item_id,)) else []
    return tombstone_of(rows[0]) if rows else None


async def changes(session: Session, after: int, limit: int) -> list[LetterChange]:
    """One that is pruned between the two statements is left out: it comes with a higher number."""
    whole = session.sql("get", "whole").replace("{found}", session.sql("lease_letters", "given"))
    while True:
        rows = await session.read(session.sql("changes", "call"), (after, limit))
        seqs = [seq for _, seq, gone in rows if gone is None]
        items = {item.seq: item for item in map(item_of, await session.page(whole, (bigints(seqs),)))} if seqs else {}
        there = [(n, items.get(seq), gone) for n, seq, gone in rows]
        found = [LetterChange(n, item.id if item else gone, item) for n, item, gone in there if item or gone]
        if found or not rows:
            return found
        after = rows[-1][0]


class Search(NamedTuple):
    """What finds a page: a statement that gives places and numbers from one end, and what it needs."""

    statement: str
    values: tuple[Value, ...]
    guessed: bool
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


class Look(NamedTuple):
    """How to ask, and for which page. `end`: "first_" if it begins with the oldest."""

    session: Session
    ask: Ask
    pinned: Instant | None
    place: Place
    end: str
    limit: int


async def search_for(
    session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool = False
) -> Search:
    letters = select.pins_dead(selection)
    order = order_of(letters=letters, oldest=oldest)
    end, first = ("first_", _FIRST) if oldest else ("", _LAST)
    place = read_cursor(order, cursor) or (first, first)
    look = Look(session, session.page, session.pinned(), place, end, limit + 1)
    selection = await by_ids(session, look.ask, selection)
    statement, values, guessed = await (_letters if letters else _items)(look, selection)
    return Search(statement, (*values, limit + 1), guessed, order, limit, oldest)


async def oldest(session: Session, tx: Tx, selection: Selection, limit: int) -> list[int]:
    """Numbers of those that match, first enqueued first: for amend and prune."""
    look = Look(session, tx.in_order, tx.now, (_FIRST, _FIRST), "first_", limit)
    selection = await by_ids(session, look.ask, selection)
    asked = await (_oldest_letters if select.pins_dead(selection) else _items)(look, selection)
    run = tx.execute if asked.guessed else tx.in_order
    return [seq for _, seq in await run(asked.statement, (*asked.values, limit))]


async def _letters(look: Look, selection: Selection) -> Asked:
    walk = walk_of(selection)
    known = await _known_letters(look, selection, walk)
    if known is not None:
        asked = matching(look, known.rest, f"{look.end}sourced_letters", source=known.source)
        return Asked(asked.statement, (*asked.values, *look.place))
    if walk is not None:
        asked = matching(look, walk.rest, f"{look.end}walked_letters", *walk.also)
        bounds: tuple[Value, ...] = (*walk.values, look.place[0], _bound(look), *walk.values)
        return Asked(_by(walk, asked.statement), (*bounds, *asked.values))
    asked = matching(look, selection, f"{look.end}letters")
    return Asked(asked.statement, (*asked.values, *look.place), guessed=True)


async def _oldest_letters(look: Look, selection: Selection) -> Asked:
    walk = walk_of(selection)
    known = await _known_letters(look, selection, walk)
    if known is not None:
        return matching(look, known.rest, "oldest_sourced_letters", source=known.source)
    if walk is None:
        return matching(look, selection, "oldest_letters")._replace(guessed=True)
    source = Source(look.session.sql("find", "source_oldest_letters"))
    if await _meets(look, selection, source, letters=True):
        return matching(look, selection, "oldest_sourced_letters", source=source)
    also = [value for one in walk.also for value in one.values]
    source = Source(_by(walk, look.session.sql("find", "source_letters_by")), (*walk.values, *walk.values, *also))
    return matching(look, walk.rest, "oldest_sourced_letters", source=source)


async def _items(look: Look, selection: Selection) -> Asked:
    named = ids_in(selection)
    if named is not None:
        source = Source(look.session.sql("find", "source_items_named"), (storable(named.ids),))
        return _from(look, named.rest, source)
    live, tagged = live_of(selection), tagged_of(selection)
    walk = Source(look.session.sql("find", f"source_{look.end}walk"), (look.place[1],))
    if tagged is not None:
        tag = (tagged.tag, _bound(look), tagged.tag)
        walk = Source(look.session.sql("find", f"source_{look.end}tagged_walk"), tag)
    if live is not None and not await _meets(look, selection, walk, letters=False):
        return _from(look, selection, live)
    if tagged is None:
        return _from(look, selection, walk)
    asked = matching(look, tagged.rest, f"{look.end}tagged_items")
    return Asked(asked.statement, (*walk.values, *asked.values))


def _from(look: Look, selection: Selection, source: Source) -> Asked:
    asked = matching(look, selection, f"{look.end}items", source=source)
    return Asked(asked.statement, (*asked.values, look.place[1]))


class Known(NamedTuple):
    """Letters of which all are known that can match, and what is still to be asked of them."""

    source: Source
    rest: Selection


async def _known_letters(look: Look, selection: Selection, walk: Walk | None) -> Known | None:
    """None where they are many: they are met on the way. Whichever are fewer, those with a tag or those by names."""
    named = ids_in(selection)
    if named is not None:
        return Known(Source(look.session.sql("find", "source_letters_named"), (storable(named.ids),)), named.rest)
    tagged = tagged_of(selection)
    if tagged is None:
        return None
    rows = await look.ask(look.session.sql("find", "tagged"), (tagged.tag, tagged.tag, FEW_TAGGED + 1))
    if len(rows) > FEW_TAGGED:
        return None
    if walk is not None and len(rows) > look.limit:
        fewer = _by(walk, look.session.sql("find", "fewer_by"))
        also = [value for one in walk.also for value in one.values]
        ((walked,),) = await look.ask(fewer, (len(rows), *walk.values, *walk.values, *also, len(rows)))
        if walked:
            return None
    numbers = [row[0] for row in rows]
    return Known(Source(look.session.sql("find", "source_letters_numbered"), (numbers,)), tagged.rest)


async def _meets(look: Look, selection: Selection, source: Source, *, letters: bool) -> bool:
    """Whether a walk is short: it finds enough, or ends, among the first WALKED."""
    asked = matching(look, selection, "meets_letters" if letters else "meets", source=source)
    behind = asked.values[len(source.values) :]
    values = (*source.values, WALKED, *behind, look.limit, look.limit, WALKED)
    ((met,),) = await look.ask(asked.statement, values)
    return bool(met)


def _bound(look: Look) -> int:
    """With <= or >= the planner counts in what equals the bound, and expects no fewer than there are."""
    return look.place[1] + 1 if look.end else look.place[1] - 1


def _by(walk: Walk, text: str) -> str:
    text = text.replace("{columns}", ", ".join(walk.columns)).replace("{values}", ", ".join(["%b"] * len(walk.values)))
    text = text.replace("{also}", " and ".join([one.text for one in walk.also]) or "true")
    return text.replace("{descending}", ", ".join([f"{column} desc" for column in walk.columns]))


def matching(look: Look, selection: Selection, name: str, *also: Compiled, source: Source = _NO_SOURCE) -> Asked:
    """A statement of find.sql for this selection, and the values of the source and of the selection."""
    letters = name.endswith("letters")
    way = "letters" if letters else "items"
    asked = (compiled(selection, look.pinned, letters=letters), *also)
    read = tables(selection, letters=letters)
    joined = [("i", "item"), ("c", "course") if letters else ("l", "letter"), ("t", "terms")]
    joins = " ".join(look.session.sql("find", f"{way}_join_{table}") for alias, table in joined if alias in read)
    where = " and ".join(one.text for one in asked)
    text = look.session.sql("find", name).replace("{source}", source.text)
    text = filled(look.session, text.replace("{joins}", joins).replace("{where}", where))
    return Asked(text, (*source.values, *[value for one in asked for value in one.values]))


def filled(session: Session, text: str) -> str:
    return text.replace("{schema}", session.schema)


async def find(
    session: Session, bodies: Bodies, selection: Selection, limit: int, cursor: str | None, *, oldest: bool
) -> Page:
    return await residue.page(_looks(session, bodies, oldest=oldest), selection, limit, cursor)


async def ids(
    session: Session, bodies: Bodies, selection: Selection, limit: int, cursor: str | None, *, oldest: bool
) -> IdPage:
    return await residue.ids(_looks(session, bodies, oldest=oldest), selection, limit, cursor)


def _looks(session: Session, bodies: Bodies, *, oldest: bool) -> residue.Looks:
    find, ids = partial(_find, session, bodies, oldest=oldest), partial(_ids, session, oldest=oldest)
    return residue.Looks(find, ids, partial(_now, session), oldest)


async def _find(
    session: Session, bodies: Bodies, selection: Selection, limit: int, cursor: str | None, *, oldest: bool
) -> Page:
    search = await search_for(session, selection, limit, cursor, oldest=oldest)
    whole = session.sql("get", "whole").replace("{found}", search.statement)
    rows = search.in_order(await session.page(whole, search.values, guessed=search.guessed))
    items = await bodies.whole(tuple([item_of(row) for row in rows[:limit]]))
    return Page(items, search.next(rows, 3, _PLACE), len(rows))


async def _ids(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> IdPage:
    search = await search_for(session, selection, limit, cursor, oldest=oldest)
    names = session.sql("get", "names").replace("{found}", search.statement)
    rows = search.in_order(await session.page(names, search.values, guessed=search.guessed))
    return IdPage(tuple([row[0] for row in rows[:limit]]), search.next(rows, 1, 2))


async def _now(session: Session) -> Instant:
    ((instant,),) = await session.read(session.sql("find", "now"), (session.pinned(),))
    return int(instant)


async def tally(session: Session, *, members: bool | Collection[str] = True) -> Tally:
    named = [] if isinstance(members, bool) else [name for name in members if storable((name,))]
    rows = await session.read(session.sql("tally", "queues"), (members is True, named, session.pinned()))
    wanted = [row for row in rows if row[1] is not None]
    rates = {row[1]: settings_of(row[17:31]).rate for row in wanted if is_family(row[1])}
    queues = [_queue(row, rates) for row in wanted]
    families = [row for row in queues if is_family(row.queue)]
    shown = [row for row in queues if members is not True or not is_family(row.queue)]
    routes = [RouteTally(row[15], row[2], row[16]) for row in rows if row[15] is not None]
    return Tally(rows[0][0], tuple(shown), tuple(routes), tuple(families))


def _queue(row: Row, rates: Mapping[str, Rate | None]) -> QueueTally:
    """From a row of tally.queues. `rates`: of families, for members that have none of their own."""
    name, ready, leased, done, opened, archived, trash, cancelled, oldest, paused, by, reason, held, parked = row[1:15]
    settings = settings_of(row[17:31])
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
        gives_again(settings.rate or rates.get(family_of(name)), row[31], row[0]),
    )


async def patience(
    session: Session, queues: Iterable[str], kinds: Mapping[str, tuple[str, ...]] | None = None
) -> Millis | None:
    """How long until something of these queues is due; 0 or less: now. None if nothing will be by itself."""
    pinned, names = session.pinned(), storable(queues)
    lists = kind_lists([(kinds or {}).get(name) for name in names])
    ((span,),) = await session.read(session.sql("tally", "patience"), (pinned, pinned, names, lists))
    return None if span is None else int(span)


async def kinds(session: Session, queue: str) -> tuple[str, ...]:
    if not storable((queue,)):
        return ()
    return tuple(
        [kind for (kind,) in await session.read(session.sql("tally", "kinds"), (queue, queue, session.pinned()))]
    )


async def causes(session: Session, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    if queue is not None and not storable((queue,)):
        return ()
    rows = await session.read(session.sql("causes", "causes"), (queue, queue, max(0, limit)))
    return tuple([_cause(*row) for row in rows])


def _cause(queue: str, count: int, evidence: bytes, first_at: int, last_at: int) -> CauseTally:
    failure = codec.decode(evidence, Failure)
    return CauseTally(failure.cause, queue, count, failure.type, failure.text, first_at, last_at)
