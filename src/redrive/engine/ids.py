"""Ids are opaque, unique for ever, and random from the first character: eight of them serve as a prefix."""

from __future__ import annotations

import secrets
from base64 import b32encode
from typing import Self

_RAW = 15  # bytes; 120 bits, 24 characters without padding
_LENGTH = 24


def new_ids(count: int) -> list[str]:
    text = b32encode(secrets.token_bytes(_RAW * count)).decode("ascii").lower()
    return [text[at : at + _LENGTH] for at in range(0, _LENGTH * count, _LENGTH)]


def new_id() -> str:
    return new_ids(1)[0]


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
