"""Reads and writes `receipts.json`: an array with `receipt`, `failed_at` and `attempts` of each dead receipt.

A file is written atomically. Of a damaged file every entry that can be read is read; the others are reported by number
and line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from redrive.app.internals import in_thread
from redrive.core.quantity import shown
from redrive.core.validation import check_count
from redrive.errors import ConfigError, InvalidReceipt
from redrive.office.files import irregular, json_entries, new_file
from redrive.receipts.model import Receipt, check_sendable, check_tenant

NAME = "receipts.json"
PATH_HINT = f"name a {NAME}, or its folder"
FAULTS = 20
"""So many are reported one by one; of more, only the number."""
MOST_ATTEMPTS = 1_000_000
TENANT = "tenant_id"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENTRY = re.compile(r'\{\s*"(?:receipt|failed_at|attempts)"\s*:')


class Entry(Struct, frozen=True):
    """One dead receipt. `tenant_id` is written into the receipt, as in a plain POST, if there is one."""

    receipt: Receipt
    failed_at: datetime
    attempts: int = 0
    tenant_id: str | None = None


class Fault(Struct, frozen=True):
    """An entry that cannot be read; entries and lines count from 1."""

    entry: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"entry {self.entry} (line {self.line}): {self.text}"


class Contents(Struct, frozen=True):
    """`hash`: of the bytes, to recognise the file."""

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...]
    hash: str


def check_path(path: object, field: str = "storage_path") -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        text = f"must be a string or a pathlib.Path, got {shown(path)}"
        raise ConfigError(text, field=field, hint=PATH_HINT)
    if "\0" in str(path):
        raise ConfigError(f"{shown(str(path))} contains NUL", field=field, hint=PATH_HINT)
    return Path(path)


@in_thread
def resolve(path: Path, field: str = "storage_path") -> Path:
    """The file itself, or the receipts.json in a folder. A path without a suffix that does not exist is a folder.

    Raises ConfigError for what exists and is not a regular file.
    """
    named = path.expanduser().absolute()
    return _regular(named / NAME if named.is_dir() or not (named.suffix or named.exists()) else named, field)


def _regular(path: Path, field: str) -> Path:
    kind = irregular(path)
    if kind:
        raise ConfigError(f"{path} is {kind}", field=field, hint=PATH_HINT)
    return path


# --- reading ----------------------------------------------------------------------------------------------------------


@in_thread
def read(path: Path) -> Contents | None:
    """None if there is no such file. Raises ConfigError if it cannot be read."""
    try:
        return parse(_regular(path, "storage_path").read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = f"check its permissions, or name another {NAME}"
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field="storage_path", hint=hint) from None


def parse(data: bytes) -> Contents:
    entries: list[Entry] = []
    faults: list[Fault] = []
    text = data.decode("utf-8-sig", "surrogateescape")
    line, counted = 1, 0
    for number, (start, found) in enumerate(json_entries(text, _ENTRY), 1):
        line, counted = line + text.count("\n", counted, start), start
        try:
            if isinstance(found, ValueError):
                raise found
            entries.append(_entry(found))
        except InvalidReceipt as error:
            faults.append(Fault(number, line, error.message))
        except ValueError as error:
            faults.append(Fault(number, line, str(error)))
    return Contents(tuple(entries), tuple(faults), hashlib.sha256(data).hexdigest())


def _entry(value: object) -> Entry:
    """Raises ValueError. Unknown fields are ignored."""
    if not isinstance(value, dict) or "receipt" not in value:
        raise ValueError("it is not an object with a receipt")
    fields, tenant = value["receipt"], check_tenant(value.get(TENANT))
    if isinstance(fields, dict) and TENANT in fields and TENANT not in value:
        fields = dict(fields)  # the tenant is not part of the receipt
        tenant = check_tenant(fields.pop(TENANT))
    receipt = check_sendable(Receipt.of(fields))
    failed_at, attempts = _failed_at(value.get("failed_at"), receipt), check_attempts(value.get("attempts", 0))
    return Entry(receipt, failed_at, attempts, tenant)


def _failed_at(value: object, receipt: Receipt) -> datetime:
    """The timestamp of the receipt where it is missing."""
    try:
        at = receipt.timestamp if value is None else datetime.fromisoformat(str(value))
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"failed_at {shown(value)} is not a time: use 2024-01-15T10:30:45Z") from None
    if at < EPOCH:
        raise ValueError(f"failed_at {shown(value)} is before 1970")
    return at


def check_attempts(value: object) -> int:
    return check_count(value, field="attempts", least=0, most=MOST_ATTEMPTS, error=ConfigError)


# --- writing ----------------------------------------------------------------------------------------------------------


def dump(entries: Iterable[Entry]) -> bytes:
    """Each entry has exactly `receipt`, `failed_at` and `attempts`; see `_fields` for the exception."""
    text = json.dumps([_fields(each) for each in entries], ensure_ascii=False, indent=2, default=_encode)
    return text.encode() + b"\n"


def _fields(entry: Entry) -> dict[str, object]:
    """The tenant is in the receipt, or beside a receipt that has a field `tenant_id` of its own."""
    receipt, beside = entry.receipt.to_dict(), {}
    if TENANT in receipt:
        beside = {TENANT: entry.tenant_id}
    elif entry.tenant_id is not None:
        receipt[TENANT] = entry.tenant_id
    return {"receipt": receipt, "failed_at": iso(entry.failed_at), "attempts": entry.attempts, **beside}


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _encode(value: object) -> str:
    if isinstance(value, datetime):
        return iso(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


@in_thread
def write(path: Path, entries: Iterable[Entry], *, force: bool = False) -> None:
    """For an export. Conflict if there is a file already and not `force`."""
    try:
        with new_file(path, force=force) as out:
            out.write(dump(entries))
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}; nothing of it is left"
        raise ConfigError(text, field="FILE", hint="make room, or name another place") from None
