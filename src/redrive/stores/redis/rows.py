"""Between what lies in Redis and values. A payload is checked against its checksum whenever it is read.

What is packed stays so here: unpacking takes time, and belongs in a thread (stores/bodies.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Struct

from redrive.core import codec
from redrive.core.item import Dedupe, Deed, Failure, Instant, Item, Letter, Millis, Revision, Terms
from redrive.core.lanes import PRIORITIES
from redrive.core.states import Disposition, State
from redrive.core.terms import HOLDS, parked_hold
from redrive.core.verbs import Tombstone
from redrive.errors import StoreCorrupt, StoreError
from redrive.stores.bodies import Judged, flawed, judged_revision
from redrive.stores.packing import Packed, checksum, fault

HEADER = struct.Struct(">BI")
"""In front of a payload: how it is packed, and its checksum."""
STAMP = 16
"""Digits of a number in a text: positions, instants and sequence numbers."""
_LENGTH = 8
"""Digits of a length."""

ROW = 6
"""Fields of an item as rows.lua gives it: id, record, payload, evidence, result, and whether it is parked."""

STATES = {str(state): state for state in State}
DISPOSITIONS = {str(disposition): disposition for disposition in Disposition}
_KINDS = STATES.keys() | DISPOSITIONS.keys()
PARKED = "parked:order"
_PARKED = HOLDS.index("parked")


class LetterFacts(Struct, array_like=True, frozen=True, gc=False):
    """What the indexes of letters are made of; all of the evidence lies beside it."""

    reason: str
    died_at: Instant
    disposition: str
    cause: str
    error_short: str
    category: str
    route: str
    reserved: str = ""


class TermsFacts(Struct, array_like=True, frozen=True, gc=False):
    """What binds it to others (lua/lines.lua), and its tags. `on_dead` is False where nobody gave it any terms."""

    order_key: str
    place: int
    gap: str
    limit_key: str
    scope: Literal["queue", "store"] | bool
    dedupe_key: str
    window: Millis | bool
    after: tuple[str, ...] | bool
    on_dead: Literal["wait", "die"] | bool
    policy: str
    cancel: str
    tags: tuple[str, ...] = ()
    described: tuple[int, str, tuple[tuple[str, str], ...], int] = (0, "", (), 0)
    label: str = ""

    def terms(self) -> Terms | None:
        if isinstance(self.on_dead, bool):
            return None
        dedupe = None
        if not isinstance(self.scope, bool):
            dedupe = Dedupe(self.dedupe_key, self.scope, None if self.window is False else int(self.window))
        after = () if isinstance(self.after, bool) else tuple(self.after)
        schema, trace, headers, revision = self.described
        named = tuple([(name, text) for name, text in headers])
        return Terms(
            *(self.order_key, self.limit_key, dedupe, after, self.on_dead, self.policy, schema, trace, named, revision)
        )


class Facts(Struct, array_like=True, frozen=True, gc=False):
    """An item without its bodies, as the scripts write it. What is not there is False: Lua's nil ends a list."""

    seq: int
    queue: str
    state: str
    enqueued_at: Instant
    due_at: Instant
    renewed_at: Instant
    deliveries: int
    attempt: int
    errors: int
    crashes: int
    replays: int
    last_chance: bool
    alone: bool
    worker: str | bool
    leased_at: Instant | bool
    lease_until: Instant | bool
    ended_at: Instant | bool
    omitted: int
    letter: LetterFacts | bool
    priority: int = 0
    hold: int = 0
    ties: int = 0
    terms: TermsFacts | bool = False
    kind: str = ""
    release: str = ""

    @property
    def counted_as(self) -> str:
        """What it is counted as: its state, for a letter where it lies."""
        return self.letter.disposition if isinstance(self.letter, LetterFacts) else self.state


_decoder = msgspec.msgpack.Decoder(Facts)
_deed = msgspec.msgpack.Decoder(tuple[int, str, str, str, str])
_about = msgspec.msgpack.Decoder(tuple[int, int, str, str])


def facts_of(item_id: str, kept: bytes) -> Facts:
    try:
        facts = _decoder.decode(kept)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(item_id) from error
    if facts.state not in STATES or facts.counted_as not in _KINDS or facts.priority >= len(PRIORITIES):
        raise _damaged(item_id)
    return facts


def _damaged(item_id: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the record of item {item_id} is damaged", hint="restore it from a backup; redrive db check tells how many"
    )


def packed_body(payload: bytes) -> bytes:
    """A payload as it is kept."""
    body = payload if isinstance(payload, Packed) else Packed(payload, 0)
    return HEADER.pack(body.packing, checksum(body)) + body


def packed_result(result: bytes) -> bytes:
    return bytes([result.packing if isinstance(result, Packed) else 0]) + result


def payload_of(kept: bytes | None) -> tuple[bytes, StoreError | None]:
    """The bytes, still packed where they were, and why they must not be used."""
    if kept is None or len(kept) < HEADER.size:
        return kept or b"", fault(None, None, None)
    packing, crc = HEADER.unpack_from(kept)
    body = kept[HEADER.size :]
    return Packed(body, packing) if packing else body, fault(body, crc, packing)


def result_of(kept: bytes | None) -> bytes | None:
    if not kept:
        return None
    return Packed(kept[1:], kept[0]) if kept[0] else kept[1:]


def bare_item(item_id: str, kept: bytes, failure: bytes | None = None) -> Item:
    """To be judged by a selection: without payload and result, and with what is known of the evidence."""
    facts = facts_of(item_id, kept)
    lies = facts.letter
    if failure is None and isinstance(lies, LetterFacts):
        return _item(item_id, facts, b"", None, _known_of(lies))
    why, _ = _failure_of(lies, failure)
    return _item(item_id, facts, b"", None, why)


def judged_item(
    item_id: str, kept: bytes, body: bytes | None, failure: bytes | None = None, result: bytes | None = None
) -> Judged:
    facts = facts_of(item_id, kept)
    payload, wrong = payload_of(body)
    why, doubt = _failure_of(facts.letter, failure)
    item = _item(item_id, facts, payload, result_of(result), why)
    return item, wrong or (doubt if isinstance(facts.letter, LetterFacts) else None)


def item_of(row: Sequence[bytes | None]) -> Item:
    """From the fields of rows.lua, for those who look: one that is damaged must not keep them from the others."""
    item_id, kept, body, failure, result = row[:5]
    item, wrong = judged_item((item_id or b"").decode(), kept or b"", body, failure, result)
    return item if wrong is None else flawed(item, wrong)


def shown(item: Item, parked: object) -> Item:
    """As people see it: whoever waits behind the dead head of a parked line is parked, whatever else it waits for."""
    return msgspec.structs.replace(item, hold=PARKED) if parked else item


def _item(item_id: str, facts: Facts, payload: bytes, result: bytes | None, why: Failure | None) -> Item:
    letter = None
    if isinstance(facts.letter, LetterFacts) and why is not None:
        lies = facts.letter
        letter = Letter(lies.reason, lies.died_at, DISPOSITIONS[lies.disposition], why, lies.route, lies.reserved)
    terms = facts.terms if isinstance(facts.terms, TermsFacts) else None
    return Item(
        item_id,
        facts.queue,
        payload,
        facts.seq,
        STATES[facts.state],
        facts.enqueued_at,
        facts.due_at,
        facts.renewed_at,
        facts.deliveries,
        facts.attempt,
        facts.errors,
        facts.crashes,
        facts.replays,
        facts.last_chance,
        facts.alone,
        None if facts.worker is False else str(facts.worker),
        _instant(facts.leased_at),
        _instant(facts.lease_until),
        _instant(facts.ended_at),
        result,
        letter,
        priority=PRIORITIES[facts.priority],
        hold=parked_hold(terms.label) if terms is not None and facts.hold == _PARKED else HOLDS[facts.hold],
        gap="" if terms is None else terms.gap,
        cancel="" if terms is None else terms.cancel,
        terms=None if terms is None else terms.terms(),
        tags=() if terms is None else tuple(sorted(terms.tags)),
        kind=facts.kind,
        release=facts.release,
    )


def _instant(value: Instant | bool) -> Instant | None:  # noqa: FBT001 - how the scripts say that there is none
    return None if value is False else int(value)


def _failure_of(lies: LetterFacts | bool, kept: bytes | None) -> tuple[Failure | None, StoreError | None]:  # noqa: FBT001
    """The evidence, or what the indexes know of it and why that is not all."""
    if not isinstance(lies, LetterFacts):
        return None, None
    try:
        return _evidence(kept or b""), None
    except StoreCorrupt as error:
        return _known_of(lies), error


@lru_cache(maxsize=256)
def _evidence(kept: bytes) -> Failure:
    """Letters of one trouble often have the same."""
    return codec.decode(kept, Failure)


def _known_of(lies: LetterFacts) -> Failure:
    """What the record knows of the evidence."""
    return Failure(lies.error_short, "", lies.category, "", lies.cause)


def deeds_of(kept: bytes | None) -> tuple[Deed, ...]:
    """One behind the other, each after its length."""
    deeds, at = [], 0
    try:
        while kept and at < len(kept):
            begin = at + _LENGTH
            at = begin + int(kept[at:begin])
            deeds.append(Deed(*_deed.decode(kept[begin:at])))
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt("the acts on an item are damaged", hint="restore them from a backup") from error
    return tuple(deeds)


def packed_revision(revision: Revision) -> bytes:
    """As lua/amend.lua keeps one."""
    about = msgspec.msgpack.encode((revision.number, revision.at, revision.actor, revision.reason))
    return b"%08d" % len(about) + about + packed_body(revision.payload)


def revision_of(kept: bytes) -> Revision:
    try:
        end = _LENGTH + int(kept[:_LENGTH])
        number, at, actor, reason = _about.decode(kept[_LENGTH:end])
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt("an earlier payload of an item is damaged", hint="restore it from a backup") from error
    payload, wrong = payload_of(kept[end:])
    return judged_revision(Revision(number, payload, at, actor, reason), wrong)


def tombstone_of(item_id: str, kept: bytes) -> Tombstone:
    queue, state, digest, actor, reason = codec.decode(kept[STAMP:], tuple[str, State, str, str, str])
    return Tombstone(item_id, queue, state, digest, int(kept[:STAMP]), actor, reason)


def tombstone_body(tombstone: Tombstone) -> bytes:
    """All but when: the script that buries it says that."""
    return codec.encode((tombstone.queue, tombstone.state, tombstone.payload_sha256, tombstone.actor, tombstone.reason))
