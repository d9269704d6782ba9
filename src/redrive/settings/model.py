"""The settings: their values as structs, and the table of fields by which they are read, shown and documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from redrive import doors
from redrive.core.item import Millis
from redrive.settings import readers

if TYPE_CHECKING:
    from redrive.stores.keyring import Keyring

T = TypeVar("T")

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


class AlertSettings(Struct, frozen=True):
    """`channels` and `rules` by name: redrive.observe.alerts.model.Channel and Rule."""

    channels: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    every: Millis = 15_000


class Settings(Struct, frozen=True):
    """`actor` None: the user who runs the process. `doors`: the sections of doors that are not as by default.

    `release`: the version of the program, where the code does not name one.
    """

    store: str = DEFAULT_STORE
    actor: str | None = None
    max_payload: int = MAX_PAYLOAD
    release: str | None = None
    log: LogSettings = LogSettings()
    worker: WorkerSettings = WorkerSettings()
    encryption_keys: Keyring | None = None
    alerts: AlertSettings = AlertSettings()
    doors: dict[str, Struct] = {}

    def section(self, kind: type[T]) -> T:
        """The section of a door, by the struct of its values."""
        return next((given for given in self.doors.values() if isinstance(given, kind)), None) or kind()


class Field(Struct, frozen=True):
    """`read` turns what a file, a variable or a flag says into the value, or raises ConfigError; `show` is its inverse.

    `secret`: never printed whole, and its variable may end in _FILE to name a file that holds it. `is_path`: in a
    settings file, a relative path starts at that file.
    """

    name: str
    says: str
    accepts: str
    read: Callable[[object, str], Any]
    schema: Mapping[str, object]
    show: Callable[[Any], object] = readers.as_is
    secret: bool = False
    is_path: bool = False

    @property
    def variable(self) -> str:
        return f"REDRIVE_{self.name.upper().replace('.', '_')}"


def text(name: str, says: str, accepts: str, read: readers.Reader = readers.name, *, is_path: bool = False) -> Field:
    return Field(name, says, accepts, read, {"type": "string", "minLength": 1}, is_path=is_path)


def choice(name: str, says: str, *words: str) -> Field:
    schema = {"type": "string", "enum": list(words)}
    return Field(name, says, f"one of {', '.join(words)}", readers.one_of(*words), schema)


def whole(name: str, says: str, least: int, most: int, without: str = "") -> Field:
    """`without`: what holds if there is no value."""
    accepts = f"{least:,} to {most:,}{without and f'; without it {without}'}"
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Field(name, says, accepts, readers.whole(least, most), schema)


def duration(name: str, says: str, accepts: str, read: readers.Reader = readers.duration) -> Field:
    return Field(name, says, accepts, read, {"type": ["string", "number"]}, show=readers.duration_text)


def size(name: str, says: str) -> Field:
    return Field(name, says, "a size of at least 1 byte", readers.size, {"type": ["integer", "string"]})


LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_OWN: dict[str, Field] = {
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
        text("actor", "who acts, for the audit", "a name; without one, the user who runs the process"),
        size("max_payload", "the largest payload or result that `Redrive()` takes"),
        text(
            "release",
            "the version of your program, on items, attempts and heartbeats; used also where the code names the store",
            "a name such as 1.4.2",
            readers.release,
        ),
        choice("log.level", "what `worker run` logs", *LEVELS),
        choice("log.format", "how `worker run` logs", *FORMATS),
        whole(
            "worker.processes",
            "worker processes, restarted when they die",
            1,
            MOST_PROCESSES,
            "one process and no supervisor",
        ),
        whole(
            "worker.concurrency",
            "items at once in each process, over all its queues",
            1,
            MOST_AT_ONCE,
            "what the handlers allow",
        ),
        Field(
            "worker.queues",
            "the queues a worker serves",
            "names, in a variable with commas between; without any all that have a handler",
            readers.names,
            {"type": ["array", "string"], "items": {"type": "string"}},
            show=list,
        ),
        duration("worker.grace", "how long handlers may finish when a worker is told to stop", "a duration"),
        Field(
            "encryption_keys",
            "keys for encrypted queues, the current one first",
            "id:base64 of 32 bytes, with commas or line ends between",
            readers.keyring,
            {"type": "string"},
            show=readers.key_ids,
            secret=True,
        ),
        Field(
            "alerts.channels",
            "where alerts go, by name",
            "tables, in a variable as JSON; see [alerts](alerts.md#in-the-settings-file)",
            readers.alert_channels,
            {"type": "object", "additionalProperties": {"type": "object", "required": ["kind"]}},
            show=readers.in_words,
            secret=True,
        ),
        Field(
            "alerts.rules",
            "when to alert, by name",
            "tables, in a variable as JSON; see [alerts](alerts.md#in-the-settings-file)",
            readers.alert_rules,
            {"type": "object", "additionalProperties": {"type": "object", "required": ["when", "to"]}},
            show=readers.in_words,
        ),
        duration("alerts.every", "how often a worker judges the rules", "a duration above 0", readers.some_time),
    )
}


def fields() -> dict[str, Field]:
    """By dotted name: those of redrive, and those of each door's section."""
    return _OWN | {field.name: field for section in door_sections().values() for field in section.fields}


def door_sections() -> dict[str, doors.Section]:
    return {door.name: door.section() for door in doors.every() if door.section is not None}


def sections() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.partition(".")[0] for name in fields() if "." in name))


def value_of(settings: Settings, name: str) -> Any:
    section, _, inner = name.rpartition(".")
    if not section:
        return getattr(settings, inner)
    door = door_sections().get(section)
    return getattr(getattr(settings, section) if door is None else settings.section(door.kind), inner)


def settings_from(values: Mapping[str, object]) -> Settings:
    """From checked values by their dotted names; the rest is as by default."""
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, inner = name.rpartition(".")
        inside.setdefault(section, {})[inner] = value
    plain = inside.pop("", {})
    of_doors = {name: door.kind(**inside.pop(name)) for name, door in door_sections().items() if name in inside}
    own = {name: msgspec.structs.replace(getattr(Settings(), name), **given) for name, given in inside.items()}
    return Settings(**plain, **own, doors=of_doors)


def schema() -> dict[str, object]:
    """JSON Schema of the file, for editors."""
    known = fields()
    properties: dict[str, Any] = {name: _property(field) for name, field in known.items() if "." not in name}
    for section in sections():
        inside = {
            name.partition(".")[2]: _property(field) for name, field in known.items() if name.startswith(f"{section}.")
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
