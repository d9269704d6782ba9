"""The filter language: what it reads, how it points at what it cannot, and that writing is the inverse of reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.filters import parse, render
from redrive.core.item import Item
from redrive.core.select import EVERYTHING, And, Match, Not, Or, Path, Selection, Text, matches
from redrive.errors import BadFilter
from tests.core.values import an_item, of, selections

HOUR = 3_600_000
DAY = 24 * HOUR


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
        ('reason:"no *"', eq("reason", "no *")),
        ('error="a*b"', eq("error", "a*b")),
        ("error=a*b", Match("error", "glob", "a*b")),
        (r"reason:no\ *\"\(\\", Match("reason", "glob", 'no *"(\\')),
        ("error:'a*b',a*b", Or((eq("error", "a*b"), Match("error", "glob", "a*b")))),
        (r"error:'a\**'", eq("error", "a**")),
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
        ("declined", Text("declined")),
        ("-declined", Not(Text("declined"))),
        ('"card declined" queue:a', And((Text("card declined"), eq("queue", "a")))),
        ("'payload'", Text("payload")),
        ('"or"', Text("or")),
        (r"a\:b", Text("a:b")),
        (r"10\*", Text("10*")),
        ('"10*"', Text("10*")),
        ('payload.n:"1*"', Path(("n",), "=", "1*")),
        (r"payload.n:1*\ 2", Path(("n",), "glob", "1* 2")),
        ("ORDER", Text("ORDER")),
        ("ada@example.com", Text("ada@example.com")),
        ("payload.order.amount>100", Path(("order", "amount"), ">", 100)),
        ("payload.n:1.5,-2", Or((Path(("n",), "=", 1.5), Path(("n",), "=", -2)))),
        ("payload.n:007", Path(("n",), "=", "007")),
        ("payload.n:1e999", Path(("n",), "=", "1e999")),
        ("payload.n:true", Path(("n",), "=", True)),
        ("payload.n:'true'", Path(("n",), "=", "true")),
        ("payload.n:null", Path(("n",), "=", None)),
        ("payload.items.0.sku:x*", Path(("items", "0", "sku"), "glob", "x*")),
        ('payload."a.b"."c\\"d":x', Path(("a.b", 'c"d'), "=", "x")),
        ('payload."":x', Path(("",), "=", "x")),
        ("payload:x", Path((), "=", "x")),
        ("payload.at>=2026-11-01", Path(("at",), ">=", "2026-11-01")),
        ("tag:eu,us", Or((eq("tag", "eu"), eq("tag", "us")))),
        ("text:*declined*", Match("text", "glob", "*declined*")),
        ("due>0", Match("due", ">", 0)),
        ("hold:parked", eq("hold", "parked")),
        ("died_at>1970-01-02", Match("died_at", ">", DAY)),
        ("died_at:1970-01-02", And((Match("died_at", ">=", DAY), Match("died_at", "<=", 2 * DAY - 1)))),
        ("due_at:1970-01-01T00:01", And((Match("due_at", ">=", 60_000), Match("due_at", "<=", 119_999)))),
        ("due_at:1970-01-01T00:00:01z", And((Match("due_at", ">=", 1_000), Match("due_at", "<=", 1_999)))),
        ("due_at:1970-01-01T01:00:01.5+0100", eq("due_at", 1_500)),
        ("due_at<'1970-01-01 00:00:01.25'", Match("due_at", "<", 1_250)),
        ("state:running", eq("state", "leased")),
        ("state:dead,running", Or((eq("state", "dead"), eq("state", "leased")))),
        (
            "state:blocked",
            And((eq("state", "ready"), parse("hold:after,order,limit"))),
        ),
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
        ("tim*", 1, "wildcard needs a field"),
        ('queue:a ""', 9, "empty text"),
        ("don't", 4, "blank is missing"),
        ("http://x", 1, "put it in quotes"),
        ("paylod.order.amount>100", 1, "did you mean payload?"),
        ("payload", 8, "needs a value"),
        ("payload.a", 10, "needs a value"),
        ("payload.:1", 1, "no path"),
        ('payload."a:1', 1, "no path"),
        ("payload.a>x*", 11, "wildcard has no order"),
        ("payload.a>true", 11, "true has no order"),
        ("payload.a>1,2", 12, "list goes with :"),
        ("died_at>yesterday", 9, "date or time"),
        ("died_at:2026-13-01", 9, "date or time"),
        ("died_at:0001-01-01T00:00+10:00", 9, "date or time"),
        ("state:schedule", 7, "did you mean scheduled?"),
        ("queue", 6, "queue:value"),
        ("queue:", 7, "value is missing"),
        ("queue:a,", 9, "value is missing"),
        ("queue:a, b", 9, "value is missing"),
        ("quue:a", 1, "did you mean queue?"),
        ("queue:a Age>1h", 9, "did you mean age?"),
        ("zzz:a", 1, "fields are id, queue"),
        ("state:deed", 7, "did you mean dead?"),
        ("state:xyzzy", 7, "one of ready, leased, done, dead, cancelled, running, blocked"),
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


@given(st.text(max_size=60) | st.text("queuestad:,*()-\"'\\ OR<>=1h.pyl", max_size=60))
def test_any_text_is_a_filter_or_a_bad_one(text: str) -> None:
    column = 1
    selection: Selection = EVERYTHING
    try:
        selection = parse(text)
    except BadFilter as error:
        column = error.column
    assert 1 <= column <= len(text) + 1
    assert parse(render(selection)) == selection


ITEMS = st.one_of(of(Item), st.just(an_item()))


@pytest.mark.slow
@given(selections(), ITEMS, st.integers(0, 2000 * HOUR))
def test_render_keeps_the_meaning(selection: Selection, item: Item, now: int) -> None:
    text = render(selection)
    assert matches(parse(text), item, now) is matches(selection, item, now)
    # Once read, it is written and read again without any change.
    assert parse(render(parse(text))) == parse(text)
