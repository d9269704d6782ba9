"""What is removed for good, and what is left of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from redrive.core.acts import Act
from redrive.core.item import Instant, Item, Millis
from redrive.core.select import Ids, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import Swept, Tombstone
from redrive.stores import audit
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._lane import Lane
from redrive.stores.memory._table import Table

Write = Callable[[audit.AuditRecord, Act, Instant], None]
"""Into the journal, if the record tells of anything."""

FINISHED = frozenset({State.DONE, State.CANCELLED})


def resolved(item: Item) -> bool:
    if item.letter is not None:
        return item.letter.disposition is Disposition.TRASH
    return item.state in FINISHED


def _has_term(lane: Lane) -> bool:
    """Anything in it may have to go one day."""
    settings = lane.settings
    return settings.keep is not None or settings.keep_results is not None or lane.counts[Disposition.TRASH] > 0


class Broom:
    def __init__(self, table: Table, bonds: Bonds, tombstones: dict[str, Tombstone], write: Write) -> None:
        self._table = table
        self._bonds = bonds
        self._tombstones = tombstones
        self._write = write

    def remove(self, doomed: Sequence[Item], selection: Selection, by: Act, now: Instant) -> tuple[Tombstone, ...]:
        self._write(audit.AuditRecord("prune", selection, tuple(item.id for item in doomed)), by, now)
        stones = tuple(_tombstone(item, by, now) for item in doomed)
        for item, stone in zip(doomed, stones, strict=True):
            self._table.drop(item)
            self._bonds.forget(item.id)
            self._tombstones[item.id] = stone
        return stones

    def sweep(self, limit: int, by: Act, cursor: int, now: Instant) -> Swept:
        self._bonds.keys.forget(now)
        if not any(_has_term(lane) for lane in self._table.lanes.values()):
            return Swept()
        looked_at = self._table.enqueued_after(cursor, limit)
        over = [item for item in looked_at if self._over(item, now)]
        results = self._drop_results((item for item in looked_at if not self._over(item, now)), now)
        self.remove(over, Ids(tuple(item.id for item in over)), by, now)
        return Swept(len(over), results, looked_at[-1].seq if len(looked_at) == limit else None)

    def _over(self, item: Item, now: Instant) -> bool:
        settings = self._table.lanes[item.queue].settings
        if item.letter is not None:
            keep: Millis | None = settings.keep_trash
            if item.letter.disposition is not Disposition.TRASH:
                return False
        elif item.state in FINISHED:
            keep = settings.keep
        else:
            return False
        return keep is not None and (item.ended_at or 0) + keep <= now

    def _drop_results(self, items: Iterable[Item], now: Instant) -> int:
        dropped = 0
        for item in items:
            keep = self._table.lanes[item.queue].settings.keep_results
            if item.result is not None and keep is not None and (item.ended_at or 0) + keep <= now:
                self._table.save(structs.replace(item, result=None))
                dropped += 1
        return dropped


def _tombstone(item: Item, by: Act, now: Instant) -> Tombstone:
    digest = hashlib.sha256(item.payload).hexdigest()
    return Tombstone(item.id, item.queue, item.state, digest, now, by.actor, by.reason)
