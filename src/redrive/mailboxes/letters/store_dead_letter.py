"""Storage of dead letters that are sent: items that are letters from the start, and read back as they were sent.

The queue of such an item is the source mailbox of the dead letter, so that a replay goes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, structs

from redrive.core import codec, typed_codec
from redrive.core.acts import Act
from redrive.core.classify import fingerprint
from redrive.core.item import MOST_TRIES, Failure, History, Instant, Item, Letter, Priority
from redrive.core.states import Disposition, State
from redrive.core.validation import check_range
from redrive.engine.ids import new_id
from redrive.engine.store_retry import retry_unknown
from redrive.errors import MailboxFullError
from redrive.mailboxes.boxes.dead_letter import DeadLetter, instant
from redrive.mailboxes.boxes.envelope import NOTHING, Envelope, enclosed, sealed
from redrive.mailboxes.validation import check_name

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.store import MailboxStore

REASON = "sent"
NOT_A_LETTER = "redrive.SentDirectly"


_decoder = msgspec.json.Decoder(dict[str, Any])


def sent_letter(item: Item, envelope: Envelope) -> DeadLetter[None] | None:
    """The dead letter as it was sent, without its body. None for others, and after a replay: then it is a message."""
    if envelope.dead_letter is NOTHING or item.replays:
        return None
    try:
        with codec.making:
            return msgspec.convert({**_decoder.decode(envelope.dead_letter), "body": None}, DeadLetter[None])
    except (msgspec.MsgspecError, ValueError):
        return None


def reply_to(item: Item, envelope: Envelope) -> str | None:
    """The reply address that the sender of the letter gave."""
    sent = sent_letter(item, envelope)
    asked = sent is not None and envelope.reply_to != (sent.reply_to or "")
    return envelope.reply_to or None if asked else None


async def store_dead_letter(
    shared: MailboxStore,
    name: str,
    body: object,
    *,
    reply_to: str,
    reply_at: str,
    attributes: Mapping[str, str],
    priority: Priority,
    message_id: str,
) -> str:
    """Store it as a letter of the mailbox of this name. Gives the id. Raises MailboxFullError."""
    letter = body if isinstance(body, DeadLetter) else None
    envelope = enclosed(
        body if letter is None else letter.body,
        name,
        reply_to=reply_to or (letter.reply_to if letter is not None else "") or "",
        reply_at=reply_at,
        attributes=dict(attributes),
        dead_letter=NOTHING if letter is None else Raw(msgspec.json.encode(_without_body(letter))),
    )
    # The sender cannot shorten the fields of the death: they do not count.
    payload = typed_codec.check_size(sealed(envelope), to=name, apart=len(bytes(envelope.dead_letter)))
    item = _item(letter, name, shared.clock.now())
    history = History(structs.replace(item, id=message_id, payload=payload, priority=priority))
    await _check_room(shared, name)
    act = Act("mailbox", f"sent to {name}", new_id())
    await retry_unknown(lambda: shared.store.take_in([history], act))
    shared.notify(name)
    return message_id


async def _check_room(shared: MailboxStore, name: str) -> None:
    """Not part of the write: letters that are sent concurrently may exceed the capacity by a few."""
    for route in (await shared.store.tally(members=False)).routes:
        if route.route == name and route.capacity is not None and route.open >= route.capacity:
            raise MailboxFullError(
                f"mailbox {name!r} holds {route.open:,} of at most {route.capacity:,} letters; nothing was added",
                hint="work off what it holds, or raise its max_size",
            )


def _without_body(letter: DeadLetter[Any]) -> dict[str, Any]:
    given = {field.name: (getattr(letter, field.name), field.default) for field in fields(DeadLetter)}
    return {name: value for name, (value, default) in given.items() if name != "body" and value != default}


def _item(letter: DeadLetter[Any] | None, name: str, now: Instant) -> Item:
    """None for a body that is not a dead letter, sent to a dead-letter mailbox."""
    if letter is None:
        queue, died_at, sent_at, tries = name, now, now, 0
        failure = _failure(NOT_A_LETTER, f"sent to {name} directly")
    else:
        queue = check_name(letter.source_mailbox or name, field="source_mailbox")
        tries = letter.delivery_count
        check_range(tries, field="delivery_count", least=0, most=MOST_TRIES, whole=True)
        died_at = min(now, instant(letter.dead_lettered_at))
        sent_at = min(died_at, instant(letter.first_enqueued_at or letter.first_received_at))
        failure = _failure(letter.last_error_type, letter.last_error)
    return Item(
        id="",
        queue=queue,
        payload=b"",
        seq=0,
        state=State.DEAD,
        enqueued_at=sent_at,
        due_at=sent_at,
        renewed_at=sent_at,
        deliveries=tries,
        attempt=tries,
        errors=tries,
        ended_at=died_at,
        letter=Letter(REASON, died_at, Disposition.OPEN, failure, name),
    )


def _failure(named: str, text: str) -> Failure:
    """With the name that failures of handlers have, so that it has the same cause as they."""
    kind = named.removeprefix("builtins.")
    return Failure(kind, text, "error", rule="default", cause=fingerprint(kind, text, ()))
