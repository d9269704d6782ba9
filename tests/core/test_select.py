from __future__ import annotations

import fnmatch
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core import select
from redrive.core.filters import parse
from redrive.core.item import Item, Letter, Priority, Terms
from redrive.core.select import (
    EVERYTHING,
    FIELDS,
    LETTER_FIELDS,
    Ids,
    Match,
    Or,
    Path,
    Selection,
    Text,
    fields_of,
    glob_match,
    ids_of,
    matches,
    pins_dead,
)
from redrive.core.states import Disposition, State
from redrive.errors import BadFilter, ConfigError
from tests.core.values import FAILURE, an_item, of, selections

HOUR = 3_600_000
NOW = 1_000 * HOUR


def a_letter(**changes: Any) -> Item:
    failure = msgspec.structs.replace(FAILURE, type="httpx.ReadTimeout", category="timeout", cause="c41f0000aaaa")
    letter = Letter("max_attempts", NOW - HOUR, Disposition.OPEN, failure)
    base = an_item(
        id="abcd1234",
        state=State.DEAD,
        enqueued_at=NOW - 2 * HOUR,
        attempt=3,
        errors=4,
        crashes=5,
        deliveries=6,
        replays=7,
        letter=letter,
    )
    return msgspec.structs.replace(base, **changes)


def eq(field: str, value: str | int) -> Match:
    return Match(field, "=", value)


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("", True),
        ("id:abcd1234", True),
        ("id:abcd*", True),
        ("id:bcd*", False),
        ("queue:emails", True),
        ("queue:email", False),
        ("state:dead", True),
        ("state:ready,dead", True),
        ("state:ready", False),
        ("disposition:open", True),
        ("disposition:trash", False),
        ("cause:c41f0000aaaa", True),
        ("cause:c41f", False),
        ("error:httpx.ReadTimeout", True),
        ("error:ReadTimeout", True),
        ("error:*Timeout", True),
        ("error:Read*", True),
        ("error:httpx.*", True),
        ("error:Timeout", False),
        ("error:readtimeout", False),
        ("category:timeout", True),
        ("rule:default", True),
        ("reason:max_*", True),
        ("attempts:3", True),
        ("attempts>3", False),
        ("attempts>=3", True),
        ("attempts<3", False),
        ("attempts<=3", True),
        ("errors:4 crashes:5 deliveries:6 replays:7", True),
        ("age>1h", True),
        ("age>2h", False),
        ("age>=2h", True),
        ("age:2h", True),
        ("died:1h", True),
        ("died<1h", False),
        ("-state:dead", False),
        ("-state:ready", True),
        ("queue:x OR state:dead", True),
        ("queue:x state:dead", False),
    ],
)
def test_matches_a_letter(text: str, matched: bool) -> None:
    assert matches(parse(text), a_letter(), NOW) is matched


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("priority:high", True),
        ("priority:HIGH,low", True),
        ("priority:normal", False),
        ("hold:order", True),
        ("hold:after,limit", False),
        ("-hold:order", False),
        ("state:blocked", True),
        ("state:retrying,scheduled,running", False),
        ("key:customer-7", True),
        ("key:customer-*", True),
        ("key:*-8", False),
    ],
)
@pytest.mark.parametrize("hold", ["order", "parked:order"])
def test_matches_what_binds_an_item(text: str, matched: bool, hold: str) -> None:
    """A parked line is no other hold: its followers wait for their turn."""
    item = an_item(
        state=State.READY, hold=hold, priority=Priority.HIGH, terms=Terms(order_key="customer-7", limit_key="x")
    )
    assert matches(parse(text), item, NOW) is matched


@pytest.mark.parametrize("hold", ["", "after", "order", "limit"])
def test_only_what_is_parked_is_found_as_parked(hold: str) -> None:
    assert matches(parse("hold:parked"), an_item(hold="parked:order"), NOW)
    assert not matches(parse("hold:parked"), an_item(hold=hold), NOW)


@pytest.mark.parametrize("item", [an_item(), an_item(terms=Terms(limit_key="x"))])
@pytest.mark.parametrize("field", ["hold", "key", "tag", "worker"])
def test_what_is_not_there_is_not_empty(field: str, item: Item) -> None:
    assert not matches(Match(field, "=", ""), item, NOW)
    assert not matches(Match(field, "glob", "*"), item, NOW)


def test_the_route_of_a_letter_without_one_is_empty() -> None:
    assert matches(Match("route", "=", ""), a_letter(), NOW)
    assert not matches(parse("route:*"), a_letter(), NOW)
    assert not matches(parse("route:billing"), a_letter(), NOW)


@pytest.mark.parametrize("field", sorted(LETTER_FIELDS))
def test_what_is_no_letter_has_no_letter_fields(field: str) -> None:
    own = {"disposition": "disposition:open", "died": "died>=0", "died_at": "died_at>1970-01-01"}
    text = own.get(field, f"{field}:*")
    letter = a_letter().letter
    assert letter is not None
    full = a_letter(letter=msgspec.structs.replace(letter, route="a", reserved="b"))
    assert matches(parse(text), full, NOW)
    assert not matches(parse(text), an_item(), NOW)
    assert matches(parse(f"-{text}"), an_item(), NOW)


BODY = b"""{"order": {"amount": 150, "id": "4711", "paid": true, "none": null, "note": "Stra\\u00dfe \\"7\\""},
 "items": [{"sku": "x-1"}, {"sku": "y"}], "0": "key", "b.c": 1.5, "": "nameless", "at": "2026-11-02", "big": 1e300}"""


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("payload.order.amount>100", True),
        ("payload.order.amount>=150.0", True),
        ("payload.order.amount<150", False),
        ("payload.order.amount:150", True),
        ("payload.order.amount:150.0", True),
        ('payload.order.amount:"150"', False),
        ("payload.order.amount:15*", False),
        ("payload.order.id:4711", True),
        ('payload.order.id:"4711"', True),
        ("payload.order.id>4000", False),
        ("payload.order.id:47*", True),
        ("payload.order.paid:true", True),
        ("payload.order.paid:1", False),
        ("payload.order.paid:false", False),
        ("payload.order.none:null", True),
        ("payload.order.missing:null", False),
        ("-payload.order.missing:null", True),
        ("payload.order.none.deeper:1", False),
        ("payload.order:1", False),
        ("payload.items.0.sku:x*", True),
        ("payload.items.1.sku:y,z", True),
        ("payload.items.2.sku:*", False),
        ("payload.items.-1.sku:y", False),
        ("payload.items.first.sku:*", False),
        ("payload.0:key", True),
        ('payload."b.c":1.5', True),
        ('payload."":nameless', True),
        ("payload.at>2026-11-01", True),
        ("payload.at>2026-11-03", False),
        ("payload.big>1e299", True),
        ("payload:x", False),
        ("X-1", True),
        ("stra\xdfe", True),
        ("STRASSE", True),
        ('"7\\""', True),
        ("amount", True),
        ("readtimeout", True),
        ('"Card DECLINED"', True),
        ("nowhere", False),
        ("text:*declined", True),
        ("text:declined", False),
        ("tag:eu", True),
        ("tag:e*,x", True),
        ("tag:E*", False),
        ("-tag:us", False),
        ("worker:w-1", True),
        ("due>30m", True),
        ("due>1h", False),
        ("due_at<1970-02-11T15:30", True),
        ("due_at:1970-02-11T15:00", True),
        ("enqueued_at:1970-02-11", True),
        ("enqueued_at:1970-02-11T14", None),
        ("died_at>=1970-02-11T15:00:00Z died_at<=1970-02-11T16:00+01:00", True),
        ("died_at>1970-02-11", True),
        ("died_at<1970-02-11", False),
    ],
)
def test_looks_into_payloads_errors_and_times(text: str, matched: bool | None) -> None:
    letter = a_letter(payload=BODY, tags=("eu", "us"), worker="w-1", due_at=NOW - HOUR)
    assert letter.letter is not None
    failure = msgspec.structs.replace(letter.letter.failure, text="the card declined")
    letter = msgspec.structs.replace(letter, letter=msgspec.structs.replace(letter.letter, failure=failure))
    if matched is None:
        with pytest.raises(BadFilter, match="date or time"):
            parse(text)
    else:
        assert matches(parse(text), letter, NOW) is matched


HOSTILE = [b"", b"\xff\xfe", b"{", b"nul", b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"NaN", b'"\\ud800"']


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_payload_is_no_match_and_no_error(payload: bytes) -> None:
    item = an_item(payload=payload)
    assert not matches(Path(("a",) * 9, "=", 1), item, NOW)
    assert not matches(Path(("a", "0"), "<", "x"), item, NOW)
    assert not matches(Text("zebra"), item, NOW)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": State.LEASED}, {"running"}),
        ({"state": State.READY}, set()),
        ({"state": State.READY, "due_at": NOW + 1}, {"scheduled"}),
        ({"state": State.READY, "due_at": NOW + 1, "attempt": 1}, {"retrying"}),
        ({"state": State.READY, "attempt": 1}, {"retrying"}),
        ({"state": State.READY, "due_at": NOW + 1, "hold": "after"}, {"blocked"}),
        ({"state": State.READY, "attempt": 1, "hold": "parked:order"}, {"blocked"}),
        ({"state": State.READY, "due_at": NOW + 1, "attempt": 1, "hold": "parked:schema"}, {"parked"}),
        ({"state": State.DEAD, "due_at": NOW + 1, "attempt": 1}, set()),
    ],
)
def test_what_people_call_a_state(changes: dict[str, Any], words: set[str]) -> None:
    item = an_item(**changes)
    assert {word for word in select.DERIVED if matches(parse(f"state:{word}"), item, NOW)} == words


def test_ids_and_empty_nodes() -> None:
    assert matches(Ids(("x", "abcd1234")), a_letter(), NOW)
    assert not matches(Ids(()), a_letter(), NOW)
    assert not matches(Or(()), a_letter(), NOW)
    assert matches(EVERYTHING, a_letter(), NOW)


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_value_of_the_wrong_kind_matches_nothing(field: str) -> None:
    wrong: str | int = 5 if FIELDS[field] in ("text", "word") else "5"
    assert not any(matches(Match(field, op, wrong), a_letter(), NOW) for op in ("=", "glob", ">=", "<="))


def test_numbers_have_no_wildcard() -> None:
    assert not matches(Match("attempts", "glob", 3), a_letter(), NOW)


@pytest.mark.parametrize(
    ("selection", "fields"),
    [
        (parse("queue:a -(age>1h OR cause:x,y)"), {"queue", "age", "cause"}),
        (Ids(("a",)), set()),
        (EVERYTHING, set()),
    ],
)
def test_fields_of(selection: Selection, fields: set[str]) -> None:
    assert fields_of(selection) == fields


def test_an_unknown_field_is_an_error_and_not_a_miss() -> None:
    with pytest.raises(ConfigError, match="no field 'colour'"):
        matches(eq("colour", "red"), a_letter(), NOW)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
@example("a*a", "a")
@example("*a*b*", "ab")
@example("*b*b", "ab")
@example("", "")
def test_glob_agrees_with_fnmatch(pattern: str, text: str) -> None:
    assert glob_match(pattern, text) is bool(re.match(fnmatch.translate(pattern), text))


def test_star_is_the_only_wildcard() -> None:
    assert not glob_match("a?c", "abc")
    assert not glob_match("[a]", "a")
    assert glob_match("a?c*", "a?c")


def test_a_hostile_glob_is_quick() -> None:
    # Backtracking would need longer than the universe has.
    assert not glob_match("*a" * 1000 + "*b", "a" * 20_000)


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("state:dead", True),
        ("queue:a state:dead", True),
        ("queue:a (state:dead id:b)", True),
        ("cause:x", True),
        ("error:*", True),
        ("died>1h", True),
        ("died_at>2026-11-15", True),
        ("text:x", True),
        ("declined", False),
        ("payload.a:1", False),
        ("tag:eu", False),
        ("disposition:open,archived", True),
        ("state:dead OR cause:x", True),
        ("state:dead,done", False),
        ("-state:dead", False),
        ("-cause:x", False),
        ("--state:dead", False),
        ("queue:a", False),
        ("", False),
        ("age>1h attempts>3", False),
    ],
)
def test_pins_dead(text: str, pinned: bool) -> None:
    assert pins_dead(parse(text)) is pinned


@pytest.mark.slow
@given(selections(), of(Item).filter(lambda item: item.letter is None and item.state is not State.DEAD))
def test_pins_dead_is_never_wrong(selection: Selection, item: Item) -> None:
    if pins_dead(selection):
        assert not matches(selection, item, NOW)
    assert not pins_dead(Or(()))


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (Ids(("a", "b", "a")), ("a", "b")),
        (parse("id:a"), ("a",)),
        (parse("id:b,a,b"), ("b", "a")),
        (parse("queue:x id:a"), ("a",)),
        (parse("id:a OR queue:x"), None),
        (parse("id:a*"), None),
        (parse("-id:a"), None),
        (parse("declined"), None),
        (parse("payload.id:a"), None),
        (EVERYTHING, None),
        (Or(()), ()),
    ],
)
def test_ids_of(selection: Selection, ids: tuple[str, ...] | None) -> None:
    assert ids_of(selection) == ids


@pytest.mark.slow
@given(selections(), of(Item))
def test_ids_of_misses_nothing(selection: Selection, item: Item) -> None:
    ids = ids_of(selection)
    if ids is not None and matches(selection, item, NOW):
        assert item.id in ids


def test_every_field_can_be_asked() -> None:
    asked = {*select._OF_ITEM, *select._OF_LETTER, *select._SEVERAL}  # noqa: SLF001 - the tables must not drift
    assert set(FIELDS) == asked
    assert set(select._OF_LETTER) == LETTER_FIELDS  # noqa: SLF001 - see above
