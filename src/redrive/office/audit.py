"""What was done, by whom and why; and whether it still says what it said."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.chain import HEAD, KIND, UNSEALED, Chain, Seal, key_of
from redrive.core.item import Instant
from redrive.core.verbs import Document, Entry
from redrive.engine import seals
from redrive.errors import StoreCorrupt
from redrive.stores.audit import TOPIC
from redrive.stores.base import PAGE_LIMIT, Store

LOOKED_AT = 10_000
"""Entries among which requests are looked for; the newest."""
_SKIPPED = re.compile(r"(.+?)\.[0-9]+\.skipped\.[0-9]+", re.DOTALL)
"""What a window of a replay could not send, see engine.replays."""


class AuditCheck(Struct, frozen=True):
    """`seals` fit, and with them `entries`; `unsealed` came after the last seal there is, whether or not it fits.
    `hash` is that of the last seal that fits: noted elsewhere, it proves later that nothing before it was changed.
    `fault` says what does not fit, and which `seal`; `missing` are the positions of entries that are gone, where that
    can be told.
    """

    seals: int
    entries: int
    unsealed: int
    hash: str
    fault: str = ""
    seal: int | None = None
    missing: tuple[int, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.fault


class AuditLine(Struct, frozen=True):
    """What one request did. An act on many items is written in several `entries`: `position` and `at` are those of the
    first, `changed` has the items of all.
    """

    position: int
    at: Instant
    actor: str
    act: str
    reason: str
    request_id: str
    changed: tuple[str, ...] = ()
    detail: Any = None
    entries: int = 1


def by_request(entries: Iterable[Entry]) -> list[AuditLine]:
    """One line for each act of a request, in the order of their first entries. The windows of a replay in the
    background are those of its request.
    """
    lines: dict[tuple[object, ...], AuditLine] = {}
    for entry in entries:
        line = _line(entry)
        key = (line.request_id or line.position, line.act, line.actor)
        first = lines.get(key)
        if first is None:
            lines[key] = line
        else:
            lines[key] = replace(first, changed=(*first.changed, *line.changed), entries=first.entries + 1)
    return list(lines.values())


def _line(entry: Entry) -> AuditLine:
    try:
        body = msgspec.json.decode(entry.body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        body = {}
    changed, detail = body.get("changed"), body.get("detail")
    request = entry.request_id
    if isinstance(detail, dict) and (replay := str(detail.get("reserved") or "")) and request.startswith(f"{replay}."):
        request = replay
    elif body.get("change") == "unreserve" and (skipped := _SKIPPED.fullmatch(request)):
        request = skipped[1]
    return AuditLine(
        entry.position,
        entry.at,
        entry.actor,
        str(body.get("change", entry.topic)),
        entry.reason,
        request,
        tuple([str(each) for each in changed]) if isinstance(changed, list) else (),
        detail or body.get("settings"),
    )


class _Fault(Struct, frozen=True):
    words: str
    seal: int | None
    missing: tuple[int, ...] = ()


class Audit:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return await self._store.journal(TOPIC, after, limit)

    async def last(self, limit: int = 100) -> tuple[Entry, ...]:
        """The newest entries, in order."""
        head = await self._store.document(HEAD, TOPIC)
        # A journal is read from the front. Positions have few gaps, so the newest begin not far before the last seal.
        after = 0 if head is None else max(0, codec.decode(head.body, Seal).upto - 2 * limit)
        newest: deque[Entry] = deque(maxlen=limit)
        while True:
            entries = await self._store.journal(TOPIC, after, PAGE_LIMIT)
            newest.extend(entries)
            if len(entries) < PAGE_LIMIT:
                break
            after = entries[-1].position
        return tuple(newest)

    async def requests(self, limit: int = 100) -> tuple[AuditLine, ...]:
        """The newest requests among the last LOOKED_AT entries, in order: one line each, whatever they changed."""
        return tuple(by_request(await self.last(LOOKED_AT))[-limit:])

    async def seal(self) -> Seal | None:
        """Make what is new a part of the chain. Workers do it every minute, and commands when they have acted."""
        return await seals.seal(self._store)

    async def verify(self, *, known: str | None = None) -> AuditCheck:
        """Make every seal anew from the entries, and compare. `known`: a hash that was noted and must be among them."""
        last, entries, fault = UNSEALED, 0, None
        hashes: set[str] = set()
        documents = await self._store.documents(KIND)
        for document in documents:
            found = await self._compare(document, last)
            if isinstance(found, _Fault):
                fault = found
                break
            last = found
            entries += found.count
            hashes.add(found.hash)
        fault = fault or await self._ending(last, known, hashes) or _Fault("", None)
        unsealed = await self._unsealed(last.upto if not fault.words else await self._sealed(documents))
        return AuditCheck(last.number, entries, unsealed, last.hash, fault.words, fault.seal, fault.missing)

    async def _compare(self, document: Document, last: Seal) -> Seal | _Fault:
        """The seal, or why it does not fit behind the last one."""
        number = last.number + 1
        if document.key != key_of(number):
            return _Fault(f"seal {number} is missing", number)
        try:
            kept = codec.decode(document.body, Seal)
        except StoreCorrupt:
            return _Fault(f"seal {number} cannot be read", number)
        if (kept.number, kept.before, kept.first) != (number, last.hash, last.upto + 1):
            return _Fault(f"seal {number} does not follow the one before it", number)
        chain, positions = await self._chained(last, kept.upto)
        if chain.count != kept.count:
            entries = "entry" if kept.count == 1 else "entries"
            there = "is" if chain.count == 1 else "are"
            words = f"seal {number} is over {kept.count:,} {entries}, and there {there} {chain.count:,}"
            return _Fault(words, number, _gone(kept, positions))
        if chain.seal() != kept:
            return _Fault(f"the entries under seal {number} are not those that were sealed", number)
        return kept

    async def _chained(self, last: Seal, upto: int) -> tuple[Chain, set[int]]:
        chain, after = Chain(last), last.upto
        positions: set[int] = set()
        while True:
            entries = await self._store.journal(TOPIC, after, PAGE_LIMIT)
            under = [entry for entry in entries if entry.position <= upto]
            chain.add(under)
            positions.update(entry.position for entry in under)
            if len(under) < PAGE_LIMIT:
                return chain, positions
            after = under[-1].position

    async def _ending(self, last: Seal, known: str | None, hashes: set[str]) -> _Fault | None:
        head = await self._store.document(HEAD, TOPIC)
        marked = 0 if head is None else codec.decode(head.body, Seal).number
        # Between the two looks somebody may have sealed more; less than there was can only be a loss.
        if last.number < marked and await self._store.document(KIND, key_of(last.number + 1)) is None:
            return _Fault(f"seal {last.number + 1} is missing", last.number + 1)
        if known is not None and known.strip().lower() not in hashes:
            return _Fault(f"no seal has the hash {known.strip()}", None)
        return None

    async def _sealed(self, documents: Sequence[Document]) -> int:
        """How far the seals say that they reach: what lies behind a fault was sealed all the same."""
        head, upto = await self._store.document(HEAD, TOPIC), 0
        for document in (*documents, *([] if head is None else [head])):
            with suppress(StoreCorrupt):
                upto = max(upto, codec.decode(document.body, Seal).upto)
        return upto

    async def _unsealed(self, after: int) -> int:
        count = 0
        while True:
            entries = await self._store.journal(TOPIC, after, PAGE_LIMIT)
            count += len(entries)
            if len(entries) < PAGE_LIMIT:
                return count
            after = entries[-1].position


def _gone(kept: Seal, positions: set[int]) -> tuple[int, ...]:
    """Where so many positions are free as entries are missing, these were theirs."""
    missing = kept.count - len(positions)
    if missing <= 0 or kept.upto - kept.first + 1 != kept.count:
        return ()
    return tuple([at for at in range(kept.first, kept.upto + 1) if at not in positions][:PAGE_LIMIT])
