"""Find, read, replay, archive, discard, restore, skip. Every act is audited in the write that does it."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from redrive.core import select
from redrive.core.durations import Duration, parse
from redrive.core.filters import parse as parse_filter
from redrive.core.item import History, Item
from redrive.core.select import And, Ids, Match, Selection
from redrive.core.verbs import Act, Amended, Archive, Change, Discard, Entry, Page, Replay, Restore, Skip
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, NotFound
from redrive.events import Amended as AmendedEvent
from redrive.events import Events
from redrive.stores.base import PAGE_LIMIT, Store

Which = str | Page | Item | History | Iterable["str | Item"]
BUDGETS = ("fresh", "once")
PREFIX_MIN = 4
AT_ONCE = 2
"""Bites of a large act that are on their way together: while the store is busy with one, the next is being made."""
BARE_ID = re.compile(r"[^\s:<>=()*\"-][^\s:<>=()*\"]*")
"""A filter always names a field, so a text without any operator can only be an id."""


def default_actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def check_actor(actor: object) -> str:
    if not isinstance(actor, str) or not actor.strip():
        raise ConfigError(f"{actor!r} is not a name", field="actor", hint="use a short text, for the audit")
    return actor


class Letters:
    """`which` is a page, an item, ids or a filter text; a text is frozen to the ids it matches before any move."""

    def __init__(self, store: Store, events: Events, *, actor: str | None = None) -> None:
        self._store = store
        self._events = events
        self._actor = actor or default_actor()

    async def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of letters, last-died first: open ones unless the filter names a disposition."""
        return await self._store.find(letters_matching(filter), limit, cursor)

    async def get(self, item_id: str) -> History:
        """The letter with every attempt and act, by id or unique prefix."""
        return await self._store.get(await self.resolve(item_id))

    async def resolve(self, item_id: str) -> str:
        """The full id of an id, or of a prefix of at least four characters that fits one letter (or else one item)."""
        with suppress(NotFound):
            return (await self._store.get(str(item_id))).item.id
        if len(item_id) < PREFIX_MIN or "*" in item_id:
            hint = f"give the whole id or at least its first {PREFIX_MIN} characters"
            raise NotFound(f"no item {item_id!r}", hint=hint)
        begins = Match("id", "glob", f"{item_id}*")
        page = await self._store.find(And((Match("state", "=", "dead"), begins)), PAGE_LIMIT)
        page = page if page.items else await self._store.find(begins, PAGE_LIMIT)
        if not page.items:
            raise NotFound(f"no item {item_id!r}", hint="list letters with redrive letters list")
        if len(page.items) > 1:
            matches = f"{len(page.items)}{' or more' if page.next else ''} items"
            raise NotFound(f"{item_id!r} fits {matches}", hint="give more characters of the id")
        return page.items[0].id

    async def replay(
        self,
        which: Which,
        *,
        reason: str,
        budget: str = "fresh",
        delay: Duration = 0,
        force: bool = False,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Amended:
        """Send letters again, same id, history kept. `fresh`: all counters anew. `once`: one attempt, then dead.

        Each goes back to its place under its order key, or to the end if the others went on. One whose dedupe key a
        live item holds is skipped; with `force` it runs without the key.
        """
        if budget not in BUDGETS:
            raise ConfigError(f"{budget!r} is not a budget", field="budget", hint=f"use one of {', '.join(BUDGETS)}")
        change = Replay("once" if budget == "once" else "fresh", parse(delay, field="delay"), force)
        return await self._amend(which, change, reason, actor, request_id)

    async def archive(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Put letters away: kept, out of the open list, replayable."""
        return await self._amend(which, Archive(), reason, actor, request_id)

    async def discard(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """To the trash, from where `restore` brings them back until they are pruned."""
        return await self._amend(which, Discard(), reason, actor, request_id)

    async def restore(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Out of the archive or the trash: open again."""
        return await self._amend(which, Restore(), reason, actor, request_id)

    async def skip(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Let go on what waits behind dead heads of order keys. The letters stay; whoever goes on is told the gap."""
        return await self._amend(which, Skip(), reason, actor, request_id)

    async def audit(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return await self._store.journal("audit", after, limit)

    async def _amend(
        self, which: Which, change: Change, reason: str, actor: str | None, request_id: str | None
    ) -> Amended:
        who = self._actor if actor is None else check_actor(actor)
        act = Act(who, check_reason(reason), request_id or new_id())
        ids = await self._ids(which, change)
        done = await amend_in_chunks(self._store, ids, change, act)
        if self._events:
            name = type(change).__name__.lower()
            counts = len(done.changed), len(done.skipped)
            self._events.emit(AmendedEvent(name, act.actor, act.reason, act.request_id, *counts))
        return done

    async def _ids(self, which: Which, change: Change) -> list[str]:
        if isinstance(which, str):
            return [str(which)] if BARE_ID.fullmatch(which) else await self._matching(which, change)
        if isinstance(which, History):
            return [which.item.id]
        if isinstance(which, Item):
            return [which.id]
        return [str(each) if isinstance(each, str) else each.id for each in check_several(which, "which")]

    async def _matching(self, text: str, change: Change) -> list[str]:
        if not text.strip():
            raise ConfigError("it is empty", field="filter", hint="to mean every open letter, say disposition:open")
        selection = letters_matching(text, put_away=isinstance(change, Restore))
        ids: list[str] = []
        cursor = None
        while True:
            page = await self._store.ids(selection, cursor=cursor)
            ids += page.ids
            cursor = page.next
            if cursor is None:
                return ids


async def amend_in_chunks(store: Store, ids: Sequence[str], change: Change, act: Act) -> Amended:
    """In bites, each atomic, so that a large act never keeps workers waiting. Repeating it resumes it."""
    chunks = [Ids(tuple(ids[start : start + PAGE_LIMIT])) for start in range(0, len(ids), PAGE_LIMIT)]
    done: list[Amended] = []
    for start in range(0, len(chunks), AT_ONCE):
        bites = [store.amend(chunk, change, act) for chunk in chunks[start : start + AT_ONCE]]
        # All of them to their end, also if one fails: none is left behind to go on by itself.
        for answer in await asyncio.gather(*bites, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            done.append(answer)
    return joined(done)


def joined(parts: Sequence[Amended]) -> Amended:
    return Amended(
        tuple(chain.from_iterable([each.changed for each in parts])),
        tuple(chain.from_iterable([each.already for each in parts])),
        tuple(chain.from_iterable([each.skipped for each in parts])),
    )


def letters_matching(text: str, *, put_away: bool = False) -> Selection:
    """Letters only, and those on the table unless the text says where to look."""
    selection = parse_filter(text)
    parts: tuple[Selection, ...] = (Match("state", "=", "dead"), selection)
    if "disposition" not in select.fields_of(selection):
        where = Match("disposition", "=", "open")
        parts += (select.Not(where),) if put_away else (where,)
    return And(parts)


def check_several(which: object, field: str) -> list[Any]:
    """One id or many."""
    if isinstance(which, str):
        return [which]
    if not isinstance(which, Iterable) or isinstance(which, bytes | Mapping):
        hint = "give an id, a list of ids, an item, a page or a filter text"
        raise ConfigError(f"{which!r} names no items", field=field, hint=hint)
    return list(which)


def check_reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigError("a reason is needed", field="reason", hint="say why; it is kept in the audit")
    return reason.strip()
