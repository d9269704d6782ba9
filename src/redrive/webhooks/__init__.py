"""Webhooks: received, kept, delivered in order, given up visibly. See docs/webhooks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.errors import BadSignature, WebhookError, WebhookFailed, WebhookRejected

if TYPE_CHECKING:
    from redrive.net.signing import SeenRequests, new_secret, sign, signed_headers, verify
    from redrive.office.tokens import Token
    from redrive.webhooks.endpoints import Endpoints, EndpointStats, NewEndpoint
    from redrive.webhooks.hub import Hub
    from redrive.webhooks.hub_client import WebhookHub
    from redrive.webhooks.maintenance import Maintained, Notice
    from redrive.webhooks.model import Endpoint, Webhook, next_retry_delay, should_retry
    from redrive.webhooks.relay import (
        Relay,
        WebhookPage,
        delete_old_webhooks,
        get_pending_webhooks,
        mark_old_webhooks_as_dead_letter,
        replay_webhook,
    )
    from redrive.webhooks.tokens import HubRefused
else:
    from redrive._late import names_of

    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.webhooks.endpoints": "Endpoints EndpointStats NewEndpoint",
            "redrive.webhooks.hub": "Hub",
            "redrive.webhooks.hub_client": "WebhookHub",
            "redrive.webhooks.maintenance": "Maintained Notice",
            "redrive.webhooks.model": "Endpoint Webhook next_retry_delay should_retry",
            "redrive.webhooks.relay": "Relay WebhookPage delete_old_webhooks get_pending_webhooks replay_webhook "
            "mark_old_webhooks_as_dead_letter",
            "redrive.net.signing": "SeenRequests new_secret sign signed_headers verify",
            "redrive.office.tokens": "Token",
            "redrive.webhooks.tokens": "HubRefused",
        },
        extra=("aiohttp", "starlette"),
    )


__all__ = [
    "BadSignature",
    "Endpoint",
    "EndpointStats",
    "Endpoints",
    "Hub",
    "HubRefused",
    "Maintained",
    "NewEndpoint",
    "Notice",
    "Relay",
    "SeenRequests",
    "Token",
    "Webhook",
    "WebhookError",
    "WebhookFailed",
    "WebhookHub",
    "WebhookPage",
    "WebhookRejected",
    "delete_old_webhooks",
    "get_pending_webhooks",
    "mark_old_webhooks_as_dead_letter",
    "new_secret",
    "next_retry_delay",
    "replay_webhook",
    "should_retry",
    "sign",
    "signed_headers",
    "verify",
]
