"""`check` on Redis: whether what lies beside the items follows from them, and whether the bodies are what was put.

All is looked at in chunks, each by one script, so that nobody waits long and nothing that is written meanwhile can be
taken for a flaw. Whether the server's own files are whole is the server's to know.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from redrive.core import codec
from redrive.core.item import Attempt, Failure
from redrive.core.verbs import Checkup, Finding
from redrive.errors import StoreError
from redrive.stores.aside import aside
from redrive.stores.findings import Findings
from redrive.stores.packing import unpack
from redrive.stores.redis.rows import STAMP, bare_item, deeds_of, facts_of, payload_of, result_of, revision_of
from redrive.stores.redis.session import Session

CHUNK = 200
"""Records or entries that one script looks at."""
BODIES = 50
"""Of those that come with their bodies."""
REPAIRABLE = frozenset(
    {
        "indexes",
        "counters",
        "causes",
        "routes",
        "sequence",
        "lines",
        "slots",
        "dependencies",
        "dedupe",
        "holds",
        "tags",
        "changes",
        "families",
    }
)
"""What is kept beside the items and follows from them."""

_TRUTHS = {
    "record_damaged": ("records", "items whose record is damaged"),
    "state_unknown": ("states", "items in a state that does not exist"),
    "lease_misfits": ("states", "items that are leased to nobody, or not leased and yet held"),
    "end_misfits": ("states", "items that ended at no time, or have an end and go on"),
    "letter_misfits": ("letters", "items that are dead without a letter, or have one although they live"),
    "letter_body": ("letters", "letters whose evidence is damaged"),
    "failure_alone": ("letters", "letters whose item is gone, not dead or in another queue"),
    "not_in_index": ("indexes", "items that are not where they would be looked for"),
    "stray": ("indexes", "entries of an index that no item has"),
    "hold_misfits": ("holds", "items with a hold for nothing, or without one although they wait"),
    "not_in_followers": ("lines", "items that live and have no place under their order key"),
    "stray_followers": ("lines", "items that wait under an order key and are not there, or not ready"),
    "line_misfits": ("lines", "order keys whose head is not there, or is not what keeps the others back"),
    "stray_parked": ("lines", "order keys that are listed as parked and are not"),
    "not_in_slot": ("slots", "items that run and are not counted under their limit key"),
    "stray_slot": ("slots", "limit keys that count another number than runs"),
    "not_in_aside": ("slots", "items that were set aside and would not be found"),
    "stray_aside": ("slots", "items that were set aside and are not there, or not held"),
    "aside_unlisted": ("slots", "limit keys that are not known to hold items back"),
    "stray_asides": ("slots", "limit keys that are listed and hold nothing back"),
    "not_in_waits": ("dependencies", "items that would not wait for others, or not be found by them"),
    "not_in_awaited": ("dependencies", "items that would not wait for others, or not be found by them"),
    "stray_waits": ("dependencies", "items that wait for others and are not there, or not ready"),
    "stray_awaited": ("dependencies", "items that wait for others and are not there, or not ready"),
    "dedupe_misfits": ("dedupe", "dedupe keys that are held by an item which does not live"),
    "stray_windows": ("dedupe", "windows of dedupe keys that nobody holds"),
    "not_in_parks": ("holds", "parked items that would not be counted as such"),
    "stray_parks": ("holds", "items that are counted as parked and are not"),
    "not_in_tag": ("tags", "items that would not be found by a tag of theirs"),
    "stray_tag": ("tags", "items that are listed under a tag which they do not have"),
    "not_in_changes": ("changes", "letters without a change number"),
    "undeclared": ("counters", "queues that have items and are not declared"),
    "no_payload": ("payloads", "items without a payload"),
    "payload_body": ("payloads", "items whose payload is damaged"),
    "body_alone": ("payloads", "payloads without an item"),
    "result_body": ("results", "items whose result is damaged"),
    "result_alone": ("results", "results without an item"),
    "attempt_body": ("history", "attempts whose evidence is damaged"),
    "attempt_alone": ("history", "attempts without an item"),
    "revision_body": ("revisions", "items of which an earlier payload is damaged or missing"),
    "revision_alone": ("revisions", "earlier payloads without an item"),
    "deed_body": ("history", "items whose acts are damaged"),
    "deeds_alone": ("history", "acts on items that do not exist, or without their entry"),
    "recall_alone": ("letters", "letters kept for a recall whose item is gone"),
    "pruned_but_there": ("tombstones", "items that were pruned and are there"),
}
_GLOB = re.compile(r"([*?\[\]\\^])")
_BY_NUMBER = (b"items", b"ended:", b"held:")
"""Indexes that are ordered by the number of the item, and so do not name it."""
_BINDING = (
    *(b"followers:", b"slot:", b"aside:", b"waits:", b"awaited:", b"asides:", b"parked:", b"windows", b"tag:"),
    b"parks:",
)
"""Sets that bind items to others or have their tags, and those that list them: what is in them is not counted."""


async def check(session: Session, *, quick: bool) -> Checkup:
    return await _Look(session, bodies=not quick).run()


def can_repair(checkup: Checkup) -> bool:
    """Nothing is put right by records that are in doubt."""
    kinds = {finding.kind for finding in checkup.findings}
    return bool(kinds & REPAIRABLE) and "records" not in kinds


async def repair(session: Session) -> tuple[Finding, ...]:
    """Make what is kept beside the items follow from them again, and say what was wrong. No item is touched."""
    look = _Look(session, bodies=False)
    found = await look.run()
    wrong = tuple([finding for finding in found.findings if finding.kind in REPAIRABLE])
    lists = (look.misplaced, look.strays, look.undeclared, look.causes, look.routes, look.unfit)
    for step in ("sets", "lines", "holds") if wrong else ():
        for first in range(0, max(1, *map(len, lists)), CHUNK):
            args: list[bytes | str | int] = [step]
            for chosen in lists:
                part = chosen[first : first + CHUNK]
                args += [len(part), *part]
            await session.run("repair", args)
    for family in dict.fromkeys(look.families):
        await session.run("declare_family", [family, 1])
    return wrong


class _Look:
    def __init__(self, session: Session, *, bodies: bool) -> None:
        self._session = session
        self._bodies = bodies
        self._found = Findings()
        self._told: set[tuple[str, str]] = set()
        self.misplaced: list[bytes] = []
        self.strays: list[bytes] = []
        """Index and member in turn."""
        self.undeclared: list[bytes] = []
        self.causes: list[bytes] = []
        self.routes: list[bytes] = []
        self.unfit: list[bytes] = []
        """Hash and field in turn, of lines and dedupe keys."""
        self.families: list[bytes] = []

    async def run(self) -> Checkup:
        await self._look_at_items()
        await self._look_at_indexes(await self._look_at_keys())
        await self._look_at_hash(b"dedupe", "dedupe_misfits")
        await self._look_at_families()
        return Checkup(await self._look_at_numbers(), self._found.told())

    async def _look_at_families(self) -> None:
        wrong, unseen = await self._session.read("check_families")
        for family, name, has, count in zip(wrong[0::4], wrong[1::4], wrong[2::4], wrong[3::4], strict=True):
            told = f"{_shown(family)}: {_shown(name)} {has} (there are {count})"
            self._found.add("families", "families whose counters differ from those of their members", told)
            self.families.append(family)
        for family, queue in zip(unseen[0::2], unseen[1::2], strict=True):
            told = "members with work that leases of their family do not look at"
            self._found.add("families", told, _shown(queue))
            self.families.append(family)

    def _tell(self, truth: str, example: str) -> None:
        """Once: what is scanned while it changes may come twice."""
        if (truth, example) not in self._told:
            self._told.add((truth, example))
            self._found.add(*_TRUTHS[truth], example)

    def _tell_all(self, flaws: Sequence[bytes]) -> None:
        for truth, example in zip(flaws[0::2], flaws[1::2], strict=True):
            self._tell(truth.decode(), _shown(example))
            if truth.startswith(b"not_in_") or truth == b"hold_misfits":
                self.misplaced.append(example)
            elif truth == b"aside_unlisted":
                self.unfit += [b"aside", example]
            elif truth == b"undeclared":
                self.undeclared.append(example)

    async def _walk(self, script: str, count: int, *args: bytes | str | int) -> AsyncIterator[list[Any]]:
        """The replies of a script that goes on where it is told to, without where that is."""
        cursor: bytes = b"0"
        while True:
            cursor, *reply = await self._session.read(script, [cursor, count, *args])
            yield reply
            if cursor == b"0":
                return

    async def _look_at_items(self) -> None:
        count = BODIES if self._bodies else CHUNK
        async for flaws, *fields in self._walk("check_items", count, int(self._bodies)):
            self._tell_all(flaws)
            for truth, item_id in await aside(partial(_flaws_of_bodies, fields)) if fields else ():
                self._tell(truth, item_id)

    async def _look_at_keys(self) -> list[bytes]:
        """Gives the indexes."""
        pattern = _GLOB.sub(r"\\\1", self._session.prefix) + "*"
        kept: dict[tuple[str, str], int] = {}
        there: dict[tuple[str, str], int] = {}
        found: dict[bytes, None] = {}
        async for flaws, indexes, causes, routes, strays, lines in self._walk("check_keys", CHUNK, pattern):
            self._tell_all(flaws)
            self._tell_routes(routes)
            self._tell_strays(strays)
            for name in lines:
                await self._look_at_hash(name, "line_misfits")
            for name, has, count in zip(causes[0::3], causes[1::3], causes[2::3], strict=True):
                cause, _, queue = _shown(name).rpartition("\0")
                kept[cause, queue], there[cause, queue] = has, count
                self.causes.append(name)
            found.update(dict.fromkeys(indexes))
        self._found.add_causes(kept, there)
        return list(found)

    def _tell_routes(self, routes: Sequence[Any]) -> None:
        for name, has, count in zip(routes[0::3], routes[1::3], routes[2::3], strict=True):
            told = f"{_shown(name)}: {has} (there are {count})"
            self._found.add("routes", "routes whose count differs from their open letters", told)
            self.routes.append(name)

    def _tell_strays(self, strays: Sequence[bytes]) -> None:
        for name, member in zip(strays[0::2], strays[1::2], strict=True):
            self._tell("stray_" + _shown(name).partition(":")[0], f"{_shown(member)} in {_shown(name)}")
        self.strays += strays

    async def _look_at_hash(self, name: bytes, truth: str) -> None:
        async for (fields,) in self._walk("check_lines", CHUNK, name):
            for field in fields:
                self._tell(truth, f"{_shown(name)}: {_shown(field)}")
                self.unfit += [name, field]

    async def _look_at_indexes(self, names: list[bytes]) -> None:
        """One by one only where there is reason to: where all items are in theirs, their number tells of any other."""
        binding = [name for name in names if name.startswith(_BINDING)]
        counted = [name for name in names if not name.startswith(_BINDING)]
        doubtful = counted if self.misplaced else await self._session.read("check_sums", counted)
        for name in (*binding, *doubtful):
            await self._look_at_index(name)

    async def _look_at_index(self, name: bytes) -> None:
        if name.startswith(_BINDING):
            async for (strays,) in self._walk("check_index", CHUNK, name, 0):
                self._tell_strays([part for member in strays for part in (name, member)])
            return
        before_id = 0 if name.startswith(_BY_NUMBER) else STAMP
        async for (strays,) in self._walk("check_index", CHUNK, name, before_id):
            for member in strays:
                self._tell("stray", f"{_shown(member[before_id:])} in {_shown(name)}")
                self.strays += [name, member]

    async def _look_beside(self, name: str) -> None:
        async for (strays,) in self._walk("check_beside", BODIES, name):
            for item_id in strays:
                self._tell(f"{name}_alone", _shown(item_id))

    async def _look_at_numbers(self) -> int:
        items, last, highest, payloads, letters, failures, *changes = await self._session.read("check_numbers")
        self._look_at_last("number", last, highest)
        self._look_at_last("change number", *changes)
        suspected = {truth for truth, _ in self._told}
        if payloads != items or suspected & {"no_payload", "record_damaged"}:
            await self._look_beside("body")
        if failures != letters or suspected & {"letter_body", "letter_misfits", "not_in_index", "record_damaged"}:
            await self._look_beside("failure")
        await self._look_beside("result")
        await self._look_beside("deeds")
        await self._look_beside("recall")
        return int(items)

    def _look_at_last(self, what: str, last: bytes, highest: bytes) -> None:
        if not last.isdigit() or int(last) < int(highest):
            told = f"the last {what} given is kept as {_shown(last)}, and an item has {int(highest)}"
            self._found.add("sequence", told)


def _shown(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _flaws_of_bodies(fields: Sequence[Any]) -> list[tuple[str, str]]:
    found = []
    for at in range(0, len(fields), 8):
        item_id, kept, body, failure, result, attempts, deeds, revisions = fields[at : at + 8]
        judged = (
            ("payload_body", body is None or _payload_fits(body)),
            ("letter_body", failure is None or _failure_fits(failure, kept)),
            ("result_body", result is None or _unpacks(result_of(result))),
            ("attempt_body", all(_decodes(attempt, Attempt) for attempt in attempts)),
            ("deed_body", _are_deeds(deeds)),
            ("revision_body", _are_revisions(kept, revisions)),
        )
        found += [(truth, _shown(item_id)) for truth, fits in judged if not fits]
    return found


def _are_revisions(kept: bytes, revisions: Sequence[bytes]) -> bool:
    try:
        terms = bare_item("", kept).terms
        known = [revision_of(each) for each in revisions]
    except StoreError:
        return not revisions
    numbers = [one.number for one in known if not one.flaw and _unpacks(one.payload)]
    return numbers == list(range(0 if terms is None else terms.revision))


def _payload_fits(kept: bytes) -> bool:
    body, wrong = payload_of(kept)
    return wrong is None and _unpacks(body)


def _unpacks(body: bytes | None) -> bool:
    try:
        unpack(body or b"")
    except StoreError:
        return False
    return True


def _failure_fits(evidence: bytes, kept: bytes) -> bool:
    try:
        failure, letter = codec.decode(evidence, Failure), facts_of("", kept).letter
    except StoreError:
        return False
    # What is kept of an item that lives is told elsewhere.
    return isinstance(letter, bool) or (failure.cause, failure.category) == (letter.cause, letter.category)


def _decodes(kept: bytes, kind: Any) -> bool:
    try:
        codec.decode(kept, kind)
    except StoreError:
        return False
    return True


def _are_deeds(kept: bytes | None) -> bool:
    try:
        deeds_of(kept)
    except StoreError:
        return False
    return True
