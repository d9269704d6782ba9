"""How a store keeps a large body: packed, under the number of the way it was packed.

0 is the body as it was given. 1 is zlib behind a header with the size and the SHA-256 of the body, so that unpacking
knows where to stop, and a tombstone needs none. 2 is a body of either kind, encrypted (stores/keyring.py). Other
numbers are a later release's, and never guessed at.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Self

from redrive.core.item import Item, NewItem
from redrive.core.sizes import Size, parse
from redrive.errors import StoreCorrupt, StoreError, StoreTooNew

ABOVE = "64KiB"
"""From where on packing pays by default: below it a body is a few pages, and the thread costs more than they do."""
OFF = "off"

_ZLIB = 1
SEALED = 2
_LEVEL = 1
"""A put waits for it: a quarter of the default level's time for a few per cent of the space."""
_WORTH = 0.9
_SAMPLE = 16 * 1024
_HEADER = struct.Struct(">Q32s")

# On the way of every item, small as most are: not a step of Python for each.
_payload = attrgetter("payload")
_result = attrgetter("result")


class Packed(bytes):
    """A body as it lies in the store. It never leaves there: what callers get is what was put."""

    packing: int

    def __new__(cls, body: bytes, packing: int) -> Self:
        made = super().__new__(cls, body)
        made.packing = packing
        return made


def threshold(value: Size | None, *, field: str = "compress_above") -> int | None:
    """Above how many bytes bodies are packed; None: never."""
    return None if value is None or value == OFF else parse(value, field=field)


def checksum(body: Packed) -> int:
    """Begun with the number, so that whoever does not know of packing takes no packed body for a plain one."""
    return zlib.crc32(body, body.packing)


def packed_as(body: bytes) -> tuple[int, int]:
    """How a body is packed, and its checksum."""
    return (body.packing, checksum(body)) if isinstance(body, Packed) else (0, zlib.crc32(body))


def fault(body: bytes | None, crc: int | None, packing: int | None) -> StoreError | None:
    """Why a payload must not be used; None all round is one that is not there."""
    # Damage can change even the type of a value.
    if not isinstance(body, bytes) or not isinstance(packing, int) or zlib.crc32(body, packing) != crc:
        return _damaged("the payload does not fit its checksum")
    return _unknown(packing) if packing not in (0, _ZLIB, SEALED) else None


def pack(body: bytes) -> bytes:
    """Packed, or the body itself where that does not make it a good deal smaller."""
    middle = max(0, (len(body) - _SAMPLE) // 2)
    sample = body[middle : middle + _SAMPLE]
    # What is compressed already, as pictures and archives are, shows it here and costs next to nothing.
    if len(zlib.compress(sample, _LEVEL)) > len(sample) * _WORTH:
        return body
    packed = _HEADER.pack(len(body), hashlib.sha256(body).digest()) + zlib.compress(body, _LEVEL)
    return Packed(packed, _ZLIB) if len(packed) <= len(body) * _WORTH else body


def unpack(body: bytes) -> bytes:
    """What was put. Raises StoreTooNew for a number of a later release, StoreCorrupt for what does not unpack.

    An encrypted body stays encrypted.
    """
    if not isinstance(body, Packed):
        return body
    if body.packing == SEALED:
        key_id_of(body)
        return body
    if body.packing != _ZLIB:
        raise _unknown(body.packing)
    try:
        size, _ = _HEADER.unpack_from(body)
        stream = zlib.decompressobj()
        # One byte more than there may be: enough to see the end of the stream, and to see a stream that does not end.
        whole = stream.decompress(memoryview(body)[_HEADER.size :], size + 1)
    except (zlib.error, struct.error, OverflowError) as error:
        raise _damaged(f"a packed body does not unpack ({error})") from error
    if len(whole) != size or not stream.eof or stream.unused_data:
        raise _damaged(f"a packed body does not unpack to the {size:,} bytes it was made of")
    return whole


def is_sealed(body: bytes) -> bool:
    return isinstance(body, Packed) and body.packing == SEALED


def sealed_header(packing: int, key_id: str) -> bytes:
    """How an encrypted body begins: how the body inside is packed, and the id of the key."""
    name = key_id.encode()
    return bytes((packing, len(name))) + name


def read_header(body: bytes) -> tuple[int, str, int]:
    """How the body inside is packed, the id of the key, and where the header ends."""
    end = 2 + body[1] if len(body) > 1 else 0
    if end < 3 or len(body) < end or body[0] not in (0, _ZLIB):
        raise _damaged("an encrypted body has no header")
    try:
        return body[0], bytes(body[2:end]).decode("ascii"), end
    except UnicodeDecodeError:
        raise _damaged("an encrypted body has no header") from None


def key_id_of(body: bytes) -> str:
    """Which key a body is encrypted with. Raises StoreCorrupt if it cannot be one."""
    return read_header(body)[1]


def digest(body: bytes) -> str:
    """The SHA-256 of what was put; of a body that is encrypted or in an unknown packing, that of the bytes there.

    A digest of what is encrypted would tell it to anybody who can guess it.
    """
    if isinstance(body, Packed) and body.packing == _ZLIB and len(body) >= _HEADER.size:
        _, made_of = _HEADER.unpack_from(body)
        return bytes(made_of).hex()
    return hashlib.sha256(body).hexdigest()


def any_heavy(items: Sequence[NewItem], above: int) -> bool:
    return max(map(len, map(_payload, items)), default=0) > above


def any_packed(items: Sequence[Item]) -> bool:
    """Of payloads; what is leased has no result."""
    return Packed in set(map(type, map(_payload, items)))


def any_packed_result(items: Sequence[Item]) -> bool:
    return Packed in set(map(type, map(_result, items)))


def _damaged(what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{what}: it was damaged where it is kept", hint="restore it from a backup, or discard and prune the item"
    )


def _unknown(packing: int) -> StoreTooNew:
    return StoreTooNew(
        f"the body is packed in a way ({packing}) that this redrive does not know",
        hint="upgrade redrive in this process, then replay the item if it is a letter",
    )
