"""The registration of mailboxes: see redrive.doors."""

from __future__ import annotations

from redrive.doors import Door, Group


def _body(payload: bytes) -> bytes:
    from redrive.mailboxes.boxes.envelope import opened

    return bytes(opened(payload).body)


def _with_body(payload: bytes, body: bytes) -> bytes:
    from msgspec import Raw
    from msgspec.structs import replace

    from redrive.mailboxes.boxes.envelope import opened, sealed

    return sealed(replace(opened(payload), body=Raw(body)))


door = Door(
    name="mailboxes",
    start="start the process that receives from the mailbox {queue}",
    groups={"mailbox": Group("redrive.cli.mailbox:mailbox", "Mailboxes: what they hold; send, receive and purge.")},
    metrics=(
        *(f"dlq_messages_{word}" for word in ("sent", "processed", "replayed", "discarded", "expired", "refused")),
        *("dlq_queue_depth", "dlq_message_age_seconds", "dlq_processing_duration_ms"),
    ),
    body=_body,
    with_body=_with_body,
    receives=True,
)
