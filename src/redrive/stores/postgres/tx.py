"""What a verb works with inside a transaction: statements, the instant, and the counters it moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from redrive.core.item import Instant
from redrive.stores.postgres.arrays import bigints, texts
from redrive.stores.statements import load

if TYPE_CHECKING:
    from redrive.stores.postgres.wire import Row, Wire

Kind = Literal["ready", "leased", "done", "open", "archived", "trash", "cancelled", "held", "parked"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PLACES: dict[str, int] = {kind: place for place, kind in enumerate(KINDS)}


class Tx:
    """`woken`: queues in which it made something ready; who waits for them hears of it after the commit.

    `keyless`: numbers of letters whose dedupe key another item (by its id) holds.
    """

    __slots__ = ("_causes", "_counts", "_schema", "keyless", "now", "wire", "woken")

    def __init__(self, wire: Wire, now: Instant, schema: str) -> None:
        self.wire = wire
        self.now = now
        self.woken: set[str] = set()
        self.keyless: dict[int, str] = {}
        self._schema = schema
        self._counts: dict[str, list[int]] = {}
        self._causes: dict[tuple[str, str, str], int] = {}

    async def execute(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        return await self.wire.rows(statement, params)

    async def in_order(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        """As Session.page has it: nothing is sorted where an index has the order."""
        await self.wire.rows("set local enable_sort = off")
        rows = await self.wire.rows(statement, params)
        await self.wire.rows("set local enable_sort = on")
        return rows

    async def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """In one go; for what returns nothing."""
        cursor = self.wire.cursor(binary=True)
        await cursor.executemany(statement.encode(), rows)

    def count(self, queue: str, kind: Kind, by: int) -> None:
        """Kept until the end: however many items move, each queue gets one row."""
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = [0] * len(KINDS)
        counts[_PLACES[kind]] += by

    def count_cause(self, cause: str, queue: str, route: str, by: int) -> None:
        key = (cause, queue, route)
        self._causes[key] = self._causes.get(key, 0) + by

    async def flush(self) -> None:
        counts = {queue: moved for queue, moved in self._counts.items() if any(moved)}
        if counts:
            columns = [bigints(column) for column in zip(*counts.values(), strict=True)]
            await self.execute(self._said("queues"), (texts([*counts]), *columns))
        causes = {key: by for key, by in self._causes.items() if by}
        if causes:
            names = [texts(column) for column in zip(*causes, strict=True)]
            await self.execute(self._said("causes"), (*names, bigints([*causes.values()])))
        self._counts.clear()
        self._causes.clear()

    def _said(self, name: str) -> str:
        return load("postgres", "count")[name].replace("{schema}", self._schema)
