"""The section [receipts] of redrive.toml, for `redrive receipts`; see redrive.receipts.ReceiptClient."""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Millis
from redrive.doors import Section
from redrive.settings import readers
from redrive.settings.model import Field, choice, duration, text, whole

TRANSPORTS = ("mcp", "http")
MOST_RETRIES = 1000


class ReceiptSettings(Struct, frozen=True):
    """`file`: a receipts.json to take in."""

    endpoint: str | None = None
    transport: str = "mcp"
    auth_token: str | None = None
    tenant: str | None = None
    queue: str = "receipts"
    max_retries: int = 5
    backoff_base: float = 2.0
    timeout: Millis = 30_000
    file: str | None = None


FIELDS = (
    Field(
        "receipts.endpoint",
        "where `redrive receipts` delivers to",
        "an http:// or https:// URL",
        readers.http_url("REDRIVE_RECEIPTS_AUTH_TOKEN"),
        {"type": "string"},
        show=readers.without_password,
    ),
    choice("receipts.transport", "how: tool calls of MCP, or a plain POST", *TRANSPORTS),
    Field(
        "receipts.auth_token",
        "the bearer token that the target wants",
        "a text; without one, none is sent",
        readers.token,
        {"type": "string", "minLength": 1},
        show=readers.hidden,
        secret=True,
    ),
    text("receipts.tenant", "for whom receipts are delivered", "a name; without one, none is told"),
    text("receipts.queue", "the queue in which receipts wait", "a name"),
    whole("receipts.max_retries", "how often `receipts send` tries one before it is a dead letter", 1, MOST_RETRIES),
    Field(
        "receipts.backoff_base",
        "its waits are this to the power of the tries so far, in seconds",
        "a number above 0",
        readers.positive,
        {"type": "number", "exclusiveMinimum": 0},
    ),
    duration("receipts.timeout", "how long one try may take", "a duration above 0", readers.some_time),
    text(
        "receipts.file",
        "a receipts.json of dead letters, imported and then kept current; in a file, a relative path starts at it",
        "a path",
        readers.path,
        is_path=True,
    ),
)

SECTION = Section(ReceiptSettings, FIELDS)
