"""The section [receipts] of redrive.toml, for `redrive receipts`; see redrive.receipts.ReceiptClient."""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Millis
from redrive.doors import Section
from redrive.settings import readers
from redrive.settings.model import Field

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


TEXT = {"type": "string", "minLength": 1}

FIELDS = (
    Field(
        "receipts.endpoint",
        "where `redrive receipts` delivers to",
        "an http:// or https:// URL",
        readers.http_url("REDRIVE_RECEIPTS_AUTH_TOKEN"),
        {"type": "string"},
        show=readers.without_password,
    ),
    Field(
        "receipts.transport",
        "how: tool calls of MCP, or a plain POST",
        f"one of {', '.join(TRANSPORTS)}",
        readers.one_of(*TRANSPORTS),
        {"type": "string", "enum": list(TRANSPORTS)},
    ),
    Field(
        "receipts.auth_token",
        "the bearer token that the target wants",
        "a text; without one, none is sent",
        readers.token,
        TEXT,
        show=readers.hidden,
        secret=True,
    ),
    Field(
        "receipts.tenant", "for whom receipts are delivered", "a name; without one, none is told", readers.name, TEXT
    ),
    Field("receipts.queue", "the queue in which receipts wait", "a name", readers.name, TEXT),
    Field(
        "receipts.max_retries",
        "how often `receipts send` tries one before it is a dead letter",
        f"1 to {MOST_RETRIES:,}",
        readers.whole(1, MOST_RETRIES),
        {"type": "integer", "minimum": 1, "maximum": MOST_RETRIES},
    ),
    Field(
        "receipts.backoff_base",
        "its waits are this to the power of the tries so far, in seconds",
        "a number above 0",
        readers.positive,
        {"type": "number", "exclusiveMinimum": 0},
    ),
    Field(
        "receipts.timeout",
        "how long one try may take",
        "a duration above 0",
        readers.some_time,
        {"type": ["string", "number"]},
        show=readers.duration_text,
    ),
    Field(
        "receipts.file",
        "a receipts.json of dead letters, imported and then kept current; in a file, a relative path starts at it",
        "a path",
        readers.path,
        TEXT,
        is_path=True,
    ),
)

SECTION = Section(ReceiptSettings, FIELDS)
