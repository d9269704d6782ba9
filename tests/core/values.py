"""Hypothesis strategies for the core's values, made from their annotations so that a new field is covered by itself."""

from __future__ import annotations

import functools
import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from redrive.core.item import Failure, Item
from redrive.core.select import FIELDS, WORDS, And, Ids, Match, Not, Or, Path, Selection, Text
from redrive.core.states import State

FAILURE = Failure("app.errors.Refused", "no", "error", "default", "c0ffee000000")

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20)
ORDERS = ("=", "<", "<=", ">", ">=")
NUMBERS = {
    "integer": st.integers(-(10**17), 10**17),
    "duration": st.integers(0, 10**9),
    "instant": st.integers(-62_135_596_800_000, 253_402_300_799_999),
}

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: INTEGERS,
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    float: st.floats(allow_nan=False, allow_infinity=False),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    type(None): st.none(),
}


def an_item(**changes: Any) -> Item:
    blank = Item("i1", "emails", b"{}", seq=1, state=State.LEASED, enqueued_at=0, due_at=0, renewed_at=0)
    return msgspec.structs.replace(blank, **changes)


@functools.cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    if hint == Selection:
        return selections()
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return st.one_of([of(part) for part in get_args(hint)])
    if origin is Literal:
        return st.sampled_from(get_args(hint))
    if origin is tuple and get_args(hint)[-1] is not Ellipsis:
        return st.tuples(*map(of, get_args(hint)))
    if origin is tuple:
        return st.lists(of(get_args(hint)[0]), max_size=3).map(tuple)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: of(hints[name]) for name in hint.__struct_fields__})
    raise TypeError(hint)


def a_match(field: str) -> st.SearchStrategy[Match]:
    kind = FIELDS[field]
    if kind == "text":
        plain = st.builds(Match, st.just(field), st.just("="), TEXTS)
        return plain | st.builds(Match, st.just(field), st.just("glob"), TEXTS.map(lambda text: f"{text}*"))
    if kind == "word":
        return st.builds(Match, st.just(field), st.just("="), st.sampled_from(WORDS[field]))
    return st.builds(Match, st.just(field), st.sampled_from(ORDERS), NUMBERS[kind])


def a_path() -> st.SearchStrategy[Path]:
    path = st.lists(st.sampled_from(["a", "b.c", "0", "", '"', "x y"]) | TEXTS, max_size=3).map(tuple)
    scalars = st.sampled_from(["true", "null", "1.0", "-3", "a*b"]) | TEXTS | st.integers() | _PLAIN[float]
    return (
        st.builds(Path, path, st.sampled_from(ORDERS), scalars)
        | st.builds(Path, path, st.just("="), st.booleans() | st.none())
        | st.builds(Path, path, st.just("glob"), TEXTS.map(lambda text: f"{text}*"))
    )


def selections() -> st.SearchStrategy[Selection]:
    matches = st.sampled_from(sorted(FIELDS)).flatmap(a_match)
    named = st.builds(Ids, st.lists(TEXTS, max_size=3).map(tuple))
    leaf = matches | named | st.builds(Text, st.sampled_from(["queue", "or", "payload.x", "-a", ""]) | TEXTS) | a_path()
    return st.recursive(leaf, _grown, max_leaves=8)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, max_size=3).map(tuple)
    return st.builds(And, parts) | st.builds(Or, parts) | st.builds(Not, inner)
