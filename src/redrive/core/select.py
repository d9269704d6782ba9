"""Which items are meant: a small tree that every store can compile (`core.filters` is the text people type for it).

`matches` is the one evaluator: where a store answers by an index, it must answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Literal, assert_never

from msgspec import Struct

from redrive.core.item import Instant, Item, Letter, Priority
from redrive.core.payloads import Reading, Scalar, equal, is_number, spelled
from redrive.core.states import Disposition, State
from redrive.core.terms import HOLDS, is_parked
from redrive.errors import ConfigError

Op = Literal["=", "<", "<=", ">", ">=", "glob"]


class Ids(Struct, frozen=True, tag=True):
    """Exactly these items, by full id."""

    ids: tuple[str, ...]


class Match(Struct, frozen=True, tag=True):
    """One field against one value. `glob`: `*` stands for any run of characters and is the only wildcard; alone, it
    matches every value but the empty one.

    `age`, `died` and `due` compare a duration in milliseconds with the time since enqueue, since death and since it was
    due; `enqueued_at`, `died_at` and `due_at` an instant. `tag` is any of an item's tags.
    """

    field: str
    op: Op
    value: str | int


class Text(Struct, frozen=True, tag=True):
    """A text anywhere in the type or the text of a letter's error or in the payload, in capitals or not."""

    value: str


class Path(Struct, frozen=True, tag=True):
    """What lies at a path into the payload, against a value: numbers in their order, texts in theirs.

    `=` also takes a text that is spelled as the number, or as true, false or null. What is absent matches nothing.
    """

    path: tuple[str, ...]
    op: Op
    value: Scalar


class And(Struct, frozen=True, tag=True):
    parts: tuple[Selection, ...]


class Or(Struct, frozen=True, tag=True):
    parts: tuple[Selection, ...]


class Not(Struct, frozen=True, tag=True):
    part: Selection


Selection = Ids | Match | Text | Path | And | Or | Not

EVERYTHING = And(())

Kind = Literal["text", "word", "integer", "duration", "instant"]

FIELDS: dict[str, Kind] = {
    "id": "text",
    "queue": "text",
    "state": "word",
    "disposition": "word",
    "cause": "text",
    "error": "text",
    "category": "text",
    "rule": "text",
    "reason": "text",
    "attempts": "integer",
    "errors": "integer",
    "crashes": "integer",
    "deliveries": "integer",
    "replays": "integer",
    "age": "duration",
    "died": "duration",
    "route": "text",
    "priority": "word",
    "hold": "word",
    "key": "text",
    "tag": "text",
    "worker": "text",
    "text": "text",
    "due": "duration",
    "enqueued_at": "instant",
    "died_at": "instant",
    "due_at": "instant",
    "kind": "text",
    "release": "text",
    "reserved": "text",
}
MEANING: dict[str, str] = {
    "id": "the item's id",
    "queue": "its queue",
    "state": "its state",
    "disposition": "where the letter lies",
    "cause": "the group of letters that failed the same way",
    "error": "the class of the error, with or without its module",
    "category": "the kind of failure: timeout, connection, data, …",
    "rule": "the rule that judged the failure",
    "reason": "why it died: max_attempts, rule, handler, …",
    "attempts": "attempts since enqueue or the last replay",
    "errors": "errors since enqueue or the last replay",
    "crashes": "crashes since enqueue or the last replay",
    "deliveries": "times it was ever given to a worker",
    "replays": "times it was replayed",
    "age": "time since it was enqueued",
    "died": "time since it died",
    "route": "the label that its policy gave the letter",
    "priority": "its priority",
    "hold": "what a ready item waits for, besides its time",
    "key": "its order key",
    "tag": "a label that people gave it, any of them",
    "worker": "the worker that has it, or had it last",
    "text": "the text of the error",
    "due": "time since it was due",
    "enqueued_at": "when it was enqueued",
    "died_at": "when it died",
    "due_at": "when it is or was due",
    "kind": "which handler of its queue it is for",
    "release": "the release of the program that enqueued it",
    "reserved": "the replay that the letter is reserved for",
}
WORDS: dict[str, tuple[str, ...]] = {
    "state": tuple(State),
    "disposition": tuple(Disposition),
    "priority": tuple(Priority),
    "hold": HOLDS[1:],
}
LETTER_FIELDS = frozenset(
    {"disposition", "cause", "error", "category", "rule", "reason", "died", "route", "text", "died_at", "reserved"}
)
"""Only a letter has these; on any other item a comparison with them is false."""

_READY = Match("state", "=", State.READY)
_HELD = Or(tuple([Match("hold", "=", hold) for hold in HOLDS[1:]]))
DERIVED: dict[str, Selection] = {
    "running": Match("state", "=", State.LEASED),
    "blocked": And((_READY, Or(tuple([Match("hold", "=", hold) for hold in HOLDS[1:] if hold != "parked"])))),
    "parked": And((_READY, Match("hold", "=", "parked"), Not(Match("hold", "=", "order")))),
    "retrying": And((_READY, Not(_HELD), Match("attempts", ">", 0))),
    "scheduled": And((_READY, Not(_HELD), Match("attempts", "=", 0), Match("due", "<", 0))),
}
"""What people also call a state: each is one of the states with something else. A ready item is at most one of them."""


def matches(selection: Selection, item: Item, now: Instant) -> bool:
    return _matches(selection, item, now, Reading(item))


def _matches(selection: Selection, item: Item, now: Instant, reading: Reading) -> bool:
    match selection:
        case Match(field, op, value):
            return _compare(field, op, value, item, now)
        case And(parts):
            # Asked of every candidate of a search: a generator would take longer than what it goes through.
            for part in parts:  # noqa: SIM110
                if not _matches(part, item, now, reading):
                    return False
            return True
        case Or(parts):
            return any(_matches(part, item, now, reading) for part in parts)
        case Not(part):
            return not _matches(part, item, now, reading)
        case Ids(ids):
            return item.id in ids
        case Text(value):
            return _mentions(item.letter, value.casefold()) or reading.contains(value.casefold())
        case Path(path, op, value):
            return _compare_payload(reading.at(path), op, value)
        case _:
            assert_never(selection)


def _mentions(letter: Letter | None, folded: str) -> bool:
    if letter is None:
        return False
    return folded in letter.failure.type.casefold() or folded in letter.failure.text.casefold()


def _compare_payload(actual: object, op: Op, value: Scalar) -> bool:
    if op == "=":
        return equal(actual, value) or (isinstance(actual, str) and actual == _bare(value))
    if isinstance(actual, str) and isinstance(value, str):
        return glob_match(value, actual) if op == "glob" else _ordered(actual, op, value)
    return is_number(actual) and is_number(value) and _ordered(actual, op, value)


def _bare(value: Scalar) -> str | None:
    return None if isinstance(value, str) else spelled(value)


def glob_match(pattern: str, text: str) -> bool:
    """`*` is any run of characters. Time grows with the length of both, never with their product."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def conjuncts(selection: Selection) -> Iterator[Selection]:
    """What must all hold for it to hold, however it is nested."""
    if isinstance(selection, And):
        for part in selection.parts:
            yield from conjuncts(part)
    else:
        yield selection


def pins_dead(selection: Selection) -> bool:
    """True when nothing but a dead letter can match. False may also mean that it is not plain to see."""
    match selection:
        case Match(field, op, value):
            return field in LETTER_FIELDS or (field == "state" and op == "=" and value == State.DEAD)
        case And(parts):
            return any(pins_dead(part) for part in parts)
        case Or(parts):
            return bool(parts) and all(pins_dead(part) for part in parts)
        case Not() | Ids() | Text() | Path():
            return False
        case _:
            assert_never(selection)


def fields_of(selection: Selection) -> frozenset[str]:
    """The names of the fields that the selection looks at."""
    if isinstance(selection, Match):
        return frozenset({selection.field})
    if isinstance(selection, Not):
        return fields_of(selection.part)
    if isinstance(selection, And | Or):
        return frozenset().union(*(fields_of(part) for part in selection.parts))
    return frozenset()


def reads_payload(selection: Selection) -> bool:
    match selection:
        case Text() | Path():
            return True
        case And(parts) | Or(parts):
            return any(reads_payload(part) for part in parts)
        case Not(part):
            return reads_payload(part)
        case _:
            return False


def may_match_queue(selection: Selection, queue: str) -> bool:
    """False when no item of that queue can match. True may also mean that it is not plain to see."""
    match selection:
        case Match("queue", op, value):
            return isinstance(value, str) and fits(op, value, queue)
        case Not(Match("queue", op, value)):
            return not (isinstance(value, str) and fits(op, value, queue))
        case And(parts):
            return all(may_match_queue(part, queue) for part in parts)
        case Or(parts):
            return any(may_match_queue(part, queue) for part in parts)
        case _:
            return True


def ids_of(selection: Selection) -> tuple[str, ...] | None:
    """All ids that can match, in their order and each once, or None when the selection does not name them.

    Being named is not yet matching: the rest of the selection must still be asked.
    """
    match selection:
        case Ids(ids):
            return tuple(dict.fromkeys(ids))
        case Match(field, op, value):
            whole = op == "=" or (op == "glob" and "*" not in str(value))
            return (str(value),) if field == "id" and whole else None
        case And(parts):
            return next((named for part in parts if (named := ids_of(part)) is not None), None)
        case Or(parts):
            lists = [named for part in parts if (named := ids_of(part)) is not None]
            return tuple(dict.fromkeys(chain.from_iterable(lists))) if len(lists) == len(parts) else None
        case Not() | Text() | Path():
            return None
        case _:
            assert_never(selection)


_OF_ITEM: dict[str, Callable[[Item], str | int | None]] = {
    "id": lambda item: item.id,
    "queue": lambda item: item.queue,
    "state": lambda item: item.state,
    "attempts": lambda item: item.attempt,
    "errors": lambda item: item.errors,
    "crashes": lambda item: item.crashes,
    "deliveries": lambda item: item.deliveries,
    "replays": lambda item: item.replays,
    "age": lambda item: item.enqueued_at,
    "enqueued_at": lambda item: item.enqueued_at,
    "due": lambda item: item.due_at,
    "due_at": lambda item: item.due_at,
    "priority": lambda item: item.priority,
    "worker": lambda item: item.worker,
    "kind": lambda item: item.kind,
    "release": lambda item: item.release,
    "key": lambda item: None if item.terms is None else item.terms.order_key or None,
}
_OF_LETTER: dict[str, Callable[[Letter], str | int]] = {
    "disposition": lambda letter: letter.disposition,
    "cause": lambda letter: letter.failure.cause,
    "error": lambda letter: letter.failure.type,
    "category": lambda letter: letter.failure.category,
    "rule": lambda letter: letter.failure.rule,
    "reason": lambda letter: letter.reason,
    "died": lambda letter: letter.died_at,
    "died_at": lambda letter: letter.died_at,
    "route": lambda letter: letter.route,
    "reserved": lambda letter: letter.reserved,
    "text": lambda letter: letter.failure.text,
}
_SEVERAL: dict[str, Callable[[Item], tuple[str, ...]]] = {
    "tag": lambda item: item.tags,
    "hold": lambda item: _holds(item.hold),
}
"""Fields of which an item has any number of values: one that fits is enough."""


def _holds(hold: str) -> tuple[str, ...]:
    """An item behind a dead head that parks still waits for its turn. The label of a parked item is not a hold."""
    words = tuple(hold.split(":")) if hold else ()
    return words[:1] if is_parked(hold) and words[1] != "order" else words


def _compare(field: str, op: Op, value: str | int, item: Item, now: Instant) -> bool:
    if field in _SEVERAL:
        return isinstance(value, str) and any(fits(op, value, one) for one in _SEVERAL[field](item))
    actual = _read(field, item)
    if isinstance(actual, str):
        if not isinstance(value, str):
            return False
        # People know an error by its class, not by the module it came from.
        return fits(op, value, actual) or (field == "error" and fits(op, value, actual.rpartition(".")[2]))
    if actual is None or not isinstance(value, int) or op == "glob":
        return False
    return _ordered(now - actual if FIELDS[field] == "duration" else actual, op, value)


def fits(op: Op, value: str, actual: str) -> bool:
    """A text field against one value. A field that is empty has no value, so no pattern with a `*` fits it."""
    if op == "glob" and "*" in value:
        return bool(actual) and glob_match(value, actual)
    return op in {"=", "glob"} and value == actual


def any_value(pattern: str) -> bool:
    """Whether a pattern with a `*` fits every text but the empty one."""
    return not pattern.strip("*")


def _read(field: str, item: Item) -> str | int | None:
    if field in _OF_ITEM:
        return _OF_ITEM[field](item)
    if field in _OF_LETTER:
        return None if item.letter is None else _OF_LETTER[field](item.letter)
    # The parser makes no such match; a caller or another release over a wire may.
    raise ConfigError(f"there is no field {field!r}", field="filter", hint=available_fields())


def _ordered(actual: Any, op: Op, value: Any) -> bool:
    """Of two numbers, or two texts."""
    match op:
        case "=":
            return bool(actual == value)
        case "<":
            return bool(actual < value)
        case "<=":
            return bool(actual <= value)
        case ">":
            return bool(actual > value)
        case ">=":
            return bool(actual >= value)
        case "glob":
            return False
        case _:
            assert_never(op)


def available_fields() -> str:
    return f"fields are {', '.join(FIELDS)}, and payload.path"
