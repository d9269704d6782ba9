"""The registration of receipts: see redrive.doors."""

from __future__ import annotations

from redrive.doors import Door, Group, Section


def _section() -> Section:
    from redrive.receipts.settings import SECTION

    return SECTION


def _body(payload: bytes) -> bytes:
    """The receipt; what is no envelope is shown as it is."""
    from redrive.core import codec
    from redrive.errors import PayloadUndecodable
    from redrive.receipts.model import Envelope

    try:
        return codec.encode(Envelope.decode(payload).receipt)
    except PayloadUndecodable:
        return payload


def _with_body(payload: bytes, body: bytes) -> bytes:
    import msgspec

    from redrive.receipts.model import Envelope

    receipt = msgspec.json.decode(body, type=dict)
    return msgspec.structs.replace(Envelope.decode(payload), receipt=receipt).encode()


door = Door(
    name="receipts",
    start="redrive receipts send --waiting --queue {queue}",
    section=_section,
    groups={
        "receipts": Group(
            "redrive.cli.receipts:receipts",
            "Receipts: results for a broker, delivered for certain or kept until it is back.",
        )
    },
    metrics=("receipts", "receipts_superseded", "receipt_retries", "receipt_store_errors", "dead_letters"),
    body=_body,
    with_body=_with_body,
)
