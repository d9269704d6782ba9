"""Dead letters that are sent, not made: an item that is a letter from the first moment, and reads back as it was given.

Its queue is the mailbox that the dead letter names as its source, so that a replay goes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, structs

from redrive.core import codec
from redrive.core.classify import fingerprint
from redrive.core.item import Failure, History, Instant, Item, Letter, Millis, Priority
from redrive.core.states import Disposition, State
from redrive.core.verbs import Act
from redrive.engine.ids import new_id
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError, InvalidParameterError, MailboxFullError
from redrive.mailboxes.boxes import bodies
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.envelope import FORM, NOTHING, Envelope, sealed
from redrive.mailboxes.boxes.place import surely
from redrive.stores.imports import MOST_TRIES

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.place import Place

REASON = "sent"
NOT_A_LETTER = "redrive.SentDirectly"


_decoder = msgspec.json.Decoder(dict[str, Any])


def sent_letter(item: Item, envelope: Envelope) -> DeadLetter[None] | None:
    """What it was sent as, without the body, which lies beside it.

    Once it was replayed, it is a message like others, and dies its own death.
    """
    if envelope.born is NOTHING or item.replays:
        return None
    try:
        with codec.making:
            return msgspec.convert({**_decoder.decode(envelope.born), "body": None}, DeadLetter[None])
    except (msgspec.MsgspecError, ValueError):
        return None


def reply_to(item: Item, envelope: Envelope) -> str | None:
    """Where whoever sent the letter itself wants an answer."""
    sent = sent_letter(item, envelope)
    asked = sent is not None and envelope.reply_to != (sent.reply_to or "")
    return envelope.reply_to or None if asked else None


async def bear(
    place: Place,
    name: str,
    body: object,
    *,
    reply_to: str | None = None,
    reply_at: str = "",
    attributes: Mapping[str, str] | None = None,
    priority: Priority = Priority.NORMAL,
    ttl: Millis | None = None,
    message_id: str | None = None,
) -> str:
    """In the loop: store it as a letter of the mailbox of this name, and give its id. Raises MailboxFullError."""
    letter = body if isinstance(body, DeadLetter) else None
    inner = body if letter is None else letter.body
    data, kind = bodies.dumped(inner, mailbox=name)
    envelope = Envelope(
        FORM,
        Raw(data),
        type=kind,
        reply_to=reply_to or (letter.reply_to if letter is not None else "") or "",
        reply_at=reply_at if reply_to else "",
        attributes=dict(attributes or {}),
        ttl=ttl,
        born=NOTHING if letter is None else Raw(msgspec.json.encode(_without_body(letter))),
    )
    # What is told of its death is not the sender's to make shorter.
    payload = bodies.fitting(sealed(envelope), mailbox=name, apart=len(bytes(envelope.born)))
    now = place.clock.now()
    item_id = message_id or new_id()
    item = _unknown(name, now) if letter is None else _given(letter, name, now)
    history = History(structs.replace(item, id=item_id, payload=payload, priority=priority))
    await _check_room(place, name)
    act = Act("mailbox", f"sent to {name}", new_id())
    await surely(lambda: place.store.take_in([history], act))
    place.ring(name)
    return item_id


async def _check_room(place: Place, name: str) -> None:
    """Not part of the write: of letters that are sent at the same instant, a few too many may be let in."""
    for route in (await place.store.tally()).routes:
        if route.route == name and route.capacity is not None and route.open >= route.capacity:
            raise MailboxFullError(
                f"mailbox {name!r} holds {route.open:,} of at most {route.capacity:,} letters; nothing was added",
                hint="work off what it holds, or raise its max_size",
            )


def _without_body(letter: DeadLetter[Any]) -> dict[str, Any]:
    told = {field.name: (getattr(letter, field.name), field.default) for field in fields(DeadLetter)}
    return {name: value for name, (value, default) in told.items() if name != "body" and value != default}


def _given(letter: DeadLetter[Any], name: str, now: Instant) -> Item:
    failure = _failure(letter.last_error_type, letter.last_error)
    died_at = min(now, _instant(letter.dead_lettered_at))
    sent_at = min(died_at, _instant(letter.first_enqueued_at or letter.first_received_at))
    return _item(
        _source(letter.source_mailbox or name),
        Letter(REASON, died_at, Disposition.OPEN, failure, name),
        sent_at,
        _tries(letter),
    )


def _unknown(name: str, now: Instant) -> Item:
    """Something else than a dead letter was sent where such are kept."""
    failure = _failure(NOT_A_LETTER, f"sent to {name} directly")
    return _item(name, Letter(REASON, now, Disposition.OPEN, failure, name), now)


def _item(queue: str, letter: Letter, sent_at: Instant, tries: int = 0) -> Item:
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
        ended_at=letter.died_at,
        letter=letter,
    )


def _failure(named: str, text: str) -> Failure:
    """By the name that evidence has for it: so it has one cause with those that died here."""
    kind = named.removeprefix("builtins.")
    return Failure(kind, text, "error", rule="default", cause=fingerprint(kind, text, ()))


def _instant(at: datetime) -> Instant:
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def _tries(letter: DeadLetter[Any]) -> int:
    count: object = letter.delivery_count
    if not isinstance(count, int) or not 0 <= count <= MOST_TRIES:
        hint = "it is how often the message was delivered"
        raise InvalidParameterError(f"{count!r} makes no sense", field="delivery_count", hint=hint)
    return count


def _source(name: str) -> str:
    try:
        return check_queue_name(name)
    except ConfigError as error:
        raise InvalidParameterError(f"{name!r} is no name", field="source_mailbox", hint=error.hint) from None
