"""A row with nothing in it: from it a list that is empty still knows the names of its fields."""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct, structs

T = TypeVar("T")


def blank(kind: type[T]) -> T:
    """An instance of a Struct, with the least that its types allow in what has no default."""
    if not issubclass(kind, Struct):
        return kind()
    needed = [field for field in structs.fields(kind) if field.default is field.default_factory is NODEFAULT]
    return kind(**{field.name: _least(field.type) for field in needed})


def _least(kind: Any) -> Any:
    origin, options = get_origin(kind), get_args(kind)
    if origin is Literal:
        return options[0]
    if origin in (Union, UnionType):
        return None if NoneType in options else _least(options[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return blank(origin or kind)
