"""Reader and verifier of the audit journal: entries, one line per request, and the chain of seals."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from redrive.core import codec
from redrive.core.chain import HEAD, KIND, UNSEALED, Chain, Seal, key_of
from redrive.core.durations import Duration, parse
from redrive.core.item import Instant, Millis
from redrive.core.verbs import Document, Entry
from redrive.engine import seals
from redrive.errors import StoreCorrupt
from redrive.stores.audit import TOPIC
from redrive.stores.base import PAGE_LIMIT, Store

OVER: Millis = 3_600_000
"""After this long without an entry a request is over. Later entries under its id are another request."""
NAMED = 1_000
"""The most changed ids that a line names; all are counted."""
RELEASED = ".released"
"""Suffix of a replay's request id for the release of letters that were reserved after it had ended."""
RESERVING_ACTS = ("reserve", "unreserve")
THINGS, ITEMS, RESERVING = range(3)
"""Ranks of acts: on settings and the like, on items, reservations of a replay. The main act has the lowest."""
_OF_REPLAY = re.compile(r"(.+?)(?:\.([0-9]+)(\.skipped\.[0-9]+)?|(\.released))", re.DOTALL)
"""Request ids of the parts of a background replay: a window, its skipped letters, released letters."""


class AuditCheck(Struct, frozen=True):
    """Result of a verification: numbers of valid `seals` and of `entries` under them; `unsealed` came after the last
    seal, valid or not. `hash` is that of the last valid seal: noted elsewhere, it proves later that nothing before it
    was changed. `fault` describes the first mismatch, at `seal`; `missing` are positions of removed entries, if known.
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
    """Summary of one request. `position` and `at` are those of its first entry.

    `act`, `reason` and `detail` are those of the main act, and `changed` are the first NAMED ids that it changed.
    `acts` has all acts with the number of changes, the main act first. `count`: how many items the request changed, or
    how many settings if it changed no item.
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
    count: int = 0
    acts: dict[str, int] = {}


class _Part(Struct):
    """One decoded entry. `request` is the common request id of all parts of a background replay, `window` the number of
    this part.
    """

    entry: Entry
    request: str
    act: str
    rank: int
    changed: tuple[str, ...]
    count: int
    detail: Any
    window: int | None = None


def _part(entry: Entry) -> _Part:
    try:
        body = msgspec.json.decode(entry.body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        body = {}
    act, found, selection = str(body.get("change", entry.topic)), body.get("changed"), body.get("selection")
    changed = tuple([str(each) for each in found]) if isinstance(found, list) else ()
    named = selection.get("ids") if isinstance(selection, dict) else None
    rank = RESERVING if act in RESERVING_ACTS else ITEMS if named != [] else THINGS
    # An entry may name the replayed letters and also the items that they became.
    count = min(len(changed), len(named)) if named else len(changed)
    detail = body.get("detail")
    part = _Part(entry, entry.request_id, act, rank, changed, count, detail or body.get("settings"))
    of_replay = _OF_REPLAY.fullmatch(entry.request_id)
    if of_replay is not None:
        request, window, skipped, released = of_replay.groups()
        sent = isinstance(detail, dict) and detail.get("reserved") == request
        if sent or (act == "unreserve" and (skipped or released)):
            part.request, part.window = request, None if window is None else int(window)
    return part


class _Act:
    """Changes of one request by one act. Entries are added newest first."""

    def __init__(self, part: _Part) -> None:
        self.word, self.rank = part.act, part.rank
        self.count = 0
        self.changed: deque[str] = deque(maxlen=NAMED)
        self._seen: set[str] = set()

    def add(self, part: _Part) -> None:
        self.position, self.reason, self.detail = part.entry.position, part.entry.reason, part.detail
        changed, count = part.changed, part.count
        if self.rank == THINGS:
            # A write of unknown outcome is repeated with its entry.
            changed = tuple([each for each in changed if each not in self._seen])
            self._seen.update(changed[: NAMED - len(self._seen)])
            count = len(changed)
        self.changed.extendleft(reversed(changed))
        self.count += count


class _Request:
    """One request. Entries are added newest first. `window`: the earliest window of a background replay."""

    def __init__(self) -> None:
        self.acts: dict[str, _Act] = {}
        self.entries = 0
        self.window = 0

    def add(self, part: _Part) -> None:
        self.request, self.actor = part.request, part.entry.actor
        self.position, self.at = part.entry.position, part.entry.at
        self.window = self.window if part.window is None else part.window
        self.entries += 1
        if part.act not in self.acts:
            self.acts[part.act] = _Act(part)
        self.acts[part.act].add(part)

    def is_whole(self, at: Instant) -> bool:
        """Whether it is complete, given that all entries since `at` were added."""
        return self.window == 0 and self.at - at > OVER

    def line(self) -> AuditLine:
        acts = sorted(self.acts.values(), key=lambda act: (act.rank, act.position))
        main = acts[0]
        return AuditLine(
            self.position,
            self.at,
            self.actor,
            main.word,
            main.reason,
            self.request,
            tuple(main.changed),
            main.detail,
            self.entries,
            sum([act.count for act in acts if act.rank == ITEMS]) or main.count,
            {act.word: act.count for act in acts},
        )


class _Fault(Struct, frozen=True):
    words: str
    seal: int | None
    missing: tuple[int, ...] = ()


class Audit:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """Audit entries with actor and reason, in order; continue with `after=` the last position."""
        return await self._store.journal(TOPIC, after, limit)

    async def last(self, limit: int = 100) -> tuple[Entry, ...]:
        """The newest entries, in order."""
        newest: list[Entry] = []
        upto = await self._end()
        while upto > 0 and len(newest) < limit:
            page, upto = await self._page(upto)
            newest[:0] = page
        return tuple(newest[max(0, len(newest) - limit) :])

    async def requests(
        self, limit: int = 100, *, actor: str | None = None, since: Duration | None = None
    ) -> tuple[AuditLine, ...]:
        """The newest requests in the order in which they began, one line each, however many entries they have.

        `actor`: only requests of this actor. `since`: only requests that began within this time. Reads back page by
        page as far as needed: a request is complete when it has no entry in the hour before its first one, and a
        background replay when its first window was read.
        """
        began = 0 if since is None else (await self._store.tally(members=False)).at - parse(since, field="since")
        found: dict[tuple[str | int, str], _Request] = {}
        whole: list[AuditLine] = []
        upto, at = await self._end(), began
        while upto > 0 and len(whole) < limit and at >= began - OVER:
            page, upto = await self._page(upto)
            for entry in reversed(page):
                if actor in (None, entry.actor):
                    part = _part(entry)
                    key = (part.request or entry.position, entry.actor)
                    if key in found and found[key].is_whole(entry.at):
                        whole.append(found.pop(key).line())
                    found.setdefault(key, _Request()).add(part)
                at = entry.at
            over = [key for key, request in found.items() if request.is_whole(at)]
            whole += [found.pop(key).line() for key in over]
        if upto <= 0:
            whole += [request.line() for request in found.values()]
        lines = sorted([line for line in whole if line.at >= began], key=lambda line: line.position)
        return tuple(lines[max(0, len(lines) - limit) :])

    async def _end(self) -> int:
        """The position of the last entry; most of them are sealed."""
        head = await self._store.document(HEAD, TOPIC)
        upto = 0 if head is None else codec.decode(head.body, Seal).upto
        while entries := await self._store.journal(TOPIC, upto, PAGE_LIMIT):
            upto = entries[-1].position
        return upto

    async def _page(self, upto: int) -> tuple[tuple[Entry, ...], int]:
        """One page of entries up to a position, in order, and the position before them."""
        after = max(0, upto - PAGE_LIMIT)
        entries = await self._store.journal(TOPIC, after, PAGE_LIMIT)
        return tuple([entry for entry in entries if entry.position <= upto]), after

    async def seal(self) -> Seal | None:
        """Add a seal over the new entries to the chain. Workers do so every minute, and commands after their acts."""
        return await seals.seal(self._store)

    async def verify(self, *, known: str | None = None) -> AuditCheck:
        """Recompute every seal from the entries, and compare. `known`: a noted hash that must be among them."""
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
        """The seal, or why it does not continue the chain after the last one."""
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
        # Another process may have added seals between the two reads; fewer seals than before are a loss.
        if last.number < marked and await self._store.document(KIND, key_of(last.number + 1)) is None:
            return _Fault(f"seal {last.number + 1} is missing", last.number + 1)
        if known is not None and known.strip().lower() not in hashes:
            return _Fault(f"no seal has the hash {known.strip()}", None)
        return None

    async def _sealed(self, documents: Sequence[Document]) -> int:
        """The last position under any seal, also behind a fault."""
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
    """Positions of the missing entries, if exactly that many positions are free under the seal."""
    missing = kept.count - len(positions)
    if missing <= 0 or kept.upto - kept.first + 1 != kept.count:
        return ()
    return tuple([at for at in range(kept.first, kept.upto + 1) if at not in positions][:PAGE_LIMIT])
