"""The section [webhooks] of redrive.toml, for `redrive webhook`; see redrive.webhooks.Relay."""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Millis
from redrive.doors import Section
from redrive.settings import readers
from redrive.settings.model import Field, choice, duration, size, text, whole

MOST_AT_ONCE = 10_000


class WebhookSettings(Struct, frozen=True):
    http: str | None = None
    max_body: int = 10 * 1024 * 1024
    allow: tuple[str, ...] = ()
    keep: Millis = 7 * 86_400_000
    retention: str = "letters"
    concurrency: int = 50
    notify: str | None = None


FIELDS = (
    text(
        "webhooks.http",
        "where `webhook run` and `webhook edge` receive",
        "HOST:PORT; without it, `run` does not",
        readers.address,
    ),
    size("webhooks.max_body", "the largest body that is received"),
    Field(
        "webhooks.allow",
        "private networks that endpoints may be in",
        "networks such as 10.1.0.0/16, in a variable with commas between",
        readers.networks,
        {"type": ["array", "string"], "items": {"type": "string"}},
        show=list,
    ),
    duration("webhooks.keep", "how long delivered webhooks are kept", "a duration"),
    choice(
        "webhooks.retention",
        "whether failed and dead ones stay until they are resolved, or are discarded after 7 and 14 days (seed)",
        *("letters", "seed"),
    ),
    whole("webhooks.concurrency", "deliveries at once in each process", 1, MOST_AT_ONCE),
    text("webhooks.notify", "the channel of alerts for webhooks that fail or die", "a name; without it, none"),
)

SECTION = Section(WebhookSettings, FIELDS)
