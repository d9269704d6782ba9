from __future__ import annotations

import fnmatch
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core import select
from redrive.core.filters import parse, render
from redrive.core.item import Item, Letter, Priority, Terms
from redrive.core.select import (
    EVERYTHING,
    FIELDS,
    LETTER_FIELDS,
    And,
    Ids,
    Match,
    Not,
    Or,
    Selection,
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
    ("text", "selection"),
    [
        ("", EVERYTHING),
        (" \t\n ", EVERYTHING),
        ("queue:emails", eq("queue", "emails")),
        ("queue=emails", eq("queue", "emails")),
        ("  queue:emails  ", eq("queue", "emails")),
        ("queue:a state:dead", And((eq("queue", "a"), eq("state", "dead")))),
        ("state:DEAD", eq("state", "dead")),
        ("queue:a,b", Or((eq("queue", "a"), eq("queue", "b")))),
        ("queue:a OR queue:b", Or((eq("queue", "a"), eq("queue", "b")))),
        ("id:a id:b OR id:c", Or((And((eq("id", "a"), eq("id", "b"))), eq("id", "c")))),
        ("id:a (id:b OR id:c)", And((eq("id", "a"), Or((eq("id", "b"), eq("id", "c")))))),
        ("(id:a)OR(id:b)", Or((eq("id", "a"), eq("id", "b")))),
        ("((id:a id:b)) id:c", And((eq("id", "a"), eq("id", "b"), eq("id", "c")))),
        ("-cause:c41f", Not(eq("cause", "c41f"))),
        ("-queue:a,b", Not(Or((eq("queue", "a"), eq("queue", "b"))))),
        ("-(id:a id:b)", Not(And((eq("id", "a"), eq("id", "b"))))),
        ("--id:a", Not(Not(eq("id", "a")))),
        ("id:abcd*", Match("id", "glob", "abcd*")),
        ("error:*Timeout,Refused", Or((Match("error", "glob", "*Timeout"), eq("error", "Refused")))),
        ('reason:"no more"', eq("reason", "no more")),
        ("reason:'no \"more\"'", eq("reason", 'no "more"')),
        (r'reason:"a\"b"', eq("reason", 'a"b')),
        ('reason:"no *"', Match("reason", "glob", "no *")),
        (r"queue:a\*", eq("queue", "a*")),
        (r"queue:a\ b", eq("queue", "a b")),
        ('queue:""', eq("queue", "")),
        ("queue:OR", eq("queue", "OR")),
        ("id:-x", eq("id", "-x")),
        ("rule:code:429", eq("rule", "code:429")),
        ("attempts>=3", Match("attempts", ">=", 3)),
        ("attempts:3", eq("attempts", 3)),
        ("attempts:3,4", Or((eq("attempts", 3), eq("attempts", 4)))),
        ("errors<2", Match("errors", "<", 2)),
        ("crashes<=2", Match("crashes", "<=", 2)),
        ("replays>0", Match("replays", ">", 0)),
        ("deliveries=1", eq("deliveries", 1)),
        ("age>1h", Match("age", ">", HOUR)),
        ("died<1h30m", Match("died", "<", HOUR * 3 // 2)),
        ("age>='1h 30m'", Match("age", ">=", HOUR * 3 // 2)),
        (
            "queue:emails error:*Timeout age>1h -cause:c41f (attempts>=3 OR category:auth,config)",
            And(
                (
                    eq("queue", "emails"),
                    Match("error", "glob", "*Timeout"),
                    Match("age", ">", HOUR),
                    Not(eq("cause", "c41f")),
                    Or((Match("attempts", ">=", 3), eq("category", "auth"), eq("category", "config"))),
                )
            ),
        ),
    ],
)
def test_parse(text: str, selection: Selection) -> None:
    assert parse(text) == selection
    assert parse(render(selection)) == selection


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("declined", 1, "bare text"),
        ('queue:a "card declined"', 9, "bare text"),
        ("queue", 6, "queue:value"),
        ("queue:", 7, "value is missing"),
        ("queue:a,", 9, "value is missing"),
        ("queue:a, b", 9, "value is missing"),
        ("quue:a", 1, "did you mean queue?"),
        ("queue:a Age>1h", 9, "did you mean age?"),
        ("zzz:a", 1, "fields are id, queue"),
        ("payload.order.amount>100", 1, "payloads are not searched"),
        ("queue:a -payload:x", 10, "payloads are not searched"),
        ("state:deed", 7, "did you mean dead?"),
        ("state:xyzzy", 7, "one of ready, leased, done, dead, cancelled"),
        ("state:dead,opne", 12, "never 'opne'"),
        ("disposition:opne", 13, "did you mean open?"),
        ("state:d*", 7, "never 'd*'"),
        ("attempts:many", 10, "whole number"),
        ("attempts>1.5", 10, "whole number"),
        ("attempts>" + "9" * 19, 10, "whole number"),
        ("attempts:>=3", 10, "whole number"),
        ("attempts>3,4", 11, "list goes with :"),
        ("age>soon", 5, "duration"),
        ("age>-5s", 5, "duration"),
        ("queue>a", 6, "no order"),
        ("queue:a)", 8, "closes nothing"),
        ("(queue:a", 1, "never closed"),
        ("queue:a (", 10, "condition is missing"),
        ("()", 2, "condition is missing"),
        ("OR queue:a", 1, "condition is missing"),
        ("queue:a OR", 11, "condition is missing"),
        ("queue:a OR OR queue:b", 12, "condition is missing"),
        ("queue:a or queue:b", 9, "OR in capitals"),
        ("queue:a AND queue:b", 9, "leave it out"),
        ("NOT queue:a", 1, "write - before"),
        ("-", 2, "missing after -"),
        ("- queue:a", 2, "missing after -"),
        ("queue:'x", 7, "never closed"),
        ('queue:"a"b', 10, "blank is missing"),
        (":a", 1, "field is missing"),
        (r"queue:a\**", 7, "literal *"),
        ("queue:a\ud800", 8, "half a character"),
        ("-" * 51 + "queue:a", 51, "50 deep"),
        ("(" * 4000, 51, "50 deep"),
        ("queue:" + "a" * 4091, 4097, "4096 characters"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text: str, column: int, words: str) -> None:
    with pytest.raises(BadFilter) as caught:
        parse(text)
    assert caught.value.column == column
    assert words in str(caught.value)


def test_the_longest_and_deepest_that_are_allowed() -> None:
    assert parse("queue:" + "a" * 4090) == eq("queue", "a" * 4090)
    assert parse("(" * 50 + "queue:a" + ")" * 50) == eq("queue", "a")
    # Depth is nesting, not number.
    assert parse("-(queue:a) " * 60) == And((Not(eq("queue", "a")),) * 60)


@given(st.text(max_size=60) | st.text("queuestad:,*()-\"'\\ OR<>=1h", max_size=60))
def test_any_text_is_a_filter_or_a_bad_one(text: str) -> None:
    column = 1
    selection: Selection = EVERYTHING
    try:
        selection = parse(text)
    except BadFilter as error:
        column = error.column
    assert 1 <= column <= len(text) + 1
    assert parse(render(selection)) == selection


ITEMS = st.one_of(of(Item), st.just(a_letter()), st.just(an_item()))


@pytest.mark.slow
@given(selections(), ITEMS, st.integers(0, 2 * NOW))
def test_render_keeps_the_meaning(selection: Selection, item: Item, now: int) -> None:
    text = render(selection)
    assert matches(parse(text), item, now) is matches(selection, item, now)
    assert render(parse(text)) == render(parse(render(parse(text))))


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


@pytest.mark.parametrize("item", [an_item(), an_item(terms=Terms(limit_key="x"))])
@pytest.mark.parametrize("field", ["hold", "key"])
def test_what_is_bound_to_nobody_has_neither_hold_nor_key(field: str, item: Item) -> None:
    assert not matches(Match(field, "=", ""), item, NOW)
    assert not matches(Match(field, "glob", "*"), item, NOW)


def test_the_route_of_a_letter_without_one_is_empty() -> None:
    assert matches(Match("route", "=", ""), a_letter(), NOW)
    assert not matches(parse("route:billing"), a_letter(), NOW)


@pytest.mark.parametrize("field", sorted(LETTER_FIELDS))
def test_what_is_no_letter_has_no_letter_fields(field: str) -> None:
    text = {"disposition": "disposition:open", "died": "died>=0"}.get(field, f"{field}:*")
    assert matches(parse(text), a_letter(), NOW)
    assert not matches(parse(text), an_item(), NOW)
    assert matches(parse(f"-{text}"), an_item(), NOW)


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
    with pytest.raises(ConfigError, match="no field 'tag'"):
        matches(eq("tag", "eu"), a_letter(), NOW)


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
    assert set(FIELDS) == set(select._OF_ITEM) | set(select._OF_LETTER)  # noqa: SLF001 - the tables must not drift
    assert set(select._OF_LETTER) == LETTER_FIELDS  # noqa: SLF001 - see above
