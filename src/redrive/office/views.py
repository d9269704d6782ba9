"""Saved views: a filter with a name, for everybody who works on the store."""

from __future__ import annotations

import re
from difflib import get_close_matches

from msgspec import Struct

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.filters import parse
from redrive.core.item import Instant
from redrive.core.verbs import Document, DocumentWrite, NewEntry
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.office.gates import audit_entry
from redrive.stores.base import Store

KIND = "view"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class View(Struct, frozen=True):
    """`by` saved it `at` that time."""

    name: str
    filter: str
    by: str
    at: Instant


class Views:
    def __init__(self, store: Store, *, actor: str) -> None:
        self._store = store
        self._actor = actor

    async def save(self, name: str, filter: str, *, replace: bool = False) -> View:
        """Keep a filter under a name. Conflict if the name has another filter, unless it is to be replaced."""
        _check_name(name)
        parse(filter)
        if not filter.strip():
            raise ConfigError("it is empty", field="filter", hint="such as queue:emails error:*Timeout")
        there = await self._store.document(KIND, name)
        if there is not None and not replace:
            view = _read(there)
            if view.filter == filter:
                return view
            raise Conflict(f"there is a view {name!r} already: {view.filter}", hint="replace it, or take another name")
        view = View(name, filter, self._actor, (await self._store.tally(members=False)).at)
        expect = 0 if there is None else there.version
        write = DocumentWrite(KIND, name, codec.encode(view), expect)
        await self._store.write_documents([write], self._entry("view save", name, filter))
        return view

    async def list(self) -> tuple[View, ...]:
        """All of them, by name."""
        return tuple([_read(each) for each in await self._store.documents(KIND)])

    async def get(self, name: str) -> View:
        """Raises NotFound."""
        found = await self._store.document(KIND, name) if _NAME.fullmatch(name) else None
        if found is None:
            near = get_close_matches(name, [view.name for view in await self.list()], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "save one with redrive view save NAME FILTER"
            raise NotFound(f"no view {name!r}", hint=hint)
        return _read(found)

    async def remove(self, name: str) -> None:
        """The letters it showed stay as they are. Raises NotFound."""
        view = await self.get(name)
        entry = self._entry("view remove", view.name, view.filter)
        await self._store.write_documents([DocumentWrite(KIND, view.name, None)], entry)

    def _entry(self, word: str, name: str, filter: str) -> NewEntry:
        return audit_entry(word, name, Act(self._actor, filter, new_id()))


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "use up to 64 letters, digits, dots, dashes and underscores"
        raise ConfigError(f"{name!r} is no name for a view", field="name", hint=hint)


def _read(document: Document) -> View:
    return codec.decode(document.body, View)
