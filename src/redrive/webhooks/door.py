"""The registration of webhooks: see redrive.doors."""

from __future__ import annotations

from redrive.doors import Door, Group, Section


def _section() -> Section:
    from redrive.webhooks.settings import SECTION

    return SECTION


def _body(payload: bytes) -> bytes:
    """The body of the request; what is no envelope is shown as it is."""
    from redrive.errors import PayloadUndecodable
    from redrive.webhooks.model import envelope_of

    try:
        return envelope_of(payload).body
    except PayloadUndecodable:
        return payload


def _with_body(payload: bytes, body: bytes) -> bytes:
    from msgspec.structs import replace

    from redrive.webhooks.model import envelope_of

    return replace(envelope_of(payload), body=body).encode()


door = Door(
    name="webhooks",
    start="redrive webhook run, or for endpoints of hubs redrive webhook edge",
    section=_section,
    groups={
        "webhook": Group("redrive.cli.webhook:webhook", "Webhooks: receive, deliver in order, replay; edge and hub.")
    },
    body=_body,
    with_body=_with_body,
)
