"""A receipt, which a worker sends to a broker about a job, and the envelope in which it is stored."""

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
from redrive.core.quantity import shown
from redrive.core.validation import check_count, is_number
from redrive.engine.ids import hashed_id
from redrive.errors import ConfigError, InvalidReceipt, PayloadTooLarge, PayloadUndecodable

STATUSES = ("pending", "running", "complete", "failed")
FINAL = frozenset({"complete", "failed"})
SUMMARY_LIMIT = 1000
RECEIPT_LIMIT = 1024 * 1024
"""Bytes of JSON."""
NAME_LIMIT = 512
ATTEMPTS_LIMIT = 1000
_REQUIRED = ("lease_id", "task_id", "worker_id", "status")
_NESTED = ("artifact_pointers", "error_metadata", "extra")
_FIELDS = frozenset({*_REQUIRED, "timestamp", "summary", "artifact_pointers", "error_metadata"})


class Receipt(Struct, frozen=True, kw_only=True, eq=False):
    """Checked when it is made: InvalidReceipt names every fault.

    `timestamp` is now if it is left out; one without a time zone is UTC. `extra` are unknown fields, which are sent
    too. `source` is the mapping it was made of, which `to_dict` gives back unchanged.
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
        if not _is_valid(self):
            faults = tuple(_faults(self))
            if faults:
                raise InvalidReceipt(faults)
            msgspec.structs.force_setattr(self, "timestamp", _datetime(self.timestamp))

    @classmethod
    def of(cls, receipt: Receipt | Mapping[str, Any]) -> Receipt:
        """A receipt unchanged, or one made of a mapping; raises InvalidReceipt with every fault."""
        given: object = receipt
        if isinstance(given, Receipt):
            return given
        if not isinstance(given, Mapping):
            fix = f"give a Receipt, or a mapping with {', '.join(_REQUIRED)}"
            raise InvalidReceipt((f"{shown(given)} is not a receipt: {fix}",))
        source = dict(given)
        known: dict[str, Any] = dict.fromkeys(_REQUIRED)
        known |= {name: value for name, value in source.items() if name in _FIELDS}
        for name in ("artifact_pointers", "summary", "timestamp"):
            if known.get(name, "") is None:
                del known[name]
        made = cls(**known, extra={name: source[name] for name in source if name not in _FIELDS}, source=source)
        if source.get("timestamp") is None:  # it stays the same when it is stored and read again
            source["timestamp"] = made.at
        return made

    @property
    def at(self) -> str:
        """The timestamp in ISO 8601, with Z for UTC."""
        if self.timestamp.tzinfo is UTC:
            text: str = msgspec.to_builtins(self.timestamp)  # the same text, ten times as fast
            return text
        return self.timestamp.isoformat().replace("+00:00", "Z")

    @property
    def final(self) -> bool:
        """Whether it is the last one of its lease."""
        return self.status in FINAL

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the mapping it was made of, or its fields; without error_metadata if there is none."""
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

    def canonical(self, *scope: str) -> bytes:
        """Equal receipts give the same bytes in one scope, whatever the order of their fields and their time zone."""
        value = [*scope, {**self._fields(), "timestamp": self.timestamp.astimezone(UTC).isoformat()}]
        try:
            return msgspec.json.encode(value, order="deterministic")
        except (TypeError, ValueError, RecursionError):
            return codec.dump_payload(value, limit=sys.maxsize)  # its error names the field

    def repeats(self, other: Receipt) -> bool:
        """Whether it is equal to another one but for the timestamp."""
        return self._fields() | {"timestamp": ""} == other._fields() | {"timestamp": ""}

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Receipt) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.lease_id, self.task_id, self.status, self.timestamp))


class Envelope(Struct, frozen=True, kw_only=True):
    """The payload of an item: the receipt as it was given, and its tenant. Its retries are the item's policy."""

    receipt: dict[str, Any]
    tenant_id: str | None = None

    def encode(self) -> bytes:
        """Raises PayloadError."""
        tenant = {} if self.tenant_id is None else {"tenant_id": self.tenant_id}
        try:
            return codec.dump_payload({"receipt": self.receipt, **tenant}, limit=RECEIPT_LIMIT)
        except PayloadTooLarge:
            hint = "store large data elsewhere, and point to it with artifact_pointers"
            raise PayloadTooLarge(f"the receipt has more than {RECEIPT_LIMIT:,} bytes", hint=hint) from None

    @classmethod
    def decode(cls, payload: bytes) -> Envelope:
        """Raises PayloadUndecodable."""
        try:
            return _decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            hint = "this queue is for receipts; send them with redrive.receipts"
            raise PayloadUndecodable(f"the payload is not a receipt in its envelope: {error}", hint=hint) from None

    def open(self) -> Receipt:
        """Raises PayloadUndecodable for a receipt that was put into the queue unchecked."""
        try:
            return Receipt.of(self.receipt)
        except InvalidReceipt as error:
            raise PayloadUndecodable(f"its receipt cannot be sent: {error.message}") from None


_decoder = msgspec.json.Decoder(Envelope)


def unpack(payload: bytes) -> tuple[Receipt, str | None]:
    """The receipt and its tenant. Raises PayloadUndecodable."""
    envelope = Envelope.decode(payload)
    return envelope.open(), envelope.tenant_id


def receipt_in(payload: bytes) -> Receipt | None:
    """None if the payload is not a receipt."""
    try:
        return unpack(payload)[0]
    except PayloadUndecodable:
        return None


def item_id(queue: str, tenant_id: str | None, receipt: Receipt) -> str:
    """The id of its item, which is the idempotency key that the target sees: equal receipts are one item.

    That of a final one is made of the lease alone, so that the end of a lease can be looked up.
    """
    if receipt.final:
        return final_id(queue, tenant_id, receipt.lease_id)
    return content_id(queue, tenant_id, receipt)


@lru_cache(maxsize=1_024)
def final_id(queue: str, tenant_id: str | None, lease_id: str) -> str:
    return hashed_id(msgspec.json.encode(["final", queue, tenant_id or "", lease_id]))


def content_id(queue: str, tenant_id: str | None, receipt: Receipt) -> str:
    """Also for a second final receipt of a lease that differs from the first."""
    return hashed_id(receipt.canonical(queue, tenant_id or ""))


def order_key(tenant_id: str | None, lease_id: str) -> str:
    """Receipts of one lease are delivered in the order in which they were sent."""
    key = f"{tenant_id or ''}/{lease_id}"
    return key if len(key) <= NAME_LIMIT else hashlib.sha256(key.encode()).hexdigest()


# --- validation -------------------------------------------------------------------------------------------------------


def check_tenant(tenant_id: object) -> str | None:
    if tenant_id is None or (isinstance(tenant_id, str) and tenant_id.strip()):
        return tenant_id
    text = f"must be a non-empty string, got {shown(tenant_id)}"
    raise ConfigError(text, field="tenant_id", hint="leave it out for none")


def check_sendable(receipt: Receipt) -> Receipt:
    """Raises InvalidReceipt for a status that no target takes."""
    if receipt.status == "pending":
        raise InvalidReceipt(("status must be running, complete or failed, got 'pending'",))
    return receipt


def check_terms(max_attempts: Any, backoff_base: Any, jitter: Any = 0.0, *, name: str = "max_retries") -> None:
    """Raises ConfigError that names the parameter. A 0 is refused, and not replaced by a default."""
    hint = "leave it out for the default"
    check_count(max_attempts, field=name, most=ATTEMPTS_LIMIT, hint=hint, error=ConfigError)
    if not is_number(backoff_base) or not 0 < backoff_base < math.inf:
        text = f"must be a number greater than 0, got {shown(backoff_base)}"
        raise ConfigError(text, field="backoff_base", hint=hint)
    if not is_number(jitter) or not 0 <= jitter <= 1:
        raise ConfigError(f"must be a number from 0 to 1, got {shown(jitter)}", field="jitter", hint=hint)


def is_name(name: object) -> bool:
    """Whether it surely can name a lease, a task or a worker; some names that fail this test can, too."""
    return type(name) is str and len(name) <= NAME_LIMIT and name.isprintable() and not name.isspace() and name != ""


def _is_valid(receipt: Receipt) -> bool:
    """A quick test that nearly all pass. False: see `_faults`."""
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
        and all(type(each) in (str, dict) for each in receipt.artifact_pointers)
        and (receipt.error_metadata is None or type(receipt.error_metadata) is dict)
        and not _has_surrogate((receipt.summary, receipt.artifact_pointers, receipt.error_metadata, receipt.extra))
        and not any(_not_json(getattr(receipt, name), name) for name in _NESTED)
    )


def _faults(receipt: Receipt) -> Iterator[str]:
    for name in ("lease_id", "task_id", "worker_id"):
        yield from name_faults(name, getattr(receipt, name))
    if receipt.status not in STATUSES:
        yield f"status {shown(receipt.status)} is not one of {', '.join(STATUSES)}"
    try:
        _datetime(receipt.timestamp)
    except ValueError as error:
        yield f"timestamp {shown(receipt.timestamp)} is not a time ({error}): use 2024-01-15T10:30:00Z or a datetime"
    summary: object = receipt.summary
    if not isinstance(summary, str):
        yield f"summary {shown(summary)} is not a string"
    elif len(summary) > SUMMARY_LIMIT:
        yield f"summary has {len(summary):,} characters: use at most {SUMMARY_LIMIT:,}, and an artifact for the rest"
    pointers: object = receipt.artifact_pointers
    if not isinstance(pointers, list | tuple) or not all(isinstance(each, str | dict) for each in pointers):
        yield f"artifact_pointers {shown(pointers)} is not a list of strings or objects"
    metadata: object = receipt.error_metadata
    if metadata is not None and not isinstance(metadata, dict):
        yield f"error_metadata {shown(metadata)} is not an object: use code and message, or leave it out"
    yield from _unencodable(receipt)


def _unencodable(receipt: Receipt) -> Iterator[str]:
    for name in ("summary", *_NESTED):
        if _has_surrogate(getattr(receipt, name)):
            yield f"{name} contains an unpaired surrogate: use text that can be encoded as UTF-8"
    for path in (path for name in _NESTED for path in _not_json(getattr(receipt, name), name)):
        yield f"{path.removeprefix('extra.')} is bytes or a set, which JSON does not have: use base64 or a list"


def name_faults(name: str, value: object) -> Iterator[str]:
    """Why a lease, a task or a worker cannot have this name."""
    if value is None:
        yield f"{name} is missing"
    elif not isinstance(value, str):
        yield f"{name} {shown(value)} is not a string: use the one that the broker gave"
    elif not value.strip():
        yield f"{name} is {'blank' if value else 'empty'}: use the one that the broker gave"
    elif len(value) > NAME_LIMIT:
        yield f"{name} has {len(value):,} characters, {shown(value)}: use at most {NAME_LIMIT}"
    elif "\0" in value or _has_surrogate(value):
        yield f"{name} {shown(value)} contains NUL or an unpaired surrogate"


def _has_surrogate(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True
    except (TypeError, ValueError, RecursionError):
        return False  # any other fault is reported when it is stored
    return False


def _not_json(value: object, path: str) -> list[str]:
    """The paths of bytes and sets, which the encoder would turn into something else."""
    if isinstance(value, str | int | float | None):
        return []
    if isinstance(value, Mapping):
        return [found for name, each in value.items() for found in _not_json(each, f"{path}.{name}")]
    if isinstance(value, list | tuple):
        return [found for number, each in enumerate(value) for found in _not_json(each, f"{path}[{number}]")]
    return [path] if isinstance(value, bytes | bytearray | memoryview | set | frozenset) else []


def _datetime(value: object) -> datetime:
    """Raises ValueError."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise ValueError("neither a string nor a datetime")  # noqa: TRY004 - one error for all faults
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
