"""What every engine refuses, in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from redrive.core import durations
from redrive.core.acts import (
    Act,
    Change,
    Edit,
    Move,
    Park,
    Refusal,
    Replay,
    Reserve,
    SetPolicy,
    Tag,
)
from redrive.core.decide import ToCancelled, ToDone
from redrive.core.families import OWN_GATE, is_family
from redrive.core.graph import cycle
from redrive.core.item import Dedupe, Millis, NewItem
from redrive.core.meters import Rate
from redrive.core.verbs import (
    DocumentWrite,
    GateWrite,
    LeaseRequest,
    NewEntry,
    QueueChange,
    Settlement,
)
from redrive.errors import BadDependency, ConfigError, Conflict
from redrive.stores.base import HEADERS_LIMIT, HEADERS_SIZE, NAME_LIMIT, PAGE_LIMIT, TRACE_LIMIT


def check_new(items: Sequence[NewItem]) -> None:
    for new in items:
        if not new.id:
            raise ConfigError("must not be empty", field="id")
        if new.queue[-2:] in _NO_NAME_ENDS:
            raise _no_queue(new)
        if new.delay < 0:
            raise ConfigError(f"must not be negative: {new.delay} ms (item {new.id})", field="delay")
        if new.at is not None and new.at < 0:
            raise ConfigError(f"must not be before 1970: {new.at} ms (item {new.id})", field="at")
        if new.kind or new.release:
            check_name("kind", new.kind)
            check_name("release", new.release)
    check_terms([new for new in items if new.terms is not None])
    # Names are few and short: joined, one look is enough for nearly all.
    if not _plain("".join([new.id + new.queue for new in items])):
        for new in items:
            check_text("id", new.id)
            check_text("queue", new.queue)


_NO_NAME_ENDS = ("", ":*")


def _no_queue(new: NewItem) -> ConfigError:
    if not new.queue:
        return ConfigError(f"must not be empty (item {new.id})", field="queue")
    hint = "name one member, such as webhook:acme"
    return ConfigError(f"{new.queue!r} is a pattern, not a queue (item {new.id})", field="queue", hint=hint)


def check_pattern(queue: str) -> None:
    """A name that ends in `:*` means a family, and has the form of one."""
    if queue.endswith(":*") and not is_family(queue):
        hint = "a family is a name without ':', then ':*', such as webhook:*"
        raise ConfigError(f"{queue!r} is not the pattern of a family", field="queue", hint=hint)


def check_queues(queues: Iterable[str]) -> None:
    """Those that a worker names."""
    for queue in queues:
        check_pattern(queue)


def check_name(field: str, name: str) -> None:
    check_text(field, name)
    if len(name) > NAME_LIMIT:
        hint = f"at most {NAME_LIMIT}"
        raise ConfigError(f"it has {len(name):,} characters", field=field, hint=hint)


def check_headers(headers: Sequence[tuple[str, str]]) -> None:
    names = [name for name, _ in headers]
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise ConfigError(f"{twice[0]!r} is there twice", field="headers", hint="give each name one text")
    if len(names) > HEADERS_LIMIT:
        raise ConfigError(f"{len(names)} headers are too many", field="headers", hint=f"at most {HEADERS_LIMIT}")
    for name, text in headers:
        check_text("headers", name, text)
        if not name:
            raise ConfigError("a name is empty", field="headers", hint="name each header")
    size = sum([len(name.encode()) + len(text.encode()) for name, text in headers])
    if size > HEADERS_SIZE:
        hint = f"at most {HEADERS_SIZE:,} with their names; put the rest into the payload"
        raise ConfigError(f"they have {size:,} bytes", field="headers", hint=hint)


def check_trace(trace: str) -> None:
    check_text("trace", trace)
    if len(trace) > TRACE_LIMIT:
        raise ConfigError(f"it has {len(trace):,} characters", field="trace", hint=f"at most {TRACE_LIMIT}")


def check_schema(schema: int) -> None:
    if not 0 <= schema <= MOST:
        raise ConfigError(f"must be between 0 and {MOST:,}, not {schema}", field="schema")


def check_terms(items: Sequence[NewItem]) -> None:
    for new in items:
        terms = new.terms
        if terms is None:
            continue
        check_text("order_key", terms.order_key)
        check_text("limit_key", terms.limit_key)
        check_text("policy", terms.policy)
        check_schema(terms.schema)
        check_trace(terms.trace)
        if terms.headers:
            check_headers(terms.headers)
        if terms.dedupe is not None:
            check_dedupe(terms.dedupe)
        for awaited in terms.after:
            check_text("after", awaited)
    ring = cycle(_waits(items))
    if ring:
        raise BadDependency(f"these would wait for each other for ever: {' -> '.join(ring)}", field="after")


def _waits(items: Sequence[NewItem]) -> dict[str, tuple[str, ...]]:
    """Who waits for whom among these: for what it names, and for the one before it under its order key."""
    waits: dict[str, tuple[str, ...]] = {}
    if not any(new.terms is not None and new.terms.after for new in items):
        return waits
    before: dict[tuple[str, str], str] = {}
    for new in items:
        if new.terms is not None and new.id not in waits:
            line = (new.queue, new.terms.order_key)
            ahead = (before[line],) if new.terms.order_key and line in before else ()
            waits[new.id] = (*new.terms.after, *ahead)
            before[line] = new.id
    return waits


def check_follow_ups(items: Sequence[NewItem]) -> None:
    """They are put by the end of another item, which must not fail for their sake: so they wait for nobody."""
    for new in items:
        if new.terms is not None and new.terms.after:
            raise ConfigError(f"a follow-up cannot wait for others (item {new.id})", field="after")
    check_new(items)


def check_lease(request: LeaseRequest) -> None:
    check_queues([want.queue for want in request.wants])
    if not request.item:
        return
    check_text("item", request.item)
    if len(request.wants) != 1:
        hint = "name the queue of the item in the only want"
        raise ConfigError(f"one item is leased by one want, not {len(request.wants)}", field="item", hint=hint)


def check_letters(ids: Sequence[str], worker: str, ttl: Millis) -> None:
    """What `lease_letters` is asked for. A letter without a holder has an empty one, so nobody may be called so."""
    check_text("worker", worker)
    if not worker:
        raise ConfigError("must not be empty", field="worker", hint="name who will settle them")
    if ttl < 1:
        raise ConfigError(f"must be at least 1 ms, not {ttl}", field="ttl")
    if len(ids) > PAGE_LIMIT:
        hint = "lease them in smaller batches"
        raise ConfigError(f"{len(ids)} letters are too many; {PAGE_LIMIT} are the most", field="ids", hint=hint)
    for item_id in ids:
        check_text("ids", item_id)


def check_letter_settlements(settlements: Sequence[Settlement]) -> None:
    for one in settlements:
        if one.follow_ups and not isinstance(one.decision, ToDone | ToCancelled):
            hint = "put them yourself, or end the letter as done or cancelled"
            raise ConfigError(f"only a letter that is over has any (item {one.id})", field="follow_ups", hint=hint)
        if one.follow_ups:
            check_follow_ups(one.follow_ups)
        check_entries((one.audit,))


def check_dedupe(dedupe: Dedupe) -> None:
    check_text("dedupe_key", dedupe.key)
    if not dedupe.key:
        raise ConfigError("must not be empty", field="dedupe_key")
    if dedupe.window is not None and dedupe.window < 0:
        raise ConfigError(f"must not be negative: {dedupe.window} ms", field="dedupe_window")


def unknown_dependency(item_id: str, awaited: str) -> BadDependency:
    return BadDependency(
        f"no item {awaited!r} for {item_id} to wait for; nothing was added",
        field="after",
        hint="enqueue what must come first before what waits for it, or in the same call",
    )


def hopeless_dependency(item_id: str, awaited: str) -> BadDependency:
    return BadDependency(
        f"{awaited!r} will never be done (cancelled or removed), so {item_id} would wait for ever; nothing was added",
        field="after",
        hint="leave it out of after, or say on_dead='die' to make a letter of it",
    )


def waits_in_vain(awaited: str) -> Refusal:
    """Why a letter is not replayed that would only wait for ever."""
    return Refusal(f"it waits for {awaited}, which was cancelled; force runs it without waiting", "dependency")


def waits_for_stranger(awaited: str) -> Refusal:
    """Why a letter that came from another store is not replayed."""
    why = f"it waits for {awaited}, which this store does not know; force runs it without waiting"
    return Refusal(why, "dependency")


def check_amend(change: Change, by: Act) -> None:
    check_act(by)
    if isinstance(change, Tag):
        check_tag_change(change)
    elif isinstance(change, SetPolicy):
        check_text("policy", change.policy)
    elif isinstance(change, Park):
        check_label(change.label)
    elif isinstance(change, Edit):
        check_edit(change)
    elif isinstance(change, Move) or (isinstance(change, Replay) and change.queue):
        check_queue(change.queue)
    if isinstance(change, Reserve) or (isinstance(change, Replay) and change.reserved):
        check_replay_id(change.replay if isinstance(change, Reserve) else change.reserved)


def check_replay_id(replay: str, field: str = "replay") -> None:
    check_text(field, replay)
    if not 1 <= len(replay) <= REPLAY_ID_LENGTH:
        raise ConfigError(f"must have 1 to {REPLAY_ID_LENGTH} characters, not {len(replay)}", field=field)


def check_queue(queue: str) -> None:
    if not queue:
        raise ConfigError("must not be empty", field="queue")
    if queue.endswith(":*"):
        hint = "name one member, such as webhook:acme"
        raise ConfigError(f"{queue!r} is a pattern, not a queue", field="queue", hint=hint)
    check_text("queue", queue)


def check_tag_change(change: Tag) -> None:
    if not change.add and not change.remove:
        raise ConfigError("no tag is named", field="tag", hint="name one to add, or one to remove")
    check_tags((*change.add, *change.remove))
    both = sorted(set(change.add) & set(change.remove))
    if both:
        raise ConfigError(f"{both[0]!r} is added and removed at once", field="tag", hint="say one of the two")


def check_tags(tags: Iterable[str], *, field: str = "tag") -> None:
    for tag in tags:
        if not 1 <= len(tag) <= TAG_LENGTH:
            hint = f"a {field} is one short word"
            raise ConfigError(f"must have 1 to {TAG_LENGTH} characters, not {len(tag)}", field=field, hint=hint)
        # What cannot be printed is refused as well: nobody could type it again.
        if "," in tag or " " in tag or not tag.isprintable():
            hint = "leave out blanks, commas and control characters, as in needs-review"
            raise ConfigError(f"{tag!r} is no {field}", field=field, hint=hint)


def check_label(label: str) -> None:
    """Of a parked item. `parked:order` is the hold of items behind a dead head, so that no label may be called so."""
    check_tags((label,), field="label")
    if label == "order" or ":" in label:
        hint = "use another word, without a colon, as in schema"
        raise ConfigError(f"{label!r} cannot be the label of a parked item", field="label", hint=hint)


def check_edit(change: Edit) -> None:
    payload: object = change.payload
    if not isinstance(payload, bytes):
        kind = type(payload).__name__
        raise ConfigError(f"must be bytes, not {kind}", field="payload", hint="encode it as it would be put")
    if change.revision is not None and change.revision < 0:
        hint = "the first payload has the number 0; use None for any"
        raise ConfigError(f"must be 0 or more, not {change.revision}", field="revision", hint=hint)


TAG_LENGTH = 100
TAGS_LIMIT = 50
REPLAY_ID_LENGTH = 128
"""So many an item may have."""


def tagged(tags: Sequence[str], change: Tag) -> tuple[str, ...]:
    """The tags of an item after the change, in alphabetical order."""
    return tuple(sorted({*tags, *change.add} - {*change.remove}))


def too_many_tags(count: int) -> Refusal:
    return Refusal(f"it would have {count} tags; {TAGS_LIMIT} are the most", "tags")


KEEPS_BACK = Refusal("others wait behind it under its order key; skip it first", "head")


def bound_to(queue: str) -> Refusal:
    """Why a letter cannot move: under the order key of another queue, they might wait for each other for ever."""
    return Refusal(f"others were put to wait for it, so its order key binds it to {queue}", "bound")


def there_already(queue: str) -> Refusal:
    return Refusal(f"it is in {queue} already", "same_queue")


def check_text(field: str, *texts: str) -> None:
    """Names and reasons are text on every engine: PostgreSQL has no NUL in texts, and nobody has half characters."""
    for text in texts:
        if not _plain(text):
            raise ConfigError(
                f"{text!r} has a NUL or half a character", field=field, hint="use text that can be printed"
            )


def _plain(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_act(by: Act) -> None:
    check_text("actor", by.actor)
    check_text("reason", by.reason)
    check_text("request_id", by.request_id)


def check_family_change(queue: str, change: QueueChange) -> None:
    """What only a family can have, and what it cannot."""
    if change.encrypt is True and is_family(queue):
        hint = "set it for each member, such as webhook:acme"
        raise ConfigError(f"a family is not encrypted: {queue!r}", field="encrypt", hint=hint)
    if change.gate == OWN_GATE and not is_family(queue):
        hint = "only a family, such as webhook:*, gives each member a breaker of its own; name one"
        raise ConfigError("'*' is not a name", field="gate", hint=hint)


def check_change(queue: str, change: QueueChange) -> None:
    check_text("queue", queue)
    check_pattern(queue)
    check_family_change(queue, change)
    check_text("by", change.by)
    check_text("reason", change.reason)

    for field in ("max_running", "max_per_key", "capacity"):
        value = getattr(change, field)
        if value is not UNSET and value is not None and not 1 <= value <= MOST:
            raise ConfigError(f"must be between 1 and {MOST:,}, not {value}", field=field, hint="use None for no limit")
    if change.rate is not UNSET and change.rate is not None:
        check_rate(change.rate)
    check_keeps(change)
    if change.order is not UNSET and change.order not in (None, *ORDERS):
        raise ConfigError(f"{change.order!r} is none of {', '.join(ORDERS)}", field="order")
    share = change.retry_share
    if share is not UNSET and share is not None and not 0 < share <= 1:
        raise ConfigError(f"must be above 0 and at most 1, not {share}", field="retry_share", hint="0.3 is 30 %")
    if change.encrypt is not UNSET and not isinstance(change.encrypt, bool):
        raise ConfigError(f"must be True or False, not {change.encrypt!r}", field="encrypt")
    for field in ("policy", "gate"):
        value = getattr(change, field)
        if value is not UNSET:
            check_text(field, value)


def check_keeps(change: QueueChange) -> None:
    for field in ("keep", "keep_results", "keep_trash"):
        value = getattr(change, field)
        if value is UNSET or value is None:
            continue
        if not 0 <= value <= durations.MAX:
            hint = "say how long" if field == "keep_trash" else "use None to keep for ever"
            raise ConfigError(f"must be between 0 and {durations.MAX} ms, not {value}", field=field, hint=hint)


ORDERS = ("block", "park", "skip")
MOST = 1_000_000_000
"""Of any limit: what every engine can keep and count with."""


def check_rate(rate: Rate) -> None:
    hint = "use Rate(count, per), such as Rate(100, 60_000) for 100 a minute, or None for no limit"
    if rate.count < 1 or rate.per < 1 or (rate.burst is not None and rate.burst < 1):
        raise ConfigError(f"{rate!r} lets nothing pass", field="rate", hint=hint)
    if rate.count > MOST or rate.per > durations.MAX or rate.most > MOST:
        raise ConfigError(f"{rate!r} is more than can be counted", field="rate", hint=hint)


def check_capacity(queue: str, capacity: int, fill: int) -> None:
    """A limit that is broken already would refuse everything: whoever sets it should know."""
    if capacity < fill:
        hint = "set it higher, or let workers catch up first"
        raise ConfigError(f"{capacity:,} is below what {queue!r} holds now ({fill:,})", field="capacity", hint=hint)


def check_route(route: str, capacity: int | None) -> None:
    check_text("route", route)
    if not route:
        raise ConfigError("must not be empty", field="route")
    if capacity is not None and not 1 <= capacity <= MOST:
        hint = "use None for no limit"
        raise ConfigError(f"must be between 1 and {MOST:,}, not {capacity}", field="capacity", hint=hint)


def check_gate(write: GateWrite) -> None:
    check_text("gate", write.name)
    if not write.name:
        raise ConfigError("must not be empty", field="gate")
    for field in ("interval", "burst", "floor"):
        value = getattr(write, field)
        if value is not None and not 1 <= value <= durations.MAX * 1000:
            raise ConfigError(f"must be between 1 and {durations.MAX * 1000}, not {value}", field=field)


def check_entries(entries: Iterable[NewEntry | None]) -> None:
    for entry in entries:
        if entry is not None:
            check_text("topic", entry.topic)
            check_act(Act(entry.actor, entry.reason, entry.request_id))


def check_writes(writes: Iterable[DocumentWrite]) -> None:
    for write in writes:
        check_text("kind", write.kind)
        check_text("key", write.key)


def check_page(limit: int, most: int = PAGE_LIMIT) -> None:
    if not 1 <= limit <= most:
        raise ConfigError(f"must be between 1 and {most}, not {limit}", field="limit")


def check_not_within(within: object | None, engine: str) -> None:
    """For engines that cannot join a caller's transaction."""
    if within is not None:
        raise ConfigError(
            f"a {engine} store cannot join your transaction",
            field="within",
            hint="use a postgresql:// store in the same database, or enqueue after your commit",
        )


def taken(item_id: str, queue: str, wanted: str) -> Conflict:
    """Ids are unique in the whole store: work under an id that other work has would be dropped."""
    what = f"queue {queue!r}" if queue != wanted else "another payload"
    hint = "ids are unique in the whole store: use another one, or leave it out"
    return Conflict(f"id {item_id!r} is taken by an item with {what}; nothing was added", hint=hint)
