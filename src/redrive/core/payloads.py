"""Looking into payloads: a value by its path, and whether a text is in it. Hostile bytes are only ever no match."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from redrive.core import codec
from redrive.core.item import Item
from redrive.errors import PayloadUndecodable

Scalar = str | int | float | bool | None

ABSENT: Final = object()
"""What is not there: not even null."""
_LONGEST_INDEX = 9


class Reading:
    """The payload of one item, decoded at most once however many conditions ask for it."""

    __slots__ = ("_payload", "_value")

    def __init__(self, item: Item) -> None:
        # Encrypted bytes are nothing to compare with.
        self._payload = b"" if item.sealed else item.payload
        self._value: object = self

    def value(self) -> object:
        if self._value is self:
            try:
                self._value = codec.load_payload(self._payload)
            except PayloadUndecodable:
                self._value = ABSENT
        return self._value

    def at(self, path: tuple[str, ...]) -> object:
        """What lies there: keys of objects, places in lists counted from 0."""
        found = self.value()
        for step in path:
            if isinstance(found, dict):
                found = found.get(step, ABSENT)
            elif isinstance(found, list):
                found = _element(found, step)
            else:
                return ABSENT
        return found

    def contains(self, folded: str) -> bool:
        """Whether the text is in the payload, upper and lower case alike."""
        text = self._payload.decode(errors="replace")
        if folded in text.casefold():
            return True
        # Only what was escaped in JSON reads otherwise than it is written.
        return "\\" in text and any(folded in said.casefold() for said in _texts(self.value()))


def _element(values: list[object], step: str) -> object:
    if not (step.isascii() and step.isdigit()) or len(step) > _LONGEST_INDEX or int(step) >= len(values):
        return ABSENT
    return values[int(step)]


def _texts(value: object) -> Iterator[str]:
    """All texts in it, keys too."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            rest.extend(one)
            rest.extend(one.values())
        elif isinstance(one, list):
            rest.extend(one)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def spelled(value: Scalar) -> str:
    """A scalar as it is written in a filter without quotes."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case _:
            return repr(value)


def equal(actual: object, value: Scalar) -> bool:
    """The same value of the same kind."""
    if is_number(value):
        return is_number(actual) and actual == value
    return type(actual) is type(value) and actual == value


def read_scalar(text: str) -> Scalar:
    """What a value without quotes means: a number, true, false or null, or the text itself."""
    words: dict[str, Scalar] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    try:
        # JSON's own idea of a number: 007 and 1_000 are texts.
        number = codec.load_payload(text.encode(errors="replace"))
    except PayloadUndecodable:
        return text
    return number if is_number(number) and math.isfinite(number) and not text[-1].isspace() else text
