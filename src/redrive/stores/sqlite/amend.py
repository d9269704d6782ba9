"""`amend` and `prune` on SQLite: sets of items, in a few statements however many they are.

Those that are bound to others are also gone through one by one, in rebind.py.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, assert_never

from redrive.core import codec, select
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
from redrive.core.select import And, Ids, Match, Or, Selection
from redrive.core.states import Disposition, State
from redrive.core.terms import EXPIRED, EXPIRED_FAILURE, PARKED, TAGGED, edited, with_policy
from redrive.core.verbs import Tombstone
from redrive.errors import Conflict, EncryptionKeyMissing
from redrive.stores import audit, packing
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.sqlite import configure, edges, faults, rebind, recall, tags, tied
from redrive.stores.sqlite.compile import compiled
from redrive.stores.sqlite.rows import DISPOSITIONS, STATES, Row
from redrive.stores.sqlite.search import short_of_time
from redrive.stores.sqlite.shelf import append_act
from redrive.stores.sqlite.tied import BINDING, NOTED, Tied
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "amend")
_FIND = load("sqlite", "find")
_PRUNE = load("sqlite", "prune")
_CHANGES = load("sqlite", "changes")

_RESOLVED = Or((Match("state", "=", "done"), Match("state", "=", "cancelled"), Match("disposition", "=", "trash")))
_LAID: dict[type, Disposition] = {
    Archive: Disposition.ARCHIVED,
    Discard: Disposition.TRASH,
    Restore: Disposition.OPEN,
}
_NEEDED = BINDING | PARKED
"""Ties of an item that has to be read with its terms: what binds it to others, or tells what it counts as."""
KINDS: dict[str, Kind] = {
    "ready": "ready",
    "leased": "leased",
    "done": "done",
    "cancelled": "cancelled",
    "open": "open",
    "archived": "archived",
    "trash": "trash",
}


class Place(NamedTuple):
    """What amend and prune need to know of an item."""

    seq: int
    id: str
    queue: str
    state: State
    disposition: Disposition | None
    cause: str | None
    route: str | None
    ties: int

    @property
    def kind(self) -> Kind:
        """The counter it is counted in, unless it has a hold."""
        return KINDS[self.state if self.disposition is None else self.disposition]


def amend(tx: Tx, selection: Selection, change: Change, by: Act, expect: int | None) -> Amended:
    places, missing = _meant(tx, selection, expect)
    before = {seq for (seq,) in tx.execute(_SQL["done_before"], (_numbers(places), by.request_id, audit.word(change)))}
    bound = {item.seq: item for item in tied.read(tx, [place.seq for place in places if place.ties & _NEEDED])}
    refusals = rebind.Refusals(tx, change)
    leased = _leased_letters(tx, places, change)
    reserved: dict[int, str] = dict(tx.execute(_SQL["reserved"], (_numbers(places),)).fetchall())
    too_many = tags.refusals(tx, [place.seq for place in places], change)
    not_now = _refusals(tx, places, change)
    not_recalled = recall.refusals(tx, {place.seq: place.state for place in places}, change)
    changed: list[Place] = []
    already: list[str] = []
    skipped = [Skipped(item_id, *MISSING) for item_id in missing]
    for place in places:
        if place.seq in before:
            already.append(place.id)
            continue
        reason = (
            refusal(
                change,
                place.state,
                place.disposition,
                holder=leased.get(place.seq, ""),
                reserved=reserved.get(place.seq, ""),
            )
            or refusals.of(place.queue, bound.get(place.seq))
            or too_many.get(place.seq)
            or not_now.get(place.seq)
            or not_recalled.get(place.seq)
        )
        if reason is None:
            changed.append(place)
        else:
            skipped.append(Skipped(place.id, *reason))
    if changed:
        if leased:
            tx.execute(_SQL["take_away"], (_numbers([place for place in changed if place.seq in leased]),))
        tx.change_letters([place.seq for place in changed if place.disposition is not None])
        _change(tx, changed, bound, change, by)
        tx.change_letters([seq for (seq,) in tx.execute(_CHANGES["letters"], (_numbers(changed),))])
        _record(tx, changed, selection, change, by)
    return Amended(tuple([place.id for place in changed]), tuple(already), tuple(skipped))


def _refusals(tx: Tx, places: list[Place], change: Change) -> dict[int, Refusal]:
    """Why not, by number, as far as the terms of the items say so."""
    match change:
        case RunNow() | Unpark():
            whys = {place.seq: parked_refusal(change, parked=bool(place.ties & PARKED)) for place in places}
        case Edit():
            noted = tied.read(tx, [place.seq for place in places if place.ties & NOTED])
            numbers = {item.seq: item.terms.revision for item in noted}
            whys = {place.seq: edit_refusal(change, numbers.get(place.seq, 0)) for place in places}
        case _:
            return {}
    return {seq: why for seq, why in whys.items() if why is not None}


def _leased_letters(tx: Tx, places: list[Place], change: Change) -> dict[int, str]:
    """By number, of letters that somebody works on, or did: who still has it, if anybody."""
    if isinstance(change, Tag | Note):
        return {}
    return dict(tx.execute(_SQL["leased_letters"], (tx.now, _numbers(places))).fetchall())


def _numbers(places: list[Place]) -> str:
    return tied.numbers([place.seq for place in places])


def _meant(tx: Tx, selection: Selection, expect: int | None) -> tuple[list[Place], list[str]]:
    """The items, and the ids that were named but do not exist."""
    if isinstance(selection, Ids):
        named = tuple(dict.fromkeys(selection.ids))
        places = [place_of(row) for row in tx.execute(_FIND["named"], (codec.encode(named).decode(),))]
        _expect(len(places), expect)
        there = {place.id for place in places}
        return places, [item_id for item_id in named if item_id not in there]
    if expect is not None:
        where, values = compiled(selection, tx.now, letters=False)
        _expect(tx.execute(_FIND["count"].replace("{where}", where), values).fetchone()[0], expect)
    return _oldest(tx, selection, PAGE_LIMIT), []


def _expect(count: int, expect: int | None) -> None:
    if expect is not None and count != expect:
        raise Conflict(
            f"{count} items match, not {expect}; nothing was changed",
            hint="look again at what the selection finds, then repeat with the new number",
        )


def _oldest(tx: Tx, selection: Selection, limit: int) -> list[Place]:
    letters = select.pins_dead(selection)
    where, values = compiled(selection, tx.now, letters=letters)
    statement = _FIND["oldest_letters" if letters else "oldest"].replace("{where}", where)
    return [place_of(row) for row in tx.execute(statement, (*values, limit))]


def place_of(row: Row) -> Place:
    seq, item_id, queue, state, disposition, *rest = row
    return Place(seq, item_id, queue, STATES[state], DISPOSITIONS.get(disposition), *rest)


def _change(tx: Tx, places: list[Place], bound: dict[int, Tied], change: Change, by: Act) -> None:
    ours = [bound[place.seq] for place in places if place.seq in bound]
    match change:
        case Replay():
            _replay(tx, places, ours, change)
        case Archive() | Discard() | Restore():
            _lay(tx, places, ours, _LAID[type(change)])
        case Cancel():
            _cancel(tx, places, ours, by)
        case Skip():
            rebind.skipped(tx, ours)
        case Move(queue):
            _move(tx, places, ours, queue)
        case Tag() | Edit() | Reserve() | Unreserve():
            _rewrite(tx, places, change, by)
        case SetPolicy() | RunNow() | Expire() | Park() | Unpark():
            _change_waiting(tx, places, ours, change)
        case Recall():
            _recall(tx, places, ours)
        case Note():
            pass
        case _:
            assert_never(change)


def _rewrite(tx: Tx, places: list[Place], change: Tag | Edit | Reserve | Unreserve, by: Act) -> None:
    if isinstance(change, Tag):
        tags.change_all(tx, [place.seq for place in places], change)
    elif isinstance(change, Edit):
        _edit(tx, places, change.payload, by)
    else:
        replay = change.replay if isinstance(change, Reserve) else ""
        tx.execute(_SQL["reserve"], (replay, _numbers(places)))


def _change_waiting(tx: Tx, places: list[Place], bound: list[Tied], change: WaitingChange) -> None:
    match change:
        case SetPolicy(policy):
            _set_policy(tx, places, policy)
        case RunNow(reset):
            tx.execute(_SQL["run_now_anew" if reset else "run_now"], (tx.now, _numbers(places)))
            tx.woken.update([place.queue for place in places])
        case Expire():
            _expire(tx, places, bound)
        case Park(label):
            _park(tx, places, bound, label)
        case Unpark():
            rebind.unparked(tx, bound)
        case _:
            assert_never(change)


def _replay(tx: Tx, places: list[Place], bound: list[Tied], change: Replay) -> None:
    recall.keep(tx, _numbers(places))
    if change.queue:
        places, bound = _move(tx, places, bound, change.queue)
    seqs = _numbers(places)
    tx.execute(_SQL["replay"], (tx.now + change.delay, tx.now, change.budget == "once", seqs))
    tx.execute(_SQL["drop_letters"], (seqs,))
    tx.woken.update([place.queue for place in places])
    _recount(tx, places, "ready")
    rebind.replayed(tx, bound, force=change.force)


def _lay(tx: Tx, places: list[Place], bound: list[Tied], disposition: Disposition) -> None:
    """The end of a letter in the trash is when it came there, else its death."""
    seqs = _numbers(places)
    tx.execute(_SQL["lay"], (disposition, seqs))
    _recount(tx, places, KINDS[disposition])
    if disposition is Disposition.TRASH:
        tx.execute(_SQL["discarded"], (tx.now, seqs))
        rebind.discarded(tx, bound)
    else:
        tx.execute(_SQL["restored"], (seqs,))


def _move(tx: Tx, places: list[Place], bound: list[Tied], queue: str) -> tuple[list[Place], list[Tied]]:
    """To another queue; as they are then, with those that were there already."""
    going = [place for place in places if place.queue != queue]
    tx.declare(queue)
    for name in ("move", "move_letters"):
        tx.execute(_SQL[name], (queue, _numbers(going)))
    for place in going:
        tx.count(place.queue, place.kind, -1)
        tx.count(queue, place.kind, 1)
        if place.cause is not None and place.kind == "open":
            tx.count_cause(place.cause, place.queue, -1)
            tx.count_cause(place.cause, queue, 1)
    moved = {item.seq: item for item in rebind.moved(tx, [item for item in bound if item.queue != queue], queue)}
    return [place._replace(queue=queue) for place in places], [moved.get(item.seq, item) for item in bound]


def _set_policy(tx: Tx, places: list[Place], policy: str) -> None:
    """In `terms`, which most items have no row in."""
    rows = []
    for item in tied.read(tx, [place.seq for place in places]):
        terms = with_policy(item.terms, policy)
        rows.append((item.seq, None if terms is None else codec.encode(terms)))
    tx.executemany(_SQL["set_policy"], rows)
    tx.execute(_SQL["mark_terms"], (_numbers(places),))


def _park(tx: Tx, places: list[Place], bound: list[Tied], label: str) -> None:
    known = {item.seq: item for item in bound}
    for place in places:
        item = known.get(place.seq)
        tx.moved(place.queue, "ready" if item is None else tied.kind_of(tx, item), "parked")
    tx.execute(_SQL["park"], (_numbers(places),))
    tx.execute(_SQL["label"], (_numbers(places), label))
    rebind.parked(tx, bound)


def _edit(tx: Tx, places: list[Place], payload: bytes, by: Act) -> None:
    for queue in {place.queue for place in places}:
        if configure.settings(tx, queue).encrypt and not packing.is_sealed(payload):
            raise EncryptionKeyMissing(queue)
    packing_number, crc = packing.packed_as(payload)
    items = tied.read(tx, [place.seq for place in places])
    kept = [(item.seq, item.terms.revision, tx.now, by.actor, by.reason) for item in items]
    tx.executemany(_SQL["keep_revision"], kept)
    tx.executemany(_SQL["edit"], [(payload, packing_number, crc, item.seq) for item in items])
    tx.executemany(_SQL["set_policy"], [(item.seq, codec.encode(edited(item.terms))) for item in items])
    tx.execute(_SQL["mark_terms"], (_numbers(places),))
    tx.weight += len(payload) * len(items)


def _cancel(tx: Tx, places: list[Place], bound: list[Tied], by: Act) -> None:
    """A ready item ends; one that runs is asked to."""
    running = {place.seq for place in places if place.state is State.LEASED}
    rebind.ask(tx, running, f"{by.actor}: {by.reason}")
    ready = [place for place in places if place.seq not in running]
    ended = [item for item in bound if item.seq not in running]
    _count_as_ready(tx, ended)
    tx.execute(_SQL["cancel"], (tx.now, _numbers(ready)))
    _recount(tx, ready, "cancelled")
    rebind.ended(tx, ended, "cancelled")


def _expire(tx: Tx, places: list[Place], bound: list[Tied]) -> None:
    _count_as_ready(tx, bound)
    edges.die(tx, [(place.seq, place.queue) for place in places], EXPIRED, EXPIRED_FAILURE)
    _recount(tx, [place._replace(cause=EXPIRED_FAILURE.cause) for place in places], "open")
    rebind.ended(tx, bound, "dead")


def _recall(tx: Tx, places: list[Place], bound: list[Tied]) -> None:
    _count_as_ready(tx, bound)
    kept = recall.die(tx, _numbers(places))
    letters: list[Place] = []
    for place in places:
        was = kept[place.seq]
        letter = place._replace(
            state=State.DEAD, disposition=DISPOSITIONS[was.disposition], cause=was.cause, route=was.route
        )
        tx.moved(place.queue, "ready", letter.kind)
        if letter.kind == "open":
            tx.count_cause(was.cause, place.queue, 1)
            tx.count_route(was.route, 1)
        letters.append(letter)
    passed = {place.seq for place in letters if not kept[place.seq].was_head or kept[place.seq].queue != place.queue}
    rebind.ended(tx, bound, "dead", passed)
    for queue in {kept[place.seq].queue for place in letters if kept[place.seq].queue != place.queue}:
        theirs = [place for place in letters if kept[place.seq].queue == queue]
        _, moved = _move(tx, theirs, [item for item in bound if kept[item.seq].queue == queue], queue)
        back = {item.seq: item for item in moved}
        bound = [back.get(item.seq, item) for item in bound]
    recall.put_back(tx, bound, kept)


def _count_as_ready(tx: Tx, bound: list[Tied]) -> None:
    """Before anything moves: what they count as depends on their lines."""
    for item in bound:
        tx.moved(item.queue, tied.kind_of(tx, item), "ready")


def _record(tx: Tx, places: list[Place], selection: Selection, change: Change, by: Act) -> None:
    record = audit.AuditRecord(audit.word(change), selection, tuple([place.id for place in places]), change)
    record_deeds(tx, record, by, [place.seq for place in places])


def record_deeds(tx: Tx, record: audit.AuditRecord, by: Act, seqs: list[int]) -> None:
    position = append_act(tx, audit.entry(record, by), record.change)
    tx.execute(_SQL["record_deeds"], (position, tied.numbers(seqs)))


def _recount(tx: Tx, places: list[Place], after: Kind | None) -> None:
    for (queue, kind), count in Counter([(place.queue, place.kind) for place in places]).items():
        tx.count(queue, kind, -count)
        if after is not None:
            tx.count(queue, after, count)
    for place in places:
        if place.cause is not None:
            opened = (after == "open") - (place.kind == "open")
            tx.count_cause(place.cause, place.queue, opened)
            tx.count_route(place.route or "", opened)


def prunable(selection: Selection) -> Selection:
    return And((selection, _RESOLVED))


def prune(tx: Tx, selection: Selection, limit: int, by: Act, among: Ids | None = None) -> tuple[Tombstone, ...] | None:
    """None if it took too long to find them; then they are to be found first, and pruned `among` what was found."""
    if among is not None:
        doomed = _oldest(tx, And((among, prunable(selection))), max(0, limit))
    else:
        try:
            with short_of_time(tx):
                doomed = _oldest(tx, prunable(selection), max(0, limit))
        except Exception as error:
            if not faults.is_interrupt(error):
                raise
            return None
    return remove(tx, doomed, selection, by)


def remove(tx: Tx, doomed: list[Place], selection: Selection, by: Act) -> tuple[Tombstone, ...]:
    if not doomed:
        return ()
    tombstones = [_tombstone(tx, place, by) for place in doomed]
    rows = [(t.id, t.queue, t.state, t.payload_sha256, t.at, t.actor, t.reason) for t in tombstones]
    tx.executemany(_PRUNE["bury"], rows)
    tx.change_letters([seq for (seq,) in tx.execute(_CHANGES["gone"], (_numbers(doomed),)).fetchall()])
    for name in ("items", "payloads", "results", "letters", "attempts", "deeds", "terms", "kept_letters", "revisions"):
        tx.execute(_PRUNE[name], (_numbers(doomed),))
    tags.forget(tx, [place.seq for place in doomed if place.ties & TAGGED])
    _recount(tx, doomed, None)
    record = audit.AuditRecord("prune", selection, tuple([place.id for place in doomed]))
    append_act(tx, audit.entry(record, by), record.change)
    return tuple(tombstones)


def _tombstone(tx: Tx, place: Place, by: Act) -> Tombstone:
    """Of whatever bytes are there: a damaged payload must not keep its item from being removed."""
    row = tx.execute(_PRUNE["body"], (place.seq,)).fetchone()
    body, how = (b"", 0) if row is None else row
    digest = packing.digest(packing.Packed(body, how) if how else body)
    return Tombstone(place.id, place.queue, place.state, digest, tx.now, by.actor, by.reason)
