"""Replay by plain functions, for handlers that get a DeadLetter and nothing else.

They send a new message and do not end the letter: a consumer acknowledges it when its handler returns. After a crash in
between, the handler gets the letter again, and the message is not sent twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from msgspec import structs

from redrive.core.item import NewItem
from redrive.core.validation import check_function, check_type
from redrive.engine.store_retry import retry_unknown
from redrive.errors import ReceiptHandleExpiredError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.envelope import Lineage, opened, sealed
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.letters.replayer import Replayer
from redrive.mailboxes.metrics import default_metrics
from redrive.mailboxes.validation import check_resolver
from redrive.office.replay.claims import name_of

AnyMailbox = Mailbox[Any, Any]


@logs.with_action("replay")
def replay_handler(dead_letter: DeadLetter[Any], *, source: AnyMailbox, reply_resolver: MailboxResolver) -> None:
    """Send it back to its source, with its reply address. Raises MailboxResolutionError."""
    _check(dead_letter, source)
    check_resolver(reply_resolver, "resolve", field="reply_resolver")
    reply_to = reply_resolver.resolve(dead_letter.reply_to) if dead_letter.reply_to else None
    _send(dead_letter, source, reply_to, name_of(source.name, dead_letter.message_id, dead_letter.dead_lettered_at))
    _record(dead_letter, source)


def selective_replay(
    dlq: Mailbox[DeadLetter[Any], Any],
    source: AnyMailbox,
    *,
    predicate: Callable[[DeadLetter[Any]], object],
    reply_resolver: MailboxResolver,
) -> int:
    """Replay all dead letters for which the predicate is true; how many. The others are as they were."""
    check_type(dlq, Mailbox, field="dlq", hint="use open_mailbox")
    check_type(source, Mailbox, field="source", hint="use open_mailbox")
    check_function(predicate, field="predicate", hint="give one of a DeadLetter")
    check_resolver(reply_resolver, "resolve", field="reply_resolver")
    if isinstance(dlq, StoreMailbox):
        return len(Replayer(dlq, source, reply_resolver).matching(predicate, dedupe=False).replayed)
    replayed, kept = 0, list[Message[DeadLetter[Any], Any]]()
    try:
        while batch := dlq.receive(max_messages=10, visibility_timeout=60):
            kept += batch
            for message in batch:
                if predicate(message.body):
                    replay_handler(message.body, source=source, reply_resolver=reply_resolver)
                    message.acknowledge()
                    kept.remove(message)
                    replayed += 1
    finally:
        for message in kept:
            _give_back(message)
    return replayed


@logs.with_action("replay")
def replay_with_dedup(dead_letter: DeadLetter[Any], source: AnyMailbox, seen: set[UUID] | None = None) -> bool:
    """Replay it unless a message of its request was replayed before: by any process, if the source is on a store.

    `seen` are requests that count as replayed as well, and this one is added to them.
    """
    _check(dead_letter, source)
    request_id = dead_letter.request_id
    known = seen is not None and request_id in seen
    if request_id is None:
        key = name_of(source.name, dead_letter.message_id, dead_letter.dead_lettered_at)
    else:
        key = name_of(source.name, "request", request_id)
    if known or not _send(dead_letter, source, None, key):
        logs.duplicate(message_id=dead_letter.message_id, request_id=request_id, to=source.name)
        return False
    if seen is not None and request_id is not None:
        seen.add(request_id)
    _record(dead_letter, source)
    return True


def _check(dead_letter: object, source: object) -> None:
    check_type(dead_letter, DeadLetter, field="dead_letter", hint="give the body of a message of dead letters")
    check_type(source, Mailbox, field="source", hint="use open_mailbox")


def _send(dead_letter: DeadLetter[Any], source: AnyMailbox, reply_to: AnyMailbox | None, key: str) -> bool:
    """Whether it is new."""
    if not isinstance(source, StoreMailbox):
        source.send(dead_letter.body, reply_to)
        return True
    source.check_open()
    envelope = opened(source.seal(dead_letter.body, reply_to, None))
    lineage = Lineage(dead_letter.message_id, dead_letter.message_id, 1)
    payload = sealed(structs.replace(envelope, lineage=lineage))
    return source.call(_put, source, NewItem(key, source.name, payload))


async def _put(source: StoreMailbox[Any, Any], item: NewItem) -> bool:
    await source.prepare()
    result, first = await retry_unknown(lambda: source.shared.store.put([item]))
    return bool(result.added) or not first


def _record(dead_letter: DeadLetter[Any], source: AnyMailbox) -> None:
    default_metrics().replayed(dead_letter.source_mailbox, dead_letter.last_error_type)
    logs.replayed(message_id=dead_letter.message_id, request_id=dead_letter.request_id, to=source.name)


def _give_back(message: Message[Any, Any]) -> None:
    try:
        message.nack(0)
    except ReceiptHandleExpiredError:
        return  # its lease has expired: it is visible already
