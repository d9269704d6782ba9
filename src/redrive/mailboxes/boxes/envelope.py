"""The stored payload of a message: JSON that people can read.

    {"redrive.mailbox": 1, "body": {"question": "why"}, "type": "shop.Question", "reply_to": "answers"}

`redrive.mailbox` marks it as one, and is the version of its form. Any other payload, as of plain data that was enqueued
into the queue, is a body without an envelope.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from redrive.core import typed_codec
from redrive.core.item import Item, Millis

FORM = 1
NOTHING = Raw(b"null")


class Lineage(Struct, frozen=True):
    """Where a replayed message comes from: the message it once was, the letter that was replayed, how often."""

    original: str
    letter: str
    replays: int = 1


class Envelope(Struct, frozen=True, omit_defaults=True):
    """`reply_at` is the fingerprint of the store that has the reply mailbox, if it is another one than this message's.

    `dead_letter` are the fields of a dead letter that was sent as such, not as a message that died.
    """

    mailbox: int = field(name="redrive.mailbox")
    body: Raw
    type: str = ""
    reply_to: str = ""
    reply_at: str = ""
    attributes: dict[str, str] = {}
    ttl: Millis | None = None
    dead_letter: Raw = field(default=NOTHING, name="born")
    lineage: Lineage | None = None

    def load(self, expected: Any) -> Any:
        """The body as this type; None: plain data. Raises SerializationError."""
        return typed_codec.load(bytes(self.body), expected, self.type)


_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


def enclosed(body: object, to: str, *, expected: Any = None, **fields: Any) -> Envelope:
    """A body for the mailbox of this name, which expects this type. Raises SerializationError."""
    data, kind = typed_codec.dump(body, expected=expected, to=to)
    return Envelope(FORM, Raw(data), type=kind, **fields)


def sealed(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def opened(payload: bytes) -> Envelope:
    """Never raises: bytes that are no envelope are a body, readable or not."""
    try:
        envelope = _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Envelope(FORM, Raw(payload))
    return envelope if envelope.mailbox == FORM else Envelope(FORM, Raw(payload))


def plain_body(payload: bytes) -> Any:
    """The body as plain data, where it is not what its mailbox expects; None if it is not even that."""
    try:
        return msgspec.json.decode(bytes(opened(payload).body))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def lineage_of(item: Item, envelope: Envelope) -> Lineage | None:
    """What a message was before it was replayed. A replay in place leaves it the same message."""
    before = envelope.lineage
    if not item.replays:
        return before
    if before is None:
        return Lineage(item.id, item.id, item.replays)
    return Lineage(before.original, item.id, before.replays + item.replays)
