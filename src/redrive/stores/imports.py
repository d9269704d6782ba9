"""Letters of another store, made ready to enter this one: checked, in order, and true to this store's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from redrive.core import codec
from redrive.core.acts import EDITS_LIMIT
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, MOST_TRIES, Attempt, History, Instant, Item, NewItem, Terms
from redrive.core.states import Disposition, State
from redrive.errors import ConfigError, StoreCorrupt
from redrive.stores.checks import TAGS_LIMIT, check_name, check_new, check_tags, check_text
from redrive.stores.packing import key_id_of


def check_imports(histories: Sequence[History]) -> None:
    """Everything that can be refused without looking into the store."""
    for history in histories:
        _check(history)
    check_new([_as_new(history.item) for history in in_order(histories)])


def prepared(histories: Sequence[History], now: Instant) -> list[History]:
    """Each id once, in the order in which they enter; `seq` is for the store to give, deeds and holds are left out."""
    once = {history.item.id: history for history in reversed(histories)}
    return [_settled_in(history, now) for history in in_order(tuple(reversed(once.values())))]


def in_order(histories: Sequence[History]) -> list[History]:
    """As they were enqueued, but whatever is waited for before those who wait: their places go by this order."""
    base = sorted(histories, key=lambda history: (history.item.enqueued_at, history.item.seq))
    by_id = {history.item.id: history for history in base}
    if not any(history.item.terms is not None and history.item.terms.after for history in base):
        return base
    ordered: dict[str, History] = {}
    for history in base:
        _visit(history.item.id, by_id, ordered)
    return list(ordered.values())


def _visit(start: str, by_id: Mapping[str, History], ordered: dict[str, History]) -> None:
    """Depth first and without recursion: chains may be long. A ring is broken somewhere, and told by `check_new`."""
    path, entered = [start], set[str]()
    while path:
        here = path[-1]
        terms = by_id[here].item.terms
        awaited = () if terms is None or here in entered else terms.after
        entered.add(here)
        missing = [one for one in awaited if one in by_id and one not in ordered and one not in entered]
        if missing:
            path.extend(reversed(missing))
        else:
            path.pop()
            ordered.setdefault(here, by_id[here])


def _check(history: History) -> None:
    item, letter = history.item, history.item.letter
    if item.state is not State.DEAD or letter is None:
        hint = "only letters can be taken in; enqueue what is to run"
        raise ConfigError(f"it is {item.state}, not a dead letter (item {item.id})", field="state", hint=hint)
    if item.sealed:
        check_sealed(item.id, item.payload, item.sealed)
    elif item.flaw:
        hint = "what is left of it is in the store it comes from"
        raise ConfigError(f"it is damaged: {item.flaw} (item {item.id})", field="payload", hint=hint)
    why = letter.failure
    check_text("reason", letter.reason)
    check_text("route", letter.route)
    check_text("failure", why.type, why.category, why.rule, why.cause, why.action, why.code or "")
    check_text("worker", item.worker or "")
    check_tags(item.tags)
    if len(set(item.tags)) > TAGS_LIMIT:
        raise ConfigError(
            f"{len(set(item.tags))} are too many (item {item.id}); {TAGS_LIMIT} are the most", field="tag"
        )
    _check_numbers(history)
    try:
        codec.encode(history)
    except ConfigError:
        hint = "use text that can be printed"
        raise ConfigError(f"half a character in its texts (item {item.id})", field="failure", hint=hint) from None


def check_sealed(item_id: str, payload: bytes, key: str) -> None:
    """An encrypted payload stays as it is: only its header can be read here."""
    try:
        found = key_id_of(payload)
    except StoreCorrupt:
        found = ""
    if not key or found != key:
        hint = "take the record as the export wrote it"
        raise ConfigError(f"it is not encrypted with key {key!r} (item {item_id})", field="payload", hint=hint)


def _check_numbers(history: History) -> None:
    item = history.item
    for field in ("enqueued_at", "due_at", "renewed_at", "leased_at", "ended_at"):
        value = getattr(item, field)
        if value is not None and not 0 <= value <= LATEST:
            raise ConfigError(f"{value} makes no sense (item {item.id})", field=field)
    if item.letter is not None and not 0 <= item.letter.died_at <= LATEST:
        raise ConfigError(f"{item.letter.died_at} makes no sense (item {item.id})", field="died_at")
    for field in ("deliveries", "attempt", "errors", "crashes", "replays"):
        value = getattr(item, field)
        if not 0 <= value <= MOST_TRIES:
            raise ConfigError(f"{value} makes no sense (item {item.id})", field=field)
    for one in history.attempts:
        check_name("release", one.release)
        if not (0 <= one.started_at <= LATEST and 0 <= one.ran <= LATEST and 0 <= one.number <= MOST_TRIES):
            raise ConfigError(f"the numbers of one make no sense (item {item.id})", field="attempts")
    if not 0 <= history.omitted <= MOST_TRIES:
        raise ConfigError(f"{history.omitted} makes no sense (item {item.id})", field="omitted")
    _check_revisions(history)
    numbers = [attempt.delivery for attempt in history.attempts]
    if numbers != sorted(set(numbers)) or any(not 1 <= number <= MOST_TRIES for number in numbers):
        raise ConfigError(f"their deliveries do not go up one by one (item {item.id})", field="attempts")


def _check_revisions(history: History) -> None:
    item_id, revisions = history.item.id, history.revisions
    if [one.number for one in revisions] != list(range(len(revisions))) or len(revisions) > EDITS_LIMIT:
        hint = f"they are numbered from 0, and {EDITS_LIMIT} are the most"
        raise ConfigError(f"the numbers of earlier payloads are wrong (item {item_id})", field="revisions", hint=hint)
    for one in revisions:
        check_text("revisions", one.actor, one.reason)
        if one.sealed:
            check_sealed(item_id, one.payload, one.sealed)
        if (one.flaw and not one.sealed) or not 0 <= one.at <= LATEST:
            text = f"payload {one.number} is damaged, or its time makes no sense (item {item_id})"
            raise ConfigError(text, field="revisions")


LATEST = 2**53 - 1
"""Of instants and durations: what every engine can keep and count with."""
"""Of deliveries and all that is counted of them; a level is six times as large."""


def _as_new(item: Item) -> NewItem:
    return NewItem(
        item.id,
        item.queue,
        item.payload,
        priority=item.priority,
        terms=item.terms,
        kind=item.kind,
        release=item.release,
    )


def _settled_in(history: History, now: Instant) -> History:
    item, letter = history.item, history.item.letter
    if letter is None:
        raise AssertionError("checked before")
    died_at = min(letter.died_at, now)
    in_trash = letter.disposition is Disposition.TRASH
    attempts, omitted = _trimmed(history)
    settled = Item(
        id=item.id,
        queue=item.queue,
        payload=item.payload,
        seq=0,
        state=State.DEAD,
        enqueued_at=min(item.enqueued_at, now),
        due_at=min(item.due_at, now),
        renewed_at=min(item.renewed_at, now),
        deliveries=_deliveries(history),
        attempt=item.attempt,
        errors=item.errors,
        crashes=item.crashes,
        replays=item.replays,
        last_chance=item.last_chance,
        # "" is nobody, who keeps it back for a while: a time of the other store.
        worker=item.worker or None,
        leased_at=None if item.leased_at is None else min(item.leased_at, now),
        # The hold of the trash begins with the import: whoever brings a letter here has time to look at it.
        ended_at=now if in_trash else died_at,
        letter=structs.replace(letter, died_at=died_at, reserved=""),
        priority=item.priority,
        terms=_terms(history),
        tags=tuple(sorted(set(item.tags))),
        kind=item.kind,
        release=item.release,
        sealed=item.sealed,
    )
    capped = tuple(structs.replace(one, started_at=min(one.started_at, now)) for one in attempts)
    revisions = tuple(structs.replace(one, at=min(one.at, now), flaw="") for one in history.revisions)
    return History(settled, capped, omitted, revisions=revisions)


def _terms(history: History) -> Terms | None:
    """With as many revisions as came with it: without them, its payload is the first one here."""
    terms = structs.replace(history.item.terms or Terms(), revision=len(history.revisions))
    return None if terms == Terms() else terms


def _deliveries(history: History) -> int:
    """At least as many as its evidence tells of: the next one must have a number of its own."""
    item = history.item
    last = history.attempts[-1].delivery if history.attempts else 0
    return max(item.deliveries, item.attempt, item.errors + item.crashes, last)


def _trimmed(history: History) -> tuple[tuple[Attempt, ...], int]:
    attempts, most = history.attempts, ATTEMPTS_FIRST + ATTEMPTS_LAST
    if len(attempts) <= most:
        return attempts, history.omitted
    kept = (*attempts[:ATTEMPTS_FIRST], *attempts[-ATTEMPTS_LAST:])
    return kept, history.omitted + len(attempts) - most
