"""`amend` and `prune` on Redis: what is meant is found in Python, and changed by one script that looks again."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple, Never

import msgspec

from redrive.core import codec, select
from redrive.core.acts import (
    EDITS_LIMIT,
    ENDED_SINCE,
    IS_PARKED,
    LEASED_SINCE,
    MISSING,
    NOT_HEAD,
    NOT_PARKED,
    NOT_REPLAYED,
    NOT_REPLAYED_LETTER,
    Act,
    Amended,
    Archive,
    Change,
    Discard,
    Edit,
    Move,
    Park,
    Refusal,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skipped,
    Tag,
    Unreserve,
    edit_refusal,
    key_held,
    not_reserved,
    refusal,
    reserved_for,
)
from redrive.core.item import Item
from redrive.core.select import And, Ids, Match, Selection
from redrive.core.states import Disposition, State
from redrive.core.terms import EXPIRED, EXPIRED_FAILURE
from redrive.core.verbs import Tombstone
from redrive.errors import ConfigError, Conflict, StoreUnavailable
from redrive.stores import audit, packing, residue
from redrive.stores.aside import aside
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.checks import (
    KEEPS_BACK,
    TAGS_LIMIT,
    bound_to,
    there_already,
    too_many_tags,
    waits_for_stranger,
    waits_in_vain,
)
from redrive.stores.redis.find import BODIES
from redrive.stores.redis.plan import pins
from redrive.stores.redis.rows import packed_body, payload_of, tombstone_body
from redrive.stores.redis.search import Candidate, as_bytes, oldest
from redrive.stores.redis.session import Session
from redrive.stores.redis.shelf import meta_of
from redrive.stores.redis.texts import packed

MOST = 200_000
"""Items of one act: the server takes at most a million arguments."""
TRIES = 20
"""Looks at what a selection means, each time that it has changed before the script could change it."""
PAUSE = 0.02
"""Seconds at most between two looks, by chance: two who got in each other's way should not meet again."""

_CHANGED, _ALREADY = range(2)
_REFUSALS = {
    2: MISSING,
    3: Refusal("its record is damaged", "damaged"),
    4: NOT_HEAD,
    5: Refusal("it was leased meanwhile", "leased"),
    6: KEEPS_BACK,
    7: NOT_PARKED,
    8: IS_PARKED,
}
"""By the numbers that the script answers."""
_LIES: dict[type, Disposition] = {
    Archive: Disposition.ARCHIVED,
    Discard: Disposition.TRASH,
    Restore: Disposition.OPEN,
}
Arg = bytes | str | int
_EXPIRED = (
    EXPIRED,
    EXPIRED_FAILURE.cause,
    EXPIRED_FAILURE.type.rpartition(".")[2],
    EXPIRED_FAILURE.category,
    codec.encode(EXPIRED_FAILURE).decode(),
)
_HOLDER = "\0"
"""Stands for whoever works on a letter: the script knows who that is."""


class _Meant(NamedTuple):
    """One item to be changed: `judged_by` is the record that the selection was asked about, none for an id as such."""

    id: str
    judged_by: bytes


async def amend(session: Session, selection: Selection, change: Change, by: Act, expect: int | None) -> Amended:
    if isinstance(selection, Ids) and len(selection.ids) > MOST:
        raise ConfigError(
            f"{len(selection.ids):,} items are too many for one act", field="ids", hint=f"name at most {MOST:,} at once"
        )
    residue.refuse(selection)
    refusals = _refusals(change)
    head = _head(change, by, None if not isinstance(selection, Ids) else expect)
    marks = {kind: int(why is not None) for kind, why in refusals.items()}
    head += [int(pins(selection).get("state") == State.READY), packed(marks), packed(_detail(change))]
    payload = packed_body(change.payload) if isinstance(change, Edit) else b""
    for _ in range(TRIES):
        meant = await _meant(session, selection, expect)
        record = audit.AuditRecord(audit.word(change), selection, (), change)
        items = [arg for one in meant for arg in (as_bytes(one.id), codec.encode(one.id), one.judged_by)]
        answers = await session.run("amend", [*head, *entry_of(record, by), payload, *items])
        if isinstance(answers, int):
            _refuse_count(answers, expect)
        if answers is not None:
            return _amended([one.id for one in meant], answers, refusals, change)
        await asyncio.sleep(random.random() * PAUSE)  # noqa: S311 - only to be apart
    raise _too_busy("changed")


def _head(change: Change, by: Act, expect: int | None) -> list[Arg]:
    delay, once, force = 0, False, False
    if isinstance(change, Replay):
        delay, once, force = change.delay, change.budget == "once", change.force
    lies = _LIES.get(type(change), "")
    wanted = "" if expect is None else expect
    return [audit.word(change), wanted, by.actor, by.reason, by.request_id, delay, int(once), lies, int(force)]


def _detail(change: Change) -> dict[str, object]:
    """What the script needs to know of some changes only."""
    return {
        "queue": change.queue if isinstance(change, Move | Replay) else "",
        "add": change.add if isinstance(change, Tag) else (),
        "remove": change.remove if isinstance(change, Tag) else (),
        "most": TAGS_LIMIT,
        "policy": change.policy if isinstance(change, SetPolicy) else "",
        "reset": isinstance(change, RunNow) and change.reset,
        "expired": _EXPIRED,
        "label": change.label if isinstance(change, Park) else "",
        "revision": change.revision if isinstance(change, Edit) and change.revision is not None else False,
        "most_edits": EDITS_LIMIT,
        "replay": change.replay if isinstance(change, Reserve) else "",
        "reserved": change.reserved if isinstance(change, Replay) else "",
    }


def _refusals(change: Change) -> dict[str, Refusal | None]:
    """By what an item is, all that `refusal` knows: the script asks it as of the moment in which it writes."""
    known = {str(state): refusal(change, state, None) for state in State}
    # As of a letter that is reserved as it must be: of that the script knows.
    reserved = change.reserved if isinstance(change, Replay) else "x" * isinstance(change, Unreserve)
    known |= {str(lies): refusal(change, State.DEAD, lies, reserved=reserved) for lies in Disposition}
    held = refusal(change, State.DEAD, Disposition.OPEN, holder=_HOLDER)
    return known | {"held": held if held is not None and _HOLDER in held.reason else None}


def entry_of(record: audit.AuditRecord, by: Act) -> list[Arg]:
    """The audit entry in pieces: only the script knows which ids are to stand in the middle."""
    mark = uuid.uuid4().hex
    entry = audit.entry(msgspec.structs.replace(record, changed=(mark,)), by)
    before, _, after = entry.body.partition(codec.encode(mark))
    return [meta_of(entry), before, after]


async def _meant(session: Session, selection: Selection, expect: int | None) -> list[_Meant]:
    if isinstance(selection, Ids):
        return [_Meant(item_id, b"") for item_id in dict.fromkeys(selection.ids)]
    found = await oldest(session, selection, PAGE_LIMIT, count_all=expect is not None)
    if expect is not None and found.matching != expect:
        _refuse_count(found.matching, expect)
    return [_Meant(candidate.item.id, candidate.kept) for candidate in found.candidates]


def _refuse_count(count: int, expect: int | None) -> Never:
    raise Conflict(
        f"{count} items match, not {expect}; nothing was changed",
        hint="look again at what the selection finds, then repeat with the new number",
    )


_HINDRANCES: dict[bytes, Callable[[str], Refusal]] = {
    b"twin": key_held,
    b"vain": waits_in_vain,
    b"unknown": waits_for_stranger,
    b"there": there_already,
    b"bound": bound_to,
    b"reserved": reserved_for,
    b"unreserved": not_reserved,
    b"recall": {
        "none": NOT_REPLAYED,
        "letter": NOT_REPLAYED_LETTER,
        "leased": LEASED_SINCE,
        "ended": ENDED_SINCE,
    }.__getitem__,
}


def _amended(
    ids: Sequence[str], answers: Sequence[int | bytes | list[Any]], refusals: dict[str, Refusal | None], change: Change
) -> Amended:
    changed, already, skipped = [], [], []
    for item_id, answer in zip(ids, answers, strict=True):
        if answer == _CHANGED:
            changed.append(item_id)
        elif answer == _ALREADY:
            already.append(item_id)
        else:
            skipped.append(Skipped(item_id, *_refusal(answer, refusals, change)))
    return Amended(tuple(changed), tuple(already), tuple(skipped))


def _refusal(answer: int | bytes | list[Any], refusals: dict[str, Refusal | None], change: Change) -> Refusal:
    if isinstance(answer, int):
        return _REFUSALS[answer]
    parts: list[Any] = [answer, b""] if isinstance(answer, bytes) else answer
    why, what = parts
    known = refusals.get(why.decode())
    if known is not None:
        return known._replace(reason=known.reason.replace(_HOLDER, what.decode()))
    refused = edit_refusal(change, what) if why == b"revision" and isinstance(change, Edit) else None
    return refused or (too_many_tags(what) if why == b"tags" else _HINDRANCES[why](what.decode()))


def _too_busy(done: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"what was meant went on changing while it was looked at; nothing was {done}",
        hint="repeat it, or name the items by their ids",
    )


async def prune(session: Session, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
    residue.refuse(selection)
    for _ in range(TRIES):
        doomed = await _doomed(session, selection, min(max(0, limit), MOST))
        if not doomed:
            return ()
        tombstones = await tombstones_of(session, [candidate.item for candidate in doomed], by)
        record = audit.AuditRecord("prune", selection, ())
        args = entry_of(record, by)
        for one, tombstone in zip(doomed, tombstones, strict=True):
            args += [one.item.id, codec.encode(one.item.id), one.kept, tombstone_body(tombstone)]
        now, *removed = await session.run("prune", args)
        if removed:
            gone = {item_id.decode() for item_id in removed}
            return tuple([msgspec.structs.replace(one, at=now) for one in tombstones if one.id in gone])
        await asyncio.sleep(random.random() * PAUSE)  # noqa: S311 - only to be apart
    raise _too_busy("removed")


async def _doomed(session: Session, selection: Selection, limit: int) -> list[Candidate]:
    """Of each kind of resolved items the first that match; the first of them all."""
    found: list[Candidate] = []
    for kind in _kinds(selection):
        found += (await oldest(session, And((kind, selection)), limit)).candidates
    return nsmallest(limit, found, key=lambda candidate: candidate.item.seq)


def _kinds(selection: Selection) -> list[Match]:
    """Without those that cannot match anyway: to find nothing, all of them would be read."""
    pinned = pins(selection)
    kinds = []
    if not select.pins_dead(selection):
        kinds += [Match("state", "=", state) for state in (State.DONE, State.CANCELLED)]
    kinds.append(Match("disposition", "=", Disposition.TRASH))
    return [
        kind
        for kind in kinds
        if pinned.get("disposition", Disposition.TRASH) == Disposition.TRASH
        and pinned.get("state", _state(kind)) == _state(kind)
    ]


def _state(kind: Match) -> State:
    return State.DEAD if kind.field == "disposition" else State(str(kind.value))


async def tombstones_of(session: Session, items: Sequence[Item], by: Act) -> list[Tombstone]:
    """Of whatever bytes are there: a damaged payload must not keep its item from being removed."""
    made: list[Tombstone] = []
    for first in range(0, len(items), BODIES):
        some = items[first : first + BODIES]
        _, *fields = await session.read("rows", ["b", *(item.id for item in some)])
        digests = await aside(partial(_digests, fields[2::6]))
        for item, digest in zip(some, digests, strict=True):
            made.append(Tombstone(item.id, item.queue, item.state, digest, 0, by.actor, by.reason))
    return made


def _digests(kept: Sequence[bytes | None]) -> list[str]:
    return [packing.digest(payload_of(body)[0]) for body in kept]
