"""Finding a page of items without keeping a transaction open for long.

What an index serves is found at once. A filter that none serves would read the whole table, and while a transaction
reads, the log cannot be cut and, if it also writes, nobody else can write. So the first try has a short deadline, and
after it the table is read in slices, each in a transaction of its own, with room for others between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Literal, NamedTuple, TypeVar

from redrive.core import select
from redrive.core.select import Selection
from redrive.stores.cursor import order_of
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.compile import compiled
from redrive.stores.sqlite.rows import Row
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load
from redrive.stores.tagged import FEW_TAGGED, Tagged, tagged_of

T = TypeVar("T")
Way = Literal["letters", "items"]

PATIENCE = 0.1
"""Seconds for the first try."""
STEPS = 2_000
"""Steps of the engine between two looks at the time: a fraction of a millisecond."""
SLICE = 20_000
"""Rows of one slice: some tens of milliseconds with the dearest filter."""

_SQL = load("sqlite", "find")
_OLDEST_SQL = load("sqlite", "find_oldest")
_FIRST, _LAST = -(2**63), 2**63 - 1
Place = tuple[int, int]
"""Where an item lies in the order of a way: when it died (or 0) and its number."""
_ENDS: tuple[Place, Place] = (_FIRST, _FIRST), (_LAST, _LAST)


class Asked(NamedTuple):
    """A page of what matches: the last first, or with `oldest` the first."""

    selection: Selection
    limit: int
    cursor: str | None
    oldest: bool = False


class Search(Generic[T]):
    """One page. `read` makes results of rows, in the transaction that found them."""

    def __init__(self, asked: Asked, read: Callable[[Tx, list[Row]], list[T]]) -> None:
        self._selection, self._limit, cursor, oldest = asked
        self._read = read
        self._way: Way = "letters" if select.pins_dead(self._selection) else "items"
        self._order = order_of(letters=self._way == "letters", oldest=oldest)
        self._sql = _OLDEST_SQL if oldest else _SQL
        begin, self._end = _ENDS if oldest else _ENDS[::-1]
        self._begin: Place = read_cursor(self._order, cursor) or begin
        self._last: Place | None = None
        self.found: list[T] = []
        self.next: str | None = None
        self.scanned = 0

    def whole(self, tx: Tx) -> bool:
        """True if that was all; False if it took too long, and `part` has to do it."""
        try:
            with short_of_time(tx):
                rows = self._rows(tx, self._end)
        except Exception as error:
            if not faults.is_interrupt(error):
                raise
            return False
        self.scanned = len(rows)
        self._take(tx, rows)
        return True

    def part(self, tx: Tx) -> bool:
        """The next slice; True if it was the last one needed."""
        end = self._boundary(tx)
        rows = self._rows(tx, end or self._end)
        self.scanned += SLICE
        self._take(tx, rows)
        if end is None or self.next is not None:
            return True
        self._begin = end
        return False

    def _rows(self, tx: Tx, end: Place) -> list[Row]:
        """Up to there. One more than is wanted tells whether there is another page."""
        tagged = self._by_tag(tx)
        selection = self._selection if tagged is None else tagged.rest
        where, values = compiled(selection, tx.now, letters=self._way == "letters")
        statement = self._sql[self._way if tagged is None else f"tagged_{self._way}"].replace("{where}", where)
        values = values if tagged is None else (tagged.tag, *values)
        bounds = (*self._begin, *end) if self._way == "letters" else (self._begin[1], end[1])
        return tx.execute(statement, (*values, *bounds, self._limit + 1 - len(self.found))).fetchall()

    def _by_tag(self, tx: Tx) -> Tagged | None:
        """Set if the items of a tag are read, and not those of another index."""
        tagged = tagged_of(self._selection)
        if tagged is None or self._way == "items":
            return tagged
        ((count,),) = tx.execute(_SQL["count_tagged"], (tagged.tag, FEW_TAGGED + 1)).fetchall()
        return tagged if count <= FEW_TAGGED else None

    def _take(self, tx: Tx, rows: list[Row]) -> None:
        room = self._limit - len(self.found)
        self.found += self._read(tx, rows[:room])
        if rows[:room]:
            self._last = (rows[:room][-1][0], rows[:room][-1][1])
        if len(rows) > room and self._last is not None:
            self.next = write_cursor(self._order, self._last)

    def _boundary(self, tx: Tx) -> Place | None:
        """Where the next slice ends; None if it is the last."""
        values = (*self._begin, SLICE - 1) if self._way == "letters" else (self._begin[1], SLICE - 1)
        row = tx.execute(self._sql[f"boundary_of_{self._way}"], values).fetchone()
        return None if row is None else (row[0], row[1])


class Oldest:
    """The numbers of the first items that match, in the order of their numbers, slice by slice."""

    def __init__(self, selection: Selection, limit: int) -> None:
        self._selection = selection
        self._limit = limit
        self._low = _FIRST
        self.ids: list[str] = []

    def part(self, tx: Tx) -> bool:
        row = tx.execute(_SQL["boundary_of_oldest"], (self._low, SLICE - 1)).fetchone()
        high = _LAST if row is None else row[0]
        where, values = compiled(self._selection, tx.now, letters=False)
        statement = _SQL["oldest_between"].replace("{where}", where)
        limit = self._limit - len(self.ids)
        self.ids += [item_id for (item_id,) in tx.execute(statement, (*values, self._low, high, limit))]
        self._low = high
        return row is None or len(self.ids) >= self._limit


@contextmanager
def short_of_time(tx: Tx) -> Iterator[None]:
    """A statement in here that takes longer than PATIENCE is interrupted."""
    end = time.monotonic() + PATIENCE
    tx.connection.watch(lambda: time.monotonic() > end, STEPS)
    try:
        yield
    finally:
        tx.connection.watch(None, 0)
