"""`amend` on PostgreSQL: sets of items, in a few statements however many they are.

First the courses are locked, in the order of their numbers; then a new statement reads what is to be judged. One that
locked and read at once could judge a letter by what it was before the lock was free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, assert_never

from redrive.core import codec
from redrive.core.acts import (
    MISSING,
    Act,
    Amended,
    Archive,
    Cancel,
    Change,
    Discard,
    Edit,
    Expire,
    Move,
    Note,
    Park,
    Recall,
    Refusal,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Skipped,
    Tag,
    Unpark,
    Unreserve,
    WaitingChange,
    edit_refusal,
    parked_refusal,
    refusal,
)
from redrive.core.item import Instant, Terms
from redrive.core.select import Ids, Selection
from redrive.core.states import Disposition, State
from redrive.core.terms import EXPIRED, EXPIRED_FAILURE, LIMITED, PARKED, edited, with_policy
from redrive.errors import Conflict, EncryptionKeyMissing
from redrive.stores import audit, packing
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.postgres import bonds, find, labels, recall
from redrive.stores.postgres.arrays import bigints, bodies, integers, smallints, texts
from redrive.stores.postgres.compile import compiled, storable, tables
from redrive.stores.postgres.named import by_ids
from redrive.stores.postgres.rows import DISPOSITIONS, STATES, Row, short
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Kind, Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

_LAID: dict[type, Disposition] = {
    Archive: Disposition.ARCHIVED,
    Discard: Disposition.TRASH,
    Restore: Disposition.OPEN,
}
KIND_OF: dict[str, Kind] = {
    "ready": "ready",
    "leased": "leased",
    "done": "done",
    "cancelled": "cancelled",
    "open": "open",
    "archived": "archived",
    "trash": "trash",
    "held": "held",
    "parked": "parked",
}

_MOVABLE: tuple[Kind, ...] = ("open", "archived")


class Place(NamedTuple):
    """What amend and prune need to know of an item. `kind`: the counter it is counted in."""

    seq: int
    id: str
    queue: str
    state: State
    kind: Kind
    disposition: Disposition | None
    cause: str | None
    route: str
    ties: int
    deliveries: int
    lease_until: int | None
    worker: str

    def holder(self, now: Instant) -> str:
        """Who works on this letter where it lies; see core.item.holder."""
        leased = self.state is State.DEAD and self.lease_until is not None and self.lease_until > now
        return self.worker if leased else ""


async def amend(session: Session, selection: Selection, change: Change, by: Act, expect: int | None) -> Amended:
    async def work(tx: Tx) -> Amended:
        places, missing = await _meant(session, tx, selection, expect, _joined(change))
        before = await _changed_before(session, tx, places, change, by)
        reserved = await _reserved(session, tx, places)
        changed: list[Place] = []
        already: list[str] = []
        skipped = [Skipped(item_id, *MISSING) for item_id in missing]
        for place in places:
            if place.seq in before:
                already.append(place.id)
                continue
            held, kept = place.holder(tx.now), reserved.get(place.seq, "")
            reason = refusal(change, place.state, place.disposition, holder=held, reserved=kept)
            if reason is None:
                changed.append(place)
            else:
                skipped.append(Skipped(place.id, *reason))
        refused = await _refused(session, tx, changed, change)
        skipped += [Skipped(place.id, *refused[place.seq]) for place in changed if place.seq in refused]
        changed = [place for place in changed if place.seq not in refused]
        ids = tuple([place.id for place in changed])
        if changed:
            await _take_away(session, tx, changed, change)
            await _change(session, tx, changed, change, by)
            record = audit.AuditRecord(audit.word(change), selection, ids, change)
            (position,) = await append_acts(session, tx, (audit.entry(record, by),), record.change)
            letters = [place.seq for place in changed if place.disposition is not None]
            await record_deeds(session, tx, position, [place.seq for place in changed], letters)
        return Amended(ids, tuple(already), _in_order(skipped, selection, places))

    return await session.write(work)


async def record_deeds(session: Session, tx: Tx, position: int, seqs: Sequence[int], letters: Sequence[int]) -> None:
    """`letters`: those of them that were letters before. Those that are now are found here."""
    named = bigints(seqs)
    await tx.execute(session.sql("amend", "record_deeds"), (position, named, bigints(letters), named))


def _in_order(skipped: list[Skipped], selection: Selection, places: list[Place]) -> tuple[Skipped, ...]:
    """As they were named, whatever the reasons."""
    ids = selection.ids if isinstance(selection, Ids) else [place.id for place in places]
    order = {item_id: nth for nth, item_id in enumerate(dict.fromkeys(ids))}
    return tuple(sorted(skipped, key=lambda one: order[one.id]))


def _joined(change: Change) -> str | None:
    """The queue whose lines they may have to join, besides their own; None for the one each was replayed from."""
    if isinstance(change, Recall):
        return None
    return change.queue if isinstance(change, Replay) else ""


async def _refused(session: Session, tx: Tx, places: list[Place], change: Change) -> dict[int, Refusal]:
    """Why not, by number, as far as others or what is kept beside the items say so."""
    if isinstance(change, Tag):
        return await labels.refused(session, tx, places, change)
    if isinstance(change, Recall):
        return await recall.refused(session, tx, places)
    if isinstance(change, RunNow | Unpark):
        whys = {place.seq: parked_refusal(change, parked=bool(place.ties & PARKED)) for place in places}
    elif isinstance(change, Edit):
        terms = await _terms(session, tx, places)
        whys = {place.seq: edit_refusal(change, _revision(terms.get(place.seq))) for place in places}
    else:
        return await bonds.refused(session, tx, places, change)
    return {seq: why for seq, why in whys.items() if why is not None}


async def _meant(
    session: Session, tx: Tx, selection: Selection, expect: int | None, joined: str | None
) -> tuple[list[Place], Sequence[str]]:
    """The items, locked, and the ids that were named but do not exist."""
    if isinstance(selection, Ids):
        places, missing = await named(session, tx, selection, joined)
        _expect(len(places), expect)
        return places, missing
    if expect is None:
        return await oldest(session, tx, selection, PAGE_LIMIT, joined), ()
    selection = await by_ids(session, tx.execute, selection)
    return await _expected(session, tx, selection, expect, joined), ()


async def named(session: Session, tx: Tx, selection: Ids, joined: str | None = "") -> tuple[list[Place], list[str]]:
    """The items in the order of their names, locked, and the ids that do not exist."""
    meant = tuple(dict.fromkeys(selection.ids))
    known = texts(storable(meant))
    await tx.execute(session.sql("amend", "lock_lines_named"), (known, joined))
    ids: dict[int, str] = dict(await tx.execute(session.sql("amend", "lock_named"), (known,)))
    rows = await tx.execute(session.sql("amend", "states"), (bigints([*ids]),)) if ids else []
    found = {ids[seq]: place_of((seq, ids[seq], *state)) for seq, *state in rows}
    return [found[item_id] for item_id in meant if item_id in found], [one for one in meant if one not in found]


async def oldest(session: Session, tx: Tx, selection: Selection, limit: int, joined: str | None = "") -> list[Place]:
    """The first that match, of those that still do when they are locked."""
    seqs = await find.oldest(session, tx, selection, limit)
    if not seqs:
        return []
    await tx.execute(session.sql("amend", "lock_lines"), (bigints(seqs), joined))
    await tx.execute(session.sql("amend", "lock"), (bigints(seqs),))
    where = compiled(selection, tx.now, letters=False)
    statement = _where(session, "places", selection, where.text)
    return [place_of(row) for row in await tx.in_order(statement, (bigints(seqs), *where.values))]


async def _expected(session: Session, tx: Tx, selection: Selection, expect: int, joined: str | None) -> list[Place]:
    """The first that match, if so many do, at an instant when all that are to be changed are locked."""
    where = compiled(selection, tx.now, letters=False)
    statement = _where(session, "counted", selection, where.text)
    held: set[int] = set()
    while True:
        rows = await tx.execute(statement, (*where.values, PAGE_LIMIT))
        _expect(rows[0][-1] if rows else 0, expect)
        free = [row[0] for row in rows if row[0] not in held]
        if not free:
            return [place_of(row[:-1]) for row in rows]
        await tx.execute(session.sql("amend", "lock_lines"), (bigints(free), joined))
        await tx.execute(session.sql("amend", "lock"), (bigints(free),))
        held.update(free)


def _where(session: Session, name: str, selection: Selection, condition: str) -> str:
    """A statement of amend.sql for this selection."""
    joins = session.sql("find", "items_join_terms") if "t" in tables(selection, letters=False) else ""
    return session.sql("amend", name).replace("{joins}", joins).replace("{where}", find.filled(session, condition))


def place_of(row: Row) -> Place:
    seq, item_id, queue, state, kind, disposition, cause, route, ties, deliveries, lease_until, worker = row
    return Place(
        seq,
        item_id,
        queue,
        STATES[state],
        KIND_OF[kind if disposition is None else disposition],
        DISPOSITIONS.get(disposition),
        cause,
        route or "",
        ties,
        deliveries,
        lease_until,
        worker or "",
    )


def _expect(count: int, expect: int | None) -> None:
    if expect is not None and count != expect:
        raise Conflict(
            f"{count} items match, not {expect}; nothing was changed",
            hint="look again at what the selection finds, then repeat with the new number",
        )


async def _changed_before(session: Session, tx: Tx, places: list[Place], change: Change, by: Act) -> set[int]:
    if not places:
        return set()
    seqs = bigints([place.seq for place in places])
    values = (seqs, by.request_id, audit.word(change))
    return {seq for (seq,) in await tx.execute(session.sql("amend", "done_before"), values)}


async def _reserved(session: Session, tx: Tx, places: list[Place]) -> dict[int, str]:
    """By number, the replay for which a letter is kept."""
    letters = [place.seq for place in places if place.state is State.DEAD]
    return dict(await tx.execute(session.sql("amend", "reserved"), (bigints(letters),))) if letters else {}


async def _take_away(session: Session, tx: Tx, places: list[Place], change: Change) -> None:
    """Letters from whoever let their leases run out: what others have in hand now is not his to end."""
    lapsed = [place.seq for place in places if place.state is State.DEAD and place.lease_until is not None]
    if lapsed and not isinstance(change, Tag | Note):
        await tx.execute(session.sql("amend", "take_away"), (bigints(lapsed),))


async def _change(session: Session, tx: Tx, places: list[Place], change: Change, by: Act) -> None:
    match change:
        case Replay():
            await _replay(session, tx, places, change)
        case Archive() | Discard() | Restore():
            await _lay(session, tx, places, _LAID[type(change)])
        case Cancel():
            await _cancel(session, tx, places, by)
        case Skip():
            await bonds.let_go(session, tx, places, gap=True)
        case Move(queue):
            await _move_letters(session, tx, places, queue)
        case Tag() | Edit() | Reserve() | Unreserve():
            await _rewrite(session, tx, places, change, by)
        case SetPolicy() | RunNow() | Expire() | Park() | Unpark():
            await _change_waiting(session, tx, places, change)
        case Recall():
            await _recall(session, tx, places)
        case Note():
            pass
        case _:
            assert_never(change)


async def _rewrite(
    session: Session, tx: Tx, places: list[Place], change: Tag | Edit | Reserve | Unreserve, by: Act
) -> None:
    if isinstance(change, Tag):
        await labels.tag(session, tx, places, change)
    elif isinstance(change, Edit):
        await _edit(session, tx, places, change.payload, by)
    else:
        replay = change.replay if isinstance(change, Reserve) else ""
        await tx.execute(session.sql("amend", "reserve"), (replay, bigints([place.seq for place in places])))


async def _change_waiting(session: Session, tx: Tx, places: list[Place], change: WaitingChange) -> None:
    match change:
        case SetPolicy(policy):
            await _set_policy(session, tx, places, policy)
        case RunNow(reset):
            seqs = bigints([place.seq for place in places])
            await tx.execute(session.sql("amend", "run_now"), (tx.now, reset, seqs))
            tx.woken.update([place.queue for place in places])
        case Expire():
            await _expire(session, tx, places)
        case Park(label):
            await _park(session, tx, places, label)
        case Unpark():
            seqs = bigints([place.seq for place in places])
            queues = await tx.execute(session.sql("amend", "unpark_items"), (seqs,))
            tx.woken.update([queue for (queue,) in queues])
        case _:
            assert_never(change)


async def _lay(session: Session, tx: Tx, places: list[Place], disposition: Disposition) -> None:
    seqs = bigints([place.seq for place in places])
    await tx.execute(session.sql("amend", "lay"), (str(disposition), seqs, tx.now))
    recount(tx, places, KIND_OF[disposition])
    if disposition is Disposition.TRASH:
        await bonds.let_go(session, tx, places, gap=False)


async def _replay(session: Session, tx: Tx, places: list[Place], change: Replay) -> None:
    await recall.keep(session, tx, places)
    await _move(session, tx, [place for place in places if change.queue not in ("", place.queue)], change.queue)
    seqs = bigints([place.seq for place in places])
    values = (seqs, tx.now + change.delay, tx.now, change.budget == "once", seqs)
    await tx.execute(session.sql("amend", "replay"), values)
    tx.woken.update([change.queue or place.queue for place in places])
    recount(tx, await bonds.rejoined(session, tx, places, forced=change.force), None)
    recount(tx, [place for place in places if not place.ties & bonds.BOUND], "ready", change.queue)


async def _move(session: Session, tx: Tx, places: list[Place], queue: str) -> None:
    if places:
        await bonds.let_go(session, tx, places, gap=False)
        await tx.execute(session.sql("amend", "move"), (bigints([place.seq for place in places]), queue))


async def _move_letters(session: Session, tx: Tx, places: list[Place], queue: str) -> None:
    await _move(session, tx, places, queue)
    for kind in _MOVABLE:
        recount(tx, [place for place in places if place.kind == kind], kind, queue)


async def _set_policy(session: Session, tx: Tx, places: list[Place], policy: str) -> None:
    """In `terms`, which most items have no row in."""
    known = await _terms(session, tx, places)
    await _set_terms(session, tx, {place.seq: with_policy(known.get(place.seq), policy) for place in places})


async def _terms(session: Session, tx: Tx, places: list[Place]) -> dict[int, Terms]:
    """Of those that have any, by number."""
    seqs = bigints([place.seq for place in places])
    rows = await tx.execute(session.sql("amend", "terms"), (seqs,))
    return {seq: codec.decode(body, Terms) for seq, body in rows if body is not None}


async def _set_terms(session: Session, tx: Tx, terms: dict[int, Terms | None]) -> None:
    made = [b"" if each is None else codec.encode(each) for each in terms.values()]
    await tx.execute(session.sql("amend", "set_policy"), (bigints([*terms]), bodies(made)))


def _revision(terms: Terms | None) -> int:
    return 0 if terms is None else terms.revision


async def _edit(session: Session, tx: Tx, places: list[Place], payload: bytes, by: Act) -> None:
    known = await _terms(session, tx, places)
    seqs = bigints([place.seq for place in places])
    numbers = integers([_revision(known.get(place.seq)) for place in places])
    await tx.execute(session.sql("amend", "keep_revisions"), (seqs, numbers, tx.now, by.actor, by.reason))
    packing_number, crc = packing.packed_as(payload)
    queues, numbers_of = texts([place.queue for place in places]), smallints([packing_number] * len(places))
    ((in_clear,),) = await tx.execute(session.sql("take_in", "in_clear"), (queues, numbers_of))
    if in_clear is not None:
        raise EncryptionKeyMissing(in_clear)
    await tx.execute(session.sql("amend", "edit"), (bytes(payload), packing_number, crc, seqs, seqs))
    await _set_terms(session, tx, {place.seq: edited(known.get(place.seq)) for place in places})


async def _park(session: Session, tx: Tx, places: list[Place], label: str) -> None:
    await tx.execute(session.sql("amend", "park"), (label, bigints([place.seq for place in places])))
    recount(tx, places, "parked")
    limited = [place for place in places if place.ties & LIMITED]
    if limited:
        seqs = bigints([place.seq for place in limited])
        free = bigints([place.seq for place in limited if place.kind == "ready"])
        ((woken,),) = await tx.execute(session.sql("amend", "pass_on"), (seqs, seqs, free))
        tx.woken.update(woken)


async def _cancel(session: Session, tx: Tx, places: list[Place], by: Act) -> None:
    """What is ready ends; what runs is asked to."""
    running = [place for place in places if place.state is State.LEASED]
    waiting = [place for place in places if place.state is not State.LEASED]
    if running:
        seqs = bigints([place.seq for place in running])
        await tx.execute(session.sql("amend", "ask"), (f"{by.actor}: {by.reason}", seqs))
    if waiting:
        await tx.execute(session.sql("amend", "cancel"), (tx.now, bigints([place.seq for place in waiting])))
        recount(tx, waiting, "cancelled")
        await bonds.untied(session, tx, waiting, bonds.CANCELLED)


async def _expire(session: Session, tx: Tx, places: list[Place]) -> None:
    failure = EXPIRED_FAILURE
    names = (EXPIRED, failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
    seqs = bigints([place.seq for place in places])
    await tx.execute(session.sql("amend", "expire"), (tx.now, seqs, *names, codec.encode(failure)))
    recount(tx, [place._replace(cause=failure.cause) for place in places], "open")
    await bonds.untied(session, tx, places, bonds.DEAD)


async def _recall(session: Session, tx: Tx, places: list[Place]) -> None:
    kept = await recall.die(session, tx, places)
    letters = [place._replace(cause=kept[place.seq].cause, route=kept[place.seq].route) for place in places]
    for queue, disposition in {(one.queue, one.disposition) for one in kept.values()}:
        these = [one for one in letters if (kept[one.seq].queue, kept[one.seq].disposition) == (queue, disposition)]
        await _move(session, tx, [place for place in these if place.queue != queue], queue)
        recount(tx, these, KIND_OF[disposition], queue)
    await recall.put_back(session, tx, places, kept)


def recount(tx: Tx, places: list[Place], after: Kind | None, into: str = "") -> None:
    """They are counted as `after` now, in the queue `into` if they are in another one."""
    for (queue, kind), count in Counter([(place.queue, place.kind) for place in places]).items():
        tx.count(queue, kind, -count)
        if after is not None:
            tx.count(into or queue, after, count)
    for place in places:
        if place.cause is not None:
            tx.count_cause(place.cause, place.queue, place.route, -(place.kind == "open"))
            tx.count_cause(place.cause, into or place.queue, place.route, after == "open")
