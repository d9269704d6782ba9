"""What every engine refuses, in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redrive.core.item import NewItem
from redrive.core.verbs import Act, DocumentWrite, NewEntry, QueueChange
from redrive.errors import ConfigError, Conflict
from redrive.stores.base import PAGE_LIMIT


def check_new(items: Sequence[NewItem]) -> None:
    for new in items:
        if not new.id:
            raise ConfigError("must not be empty", field="id")
        if not new.queue:
            raise ConfigError(f"must not be empty (item {new.id})", field="queue")
        if new.delay < 0:
            raise ConfigError(f"must not be negative: {new.delay} ms (item {new.id})", field="delay")
    # Names are few and short: joined, one look is enough for nearly all.
    if not _plain("".join([new.id + new.queue for new in items])):
        for new in items:
            check_text("id", new.id)
            check_text("queue", new.queue)


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


def check_change(queue: str, change: QueueChange) -> None:
    check_text("queue", queue)
    check_text("by", change.by)
    check_text("reason", change.reason)


def check_entries(entries: Iterable[NewEntry]) -> None:
    for entry in entries:
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
