"""One attempt to deliver a webhook: the request that is sent, and what its answer means.

An answer means the same whether this process sent the request or a hub did: `judge` is called where the store is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from redrive import keep_output
from redrive.core.backoff import exponential
from redrive.core.classify import dead_on, retry_on
from redrive.core.item import Instant, Item, Millis
from redrive.core.policy import Policy
from redrive.core.policy_data import resolve
from redrive.engine.evidence import as_delay
from redrive.engine.signals import Dead, Snooze
from redrive.errors import (
    ConfigError,
    NotFound,
    PayloadUndecodable,
    StoreError,
    TargetDenied,
    WebhookFailed,
    WebhookRejected,
)
from redrive.net.http import HttpClient, HttpError, Unsendable
from redrive.net.messages import check_pairs, in_ranges, passed_on
from redrive.net.signing import signed_headers
from redrive.stores.clock import Clock
from redrive.webhooks.endpoint_options import RESERVED
from redrive.webhooks.endpoints import Endpoints
from redrive.webhooks.model import Endpoint, Envelope, Pairs, endpoint_id, envelope_of

logger = logging.getLogger("redrive.webhooks")

BODY_LIMIT = 65_536
"""Bytes of an answer's body that are read, and of the whole answer that are kept with the attempt."""
CUT = b"\n[the rest of the answer was left out]"
RETRIED = ("408", "425", "429", "5xx")
GONE = 410
OURS = ("X-Redrive-Webhook-Id", "X-Redrive-Attempt", "Idempotency-Key")


class Request(Struct, frozen=True):
    """What is sent, by this process or by a hub. `within`: milliseconds for all of it. `query` is added to the URL."""

    url: str
    headers: Pairs
    body: bytes
    within: Millis
    query: str = ""


class Response(Struct, frozen=True, omit_defaults=True):
    """The answer to a request. `status` 0: no whole answer, and `error` says why. `denied`: it can never be sent.
    `cut`: its body was longer.
    """

    status: int = 0
    headers: Pairs = ()
    body: bytes = b""
    error: str = ""
    denied: bool = False
    cut: bool = False

    @property
    def said(self) -> str:
        return f"HTTP {self.status}" if self.status else self.error

    def text(self) -> bytes:
        """As it is kept with the attempt: what is too much is cut at the end, and marked."""
        lines = [self.said, *(f"{name}: {value}" for name, value in self.headers)]
        kept = "\n".join(lines).encode("utf-8", "replace") + (b"\n\n" + self.body if self.body else b"")
        if not self.cut and len(kept) <= BODY_LIMIT:
            return kept
        return kept[: BODY_LIMIT - len(CUT)] + CUT


Send = Callable[[Item, Callable[[], Request]], Awaitable[Response]]
"""Calls for the request when it is sent: it is signed with the time at which it is made."""
Signing = tuple[tuple[str, Instant | None], ...]
POLICY = Policy(
    exponential("1s", factor=2, cap="1h"),
    max_attempts=None,
    max_crashes=1_000_000,
    rules=(dead_on(WebhookRejected, category="rejected"), retry_on(WebhookFailed, category="server")),
)
"""Neither attempts nor lost workers end a webhook: answers do, and age does (`maintenance`)."""


def request_of(endpoint: Endpoint, item: Item, envelope: Envelope, signing: Signing, now: Instant) -> Request:
    """The headers that came with it, the endpoint's own, and ours: the id, which stays the same, and the attempt."""
    own = endpoint.headers
    headers = [*passed_on(envelope.headers, (*OURS, *(name for name, _ in own))), *own]
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/json"))
    headers += zip(OURS, (item.id, str(item.attempt), item.id), strict=True)
    secrets = [secret for secret, until in signing if until is None or until > now]
    if envelope.event_type and secrets:
        headers += signed_headers(secrets, item.id, now // 1000, envelope.body).items()
    return Request(endpoint.url, tuple(headers), envelope.body, endpoint.timeout, envelope.query)


def verdict(endpoint: Endpoint, status: int) -> Literal["delivered", "failed", "retry"]:
    """What a status means. 3xx fail: a redirect is not followed, since it could lead anywhere."""
    if 200 <= status < 300:
        return "delivered"
    if in_ranges(status, endpoint.retry_on):
        return "retry"
    if in_ranges(status, endpoint.fail_on):
        return "failed"
    return "retry" if in_ranges(status, RETRIED) else "failed"


class Delivery(Struct, frozen=True):
    """The handler of a family of endpoints. `send` brings a request to its target; `failed` gets each that fails."""

    endpoints: Endpoints
    clock: Clock
    send: Send
    failed: Callable[[Item], Awaitable[None]]

    async def handle(self, item: Item) -> None:
        """Raises what the policy judges: WebhookRejected is final, WebhookFailed is tried again."""
        try:
            await self._attempt(item)
        except (Dead, WebhookRejected):
            with suppress(StoreError):  # maintenance looks for notices that are missing
                await self.failed(item)
            raise

    async def _attempt(self, item: Item) -> None:
        endpoint = await self._endpoint(item)
        try:
            envelope = envelope_of(item.payload)
        except PayloadUndecodable as error:
            raise Dead(error.message) from error
        signing = self.endpoints.secrets(endpoint).signing if envelope.event_type else ()
        try:
            check_pairs(endpoint.headers, field="headers", reserved=RESERVED)  # as when they were saved
        except ConfigError as error:
            raise WebhookRejected(str(error)) from None
        response = await self.send(item, lambda: request_of(endpoint, item, envelope, signing, self.clock.now()))
        logger.info("webhook %s attempt %d: %s", item.id, item.attempt, response.said)
        keep_output(response.text())
        if not 200 <= response.status < 300:
            raise await self._failure(endpoint, item, response)
        if endpoint.failing_since is not None:
            with suppress(StoreError, NotFound):  # it was delivered, whatever else happens
                await self.endpoints.note_delivered(endpoint.id)

    async def _endpoint(self, item: Item) -> Endpoint:
        name = endpoint_id(item.queue)
        try:
            endpoint = await self.endpoints.cached(name)
            if endpoint is None or endpoint.status != "active":  # as of up to a second ago
                endpoint = await self.endpoints.cached(name, fresh=-1)
        except StoreError as error:
            raise Snooze("5s", note="the store does not answer") from error
        if endpoint is None:
            raise Dead("the endpoint was deleted; create one with this id and replay the webhook, or discard it")
        if endpoint.status != "active":  # its queue is paused, or will be in a moment
            raise Snooze("1m", note=f"the endpoint is {endpoint.status}")
        return endpoint

    async def _failure(self, endpoint: Endpoint, item: Item, response: Response) -> WebhookRejected | WebhookFailed:
        with suppress(StoreError, NotFound):
            # As it is now: its owner may have changed it while the request was under way.
            endpoint = await self.endpoints.note_failure(endpoint.id)
        means = verdict(endpoint, response.status) if response.status else "failed" if response.denied else "retry"
        why = f"the endpoint answered {response.status}" if response.status else response.error
        if means == "failed":
            if response.status == GONE:
                with suppress(StoreError, NotFound):
                    await self.endpoints.disable(endpoint.id, reason="it answered 410 Gone")
            return WebhookRejected(why, status=response.status)
        error = WebhookFailed(why, status=response.status)
        asked = next((value for name, value in response.headers if name.lower() == "retry-after"), None)
        hint = as_delay(asked, self.clock.now())
        if hint:  # neither sooner than it asks, nor than by its own schedule
            error.retry_after = -(-max(hint, _own_wait(endpoint, item)) // 1000)
        return error


def _own_wait(endpoint: Endpoint, item: Item) -> Millis:
    return resolve(POLICY, {}, endpoint.retry)[0].backoff.delay(item.errors + 1, 0.5) or 0


async def sent(client: HttpClient, request: Request) -> Response:
    """Send it from this process."""
    query = f"{'&' if '?' in request.url else '?'}{request.query}" if request.query else ""
    try:
        answer = await client.post(
            request.url + query, request.body, request.headers, within=request.within, limit=BODY_LIMIT
        )
    except (TargetDenied, Unsendable) as error:
        return Response(error=str(error), denied=True)
    except HttpError as error:
        return Response(error=str(error))
    headers = tuple([(str(name), value) for name, value in answer.headers.items()])
    return Response(answer.status, headers, answer.body, cut=not answer.whole)
