"""Letters from store to store: read, checked as a whole before the first one moves, and taken in by bites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import History, Instant
from redrive.core.select import Ids
from redrive.core.verbs import PutResult
from redrive.errors import BadImport, ConfigError
from redrive.office.record_reading import faults_of, history_of
from redrive.office.records import Record, instant, record_from
from redrive.stores.base import Store
from redrive.stores.imports import check_imports

FAULTS = 20
BITE = 500


class Customs:
    """Looks at every letter before any may pass. `place` is what a fault is told with, as in `line 3`."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._more = 0
        self._seen: dict[str, str] = {}
        self._bound: list[History] = []
        self.count = 0

    def look(self, place: str, given: Record | Mapping[str, Any] | bytes | str) -> Record | None:
        """The record, or None if it has a fault, which is noted."""
        self.count += 1
        try:
            record = as_record(given)
        except ConfigError as error:
            self._note(place, error)
            return None
        faults = list(faults_of(record))
        if record.id in self._seen:
            faults.append(ConfigError(f"{self._seen[record.id]} has it already", field="id"))
        self._seen.setdefault(record.id, place)
        if not faults:
            faults = self._in_the_eyes_of_stores(record)
        for fault in faults:
            self._note(place, fault)
        return None if faults else record

    def stamp(self) -> None:
        """Raises BadImport unless all were without a fault."""
        self._look_together()
        if self._faults:
            raise BadImport(tuple(self._faults), more=self._more)

    def _in_the_eyes_of_stores(self, record: Record) -> list[ConfigError]:
        history = history_of(record)
        try:
            check_imports([history])
        except ConfigError as error:
            return [error]
        terms = history.item.terms
        if terms is not None and (terms.after or terms.order_key):
            self._bound.append(replace(history, item=replace(history.item, payload=b"", sealed="")))
        return []

    def _look_together(self) -> None:
        """Whether those that are bound to each other fit together: letters may wait for letters, but not in a ring."""
        if any(history.item.terms is not None and history.item.terms.after for history in self._bound):
            try:
                check_imports(self._bound)
            except ConfigError as error:
                self._note("letters that wait for each other", error)

    def _note(self, place: str, fault: ConfigError) -> None:
        if len(self._faults) < FAULTS:
            self._faults.append(f"{place}: {fault}")
        else:
            self._more += 1


def as_record(given: object) -> Record:
    if isinstance(given, Record):
        return given
    if isinstance(given, Mapping):
        return record_from(codec.encode(dict(given)))
    if isinstance(given, bytes | str):
        return record_from(given)
    hint = "give what app.letters.export gives, or JSON objects of that form"
    raise ConfigError(f"a {type(given).__name__} is no letter", field="records", hint=hint)


async def take_in(store: Store, records: Iterable[Record], by: Act) -> PutResult:
    """In bites, each all or none. Repeating it takes in the rest.

    In the order of their enqueue, for whatever is waited for must not come in a later bite than those who wait.
    """
    added: list[str] = []
    already: list[str] = []
    for bite in bites(sorted(records, key=enqueued)):
        done = await store.take_in([history_of(record) for record in bite], by)
        added += done.added
        already += done.already
    return PutResult(tuple(added), tuple(already))


async def would_take_in(store: Store, records: Iterable[Record]) -> PutResult:
    """What `take_in` would answer."""
    added: list[str] = []
    already: list[str] = []
    for bite in bites(records):
        ids = [record.id for record in bite]
        there = set((await store.ids(Ids(tuple(ids)))).ids)
        there |= {one for one in ids if one not in there and await store.tombstone(one) is not None}
        added += [one for one in ids if one not in there]
        already += [one for one in ids if one in there]
    return PutResult(tuple(added), tuple(already))


def enqueued(record: Record) -> Instant:
    return instant(record.enqueued_at, "enqueued_at")


def bites(records: Iterable[Record]) -> Iterator[Sequence[Record]]:
    rest = iter(records)
    while bite := list(islice(rest, BITE)):
        yield bite
