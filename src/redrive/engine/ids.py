"""Ids are opaque, unique for ever, and random from the first character: eight of them serve as a prefix."""

from __future__ import annotations

import hashlib
import os
import secrets
from base64 import b32encode
from collections import deque
from typing import Self

_RAW = 15  # bytes; 120 bits, 24 characters without padding
_LENGTH = 24
_POOL = 64
_ALPHABET = str.maketrans("0189", "ghij")  # hexadecimal digits that ids do not have

_pool: deque[str] = deque()
# A child that used its parent's ids too would send messages under ids that are in use.
os.register_at_fork(after_in_child=_pool.clear)


def new_ids(count: int) -> list[str]:
    text = b32encode(secrets.token_bytes(_RAW * count)).decode("ascii").lower()
    return [text[at : at + _LENGTH] for at in range(0, _LENGTH * count, _LENGTH)]


def new_id() -> str:
    return new_ids(1)[0]


def hashed_id(data: bytes) -> str:
    """An id that equal data share."""
    return hashlib.sha256(data).hexdigest()[:_LENGTH].translate(_ALPHABET)


def fresh_id() -> str:
    """As `new_id`, from a pool, in any thread: each read of random bytes lets other threads run, which costs more."""
    try:
        return _pool.popleft()
    except IndexError:
        first, *rest = new_ids(_POOL)
        _pool.extend(rest)
        return first


class ItemId(str):
    """The id that `enqueue` returns. `duplicate`: nothing was added, this item was there before.

    It had the same id, or it holds the dedupe key.
    """

    __slots__ = ("duplicate",)
    duplicate: bool

    def __new__(cls, value: str, *, duplicate: bool = False) -> Self:
        self = super().__new__(cls, value)
        self.duplicate = duplicate
        return self
