"""`receipts.json`: an array of `receipt`, `failed_at` and `attempts`, one object for each dead receipt.

What is written is whole or not there at all. What is read is never changed: of a damaged file all that can be read is
taken, and what cannot is told by entry and line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from redrive.core.quantity import shown
from redrive.errors import ConfigError, Conflict, InvalidReceipt
from redrive.receipts.model import Receipt, check_sendable

NAME = "receipts.json"
FAULTS = 20
"""So many are told one by one; of more, only the number."""
MOST_ATTEMPTS = 1_000_000
TENANT = "tenant_id"
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_GAP = re.compile(r"[\s,]*")
_ENTRY = re.compile(r'\{\s*"(?:receipt|failed_at|attempts)"\s*:')
"""How an entry begins: where to go on behind something that cannot be read."""


class Entry(Struct, frozen=True):
    """One dead receipt. `failed_at` is when it was given up, by whoever wrote the file.

    `tenant_id` is written into the receipt, as it is sent in a plain POST, where there is one: without it another
    tenant's receipt would be taken for this one.
    """

    receipt: Receipt
    failed_at: datetime
    attempts: int = 0
    tenant_id: str | None = None


class Fault(Struct, frozen=True):
    """What cannot be taken: entries and lines count from 1."""

    entry: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"entry {self.entry} (line {self.line}): {self.text}"


class Contents(Struct, frozen=True):
    """`hash`: of the bytes, to know a file that was read before."""

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...]
    hash: str


def check_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ConfigError(f"{shown(path)} is not a path", field="storage_path", hint="use a text or a pathlib.Path")
    return Path(path)


async def place(path: Path) -> Path:
    """The file that is meant; of a folder, the one that has the usual name."""
    return await asyncio.to_thread(_place, path)


def _place(path: Path) -> Path:
    named = path.expanduser().absolute()
    return named / NAME if named.is_dir() else named


# --- reading ----------------------------------------------------------------------------------------------------------


async def read(path: Path) -> Contents | None:
    """None if there is no such file. Raises ConfigError for one that may not be read."""
    return await asyncio.to_thread(_read, path)


def _read(path: Path) -> Contents | None:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = f"check its rights, or name another {NAME}"
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field="storage_path", hint=hint) from None


def parse(data: bytes) -> Contents:
    entries: list[Entry] = []
    faults: list[Fault] = []
    text = data.decode("utf-8-sig", "surrogateescape")
    line, counted = 1, 0
    for number, (start, found) in enumerate(_objects(text), 1):
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


def _objects(text: str) -> Iterator[tuple[int, Any]]:
    """Where each entry begins, and its value or why there is none."""
    decoder = json.JSONDecoder(parse_constant=_not_json)
    at = _after_gap(text, 0)
    if not text.startswith("[", at):
        # An empty one is what a crash leaves of a file that had something in it.
        yield at, ValueError("the file is not a JSON array" if text[at:].strip() else "the file is empty")
        return
    at = _after_gap(text, at + 1)
    while at < len(text) and text[at] != "]":
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield at, ValueError(f"it cannot be read as JSON ({_said(error)})")
            following = _ENTRY.search(text, at + 1)
            if following is None:
                return
            end = following.start()
        else:
            yield at, _encodable(value, text, at, end)
        at = _after_gap(text, end)
    if at >= len(text):
        yield at, ValueError("the file ends before its array does")
    elif text[at + 1 :].strip():
        yield at + 1, ValueError("something follows the array")


def _after_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _encodable(value: object, text: str, start: int, end: int) -> object:
    try:
        text[start:end].encode()
    except UnicodeEncodeError:
        return ValueError("it is not UTF-8")
    return value


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _said(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower().removesuffix(' at')} at line {error.lineno}, column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _entry(value: object) -> Entry:
    """Raises ValueError. Fields that we do not know are passed over."""
    if not isinstance(value, dict) or "receipt" not in value:
        raise ValueError("it is not an object with a receipt")
    said, tenant = value["receipt"], _tenant(value.get(TENANT))
    if isinstance(said, dict) and TENANT in said and TENANT not in value:
        # It tells for whom it is sent, and is no part of what is said.
        said = dict(said)
        tenant = _tenant(said.pop(TENANT))
    receipt = check_sendable(Receipt.of(said))
    failed_at, attempts = _failed_at(value.get("failed_at"), receipt), check_attempts(value.get("attempts", 0))
    return Entry(receipt, failed_at, attempts, tenant)


def _tenant(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise ValueError(f"tenant_id {shown(value)} is no tenant: leave it out for none")


def _failed_at(value: object, receipt: Receipt) -> datetime:
    """One that does not say it failed no earlier than it was written."""
    try:
        at = receipt.timestamp if value is None else datetime.fromisoformat(str(value))
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"failed_at {shown(value)} is no time: use 2024-01-15T10:30:45Z") from None
    if at < _EARLIEST:
        raise ValueError(f"failed_at {shown(value)} is before 1970")
    return at


def check_attempts(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_ATTEMPTS:
        hint = f"use a whole number from 0 to {MOST_ATTEMPTS:,}"
        raise ConfigError(f"{shown(value)} is not a number of tries", field="attempts", hint=hint)
    return value


async def set_aside(path: Path, digest: str) -> Path | None:
    """A copy of a damaged file beside it, under a name that tells its contents; None if there is no place for it."""
    return await asyncio.to_thread(_set_aside, path, digest)


def _set_aside(path: Path, digest: str) -> Path | None:
    copy = path.with_name(f"{path.name}.damaged-{digest[:8]}")
    try:
        if not copy.exists():
            _whole(copy, path.read_bytes())
    except OSError:
        return None
    return copy


# --- writing ----------------------------------------------------------------------------------------------------------


def dump(entries: Iterable[Entry]) -> bytes:
    """Exactly three fields, which every reader understands; see `_written` for the exception."""
    return (
        json.dumps([_written(each) for each in entries], ensure_ascii=False, indent=2, default=_plain).encode() + b"\n"
    )


def _written(entry: Entry) -> dict[str, object]:
    """The tenant stands in the receipt. Of a receipt with a field `tenant_id` of its own it stands beside it."""
    receipt, beside = entry.receipt.to_dict(), {}
    if TENANT in receipt:
        beside = {TENANT: entry.tenant_id}
    elif entry.tenant_id is not None:
        receipt[TENANT] = entry.tenant_id
    return {"receipt": receipt, "failed_at": iso(entry.failed_at), "attempts": entry.attempts, **beside}


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return iso(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


async def write(path: Path, entries: Iterable[Entry], *, force: bool = False) -> None:
    """Whole or not at all. Conflict if there is a file already and not `force`."""
    await asyncio.to_thread(_write, path, dump(entries), force=force)


def _write(path: Path, data: bytes, *, force: bool) -> None:
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise ConfigError(f"{path} is {kind}", field="FILE", hint="name a file")
    try:
        _whole(path, data, force=force)
    except FileExistsError:
        raise Conflict(f"there is a file {path} already", hint="take another name, or say --force") from None
    except OSError as error:
        hint = "make room, or name another place"
        said = f"{path} cannot be written: {error.strerror}; nothing of it is left"
        raise ConfigError(said, field="FILE", hint=hint) from None


def _whole(path: Path, data: bytes, *, force: bool = False) -> None:
    """In place only when all of it is on the disk, and so is its name."""
    if not force and path.exists():
        raise FileExistsError
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if not force:
            # A second name, which nobody can have taken meanwhile; some file systems know no such thing.
            try:
                os.link(name, path)
            except FileExistsError:
                raise
            except OSError:
                force = True
        if force:
            Path(name).replace(path)
    finally:
        with suppress(OSError):
            Path(name).unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
