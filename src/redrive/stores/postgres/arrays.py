"""Arrays as PostgreSQL takes them in binary: made here in one go, because psycopg visits each element by itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct

from redrive.errors import ConfigError

_HEAD = Struct(">iiiii")
_SIZE = Struct(">i").pack
_EMPTY = Struct(">iii").pack


class Array(bytes):
    """The bytes of an array; its class says of what."""

    __slots__ = ()


class Bigints(Array):
    __slots__ = ()


class Integers(Array):
    __slots__ = ()


class Smallints(Array):
    __slots__ = ()


class Texts(Array):
    __slots__ = ()


class Bodies(Array):
    __slots__ = ()


ELEMENTS: dict[type[Array], tuple[int, int]] = {
    Bigints: (20, 1016),
    Integers: (23, 1007),
    Smallints: (21, 1005),
    Texts: (25, 1009),
    Bodies: (17, 1001),
}
"""The numbers by which PostgreSQL knows the type of an element and that of its array."""


def bigints(values: Sequence[int]) -> Bigints:
    return Bigints(_numbers(20, "q", 8, values))


def integers(values: Sequence[int]) -> Integers:
    return Integers(_numbers(23, "i", 4, values))


def smallints(values: Sequence[int]) -> Smallints:
    return Smallints(_numbers(21, "h", 2, values))


def texts(values: Sequence[str]) -> Texts:
    try:
        return Texts(_pieces(25, [value.encode() for value in values]))
    except UnicodeEncodeError as error:
        raise ConfigError(f"a value cannot be stored: {error}") from error


def bodies(values: Sequence[bytes]) -> Bodies:
    return Bodies(_pieces(17, values))


def _numbers(kind: int, code: str, size: int, values: Sequence[int]) -> bytes:
    count = len(values)
    if not count:
        return _EMPTY(0, 0, kind)
    flat = [size] * (2 * count)
    flat[1::2] = values
    try:
        return _HEAD.pack(1, 0, kind, count, 1) + _packer(code, count).pack(*flat)
    except struct.error as error:
        raise ConfigError(f"a number cannot be stored: {error}") from error


@lru_cache(maxsize=1024)
def _packer(code: str, count: int) -> Struct:
    return Struct(">" + f"i{code}" * count)


def _pieces(kind: int, values: Sequence[bytes]) -> bytes:
    count = len(values)
    if not count:
        return _EMPTY(0, 0, kind)
    sizes = map(_SIZE, map(len, values))
    return b"".join([_HEAD.pack(1, 0, kind, count, 1), *chain.from_iterable(zip(sizes, values, strict=True))])
