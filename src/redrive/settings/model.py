"""What can be set: the values as the code uses them, and the one table that says how each is read and called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from redrive.core.item import Millis
from redrive.settings import readers

DEFAULT_STORE = "sqlite:///redrive.db"
MAX_PAYLOAD = 1024 * 1024
MOST_PROCESSES = 256
MOST_AT_ONCE = 10_000


class LogSettings(Struct, frozen=True):
    level: str = "info"
    format: str = "text"


class WorkerSettings(Struct, frozen=True):
    """`processes` None: one, without a supervisor. `concurrency` None: what the handlers allow. No `queues`: all."""

    processes: int | None = None
    concurrency: int | None = None
    queues: tuple[str, ...] = ()
    grace: Millis = 30_000


class ReceiptSettings(Struct, frozen=True):
    """For `redrive receipts`; see redrive.receipts.ReceiptClient. `file`: a receipts.json to take in."""

    endpoint: str | None = None
    transport: str = "mcp"
    auth_token: str | None = None
    tenant: str | None = None
    queue: str = "receipts"
    max_retries: int = 5
    backoff_base: float = 2.0
    timeout: Millis = 30_000
    file: str | None = None


class Settings(Struct, frozen=True):
    """`actor` None: the user who runs the process."""

    store: str = DEFAULT_STORE
    actor: str | None = None
    max_payload: int = MAX_PAYLOAD
    log: LogSettings = LogSettings()
    worker: WorkerSettings = WorkerSettings()
    receipts: ReceiptSettings = ReceiptSettings()


class Field(Struct, frozen=True):
    """`read` turns what a file, a variable or a flag says into the value, or raises ConfigError; `show` is its inverse.

    `secret`: never printed whole, and its variable may end in _FILE to name a file that holds it.
    """

    name: str
    says: str
    accepts: str
    read: Callable[[object, str], Any]
    schema: Mapping[str, object]
    show: Callable[[Any], object] = readers.as_is
    secret: bool = False

    @property
    def variable(self) -> str:
        return f"REDRIVE_{self.name.upper().replace('.', '_')}"


LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
TRANSPORTS = ("mcp", "http")
MOST_RETRIES = 1000

RECEIPT_FIELDS = (
    Field(
        "receipts.endpoint",
        "where `redrive receipts` delivers to",
        "an http:// or https:// URL",
        readers.http_url,
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
        {"type": "string", "minLength": 1},
        show=readers.hidden,
        secret=True,
    ),
    Field(
        "receipts.tenant",
        "for whom receipts are delivered",
        "a name; without one, none is told",
        readers.name,
        {"type": "string", "minLength": 1},
    ),
    Field(
        "receipts.queue",
        "the queue in which receipts wait",
        "a name",
        readers.name,
        {"type": "string", "minLength": 1},
    ),
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
        {"type": "string", "minLength": 1},
    ),
)

FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field(
            "store",
            "where the queues are, for `Redrive()` and for commands; in a file, a relative path starts at that file",
            "a store's URL",
            readers.store,
            {"type": "string"},
            show=readers.without_password,
            secret=True,
        ),
        Field(
            "actor",
            "who acts, for the audit",
            "a name; without one, the user who runs the process",
            readers.name,
            {"type": "string", "minLength": 1},
        ),
        Field(
            "max_payload",
            "the largest payload or result that `Redrive()` takes",
            "a size of at least 1 byte",
            readers.size,
            {"type": ["integer", "string"]},
        ),
        Field(
            "log.level",
            "what `worker run` logs",
            f"one of {', '.join(LEVELS)}",
            readers.one_of(*LEVELS),
            {"type": "string", "enum": list(LEVELS)},
        ),
        Field(
            "log.format",
            "how `worker run` logs",
            f"one of {', '.join(FORMATS)}",
            readers.one_of(*FORMATS),
            {"type": "string", "enum": list(FORMATS)},
        ),
        Field(
            "worker.processes",
            "worker processes, restarted when they die",
            f"1 to {MOST_PROCESSES}; without it one process and no supervisor",
            readers.whole(1, MOST_PROCESSES),
            {"type": "integer", "minimum": 1, "maximum": MOST_PROCESSES},
        ),
        Field(
            "worker.concurrency",
            "items at once in each process, over all its queues",
            f"1 to {MOST_AT_ONCE:,}; without it what the handlers allow",
            readers.whole(1, MOST_AT_ONCE),
            {"type": "integer", "minimum": 1, "maximum": MOST_AT_ONCE},
        ),
        Field(
            "worker.queues",
            "the queues a worker serves",
            "names, in a variable with commas between; without any all that have a handler",
            readers.names,
            {"type": ["array", "string"], "items": {"type": "string"}},
            show=list,
        ),
        Field(
            "worker.grace",
            "how long handlers may finish when a worker is told to stop",
            "a duration",
            readers.duration,
            {"type": ["string", "number"]},
            show=readers.duration_text,
        ),
        *RECEIPT_FIELDS,
    )
}
SECTIONS = tuple(dict.fromkeys(name.partition(".")[0] for name in FIELDS if "." in name))


def value_of(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def settings_from(values: Mapping[str, object]) -> Settings:
    """From checked values by their dotted names; the rest is as by default."""
    plain: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    made = msgspec.structs.replace(Settings(), **plain)
    for section in SECTIONS:
        inside = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}
        made = msgspec.structs.replace(made, **{section: msgspec.structs.replace(getattr(made, section), **inside)})
    return made


def schema() -> dict[str, object]:
    """JSON Schema of the file, for editors."""
    properties: dict[str, Any] = {name: _property(field) for name, field in FIELDS.items() if "." not in name}
    for section in SECTIONS:
        inside = {
            name.partition(".")[2]: _property(field) for name, field in FIELDS.items() if name.startswith(f"{section}.")
        }
        properties[section] = {"type": "object", "properties": inside, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "redrive.toml or redrive.yaml",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _property(field: Field) -> dict[str, object]:
    default = value_of(Settings(), field.name)
    known = {} if default is None else {"default": field.show(default)}
    return {**field.schema, "description": f"{field.says}: {field.accepts}", **known}
