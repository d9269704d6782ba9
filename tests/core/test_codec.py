from __future__ import annotations

import dataclasses
import inspect
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core import acts, codec, decide, item, outcome, select, verbs
from redrive.errors import ConfigError, PayloadNotSerialisable, PayloadTooLarge, PayloadUndecodable, StoreCorrupt
from tests.core.values import FAILURE, TEXTS, of

LIMIT = 10_000


def structs(*modules: ModuleType) -> list[type[msgspec.Struct]]:
    found = {
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, msgspec.Struct) and member is not msgspec.Struct
    }
    return sorted(found, key=lambda member: member.__name__)


VALUES: list[Any] = [
    *structs(acts, item, outcome, verbs),
    outcome.Outcome,
    decide.Decision,
    acts.Change,
    select.Selection,
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: getattr(kind, "__name__", "union"))
@settings(max_examples=10)
@given(data=st.data())
def test_every_value_of_the_verbs_survives(kind: Any, data: st.DataObject) -> None:
    survives(kind, data.draw(of(kind)))


def survives(kind: Any, value: object) -> None:
    stored = codec.encode(value)
    back = codec.decode(stored, kind)
    assert back == value
    assert type(back) is type(value)
    assert codec.encode(back) == stored


def test_stored_values_can_be_read_by_people() -> None:
    attempt = item.Attempt(1, 1, "w", 5, 6, item.Ending.FAILED, FAILURE)
    assert b'"ending":"failed"' in codec.encode(attempt)
    assert b'"text":"no"' in codec.encode(attempt)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"id":1}', b"\xff", b'"\xff"', b"[" * 100_000, b'{"id":"a","queue":"b","payload":"?"}'],
    ids=range(8),
)
def test_damaged_bytes_are_store_corrupt(data: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="not a NewItem"):
        codec.decode(data, item.NewItem)


@given(st.binary())
def test_any_bytes_are_a_value_or_store_corrupt(data: bytes) -> None:
    try:
        value = codec.decode(data, verbs.Held)
    except StoreCorrupt:
        return
    assert isinstance(value, verbs.Held)


def test_a_value_that_cannot_be_stored_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="NewItem cannot be stored"):
        codec.encode(item.NewItem("\ud800", "q", b""))


@given(st.binary())
def test_bytes_go_verbatim(data: bytes) -> None:
    for form in (data, bytearray(data), memoryview(data)):
        stored = codec.dump_payload(form, limit=LIMIT)
        assert stored == data
        assert type(stored) is bytes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_what_json_can_say_comes_back_the_same(value: Any) -> None:
    assert codec.load_payload(codec.dump_payload(value, limit=LIMIT)) == value


class Colour(Enum):
    RED = "red"


class Order(msgspec.Struct):
    id: int
    note: str | None = None


@dataclasses.dataclass
class Address:
    street: str
    weight: float | None = None


class Model:
    """Looks like a pydantic model from outside."""

    model_fields = ("size", "hidden")

    def __init__(self, size: float) -> None:
        self.size = size
        self.hidden = self

    def model_dump_json(self) -> str:
        return '{"size":%s}' % ("null" if math.isnan(self.size) else self.size)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"to": "a@example.com"}, b'{"to":"a@example.com"}'),
        (None, b"null"),
        ("é", '"é"'.encode()),
        ((1, 2), b"[1,2]"),
        (Order(5), b'{"id":5,"note":null}'),
        (Address("x"), b'{"street":"x","weight":null}'),
        ({"deep": [Address("x", 1.5), Order(1, "n")]}, b'{"deep":[{"street":"x","weight":1.5},{"id":1,"note":"n"}]}'),
        (Model(1.5), b'{"size":1.5}'),
        ([Model(2), None], b'[{"size":2},null]'),
        (datetime(2026, 11, 5, 10, tzinfo=UTC), b'"2026-11-05T10:00:00Z"'),
        (date(2026, 11, 5), b'"2026-11-05"'),
        (Decimal("1.10"), b'"1.10"'),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, b'"red"'),
        ({1: "a"}, b'{"1":"a"}'),
    ],
)
def test_dump_payload(value: Any, stored: bytes) -> None:
    assert codec.dump_payload(value, limit=LIMIT) == stored


class Broken:
    def model_dump_json(self) -> str:
        raise RuntimeError("the model is broken")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "payload cannot be written as JSON: objects of type object"),
        ({"a": [1, object()]}, "payload['a'][1] cannot"),
        ({"a": Address(object())}, "payload['a'].street cannot"),  # type: ignore[arg-type]  # what is tested
        (Order(lambda: 1), "payload.id cannot"),  # type: ignore[arg-type]  # what is tested
        ({"f": test_bytes_go_verbatim}, "payload['f'] cannot"),
        ({"f": Address}, "payload['f'] cannot"),
        ({(1, 2): 3}, "type tuple"),
        ({"a": "\ud800"}, "payload['a'] cannot be written as JSON: the text has half characters"),
        ({"\ud800": 1}, "half characters"),
        ({"n": 10**5000}, "payload['n'] cannot"),
        ([Broken()], "payload[0] cannot be written as JSON: the model is broken"),
        (math.nan, "payload is NaN or infinite"),
        ({"a": [0.5, math.inf]}, "payload['a'][1] is NaN or infinite"),
        ((-math.inf,), "payload[0] is NaN"),
        (Address("x", math.nan), "payload.weight is NaN"),
        ([Model(math.nan)], "payload[0].size is NaN"),
        (nested(100_000), "nested too deeply"),
        (circle(), "contains itself"),
        ({1: "a", "1": "b"}, "payload has keys that are different here and the same in JSON"),
        ({"deep": [{1.5: "a", "1.5": None}]}, "payload['deep'][0] has keys"),
        (Address("x", {0: 1, "0": 2}), "payload.weight has keys"),  # type: ignore[arg-type]  # what is tested
    ],
    ids=range(21),
)
def test_what_json_cannot_say_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(PayloadNotSerialisable) as caught:
        codec.dump_payload(value, limit=10**9)
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_deep_nan_is_found() -> None:
    value: Any = math.nan
    for _ in range(200):
        value = [value]
    with pytest.raises(PayloadNotSerialisable, match="NaN"):
        codec.dump_payload(value, limit=LIMIT)


def test_the_word_null_in_a_text_is_no_nan() -> None:
    assert codec.dump_payload({"null": "null"}, limit=LIMIT) == b'{"null":"null"}'


@pytest.mark.parametrize("value", [{1: "a", "2": "b"}, {"1": None, "n2": 2}, [{1: 1}, {"1": 2}], {1: {"1": 1}}])
def test_keys_that_stay_different_are_fine(value: Any) -> None:
    assert codec.dump_payload(value, limit=LIMIT) == msgspec.json.encode(value)


class Incomparable(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not with me")

    __hash__ = str.__hash__


def test_a_value_that_cannot_be_compared_is_written() -> None:
    assert codec.dump_payload([None, Incomparable("x")], limit=LIMIT) == b'[null,"x"]'


@pytest.mark.parametrize("value", [b"x" * 11, "x" * 9])
def test_one_byte_too_many_is_refused_with_sizes(value: Any) -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"^the payload has 11 bytes; the limit is 10 \(keep it elsewhere"
    ) as told:
        codec.dump_payload(value, limit=10)
    assert "max_payload" in told.value.hint
    with pytest.raises(PayloadTooLarge, match="the payload for queue 'emails' has 11 bytes"):
        codec.dump_payload(value, limit=10, queue="emails")
    assert len(codec.dump_payload(value, limit=11)) == 11


def test_results_are_payloads_but_none_stays_none() -> None:
    assert codec.dump_result(None, limit=LIMIT) is None
    assert codec.dump_result({"sent": 1}, limit=LIMIT) == b'{"sent":1}'
    assert codec.dump_result(b"raw", limit=LIMIT) == b"raw"
    with pytest.raises(PayloadNotSerialisable, match="result cannot"):
        codec.dump_result(object(), limit=LIMIT)
    with pytest.raises(PayloadTooLarge, match="the result has 5 bytes"):
        codec.dump_result("abc", limit=4)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'"\xff"', b'"\\ud800"', b"NaN", b"1e999", b"1 2", b"[" * 100_000],
    ids=range(10),
)
def test_what_is_no_json_is_undecodable(data: bytes) -> None:
    with pytest.raises(PayloadUndecodable) as caught:
        codec.load_payload(data)
    assert caught.value.hint


@given(st.binary())
def test_load_payload_is_total(data: bytes) -> None:
    try:
        value = codec.load_payload(data)
    except PayloadUndecodable:
        return
    assert codec.load_payload(codec.dump_payload(value, limit=LIMIT)) == value
