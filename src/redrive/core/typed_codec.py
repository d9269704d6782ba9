"""Typed JSON codec: dataclasses, msgspec Structs, attrs classes, pydantic models and plain data as JSON, and back.

The name of its class is stored beside a body. On decoding it is compared with the expected type, by the name of the
class alone, since modules move; nothing is ever imported by it. A value of the standard library that is a body by
itself (a UUID, a datetime, bytes) is decoded as what it was, also where no type is expected.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin
from uuid import UUID

import msgspec
import msgspec.inspect

from redrive.core import codec
from redrive.errors import InvalidParameterError, PayloadError, SerializationError

MAX_BODY = 1024 * 1024
"""Bytes, with all that is sent beside it."""

PLAIN = (type(None), bool, int, float, str, list, dict)
"""Types of JSON itself: stored without a name."""
KNOWN: dict[str, Any] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (bytes, UUID, datetime, date, time, timedelta, Decimal, tuple, set, frozenset)
}


def dump(body: object, *, expected: Any = None, to: str = "") -> tuple[bytes, str]:
    """The body as JSON, and the name of its class ("" for plain data). Raises SerializationError, also if a body of
    its class cannot be decoded as `expected`.
    """
    kind = type(body)
    if not _fits(kind, expected):
        text = f"the body is {_article(_name(kind))}, and {_shown(expected)} is expected here"
        raise SerializationError(text, hint=f"send what {to} was opened for, or open it for both: A | B")
    try:
        # Bytes by themselves are not JSON; the codec would take them verbatim.
        value = [body] if isinstance(body, bytes | bytearray | memoryview) else body
        data = codec.dump_payload(value, limit=MAX_BODY, queue=to)
    except PayloadError as error:
        hint = error.hint.partition(", or raise the limit")[0]
        raise SerializationError(error.message.replace("payload", "body", 1), hint=hint) from error
    if value is not body:
        return data[1:-1], _name(bytes)
    return data, "" if kind in PLAIN else _name(kind)


def check_size(payload: bytes, *, to: str, apart: int = 0) -> bytes:
    """The message, unless it is too large; `apart` bytes of it do not count. Raises SerializationError."""
    if len(payload) - apart > MAX_BODY:
        size = f"the message for {to!r} has {len(payload) - apart:,} bytes, with its attributes and addresses"
        hint = "keep what is large elsewhere and send a reference to it"
        raise SerializationError(f"{size}; the limit is {MAX_BODY:,}", hint=hint)
    return payload


def load(data: bytes, expected: Any, name: str) -> Any:
    """The body as the expected type; None: plain data. `name` is the one that `dump` gave. SerializationError."""
    if expected is None or isinstance(expected, TypeVar) or expected in (Any, object):
        expected = KNOWN.get(name, Any)
    else:
        expected = _meant(expected, name)
    try:
        return _decoder(expected).decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, NameError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SerializationError(
            f"the body ({len(data):,} bytes) is not {_article(_shown(expected))}: {reason}",
            hint="the stored bytes are unchanged: decode them as the type that was sent",
        ) from error


def check_decodable(expected: Any) -> Any:
    """The type, if bodies can be decoded as it. Raises InvalidParameterError."""
    members = _members(expected)
    try:
        for member in members or (expected,):
            if member is not None and not isinstance(member, TypeVar):
                _decoder(member)
                _refuse_unknown(member)
    except (TypeError, ValueError, NameError, RecursionError) as error:
        raise InvalidParameterError(
            f"{_shown(expected)} cannot be read from JSON: {error}",
            field="body_type",
            hint="use a dataclass, msgspec Struct, attrs class, pydantic model, or what JSON can say",
        ) from error
    return expected


def _refuse_unknown(expected: Any) -> None:
    """A class that cannot be constructed from JSON: the decoder would only refuse the first body."""
    found = msgspec.inspect.type_info(expected)
    if isinstance(found, msgspec.inspect.CustomType) and not hasattr(found.cls, "model_validate_json"):
        raise TypeError("it is a class without declared fields")


def _fits(kind: type, expected: Any) -> bool:
    """Plain data may be anything."""
    if expected is None or kind in PLAIN or isinstance(expected, TypeVar) or expected in (Any, object):
        return True
    name = _name(kind)
    return name in KNOWN or any(_is_called(member, name) for member in _members(expected) or (expected,))


def _meant(expected: Any, name: str) -> Any:
    """The member of a union that has the name of the body's class: members need no distinct fields."""
    if not name:
        return expected
    members = _members(expected)
    for member in members:
        if _is_called(member, name):
            return member
    if members or name in KNOWN or _is_called(expected, name):
        # A member that has no name of its own, as list[int], may still be what it is.
        if members and name not in KNOWN and all(_named(member) for member in members):
            raise _another(expected, name)
        return expected
    if not _named(expected):
        return expected
    raise _another(expected, name)


def _another(expected: Any, name: str) -> SerializationError:
    hint = "expect the type that is sent, or both: body_type=One | Other"
    return SerializationError(f"the body was sent as {name}, and {_shown(expected)} is expected here", hint=hint)


def _members(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else ()


def _is_called(expected: Any, name: str) -> bool:
    kind = get_origin(expected) or expected
    # A generic pydantic model has its arguments in its name; all others do not know them.
    called, name = (text.partition("[")[0] for text in (getattr(kind, "__qualname__", ""), name))
    return bool(called) and (name == called or name.endswith(f".{called}"))


def _named(expected: Any) -> bool:
    """Whether a body of it is stored with its name."""
    kind = get_origin(expected) or expected
    return isinstance(kind, type) and kind not in PLAIN and kind.__module__ != "collections.abc"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _shown(expected: Any) -> str:
    kind = get_origin(expected)
    if kind is None:
        return getattr(expected, "__qualname__", None) or str(expected)
    arguments = ", ".join(_shown(argument) for argument in get_args(expected))
    if kind in (Union, types.UnionType):
        return arguments.replace(", ", " | ")
    return f"{getattr(kind, '__qualname__', str(kind))}[{arguments}]"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


@lru_cache(maxsize=256)
def _decoder(expected: Any) -> msgspec.json.Decoder[Any]:
    with codec.making:
        return msgspec.json.Decoder(expected, dec_hook=_foreign)


def _foreign(kind: type, value: object) -> Any:
    """Pydantic models by duck typing, at any depth. As JSON, so that strict models take texts for times, too."""
    read: Callable[[bytes], Any] | None = getattr(kind, "model_validate_json", None)
    if read is None:
        raise TypeError(f"objects of type {kind.__name__} cannot be read from JSON")
    return read(msgspec.json.encode(value))
