"""Webhooks and endpoints as values, the states of a webhook, and the schedule of its retries.

A webhook is an item of its endpoint's queue; its payload is an Envelope. An endpoint is a document of the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from redrive.core.acts import Refusal, of_other_queue
from redrive.core.families import family_of
from redrive.core.instants import moment
from redrive.core.item import History, Instant, Item, Millis
from redrive.core.states import State
from redrive.errors import PayloadUndecodable
from redrive.net.signing import Signature
from redrive.net.verification import Verification

DIRECT, HUB = "webhook", "webhook-hub"
FAMILIES = (f"{DIRECT}:*", f"{HUB}:*")
"""Members are the queues of endpoints: those that this store's workers deliver to, and those of hubs."""
ENDPOINT = "webhook.endpoint"
"""The kind of an endpoint's document. Its key is the id."""
ORDER_KEY = "in-order"
"""Of all webhooks of an endpoint that keeps order."""
DAY: Millis = 86_400_000
WEEK: Millis = 7 * DAY
NEVER = "never attempted"
AGED = ("expired", "max_age")
"""Reasons of letters that waited for too long."""

Status = Literal["pending", "delivered", "failed", "dead_letter", "cancelled"]
STATUSES: dict[str, str] = {
    "pending": "state:ready,leased",
    "delivered": "state:done",
    "failed": f"state:dead {' '.join(f'-reason:{reason}' for reason in AGED)}",
    "dead_letter": f"state:dead reason:{','.join(AGED)}",
    "cancelled": "state:cancelled",
}
"""Each status as a filter of items."""
Order = Literal["skip", "block", "park", "none"]
Via = Literal["direct", "hub"]
EndpointStatus = Literal["active", "muted", "disabled"]
Pairs = tuple[tuple[str, str], ...]


class Envelope(Struct, frozen=True, omit_defaults=True):
    """The payload of an item: a request as it was received, or an event. `signature_valid` None: nothing to verify."""

    body: bytes
    headers: Pairs = ()
    query: str = ""
    event_type: str = ""
    signature_valid: bool | None = None
    signature_error: str = ""

    def encode(self) -> bytes:
        return _encoder.encode(self)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def envelope_of(payload: bytes) -> Envelope:
    """Raises PayloadUndecodable."""
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise PayloadUndecodable(f"the payload is no webhook: {error}") from None


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where webhooks go. `via` hub: only hubs deliver to it. `order` none: up to `concurrency` at once.

    `retry` is a policy as data, "" for the usual one. `retry_on` and `fail_on` are statuses or ranges ("404", "5xx")
    that are judged otherwise than usual. `events` are patterns of event types that it subscribes to. `sealed` has its
    secrets, encrypted. `pauses`: when it was muted or disabled before, in which time its webhooks did not age.
    `failing_since`: no attempt succeeded since; `failed_at`, which is noted hourly: the last one.
    """

    id: str
    url: str = ""
    name: str = ""
    via: Via = "direct"
    verification: Verification = Verification("none")
    bad_signature: Literal["flag", "refuse"] = "flag"
    order: Order = "skip"
    concurrency: int = 10
    rate: str | None = None
    timeout: Millis = 40_000
    retry: str = ""
    max_age: Millis = WEEK
    window: Literal["received", "first_attempt"] = "received"
    retry_on: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    headers: Pairs = ()
    events: tuple[str, ...] = ()
    signing: Signature = "hmac"
    breaker: bool = False
    disable_after: Millis | None = 2 * WEEK
    sealed: bytes = b""
    status: EndpointStatus = "active"
    status_reason: str = ""
    status_since: Instant = 0
    pauses: tuple[tuple[Instant, Instant], ...] = ()
    failing_since: Instant | None = None
    failed_at: Instant = 0
    created_at: Instant = 0
    updated_at: Instant = 0

    @property
    def queue(self) -> str:
        return f"{DIRECT if self.via == 'direct' else HUB}:{self.id}"

    @property
    def ordered(self) -> bool:
        return self.order != "none"

    def age(self, since: Instant, now: Instant) -> Millis:
        """The time since then, without that in which the endpoint was not active."""
        spans: Iterable[tuple[Instant, Instant]] = self.pauses
        if self.status != "active":
            spans = (*spans, (self.status_since, now))
        return now - since - sum(max(0, min(end, now) - max(start, since)) for start, end in spans)


def endpoint_id(queue: str) -> str:
    """Of the queue of an endpoint."""
    return queue.partition(":")[2]


def queues_of(endpoint: str = "*") -> str:
    """As a filter: the queues of an endpoint, or of all."""
    return f"queue:{DIRECT}:{endpoint},{HUB}:{endpoint}"


def not_ours(queue: str) -> Refusal | None:
    return None if family_of(queue) in FAMILIES else of_other_queue(queue, "webhook")


class Webhook(Struct, frozen=True, kw_only=True):
    """A webhook as it is now. Times are in UTC. `reason`: why it failed or died, as of the letter; of one that died of
    age also whether it was ever attempted. `notification_sent` about its end, and `blocked_by`, the webhook that it
    waits for, are None in a list.
    """

    id: str
    endpoint_id: str
    status: Status
    received_at: datetime
    event_type: str = ""
    headers: Pairs = ()
    payload: bytes = b""
    signature_valid: bool | None = None
    signature_error: str = ""
    attempts: int = 0
    last_attempt_at: datetime | None = None
    next_attempt_at: datetime | None = None
    delivered_at: datetime | None = None
    error_message: str | None = None
    reason: str = ""
    notification_sent: bool | None = None
    blocked_by: str | None = None


def status_of(item: Item) -> Status:
    if item.state is State.DONE:
        return "delivered"
    if item.state is State.CANCELLED:
        return "cancelled"
    if item.letter is not None:
        return "dead_letter" if item.letter.reason in AGED else "failed"
    return "pending"


def webhook_of(history: History, *, notified: bool | None = None) -> Webhook:
    """`notified` None: as in a list, of the item alone."""
    item, status = history.item, status_of(history.item)
    envelope = envelope_of(item.payload) if not item.flaw else Envelope(b"")
    failures = [attempt.failure for attempt in history.attempts if attempt.failure is not None]
    aged = status == "dead_letter"
    last = failures[-1] if failures and item.errors and (aged or item.letter is None) else None
    if item.letter is not None and last is None:
        last = item.letter.failure
    return Webhook(
        id=item.id,
        endpoint_id=endpoint_id(item.queue),
        status=status,
        received_at=moment(item.enqueued_at),
        event_type=envelope.event_type,
        headers=envelope.headers,
        payload=envelope.body,
        signature_valid=envelope.signature_valid,
        signature_error=envelope.signature_error,
        attempts=item.attempt,
        last_attempt_at=moment(item.leased_at) if item.leased_at is not None and item.attempt else None,
        next_attempt_at=moment(item.due_at) if item.state is State.READY and not item.hold else None,
        delivered_at=moment(item.ended_at) if status == "delivered" and item.ended_at is not None else None,
        error_message=None if last is None or status == "delivered" else last.text,
        reason=_reason(history),
        notification_sent=notified and item.letter is not None,
        blocked_by=None if notified is None else "".join(history.blocked_by[:1]),
    )


def _reason(history: History) -> str:
    letter = history.item.letter
    if letter is None or letter.reason not in AGED:
        return "" if letter is None else letter.reason
    given = [deed.reason for deed in history.deeds if deed.change == "expire"][-1:]
    return ": ".join([letter.reason, *(given or ([] if history.item.attempt else [NEVER]))])


def next_retry_delay(attempts: int) -> int:
    """Seconds before the next attempt: 1, 2, 4 … 2048, then 3600, for `attempts` from 0. Negative counts as 0."""
    return min(1 << max(0, min(attempts, 12)), 3600)


def should_retry(webhook: Webhook, now: datetime | None = None) -> bool:
    """Whether it is pending and due. The store keeps the due time; this only compares it."""
    due = webhook.next_attempt_at
    return webhook.status == "pending" and due is not None and due <= (datetime.now(UTC) if now is None else now)
