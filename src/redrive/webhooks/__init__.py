"""Webhooks: received, kept, delivered in order, given up visibly. See docs/webhooks.md."""

from __future__ import annotations

from redrive.errors import BadSignature, WebhookError, WebhookFailed, WebhookRejected
from redrive.webhooks.endpoints import Endpoints, EndpointStats, NewEndpoint
from redrive.webhooks.hub import Hub
from redrive.webhooks.hub_client import WebhookHub
from redrive.webhooks.maintenance import Maintained, Notice
from redrive.webhooks.model import Endpoint, Webhook, next_retry_delay, should_retry
from redrive.webhooks.relay import Relay, WebhookPage, mark_old_webhooks_as_dead_letter
from redrive.webhooks.signing import new_secret, sign, signed_headers, verify
from redrive.webhooks.tokens import HubRefused, Token

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
    "Token",
    "Webhook",
    "WebhookError",
    "WebhookFailed",
    "WebhookHub",
    "WebhookPage",
    "WebhookRejected",
    "mark_old_webhooks_as_dead_letter",
    "new_secret",
    "next_retry_delay",
    "should_retry",
    "sign",
    "signed_headers",
    "verify",
]
