"""Between rows and values. A payload is checked against its checksum whenever it is read.

What is packed stays so here: unpacking takes time, and is done beside the connection.
"""

from __future__ import annotations

import hashlib
from typing import Any

from redrive.core import codec
from redrive.core.item import Failure, Item, Letter, Revision, Terms
from redrive.core.lanes import PRIORITIES
from redrive.core.meters import Rate
from redrive.core.states import Disposition, State
from redrive.core.terms import HOLDS, parked_hold
from redrive.core.verbs import SAYABLE, QueueSettings, Tombstone
from redrive.stores.bodies import Judged, flawed, judged_revision
from redrive.stores.packing import Packed, fault

Row = tuple[Any, ...]

STATES = {str(state): state for state in State}
DISPOSITIONS = {str(disposition): disposition for disposition in Disposition}

PARKED = 2
"""The status of a line whose dead head parks the others."""

LONGEST = 400
"""Characters of a name in an index: an entry must fit a third of a page, and some have two names."""


def item_of(row: Row) -> Item:
    """From the columns of get.sql, for those who look: one that is damaged must not keep them from the others."""
    item, wrong = judged_item(row)
    return item if wrong is None else flawed(item, wrong)


def judged_item(row: Row) -> Judged:
    """From the columns of get.sql."""
    item_id, queue, body, seq, state = row[:5]
    crc, reason, died_at, disposition, failure, packing, result_packing, route = row[20:28]
    priority, hold, line, terms, gap, cancel, tags, label, kind, release, reserved = row[28:39]
    letter = None
    if reason is not None:
        letter = Letter(reason, died_at, DISPOSITIONS[disposition], codec.decode(failure, Failure), route, reserved)
    (enqueued, due, renewed, deliveries, attempt, errors, crashes, replays, last_chance, alone) = row[5:15]
    (worker, leased_at, lease_until, ended_at, result) = row[15:20]
    item = Item(
        item_id,
        queue,
        Packed(body, packing) if packing else body,
        seq,
        STATES[state],
        enqueued,
        due,
        renewed,
        deliveries,
        attempt,
        errors,
        crashes,
        replays,
        last_chance,
        alone != 0,
        worker,
        leased_at,
        lease_until,
        ended_at,
        Packed(result, result_packing) if result_packing else result,
        letter,
        priority=PRIORITIES[priority],
        hold=_hold(hold, line, label),
        gap=gap or "",
        cancel=cancel or "",
        terms=None if terms is None else codec.decode(terms, Terms),
        tags=() if tags is None else tuple(tags),
        kind=kind,
        release=release,
    )
    return item, fault(body, crc, packing)


def _hold(hold: int, line: int | None, label: str | None) -> str:
    if HOLDS[hold] == "parked":
        return parked_hold(label or "")
    return "parked:order" if hold and line == PARKED else HOLDS[hold]


def revision_of(row: Row) -> Revision:
    """From the columns of get.revisions."""
    number, body, packing, crc, at, actor, reason = row
    revision = Revision(number, Packed(body, packing) if packing else body, at, actor, reason)
    return judged_revision(revision, fault(body, crc, packing))


def tombstone_of(row: Row) -> Tombstone:
    item_id, queue, state, digest, at, actor, reason = row
    return Tombstone(item_id, queue, STATES[state], digest, at, actor, reason)


_DEFAULT = QueueSettings()


def settings_of(row: Row) -> QueueSettings:
    """From the columns of configure.settings. A queue that has items and was never configured has none."""
    max_running, max_per_key, count, per, burst, capacity, order, *rest, trash, encrypt = row
    if encrypt is None:
        return QueueSettings()
    rate = None if count is None else Rate(count, per, burst)
    own = tuple([name for name, value in (("order", order), ("keep_trash", trash)) if value == SAYABLE[name]])
    always = (order or _DEFAULT.order, *rest, _DEFAULT.keep_trash if trash is None else trash, encrypt, own)
    return QueueSettings(max_running, max_per_key, rate, capacity, *always)


def letter_names(reason: str, failure: Failure, route: str) -> tuple[str, ...]:
    """As the columns of a letter hold them: reason, cause, error and its class, category, rule, route."""
    kinds = (indexed(failure.cause), shown(failure.type), indexed(short(failure.type)))
    return (shown(reason), *kinds, indexed(failure.category), shown(failure.rule), indexed(route))


def short(error: str) -> str:
    """The class of an error without its module, as core.select compares it."""
    return error.rpartition(".")[2]


def shown(text: str) -> str:
    """A name of a failure as its column holds it: texts have no NUL here. The failure's bytes keep the truth."""
    return text.replace("\0", "␀")


def indexed(text: str) -> str:
    """A name of a failure as an indexed column holds it; two long ones that only begin alike stay apart."""
    text = shown(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 13]}…{hashlib.sha256(text.encode()).hexdigest()[:12]}"
