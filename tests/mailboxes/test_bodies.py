"""Bodies: what goes in comes out, as what it was."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID, uuid4

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.blocking import Redrive
from redrive.core import typed_codec
from redrive.mailboxes import DeadLetter, InvalidParameterError, SerializationError
from tests.mailboxes.conftest import Openers
from tests.support.stores import StoreUrl

T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True, slots=True)
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line] = field(default_factory=list)
    colour: Colour = Colour.RED
    due: date | None = None
    tags: frozenset[str] = frozenset()
    pair: tuple[int, str] = (1, "a")
    raw: bytes = b"\x00\xff"
    wait: timedelta = timedelta(seconds=1)
    by_level: dict[Level, int] = field(default_factory=dict)


@dataclass
class Wrapped(Generic[T]):
    inner: T
    request_id: UUID = field(default_factory=uuid4)


@dataclass
class Refund:
    id: UUID


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class Told(TypedDict):
    name: str


class Model(pydantic.BaseModel):
    """Strict, as many are: texts are no times for it, unless they come as JSON."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    name: str
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    id: UUID = UUID(int=7)
    colour: Colour = Colour.RED


class Parcel(pydantic.BaseModel, Generic[T]):
    inside: T


@dataclass
class Holder:
    model: Model
    models: list[Model]


ORDER = Order(
    uuid4(),
    datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    [Line("a", Decimal("1.10"))],
    due=date(2026, 1, 3),
    tags=frozenset({"x"}),
    by_level={Level.LOW: 3},
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ORDER, Order),
        (Point(1), Point),
        (Pair(1, "a"), Pair),
        ({"name": "n"}, Told),
        (Wrapped(ORDER), Wrapped[Order]),
        (Wrapped([Point(1)]), Wrapped[list[Point]]),
        (Wrapped(Wrapped(3)), Wrapped[Wrapped[int]]),
        (Model(name="m"), Model),
        (Holder(Model(name="a"), [Model(name="b")]), Holder),
        (Wrapped(Model(name="m")), Wrapped[Model]),
        (Parcel[Model](inside=Model(name="m")), Parcel[Model]),
        (Parcel[int](inside=3), Parcel[int]),
        ([ORDER], list[Order]),
        ({"a": ORDER}, dict[str, Order]),
        (None, Order | None),
        (ORDER, Order | None),
        (Refund(ORDER.id), Order | Refund),
        (Colour.RED, Colour),
        (uuid4(), UUID),
        ({1, 2}, set[int]),
        ((1, "a"), tuple[int, str]),
        (b"\x00\xff", bytes),
        ("text", str),
        (3, int | str),
    ],
)
def test_a_body_comes_back_as_what_it_was(mailboxes: Openers, body: Any, expected: Any) -> None:
    requests = mailboxes("memory")("requests", body_type=expected)
    requests.send(body)
    [message] = requests.receive()
    assert message.body == body
    assert type(message.body) is type(body)


def test_attrs_classes_are_bodies_too(mailboxes: Openers) -> None:
    kind = attrs.make_class("Thing", {"name": attrs.field(type=str), "at": attrs.field(type=datetime)})
    requests = mailboxes("memory")("requests", body_type=kind)
    thing = kind("n", datetime(2026, 1, 1, tzinfo=UTC))
    requests.send(thing)
    assert requests.receive()[0].body == thing


@pytest.mark.parametrize(
    "body",
    [uuid4(), datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), time(3), timedelta(2), Decimal("1.1"), b"\xff"],
)
def test_values_of_the_standard_library_need_no_type(mailboxes: Openers, body: Any) -> None:
    requests = mailboxes("memory")("requests")
    requests.send(body)
    assert requests.receive()[0].body == body


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
)


@given(json_values)
def test_what_json_says_needs_no_type(body: Any) -> None:
    data, name = typed_codec.dump(body)
    assert name == ""
    assert typed_codec.load(data, None, name) == body


def test_without_a_type_it_is_plain_data(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    requests.send(Point(1, 2))
    assert requests.receive()[0].body == {"x": 1, "y": 2}


def test_a_loop_may_say_what_is_expected_if_nobody_did(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    requests, typed = opened("requests"), opened("typed", body_type=Pair)
    requests.bind(Point)
    requests.bind(Pair)
    typed.bind(Point)
    assert (requests.body_type, typed.body_type) == (Point, Pair)
    requests.send(Point(1))
    assert requests.receive()[0].body == Point(1)


def test_another_type_is_named_with_the_one_expected(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    anyhow, typed = opened("requests"), opened("requests", body_type=Wrapped[Order])
    with pytest.raises(SerializationError, match=r"test_bodies\.Refund, and Wrapped\[Order\] is expected here"):
        typed.send(Refund(ORDER.id))
    anyhow.send(Refund(ORDER.id))
    [message] = typed.receive()
    for _ in range(2):
        with pytest.raises(SerializationError, match=r"sent as .*Refund, and Wrapped\[Order\] is expected"):
            _ = message.body
    message.acknowledge()


def test_a_class_that_moved_to_another_module_is_still_the_same() -> None:
    data, name = typed_codec.dump(Point(1))
    assert typed_codec.load(data, Point, "somewhere.else.Point") == Point(1)
    assert typed_codec.load(data, Point, "__main__.Point") == Point(1)
    assert typed_codec.load(data, Point, "") == Point(1)
    assert typed_codec.load(data, Point, "somewhere.Point[int]") == Point(1)
    with pytest.raises(SerializationError):
        typed_codec.load(data, Point, "somewhere.ViewPoint")
    assert name.endswith(".Point")


def test_what_does_not_fit_says_where_and_spares_the_others(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    anyhow, typed = opened("requests"), opened("requests", body_type=Point)
    anyhow.send({"x": "one"})
    typed.send(Point(2))
    wrong, right = typed.receive(10)
    with pytest.raises(SerializationError, match=r"is not a Point: Expected `int`, got `str` - at `\$\.x`"):
        _ = wrong.body
    assert b'"one"' in wrong.raw
    assert right.body == Point(2)
    wrong.nack(60)
    right.acknowledge()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_plain_payloads_of_the_queue_are_bare_bodies(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests")
    place = requests.shared
    requests.approximate_count()
    mails = [b'{"mailbox": 1, "body": "mine", "to": "ann"}', b'{"redrive.mailbox": 2, "body": 1}']
    for n, payload in enumerate([b'{"body": "mine"}', b"not json", b"\xff\xfe", *mails, b"3"]):
        place.call(place.store.put, [bodies_item(str(n), payload)])
    got = {message.id: message for message in requests.receive(10)}
    assert got["0"].body == {"body": "mine"}
    assert got["3"].body == {"mailbox": 1, "body": "mine", "to": "ann"}
    assert got["4"].body == {"redrive.mailbox": 2, "body": 1}
    assert got["5"].body == 3
    for number, raw in (("1", b"not json"), ("2", b"\xff\xfe")):
        with pytest.raises(SerializationError, match="is not"):
            _ = got[number].body
        assert got[number].raw == raw
        got[number].acknowledge()


def bodies_item(key: str, payload: bytes) -> Any:
    from redrive.core.item import NewItem

    return NewItem(key, "requests", payload)


def test_an_app_may_enqueue_into_a_mailbox(same_url: StoreUrl, mailboxes: Openers) -> None:
    requests = mailboxes("sqlite")("requests", body_type=Point, clock=None)
    with Redrive(same_url("sqlite"), log=False) as app:
        app.queue("requests")
        app.enqueue("requests", {"x": 3})
    assert requests.receive()[0].body == Point(3)


class Circle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("body", [object(), Circle(), float("nan"), {1: 1, "1": 2}, "\ud800", "x" * 2_000_000])
def test_what_cannot_be_written_is_refused_and_nothing_is_sent(mailboxes: Openers, body: Any) -> None:
    requests = mailboxes("memory")("requests")
    with pytest.raises(SerializationError, match="body"):
        requests.send(body)
    assert requests.approximate_count() == 0


@pytest.mark.parametrize("letters", [False, True])
def test_a_message_is_not_larger_than_its_body_may_be(mailboxes: Openers, letters: bool) -> None:
    """As with `enqueue`: 1 MiB is all that a message may have, with what is sent beside the body."""
    requests = mailboxes("memory")("requests", dead_letters=letters)
    requests.send("x" * 500_000, attributes={"more": "y" * 500_000})
    for size in (600_000, 2_000_000):
        with pytest.raises(SerializationError, match=r"for 'requests' has [\d,]+ bytes, .*limit is 1,048,576"):
            requests.send("x" * 500_000, attributes={"more": "y" * size})
    assert requests.approximate_count() == 1


def test_a_dead_letter_is_taken_with_all_that_is_told_of_it(mailboxes: Openers) -> None:
    """What may be sent may also be told of as dead."""
    dead = mailboxes("memory")("dead", dead_letters=True)
    body, now = "x" * (typed_codec.MAX_BODY - 1000), datetime.now(UTC)
    letter = DeadLetter("m-1", body, "requests", 5, "y" * 5000, "builtins.ValueError", now, now)
    dead.send(letter)
    assert dead.receive()[0].body == letter


def test_a_type_that_cannot_be_read_is_refused_when_the_mailbox_is_opened(mailboxes: Openers) -> None:
    for wrong in (Circle, dict[str, Order | Refund], "Order"):
        with pytest.raises(InvalidParameterError, match="body_type"):
            mailboxes("memory")("requests", body_type=wrong)


def test_frozen_bodies_stay_so(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests", body_type=Line)
    requests.send(Line("a", Decimal(1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        requests.receive()[0].body.sku = "b"
