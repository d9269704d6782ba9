"""The section [webhooks] of redrive.toml, for `redrive webhook`; see redrive.webhooks.Relay."""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.doors import Section
from redrive.errors import ConfigError
from redrive.settings import readers
from redrive.settings.model import Field, choice, duration, text, whole

MOST_AT_ONCE = 10_000


class WebhookSettings(Struct, frozen=True):
    http: str | None = None
    max_body: int = 10 * 1024 * 1024
    allow: tuple[str, ...] = ()
    keep: Millis = 7 * 86_400_000
    retention: str = "letters"
    concurrency: int = 50
    notify: str | None = None


def _address(value: object, field: str) -> str:
    from redrive.net.urls import check_address

    check_address(value, field=field)
    return str(value).strip()


def _networks(value: object, field: str) -> tuple[str, ...]:
    from redrive.net.guard import Guard

    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ConfigError(f"{shown(value)} are no networks", field=field, hint="use a list such as 10.1.0.0/16")
    try:
        return tuple([str(each) for each in Guard([str(part).strip() for part in parts]).allow])
    except ConfigError as error:
        raise ConfigError(error.message.removeprefix("allow: "), field=field, hint=error.hint) from None


FIELDS = (
    text(
        "webhooks.http",
        "where `webhook run` and `webhook edge` receive",
        "HOST:PORT; without it, `run` does not",
        _address,
    ),
    Field(
        "webhooks.max_body",
        "the largest body that is received",
        "a size of at least 1 byte",
        readers.size,
        {"type": ["integer", "string"]},
    ),
    Field(
        "webhooks.allow",
        "private networks that endpoints may be in",
        "networks such as 10.1.0.0/16, in a variable with commas between",
        _networks,
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
