"""A letter as one JSON object: what an export writes and an import reads. Nothing of it is covered or left out.

Names are those of the filter language and of the command line; times are ISO 8601 in UTC, durations seconds. A payload
that is JSON on one printable line stands as it is, byte for byte; any other one is base64, as is output of attempts.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from redrive.core.item import Attempt, Ending, Failure, Frame, History, Instant, Item, Priority, Revision, Terms
from redrive.core.states import Disposition
from redrive.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = timedelta(milliseconds=1)
_LAST_INSTANT = 253_402_300_799_999
"""Of the year 9999, with which calendars end."""


class FailureRecord(Struct, frozen=True, forbid_unknown_fields=True):
    error: str
    cause: str
    text: str = ""
    category: str = "unknown"
    rule: str = "import"
    action: str = "retry"
    code: str | None = None
    frames: tuple[Frame, ...] = ()


class AttemptRecord(Struct, frozen=True, forbid_unknown_fields=True):
    delivery: int
    attempt: int
    worker: str
    started_at: str
    ran: float
    ending: Ending
    note: str = ""
    failure: FailureRecord | None = None
    release: str = ""
    output: bytes = b""


class RevisionRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A payload before an edit, which was made at that time by that actor for that reason."""

    payload: Raw
    at: str
    actor: str
    reason: str
    payload_encoding: Literal["json", "base64"] = "json"
    payload_key: str | None = None


class Record(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One letter. `history` and `revisions`, the payloads before its edits, are there if they were asked for; the last
    failure is always. With `payload_key`, the payload is encrypted with that key, and good for an item of this id only.
    """

    id: str
    queue: str
    died_at: str
    enqueued_at: str
    reason: str
    cause: str
    error: str
    payload: Raw
    payload_encoding: Literal["json", "base64"] = "json"
    payload_flaw: str | None = None
    text: str = ""
    category: str = "unknown"
    rule: str = "import"
    action: str = "retry"
    code: str | None = None
    frames: tuple[Frame, ...] = ()
    state: Literal["dead"] = "dead"
    disposition: Disposition = Disposition.OPEN
    route: str = ""
    priority: Priority = Priority.NORMAL
    tags: tuple[str, ...] = ()
    attempts: int = 0
    errors: int = 0
    crashes: int = 0
    deliveries: int = 0
    replays: int = 0
    last_chance: bool = False
    due_at: str | None = None
    renewed_at: str | None = None
    leased_at: str | None = None
    worker: str | None = None
    order_key: str | None = None
    limit_key: str | None = None
    dedupe_key: str | None = None
    dedupe_scope: Literal["queue", "store"] | None = None
    dedupe_window: float | None = None
    after: tuple[str, ...] = ()
    on_dead: Literal["wait", "die"] | None = None
    policy: str | None = None
    history: tuple[AttemptRecord, ...] = ()
    history_omitted: int = 0
    revisions: tuple[RevisionRecord, ...] = ()
    kind: str = ""
    release: str = ""
    schema: int = 0
    trace: str = ""
    headers: dict[str, str] = {}
    payload_key: str | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def line_of(record: Record) -> bytes:
    """One line of JSON without its end, harmless wherever it is shown: unprintable characters are escaped."""
    line = _encoder.encode(record)
    if line.isascii() and b"\x7f" not in line:
        return line
    text = line.decode()
    if text.isprintable():
        return line
    # The payload is printable or base64, so these stand in texts, where an escape says the same.
    return "".join(char if char.isprintable() else _escaped(char) for char in text).encode()


def _escaped(char: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _units(ord(char)))


def _units(point: int) -> tuple[int, ...]:
    if point < 0x10000:
        return (point,)
    return 0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF)


def record_from(line: bytes | str) -> Record:
    """The inverse of `line_of`. Raises ConfigError that names the field."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refused(error) from None


def _refused(error: Exception) -> ConfigError:
    """`Expected `int`, got `str` - at `$.attempts`` as people would say it."""
    said, _, place = str(error).replace("`", "").partition(" - at $")
    said = said if said[:4] == "JSON" else said[:1].lower() + said[1:]
    if said.startswith("object missing required field "):
        name = said.removeprefix("object missing required field ")
        return ConfigError("it is missing", field=f"{place.lstrip('.')}.{name}".lstrip("."))
    if said.startswith("object contains unknown field "):
        name = said.removeprefix("object contains unknown field ")
        return ConfigError("there is no such field", field=f"{place.lstrip('.')}.{name}".lstrip("."))
    return ConfigError(said, field=place.lstrip("."))


# --- to a record ---


def record_of(item: Item, history: History | None = None) -> Record:
    letter = item.letter
    if letter is None:
        raise ConfigError(f"{item.id} is {item.state}, not a dead letter", field="item")
    payload, encoding = _written(item.payload)
    terms, failure = item.terms, letter.failure
    record = Record(
        id=item.id,
        queue=item.queue,
        died_at=iso(letter.died_at),
        enqueued_at=iso(item.enqueued_at),
        reason=letter.reason,
        cause=failure.cause,
        error=failure.type,
        text=failure.text,
        category=failure.category,
        rule=failure.rule,
        action=failure.action,
        code=failure.code,
        frames=failure.frames,
        payload=payload,
        payload_encoding=encoding,
        payload_flaw=None if item.sealed else item.flaw or None,
        payload_key=item.sealed or None,
        disposition=letter.disposition,
        route=letter.route,
        priority=item.priority,
        tags=item.tags,
        attempts=item.attempt,
        errors=item.errors,
        crashes=item.crashes,
        deliveries=item.deliveries,
        replays=item.replays,
        last_chance=item.last_chance,
        due_at=iso(item.due_at),
        renewed_at=iso(item.renewed_at),
        leased_at=None if item.leased_at is None else iso(item.leased_at),
        worker=item.worker,
        history=() if history is None else tuple([_attempt_record(each) for each in history.attempts]),
        history_omitted=0 if history is None else history.omitted,
        revisions=() if history is None else tuple([_revision_record(each) for each in history.revisions]),
        kind=item.kind,
        release=item.release,
    )
    return record if terms is None else _bound(record, terms)


def _bound(record: Record, terms: Terms) -> Record:
    window = terms.dedupe.window if terms.dedupe else None
    return msgspec.structs.replace(
        record,
        order_key=terms.order_key or None,
        limit_key=terms.limit_key or None,
        dedupe_key=terms.dedupe.key if terms.dedupe else None,
        dedupe_scope=terms.dedupe.scope if terms.dedupe else None,
        dedupe_window=None if window is None else window / 1000,
        after=terms.after,
        on_dead=terms.on_dead if terms.after else None,
        policy=terms.policy or None,
        schema=terms.schema,
        trace=terms.trace,
        headers=dict(terms.headers),
    )


def _written(payload: bytes) -> tuple[Raw, Literal["json", "base64"]]:
    try:
        # A line end or a mark that turns text around has no place in a line, and rewriting it would change the payload.
        if payload.decode().isprintable():
            msgspec.json.decode(payload)
            return Raw(payload), "json"
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    return Raw(b'"' + b64encode(payload) + b'"'), "base64"


def _revision_record(revision: Revision) -> RevisionRecord:
    payload, encoding = _written(revision.payload)
    about = (iso(revision.at), revision.actor, revision.reason)
    return RevisionRecord(payload, *about, encoding, revision.sealed or None)


def payload_of(record: Record | RevisionRecord) -> bytes:
    payload = bytes(record.payload)
    if record.payload_encoding == "json":
        return payload
    try:
        return b64decode(msgspec.json.decode(payload, type=str), validate=True)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise ConfigError("it is not base64, though payload_encoding says so", field="payload") from None


def _failure_record(failure: Failure) -> FailureRecord:
    return FailureRecord(
        failure.type,
        failure.cause,
        failure.text,
        failure.category,
        failure.rule,
        failure.action,
        failure.code,
        failure.frames,
    )


def _attempt_record(attempt: Attempt) -> AttemptRecord:
    return AttemptRecord(
        attempt.delivery,
        attempt.number,
        attempt.worker,
        iso(attempt.started_at),
        attempt.ran / 1000,
        attempt.ending,
        attempt.note,
        None if attempt.failure is None else _failure_record(attempt.failure),
        attempt.release,
        attempt.output,
    )


# --- times ---


@lru_cache(maxsize=1024)
def iso(at: Instant) -> str:
    """Most letters were enqueued, due and renewed at one and the same time."""
    minute, rest = divmod(min(max(at, 0), _LAST_INSTANT), 60_000)
    return f"{_minute(minute)}:{rest // 1000:02}.{rest % 1000:03}Z"


@lru_cache(maxsize=4096)
def _minute(minutes: int) -> str:
    """Letters of one trouble were enqueued and died together: most of them share their minutes."""
    return (_EPOCH + timedelta(minutes=minutes)).isoformat(timespec="minutes").removesuffix("+00:00")


def instant(text: str, field: str) -> Instant:
    """The inverse of `iso`; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", field=field, hint="as in 2026-11-15T21:04:05.678Z") from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MILLI
