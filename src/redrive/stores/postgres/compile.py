"""From a Selection to a condition in SQL with bound values. Must agree with core.select.matches on every item.

Where `matches` says False for a field that only letters have, SQL says NULL; so a negation takes whatever is not true.
Names of failures are compared as their columns hold them (rows.shown, rows.indexed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from redrive.core import select
from redrive.core.item import Instant
from redrive.core.select import And, Ids, Match, Not, Op, Or, Path, Selection, Text, fits
from redrive.core.terms import HOLDS
from redrive.errors import ConfigError
from redrive.stores import residue
from redrive.stores.postgres.rows import PARKED, indexed, short, shown

Value = str | int | None | list[str] | list[int]


class Compiled(NamedTuple):
    """`text` has a placeholder for each of `values`; {schema} is still to be filled in."""

    text: str
    values: tuple[Value, ...] = ()


_FALSE = Compiled("false")
_TRUE = Compiled("true")
_INT64 = (-(2**63), 2**63 - 1)
_SPAN = 2**62
"""No two instants are further apart, and the difference to any instant still fits."""
_COLUMNS = {
    "id": "i.id",
    "queue": "c.queue",
    "state": "c.state",
    "disposition": "l.disposition",
    "cause": "l.cause",
    "error": "l.error",
    "category": "l.category",
    "rule": "l.rule",
    "reason": "l.reason",
    "attempts": "c.attempt",
    "errors": "c.errors",
    "crashes": "c.crashes",
    "deliveries": "c.deliveries",
    "replays": "c.replays",
    "age": "i.enqueued_at",
    "died": "l.died_at",
    "route": "l.route",
    "reserved": "l.reserved",
    "priority": "case c.priority when 1 then 'high' when 2 then 'low' else 'normal' end",
    "hold": "c.hold",
    "key": "nullif(t.order_key, '')",
    "tag": "c.seq",
    "worker": "c.worker",
    "due": "c.due_at",
    "due_at": "c.due_at",
    "enqueued_at": "i.enqueued_at",
    "died_at": "l.died_at",
    "kind": "c.kind",
    "release": "i.release",
}
_OF_LETTERS = {**_COLUMNS, "queue": "l.queue", "state": "'dead'", "tag": "l.seq"}
_PARKED = (
    "(select n.status = {parked}"
    " from (select * from {schema}.terms p where p.seq = c.seq and p.order_key <> '' offset 0) p"
    " cross join lateral (select * from {schema}.line n where n.queue = c.queue and n.key = p.order_key offset 0) n)"
).replace("{parked}", str(PARKED))
"""Of one with a hold: whatever else it waits for, people see that its line is parked (rows.py)."""
_TAGGED = "(select true from {schema}.tag g where g.seq = {seq} and g.tag = %b)"
"""Asked of each on the way, here and above: an `exists` may be turned into a join that reads all there are."""
_TAGGED_LIKE = (
    "(select true from ("
    "select g.tag from {schema}.tag g where g.seq >= {seq} and g.seq <= {seq} order by g.seq offset 0"
    ") g where g.tag like %b limit 1)"
)
"""By a range of one number, in its order: only one index has that, and none is tempted by how the tags begin."""
_NAMED = "{seq} = any(array(select n.seq from {schema}.item n where n.id = any(%b::text[])))"
"""Looked up once, and then found by their numbers."""
_INDEXED = frozenset({"cause", "category", "route"})
_ALIAS = re.compile(r"\b([a-z])\.")
_NUMBERS = [number for number, word in enumerate(HOLDS) if word]
_FLIPPED: dict[Op, Op] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "glob": "glob"}


def tables(selection: Selection, *, letters: bool) -> frozenset[str]:
    """The aliases of the tables that the condition reads."""
    columns = _OF_LETTERS if letters else _COLUMNS
    return frozenset(alias for field in select.fields_of(selection) for alias in _ALIAS.findall(columns.get(field, "")))


def compiled(selection: Selection, pinned: Instant | None, *, letters: bool) -> Compiled:
    """`letters`: the rows are letters, so the queue is read from there and the state is known."""
    match selection:
        case And(parts):
            return _joined(parts, " and ", _TRUE, pinned, letters)
        case Or(parts):
            return _joined(parts, " or ", _FALSE, pinned, letters)
        case Not(part):
            text, values = compiled(part, pinned, letters=letters)
            return Compiled(f"({text}) is not true", values)
        case Ids(ids):
            known = storable(ids)
            return Compiled(_NAMED.replace("{seq}", "l.seq" if letters else "c.seq"), (known,)) if known else _FALSE
        case Match():
            return _match(selection, pinned, letters)
        case Text() | Path():
            raise residue.refused()
        case _:
            assert_never(selection)


def _joined(
    parts: tuple[Selection, ...],
    word: str,
    empty: Compiled,
    pinned: Instant | None,
    letters: bool,  # noqa: FBT001 - handed through
) -> Compiled:
    if not parts:
        return empty
    done = [compiled(part, pinned, letters=letters) for part in parts]
    text = "(" + word.join(one.text for one in done) + ")"
    return Compiled(text, tuple(value for one in done for value in one.values))


def _match(asked: Match, pinned: Instant | None, letters: bool) -> Compiled:  # noqa: FBT001 - handed through
    field, op, value = asked.field, asked.op, asked.value
    kind = select.FIELDS.get(field)
    if kind is None:
        raise ConfigError(f"there is no field {field!r}", field="filter", hint=select.available_fields())
    if field in residue.UNCOMPILED:
        raise residue.refused()
    column = (_OF_LETTERS if letters else _COLUMNS)[field]
    if kind in {"text", "word"}:
        return _text(field, column, op, value) if isinstance(value, str) and _storable(value) else _FALSE
    if not isinstance(value, int) or op == "glob":
        return _FALSE
    if kind == "duration":
        if op == "=" and abs(value) > _SPAN:
            return _FALSE
        # The subquery is run once, and an index can serve the comparison.
        since = "(select {schema}.now_ms(%b::bigint)) - %b::bigint"
        return Compiled(f"{column} {_FLIPPED[op]} {since}", (pinned, max(-_SPAN, min(value, _SPAN))))
    if op == "=" and not _INT64[0] <= value <= _INT64[1]:
        return _FALSE
    return Compiled(f"{column} {op} %b::bigint", (max(_INT64[0], min(value, _INT64[1])),))


def _text(field: str, column: str, op: Op, value: str) -> Compiled:
    if field == "hold":
        return _hold(op, value)
    if op == "glob" and "*" in value:
        return _glob(field, column, value)
    if op not in {"=", "glob"}:
        return _FALSE
    if field == "error":
        # The short name has no dot: one without is only ever the short one, one with only ever the whole.
        if "." in value:
            return Compiled("(l.error_short = %b and l.error = %b)", (indexed(short(value)), shown(value)))
        return Compiled("l.error_short = %b", (indexed(value),))
    if field == "route" and value:
        # The index has only letters that have a route, and must be seen to serve.
        return Compiled("(l.route = %b and l.route <> '')", (indexed(value),))
    if field == "reserved" and value:
        return Compiled("(l.reserved = %b and l.reserved <> '')", (shown(value),))
    if field in select.LETTER_FIELDS:
        return Compiled(f"{column} = %b", (indexed(value) if field in _INDEXED else shown(value),))
    if "\0" in value:
        return _FALSE
    return Compiled(_tagged(column, "=") if field == "tag" else f"{column} = %b", (value,))


def _glob(field: str, column: str, pattern: str) -> Compiled:
    if field not in select.LETTER_FIELDS and "\0" in pattern:
        return _FALSE
    if select.any_value(pattern) and field != "tag":
        return Compiled(f"{column} <> ''")
    like = shown(pattern).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    if field == "error":
        return Compiled("(l.error like %b or l.error_short like %b)", (like, like))
    return Compiled(_tagged(column, "like") if field == "tag" else f"{column} like %b", (like,))


def _tagged(seq: str, like: str) -> str:
    return (_TAGGED if like == "=" else _TAGGED_LIKE).replace("{seq}", seq)


def _hold(op: Op, value: str) -> Compiled:
    """Who is behind a dead head that parks has the holds `parked` and `order` besides the one that is kept."""
    kept = [str(number) for number in _kept(op, value)]
    parked = _fits_parked(op, value)
    if not kept:
        return Compiled(f"(c.hold not in (0, 4) and {_PARKED})") if parked else _FALSE
    listed = f"c.hold in ({', '.join(kept)})"
    return Compiled(f"({listed} or (c.hold not in (0, 4) and {_PARKED}))" if parked else listed)


def holds_of(op: Op, value: str) -> list[int]:
    """The numbers that the hold of whoever matches may have."""
    return _NUMBERS if _fits_parked(op, value) else _kept(op, value)


def _kept(op: Op, value: str) -> list[int]:
    return [number for number in _NUMBERS if fits(op, value, HOLDS[number])]


def _fits_parked(op: Op, value: str) -> bool:
    return fits(op, value, "parked") or fits(op, value, "order")


def storable(ids: Iterable[str]) -> list[str]:
    """Those that can be sent, each once; the others are nobody's."""
    return list(dict.fromkeys(one for one in ids if "\0" not in one and _storable(one)))


def _storable(text: str) -> bool:
    """Half a character is in no item."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
