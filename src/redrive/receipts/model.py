"""A receipt: what a worker tells a broker about a job; and the envelope in which it waits to be delivered."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from redrive.core import codec
from redrive.core.item import Item
from redrive.core.quantity import shown
from redrive.errors import ConfigError, InvalidReceipt, PayloadTooLarge, PayloadUndecodable

STATUSES = ("pending", "running", "complete", "failed")
FINAL = frozenset({"complete", "failed"})
SUMMARY_LIMIT = 1000
RECEIPT_LIMIT = 1024 * 1024
"""Bytes of JSON, with all that is in it: more belongs into an artifact."""
NAME_LIMIT = 512
ATTEMPTS_LIMIT = 1000
_ID_LENGTH = 24
_ALPHABET = str.maketrans("0189", "ghij")
_POINTERS = (str, dict)
_DEEP = ("summary", "artifact_pointers", "error_metadata", "extra")
_NESTED = ("artifact_pointers", "error_metadata", "extra")
_FIELDS = frozenset(
    {
        "lease_id",
        "task_id",
        "worker_id",
        "status",
        "timestamp",
        "summary",
        "artifact_pointers",
        "error_metadata",
    }
)


class Receipt(Struct, frozen=True, kw_only=True, eq=False):
    """Checked when it is made: InvalidReceipt names every fault.

    `timestamp` is now if it is left out; one without a time zone is UTC. `extra` are fields that we do not know: they
    travel along. `source` is the mapping it was made of, which `to_dict` gives back as it was.
    """

    lease_id: str
    task_id: str
    worker_id: str
    status: str
    timestamp: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    summary: str = ""
    artifact_pointers: list[str | dict[str, Any]] = []
    error_metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    source: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not _sound(self):
            faults = tuple(_faults(self))
            if faults:
                raise InvalidReceipt(faults)
            msgspec.structs.force_setattr(self, "timestamp", _instant(self.timestamp))

    @classmethod
    def of(cls, receipt: Receipt | Mapping[str, Any]) -> Receipt:
        """A receipt as it is, or one made of a mapping; raises InvalidReceipt with every fault."""
        given: object = receipt
        if isinstance(given, Receipt):
            return given
        if not isinstance(given, Mapping):
            fix = "give a Receipt, or a mapping with lease_id, task_id, worker_id and status"
            raise InvalidReceipt((f"{shown(given)} is no receipt: {fix}",))
        source = dict(given)
        absent = [name for name in ("lease_id", "task_id", "worker_id", "status") if name not in source]
        known = dict.fromkeys(absent) | {name: value for name, value in source.items() if name in _FIELDS}
        if known.get("artifact_pointers", ()) is None:
            known["artifact_pointers"] = []
        if known.get("summary", "") is None:
            known["summary"] = ""
        if known.get("timestamp", "") is None:
            del known["timestamp"]
        extra = {name: value for name, value in source.items() if name not in _FIELDS}
        made = cls(**known, extra=extra, source=source)
        # Said now, also if it is delivered or read again tomorrow.
        if source.get("timestamp") is None:
            source["timestamp"] = made.at
        return made

    @property
    def at(self) -> str:
        """Its instant as JSON has it: ISO 8601, with Z for UTC."""
        if self.timestamp.tzinfo is UTC:
            told: str = msgspec.to_builtins(self.timestamp)  # the same text, ten times as fast
            return told
        text = self.timestamp.isoformat()
        return f"{text[:-6]}Z" if text.endswith("+00:00") else text

    @property
    def final(self) -> bool:
        """Nothing about this lease is said after it."""
        return self.status in FINAL

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: the mapping it was made of, or its fields; without error_metadata where there is none."""
        return self._fields() if self.source is None else dict(self.source)

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "lease_id": self.lease_id,
            "task_id": self.task_id,
            "worker_id": self.worker_id,
            "status": self.status,
            "timestamp": self.at,
            "summary": self.summary,
            "artifact_pointers": list(self.artifact_pointers),
        }
        if self.error_metadata is not None:
            fields["error_metadata"] = self.error_metadata
        return fields | self.extra

    def said(self, *scope: str) -> bytes:
        """Two receipts that say the same give the same bytes in one scope, however they are written."""
        told = [*scope, {**self._fields(), "timestamp": self.timestamp.astimezone(UTC).isoformat()}]
        try:
            return msgspec.json.encode(told, order="deterministic")
        except (TypeError, ValueError, RecursionError):
            return codec.dump_payload(told, limit=sys.maxsize)  # which says what is wrong, and where

    def repeats(self, other: Receipt) -> bool:
        """Whether it says what the other said, if perhaps at another time."""
        return self._fields() | {"timestamp": ""} == other._fields() | {"timestamp": ""}

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Receipt) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.lease_id, self.task_id, self.status, self.timestamp))


class Envelope(Struct, frozen=True, kw_only=True):
    """What is stored: the receipt as it was given, and for whom. How often it may be tried is the item's policy."""

    receipt: dict[str, Any]
    tenant_id: str | None = None

    def encode(self) -> bytes:
        """As the payload of an item. Raises PayloadError."""
        fields: dict[str, Any] = {"receipt": self.receipt}
        if self.tenant_id is not None:
            fields["tenant_id"] = self.tenant_id
        try:
            return codec.dump_payload(fields, limit=RECEIPT_LIMIT)
        except PayloadTooLarge:
            hint = "keep what is large elsewhere, and point to it with artifact_pointers"
            raise PayloadTooLarge(f"the receipt has more than {RECEIPT_LIMIT:,} bytes", hint=hint) from None

    @classmethod
    def decode(cls, payload: bytes) -> Envelope:
        """Raises PayloadUndecodable."""
        try:
            return _decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            hint = "this queue is for receipts; put them there with redrive.receipts"
            raise PayloadUndecodable(f"it is no receipt in its envelope: {error}", hint=hint) from None

    def open(self) -> Receipt:
        """Raises PayloadUndecodable for what was put there without being checked."""
        try:
            return Receipt.of(self.receipt)
        except InvalidReceipt as error:
            raise PayloadUndecodable(f"its receipt cannot be sent: {error.message}") from None


def receipt_in(item: Item) -> Receipt | None:
    """None if the payload is not a receipt."""
    try:
        return Envelope.decode(item.payload).open()
    except PayloadUndecodable:
        return None


_decoder = msgspec.json.Decoder(Envelope)


def item_id(queue: str, tenant_id: str | None, receipt: Receipt) -> str:
    """The id of its item, which is the idempotency key that the target sees: the same receipt sent twice is one item.

    Of a final one it tells nothing but the lease, so that whoever knows the lease can ask whether it was ended.
    """
    if receipt.final:
        return final_id(queue, tenant_id, receipt.lease_id)
    return content_id(queue, tenant_id, receipt)


@lru_cache(maxsize=1_024)
def final_id(queue: str, tenant_id: str | None, lease_id: str) -> str:
    return _short(msgspec.json.encode(["final", queue, tenant_id or "", lease_id]))


def content_id(queue: str, tenant_id: str | None, receipt: Receipt) -> str:
    """Also for a second final receipt of a lease that says something else than the first."""
    return _short(receipt.said(queue, tenant_id or ""))


def _short(text: bytes) -> str:
    """Looks like every other id: 24 of the characters that these have."""
    return hashlib.sha256(text).hexdigest()[:_ID_LENGTH].translate(_ALPHABET)


def order_key(tenant_id: str | None, lease_id: str) -> str:
    """What is said about one lease is delivered in the order in which it was said."""
    key = f"{tenant_id or ''}/{lease_id}"
    return key if len(key) <= NAME_LIMIT else hashlib.sha256(key.encode()).hexdigest()


def check_tenant(tenant_id: object) -> str | None:
    if tenant_id is None or (isinstance(tenant_id, str) and tenant_id.strip()):
        return tenant_id
    text = f"must be a non-empty string, got {shown(tenant_id)}"
    raise ConfigError(text, field="tenant_id", hint="leave it out for none")


def check_sendable(receipt: Receipt) -> Receipt:
    """Raises InvalidReceipt for what no target takes."""
    if receipt.status == "pending":
        raise InvalidReceipt(("status 'pending' is not for sending: use running, complete or failed",))
    return receipt


def check_terms(max_attempts: Any, backoff_base: Any, jitter: Any = 0.0, *, name: str = "max_retries") -> None:
    """Raises ConfigError that names the parameter: a 0 is never silently replaced by a default."""
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= ATTEMPTS_LIMIT:
        hint = f"use a whole number from 1 (one try, no retry) to {ATTEMPTS_LIMIT:,}"
        raise ConfigError(f"{shown(max_attempts)} cannot be used", field=name, hint=hint)
    if not _is_number(backoff_base) or not backoff_base > 0:
        hint = "use a number above 0; 2.0 waits 2, 4, 8, 16 seconds"
        raise ConfigError(f"{shown(backoff_base)} cannot be used", field="backoff_base", hint=hint)
    if not _is_number(jitter) or not 0 <= jitter <= 1:
        hint = "use a number from 0 (none) to 1 (up to twice the wait)"
        raise ConfigError(f"{shown(jitter)} cannot be used", field="jitter", hint=hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sound(receipt: Receipt) -> bool:
    """Quickly, for nearly all; False says only that it has to be looked at."""
    at: object = receipt.timestamp
    return (
        type(at) is datetime
        and at.tzinfo is not None
        and receipt.status in STATUSES
        and is_name(receipt.lease_id)
        and is_name(receipt.task_id)
        and is_name(receipt.worker_id)
        and type(receipt.summary) is str
        and len(receipt.summary) <= SUMMARY_LIMIT
        and type(receipt.artifact_pointers) is list
        and all(type(each) in _POINTERS for each in receipt.artifact_pointers)
        and (receipt.error_metadata is None or type(receipt.error_metadata) is dict)
        and not _half_in(receipt)
        and not any(_not_json(getattr(receipt, name), name) for name in _NESTED)
    )


def _half_in(receipt: Receipt) -> tuple[str, ...]:
    """The fields with half a character (a lone surrogate) in them, which no JSON can hold."""
    said = (receipt.summary, receipt.artifact_pointers, receipt.error_metadata, receipt.extra)
    if not _is_half(said):
        return ()
    return tuple(name for name in _DEEP if _is_half(getattr(receipt, name)))


def _is_half(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True
    except (TypeError, ValueError, RecursionError):
        return False  # what else is wrong with it is told, with its place, when it is written down
    return False


def _not_json(value: object, path: str) -> list[str]:
    """The places of bytes and sets, which encoders for Python turn into something else without a word."""
    if isinstance(value, str | int | float | None):
        return []
    if isinstance(value, Mapping):
        return [found for name, each in value.items() for found in _not_json(each, f"{path}.{name}")]
    if isinstance(value, list | tuple):
        return [found for number, each in enumerate(value) for found in _not_json(each, f"{path}[{number}]")]
    return [path] if isinstance(value, bytes | bytearray | memoryview | set | frozenset) else []


def is_name(name: object) -> bool:
    """Whether it can name a lease, a task or a worker; of what cannot, most can be sent all the same."""
    return type(name) is str and len(name) <= NAME_LIMIT and name.isprintable() and not name.isspace() and name != ""


def _faults(receipt: Receipt) -> Iterator[str]:
    for name in ("lease_id", "task_id", "worker_id"):
        yield from name_faults(name, getattr(receipt, name))
    if receipt.status not in STATUSES:
        yield f"status {shown(receipt.status)} is none of {', '.join(STATUSES)}"
    try:
        _instant(receipt.timestamp)
    except ValueError as error:
        yield f"timestamp {shown(receipt.timestamp)} is no time ({error}): use 2024-01-15T10:30:00Z or a datetime"
    summary: object = receipt.summary
    if not isinstance(summary, str):
        yield f"summary {shown(summary)} is not a text"
    elif len(summary) > SUMMARY_LIMIT:
        yield f"summary has {len(summary):,} characters: use at most {SUMMARY_LIMIT:,}, and an artifact for the rest"
    pointers: object = receipt.artifact_pointers
    if not isinstance(pointers, list | tuple) or not all(isinstance(each, str | dict) for each in pointers):
        yield f"artifact_pointers {shown(pointers)} is not a list of texts or objects"
    yield from _unwritable(receipt)
    metadata: object = receipt.error_metadata
    if metadata is not None and not isinstance(metadata, dict):
        yield f"error_metadata {shown(metadata)} is not an object: use code and message, or leave it out"


def _unwritable(receipt: Receipt) -> Iterator[str]:
    for name in _half_in(receipt):
        yield f"{name} has half a character (a lone surrogate): use text that can be written as UTF-8"
    for path in (path for name in _NESTED for path in _not_json(getattr(receipt, name), name)):
        yield f"{path.removeprefix('extra.')} is bytes or a set, which JSON does not have: use base64 or a list"


def name_faults(name: str, value: object) -> Iterator[str]:
    """What a lease, a task or a worker cannot be named."""
    if value is None:
        yield f"{name} is missing"
    elif not isinstance(value, str):
        yield f"{name} {shown(value)} is not a text: use the one that the broker gave"
    elif not value.strip():
        yield f"{name} is {'blank' if value else 'empty'}: use the one that the broker gave"
    elif len(value) > NAME_LIMIT:
        yield f"{name} has {len(value):,} characters, {shown(value)}: use at most {NAME_LIMIT}"
    elif "\0" in value or _is_half(value):
        yield f"{name} {shown(value)} has a NUL or half a character: use text that can be printed"


def _instant(value: object) -> datetime:
    """Raises ValueError."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise ValueError("it is neither a text nor a datetime")  # noqa: TRY004 - one error for whatever is no time
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
