"""What a test expects of an item: a list of traits, each of which can say what it wants and what an item has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from redrive.core import codec, durations
from redrive.core.classify import type_name
from redrive.core.durations import Duration
from redrive.core.item import Failure, Item
from redrive.core.select import EVERYTHING, And, Match, Or, Selection
from redrive.core.states import State
from redrive.errors import ConfigError, PayloadUndecodable
from redrive.stores.base import PAGE_LIMIT, Store

NO_LIMIT = 2**40
Error = type[BaseException] | str


class Anything:
    """The default of what may be anything, None included."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING = Anything()


class Trait(NamedTuple):
    name: str
    wanted: str
    found: Callable[[Item], str]
    holds: Callable[[Item], bool]


class Expectation(NamedTuple):
    """`states` and `queue` are traits too, but the store can find by them."""

    states: tuple[State, ...]
    queue: str | None
    traits: tuple[Trait, ...]

    @property
    def selection(self) -> Selection:
        states: Selection = Or(tuple(Match("state", "=", str(state)) for state in self.states))
        return And((states,) if self.queue is None else (states, Match("queue", "=", self.queue)))

    def all_traits(self) -> Iterator[Trait]:
        if self.queue is not None:
            yield Trait("queue", self.queue, lambda item: item.queue, lambda item: item.queue == self.queue)
        wanted = " or ".join(self.states)
        yield Trait("state", wanted, lambda item: str(item.state), lambda item: item.state in self.states)
        yield from self.traits

    def met_by(self, item: Item) -> bool:
        return all(trait.holds(item) for trait in self.traits)


def traits(
    *,
    payload: object = ANYTHING,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    delay: Duration | None = None,
    result: object = ANYTHING,
    error: Error | None = None,
    reason: str | None = None,
    text: str | None = None,
) -> tuple[Trait, ...]:
    made = (
        None if id is None else Trait("id", str(id), lambda item: item.id, lambda item: item.id == id),
        None if payload is ANYTHING else _payload(payload),
        None if containing is None else _containing(containing),
        None if delay is None else _delay(delay),
        None if result is ANYTHING else _result(result),
        None if error is None else _error(error),
        None if reason is None else Trait("reason", reason, _reason_of, lambda item: _reason_of(item) == reason),
        None if text is None else Trait("text", f"…{text}…", _text_of, lambda item: text in _text_of(item)),
    )
    return tuple(trait for trait in made if trait is not None)


# -- payloads and results ----------------------------------------------------------------------------------------------


def _payload(wanted: object) -> Trait:
    return Trait("payload", shown(wanted), payload_of, lambda item: alike(wanted, item.payload))


def _containing(wanted: Mapping[str, object]) -> Trait:
    part: object = wanted
    if not isinstance(part, Mapping):
        hint = "use payload= for anything else"
        raise ConfigError(f"{wanted!r} is not a mapping", field="containing", hint=hint)
    return Trait("payload with", shown(wanted), payload_of, lambda item: _contains(value_of(item.payload), wanted))


def _result(wanted: object) -> Trait:
    def holds(item: Item) -> bool:
        return wanted is None if item.result is None else alike(wanted, item.result)

    return Trait("result", shown(wanted), result_of, holds)


def alike(wanted: object, data: bytes) -> bool:
    """As Python compares them, so that ANY and approx may be used; or as both are written, as for dataclasses."""
    if isinstance(wanted, bytes | bytearray | memoryview):
        return bytes(wanted) == data
    value = value_of(data)
    return bool(wanted == value) or _written(wanted) == (value,)


def _written(value: object) -> tuple[object, ...]:
    """The value as a handler would get it; nothing if it cannot be written."""
    try:
        return (codec.load_payload(codec.dump_payload(value, limit=NO_LIMIT)),)
    except Exception:  # noqa: BLE001 - it cannot be in the store then, and so is like nothing there
        return ()


def _contains(whole: object, part: object) -> bool:
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            key in whole and _contains(whole[key], value) for key, value in part.items()
        )
    return bool(whole == part) or _written(part) == (whole,)


def value_of(data: bytes) -> Any:
    """What a handler would get: bytes that are no JSON as they are."""
    try:
        return codec.load_payload(data)
    except PayloadUndecodable:
        return data


def shown(value: object) -> str:
    """As JSON with its keys in order, so that two of them can be compared by eye."""
    try:
        return msgspec.json.encode(_written(value)[0], order="deterministic").decode()
    except (IndexError, msgspec.MsgspecError, TypeError, ValueError):
        return repr(value)


def payload_of(item: Item) -> str:
    return shown(value_of(item.payload))


def result_of(item: Item) -> str:
    return "none" if item.result is None else shown(value_of(item.result))


# -- the rest ----------------------------------------------------------------------------------------------------------


def _delay(delay: Duration) -> Trait:
    """Of an item that was never tried: later its due time is another story."""
    wanted = durations.parse(delay, field="delay")

    def found(item: Item) -> str:
        return durations.format(item.due_at - item.enqueued_at) if not item.deliveries else "tried before"

    def holds(item: Item) -> bool:
        return not item.deliveries and item.due_at - item.enqueued_at == wanted

    return Trait("delay", durations.format(wanted), found, holds)


def _error(error: Error) -> Trait:
    names = {error} if isinstance(error, str) else set(_names(error))

    def holds(item: Item) -> bool:
        failure = failure_in(item)
        if failure is None:
            return False
        return failure.type in names or (isinstance(error, str) and failure.type.rpartition(".")[2] == error)

    wanted = error if isinstance(error, str) else type_name(error)
    return Trait("error", wanted, lambda item: failure.type if (failure := failure_in(item)) else "none", holds)


def _names(error: type[BaseException]) -> Iterator[str]:
    """Letters know an error by its name: that of the class, and those of its subclasses, as for `except`."""
    yield type_name(error)
    for kind in error.__subclasses__():
        yield from _names(kind)


def failure_in(item: Item) -> Failure | None:
    return None if item.letter is None else item.letter.failure


def _reason_of(item: Item) -> str:
    return "none" if item.letter is None else item.letter.reason


def _text_of(item: Item) -> str:
    failure = failure_in(item)
    return "none" if failure is None else failure.text


# -- finding -----------------------------------------------------------------------------------------------------------


async def items(store: Store, selection: Selection = EVERYTHING) -> list[Item]:
    """All of them, however many pages that is, first enqueued first."""
    found: list[Item] = []
    cursor = None
    while True:
        page = await store.find(selection, PAGE_LIMIT, cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return sorted(found, key=lambda item: item.seq)
