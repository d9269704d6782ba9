"""From a Selection to a condition in SQL with bound values. Must agree with core.select.matches on every item.

Where `matches` says False for a field that only letters have, SQL says NULL; so a negation first makes NULL false.
"""

from __future__ import annotations

from typing import assert_never

from redrive.core import select
from redrive.core.item import Instant
from redrive.core.lanes import PRIORITIES
from redrive.core.select import And, Ids, Match, Not, Op, Or, Path, Selection, Text, any_value, fits
from redrive.core.terms import HOLDS
from redrive.errors import ConfigError
from redrive.stores import residue
from redrive.stores.sqlite.rows import short

Value = str | int
Compiled = tuple[str, tuple[Value, ...]]

GLOB = "redrive_glob"
"""core.select.glob_match as an SQL function: for what SQLite's own GLOB gets wrong."""

MOST_IDS = 30_000
"""SQLite 3.35 binds 32,766 values."""

_FALSE: Compiled = ("0", ())
_TRUE: Compiled = ("1", ())
_INT64 = (-(2**63), 2**63 - 1)
_COLUMNS = {
    "id": "i.id",
    "queue": "i.queue",
    "state": "i.state",
    "disposition": "l.disposition",
    "cause": "l.cause",
    "error": "l.error",
    "category": "l.category",
    "rule": "l.rule",
    "reason": "l.reason",
    "attempts": "i.attempt",
    "errors": "i.errors",
    "crashes": "i.crashes",
    "deliveries": "i.deliveries",
    "replays": "i.replays",
    "age": "i.enqueued_at",
    "died": "l.died_at",
    "route": "l.route",
    "reserved": "l.reserved",
    "key": "(select nullif(t.order_key, '') from terms t where t.seq = i.seq)",
    "worker": "i.worker",
    "due": "i.due_at",
    "due_at": "i.due_at",
    "enqueued_at": "i.enqueued_at",
    "died_at": "l.died_at",
    "kind": "i.kind",
    "release": "(select p.release from payload p where p.seq = i.seq)",
}
_PARKED = (
    "exists (select 1 from terms t join line n on n.queue = i.queue and n.key = t.order_key"
    " where t.seq = i.seq and n.status = 'parked' and n.head <> i.seq)"
)
"""Of one with a hold: whatever else it waits for, people see that its line is parked (rows.py)."""
_TAGGED = "exists (select 1 from tag g where g.seq = {seq} and {like})"
_FLIPPED: dict[Op, Op] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "glob": "glob"}


def compiled(selection: Selection, now: Instant, *, letters: bool) -> Compiled:
    """`letters`: the rows are letters, so the queue is read from there and the state is known."""
    match selection:
        case And(parts):
            return _joined(parts, " and ", _TRUE, now, letters)
        case Or(parts):
            return _joined(parts, " or ", _FALSE, now, letters)
        case Not(part):
            text, values = compiled(part, now, letters=letters)
            return f"ifnull({text}, 0) = 0", values
        case Ids(ids):
            return _ids(ids)
        case Match(field, op, value):
            return _match(field, op, value, now, letters)
        case Text() | Path():
            raise residue.refused()
        case _:
            assert_never(selection)


def _joined(parts: tuple[Selection, ...], word: str, empty: Compiled, now: Instant, letters: bool) -> Compiled:  # noqa: FBT001
    if not parts:
        return empty
    done = [compiled(part, now, letters=letters) for part in parts]
    return "(" + word.join(text for text, _ in done) + ")", tuple(value for _, values in done for value in values)


def _ids(ids: tuple[str, ...]) -> Compiled:
    known = tuple(dict.fromkeys(one for one in ids if _storable(one)))
    if len(known) > MOST_IDS:
        raise ConfigError(f"at most {MOST_IDS:,} ids at once, not {len(known):,}", field="ids", hint="ask in parts")
    # One value each: SQLite's json_each cuts texts at a NUL and would find somebody else.
    return (f"i.id in ({', '.join('?' * len(known))})", known) if known else _FALSE


def _match(field: str, op: Op, value: Value, now: Instant, letters: bool) -> Compiled:  # noqa: FBT001
    kind = select.FIELDS.get(field)
    if kind is None:
        raise ConfigError(f"there is no field {field!r}", field="filter", hint=select.available_fields())
    if field in residue.UNCOMPILED:
        raise residue.refused()
    if kind in {"text", "word"}:
        return _text(field, op, value, letters) if isinstance(value, str) and _storable(value) else _FALSE
    if not isinstance(value, int) or op == "glob":
        return _FALSE
    if kind == "duration":
        value, op = now - value, _FLIPPED[op]
    if op == "=" and not _INT64[0] <= value <= _INT64[1]:
        return _FALSE
    return f"{_COLUMNS[field]} {op} ?", (max(_INT64[0], min(value, _INT64[1])),)


def _priority(op: Op, value: str) -> Compiled:
    places = [place for place, word in enumerate(PRIORITIES) if fits(op, value, word)]
    return (f"i.priority in ({', '.join(map(str, places))})", ()) if places else _FALSE


def _hold(op: Op, value: str) -> Compiled:
    """Who is behind a dead head that parks has the holds `parked` and `order` besides the one that is kept."""
    kept = [str(place) for place, word in enumerate(HOLDS) if word and fits(op, value, word)]
    parked = fits(op, value, "parked") or fits(op, value, "order")
    if not kept:
        return (f"(i.hold not in (0, 4) and {_PARKED})", ()) if parked else _FALSE
    listed = f"i.hold in ({', '.join(kept)})"
    return (f"({listed} or (i.hold not in (0, 4) and {_PARKED}))" if parked else listed), ()


def _tag(op: Op, value: str, letters: bool) -> Compiled:  # noqa: FBT001
    seq = "l.seq" if letters else "i.seq"
    if op not in {"=", "glob"}:
        return _FALSE
    text, values = ("g.tag = ?", (value,)) if op == "=" else _glob("g.tag", value)
    return _TAGGED.replace("{seq}", seq).replace("{like}", text), values


def _text(field: str, op: Op, value: str, letters: bool) -> Compiled:  # noqa: FBT001
    match field:
        case "priority":
            return _priority(op, value)
        case "hold":
            return _hold(op, value)
        case "tag":
            return _tag(op, value, letters)
        case _:
            return _column(field, op, value, letters)


def _column(field: str, op: Op, value: str, letters: bool) -> Compiled:  # noqa: FBT001
    column = "l.queue" if letters and field == "queue" else _COLUMNS[field]
    if letters and field == "state":
        column = "'dead'"
    if op == "glob":
        whole = _glob(column, value)
        if field != "error":
            return whole
        named = _glob("l.error_short", value)
        return f"({whole[0]} or {named[0]})", whole[1] + named[1]
    if op != "=":
        return _FALSE
    if field == "error":
        # The short name has no dot: one without is only ever the short one, one with only ever the whole.
        if "." in value:
            return "(l.error_short = ? and l.error = ?)", (short(value), value)
        return "l.error_short = ?", (value,)
    if field == "key":
        return "i.seq in (select t.seq from terms t where t.order_key = ? and t.order_key <> '')", (value,)
    if field == "reserved" and value:
        # The index has only letters that are reserved, and must be seen to serve.
        return "(l.reserved = ? and l.reserved <> '')", (value,)
    return f"{column} = ?", (value,)


def _glob(column: str, pattern: str) -> Compiled:
    if "*" not in pattern:
        return f"{column} = ?", (pattern,)
    if any_value(pattern):
        return f"{column} <> ''", ()
    slow = f"{GLOB}(?, {column})"
    # SQLite's GLOB backtracks over every star and stops at a NUL.
    if pattern.count("*") > 3 or len(pattern) > 1000 or "\0" in pattern:
        return slow, (pattern,)
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    return f"case when instr({column}, char(0)) = 0 then {column} glob ? else {slow} end", (escaped, pattern)


def _storable(text: str) -> bool:
    """Half a character is in no item."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
