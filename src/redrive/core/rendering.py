"""From a selection back to the text of a filter, which `core.filters.parse` reads as a selection of the same items."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import assert_never

from redrive.core import durations, instants
from redrive.core.payloads import Scalar, read_scalar, spelled
from redrive.core.select import FIELDS, And, Ids, Match, Not, Op, Or, Path, Selection, Text

ROOT = "payload"
"""What a path into the payload begins with."""
RESERVED = frozenset({"and", "or", "not"})

_PLAIN = re.compile(r"[^\s():=<>\"',*]+")
_SPECIAL = re.compile(r"[\s():=<>\"',\\]")
_STEP = re.compile(r"[^\s():=<>\"',.\\]+")
_BARE = re.compile(r"\w[\w@./+-]*")
_NOTHING = "(state:ready state:done)"


def render(selection: Selection) -> str:
    """A text that `parse` reads as a selection of the same items."""
    if isinstance(selection, And):
        return " ".join(_render(part) for part in selection.parts)
    text = _render(selection)
    # At the top an alternative stands without its parentheses.
    return text[1:-1] if isinstance(selection, Or) and text[0] == "(" and text != _NOTHING else text


def _render(selection: Selection) -> str:
    match selection:
        case Match(field, op, value):
            return f"{field}{_sign(op)}{_value(field, op, value)}"
        case Text(value):
            return _text(value)
        case Path(path, op, value):
            return f"{'.'.join([ROOT, *[_step(step) for step in path]])}{_sign(op)}{_scalar(op, value)}"
        case Ids(ids):
            return "id:" + ",".join(_value("id", "=", one) for one in ids) if ids else _NOTHING
        case Not(part):
            return f"-{_render(part)}"
        case And(parts):
            return f"({' '.join(_render(part) for part in parts)})" if parts else f"-{_NOTHING}"
        case Or(parts):
            return _any_of(parts) or (f"({' OR '.join(_render(part) for part in parts)})" if parts else _NOTHING)
        case _:
            assert_never(selection)


def _sign(op: Op) -> str:
    return ":" if op in ("=", "glob") else op


def _any_of(parts: Sequence[Selection]) -> str:
    """`field:a,b` where all the parts are about one field, else nothing."""
    same = [part for part in parts if isinstance(part, Match) and part.op in ("=", "glob")]
    if len(same) < len(parts) or len({part.field for part in same}) != 1:
        return ""
    return f"{same[0].field}:" + ",".join(_value(part.field, part.op, part.value) for part in same)


def _value(field: str, op: Op, value: str | int) -> str:
    if isinstance(value, str):
        return _quoted_if_needed(value, op)
    match FIELDS[field]:
        case "duration":
            return durations.format(value)
        case "instant":
            return instants.format(value)
        case _:
            return str(value)


def _quoted_if_needed(value: str, op: Op) -> str:
    if op == "glob" and "*" in value:
        # In quotes its * would be no wildcard.
        return _SPECIAL.sub(r"\\\g<0>", value)
    escaped = value.replace("\\", "\\\\")
    return escaped if _PLAIN.fullmatch(escaped) else _quoted(value)


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _scalar(op: Op, value: Scalar) -> str:
    if not isinstance(value, str):
        return spelled(value)
    # In quotes, or it would come back as a number or a truth value.
    return _quoted_if_needed(value, op) if read_scalar(value) == value else _quoted(value)


def _step(step: str) -> str:
    return step if _STEP.fullmatch(step) else _quoted(step)


def _text(value: str) -> str:
    if not value:
        # It is in everything.
        return f"-{_NOTHING}"
    is_name = value in FIELDS or value.lower() in RESERVED or value.partition(".")[0] == ROOT
    return value if _BARE.fullmatch(value) and not is_name else _quoted(value)
