"""The only place that encodes: the verbs' values for stores and wires, and the users' payloads and results.

Internal values are JSON (bytes as base64), so that what lies in a database can be read by people. Payloads that are
bytes go in and out verbatim; everything else becomes JSON that says what the value said, or is refused.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

from redrive.errors import ConfigError, PayloadNotSerialisable, PayloadTooLarge, PayloadUndecodable, StoreCorrupt

T = TypeVar("T")

_ACCEPTED = (
    "use what JSON can say (keys are texts or numbers), datetimes, dataclasses, msgspec, attrs or pydantic objects"
)
_TOO_LARGE = {
    "payload": "keep it elsewhere and pass a reference to it, or raise the limit with Redrive(max_payload=...)",
    "result": "keep it elsewhere and return a reference to it, or raise the limit with handler(max_result=...)",
}
_DEEPEST_PATH = 100
_ZEROS = bytes.maketrans(b"123456789", b"000000000")

_encoder = msgspec.json.Encoder()

making = threading.RLock()
"""Held while msgspec learns a type. It fills in what it knows where other threads see it: one that used the same type
meanwhile would crash the process. No fork comes in between, or the child would have a type that is half known.
"""
os.register_at_fork(before=making.acquire, after_in_parent=making.release, after_in_child=making.release)


def encode(value: object) -> bytes:
    """A value of the core as bytes."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"a {type(value).__name__} cannot be stored: {error}") from error


@overload
def decode(data: bytes, type: type[T]) -> T: ...
@overload
def decode(data: bytes, type: Any) -> Any: ...
def decode(data: bytes, type: Any) -> Any:
    """The inverse of `encode`; `type` may also be a union. Bytes that are no such value raise StoreCorrupt."""
    try:
        return _decoder(type).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        name = getattr(type, "__name__", str(type))
        raise StoreCorrupt(
            f"stored bytes are not a {name}: {error}", hint="the data was damaged or written by another program"
        ) from error


@lru_cache(maxsize=128)
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    with making:
        return msgspec.json.Decoder(type)


def dump_payload(value: object, *, limit: int, queue: str = "") -> bytes:
    """A payload as bytes: bytes verbatim, everything else as JSON. `limit` is in bytes; `queue` is for the error."""
    return _dump(value, limit, "payload", queue)


def dump_result(value: object, *, limit: int) -> bytes | None:
    """What a handler returned, as `dump_payload` would write it; None stays None."""
    return None if value is None else _dump(value, limit, "result")


def load_payload(data: bytes) -> Any:
    """The JSON value of a payload."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise PayloadUndecodable(
            f"the payload ({len(data):,} bytes) is not JSON: {reason}",
            hint="a handler whose parameter is `item: Item` gets the bytes as they are",
        ) from error


def _dump(value: object, limit: int, word: str, queue: str = "") -> bytes:
    data = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _to_json(value, word)
    if len(data) > limit:
        where = f" for queue {queue!r}" if queue else ""
        said = f"the {word}{where} has {len(data):,} bytes; the limit is {limit:,}"
        raise PayloadTooLarge(said, hint=_TOO_LARGE[word])
    return data


def _to_json(value: object, word: str) -> bytes:
    try:
        data = msgspec.json.encode(value, enc_hook=_foreign)
    except RecursionError:
        raise PayloadNotSerialisable(f"the {word} is nested too deeply, or contains itself", hint=_ACCEPTED) from None
    except Exception as error:
        # A user's own model may raise anything while it is read.
        raise _refused(value, word, error) from error
    # A value must not change in silence: the encoder writes null for NaN and infinity, and 1 and "1" as the same key.
    if (b"null" in data or b'0":' in data.translate(_ZEROS)) and not _comes_back(value, data):
        _refuse_changes(value, word)
    return data


def _comes_back(value: object, data: bytes) -> bool:
    """True for nearly all values, and quickly; False says only that it has to be looked at."""
    try:
        return bool(msgspec.json.decode(data) == value)
    except Exception:  # noqa: BLE001 - a user's own class may raise anything when it is compared
        return False


def _foreign(value: Any) -> Any:
    """Pydantic models by duck typing, at any depth, without importing pydantic; and texts and numbers of a subclass."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if _is_model(value):
        return msgspec.Raw(value.model_dump_json().encode())
    raise TypeError(f"objects of type {type(value).__name__} are not JSON")


def _is_model(value: object) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "model_dump_json", None))


def _refused(value: object, word: str, error: Exception) -> PayloadNotSerialisable:
    path = _blame(value)
    reason = "the text has half characters (lone surrogates)" if isinstance(error, UnicodeError) else str(error)
    return PayloadNotSerialisable(f"{word}{path} cannot be written as JSON: {reason}", hint=_ACCEPTED)


def _fails_alone(value: object) -> bool:
    try:
        msgspec.json.encode(value, enc_hook=_foreign)
    except Exception:  # noqa: BLE001 - whatever it raises, this is the part that cannot be written
        return True
    return False


def _blame(value: object) -> str:
    """The path of the innermost part that cannot be written; the empty path is the value itself."""
    path = ""
    for _ in range(_DEEPEST_PATH):
        guilty = next(((child, step) for child, step in _children(value) if _fails_alone(child)), None)
        if guilty is None:
            break
        value, path = guilty[0], path + guilty[1]
    return path


def _refuse_changes(value: object, word: str) -> None:
    """Raises for a float that is not finite, and for keys that are written alike; with the path."""
    stack: list[tuple[object, str]] = [(value, "")]
    seen: set[int] = set()
    while stack:
        part, path = stack.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise PayloadNotSerialisable(
                f"{word}{path} is NaN or infinite, which JSON cannot say", hint="pass None or a text instead"
            )
        # A model may hide a circle in a field that it does not write.
        if id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, Mapping) and _written_alike(part):
                raise PayloadNotSerialisable(
                    f"{word}{path} has keys that are different here and the same in JSON, as 1 and '1' are",
                    hint="use texts as keys",
                )
            stack.extend((child, path + step) for child, step in _children(part))


def _written_alike(keys: Mapping[Any, Any]) -> bool:
    try:
        return len({msgspec.json.encode({key: 0}, enc_hook=_foreign) for key in keys}) < len(keys)
    except Exception:  # noqa: BLE001 - keys of a field that its model does not write
        return False


def _children(value: object) -> Iterator[tuple[object, str]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            shown = repr(key) if isinstance(key, str | int | float) else f"<{type(key).__name__}>"
            yield child, f"[{shown}]"
            yield key, f" key {shown}"
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((child, f"[{index}]") for index, child in enumerate(value))
    else:
        yield from ((getattr(value, name, None), f".{name}") for name in _field_names(value))


def _field_names(value: object) -> Iterable[str]:
    if isinstance(value, type):
        return ()
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if _is_model(value):
        return list(getattr(type(value), "model_fields", ()))
    return [field.name for field in getattr(type(value), "__attrs_attrs__", ())]
