from __future__ import annotations

import socket
import string
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import classify as module
from redrive.core.backoff import constant
from redrive.core.classify import (
    Action,
    Rule,
    Verdict,
    classify,
    dead_on,
    fingerprint,
    never_dead,
    normalise,
    rate_limited,
    retry_on,
)
from redrive.core.item import Frame
from redrive.errors import ConfigError


class CardDeclined(Exception):
    pass


class Stolen(CardDeclined):
    pass


def test_code_beats_type_beats_words_whatever_the_order_of_rules() -> None:
    rules = [dead_on("declined"), retry_on(CardDeclined), never_dead(402)]
    text = "declined"
    assert classify(CardDeclined, "402", text, rules).rule == "code:402"
    assert classify(CardDeclined, "500", text, rules).rule == "error:CardDeclined"
    assert classify(RuntimeError, None, text, rules).rule == "words:declined"
    assert classify(RuntimeError, None, "other", rules).rule == "default"


def test_among_equals_the_first_rule_wins() -> None:
    rules = [dead_on(Stolen), retry_on(CardDeclined)]
    assert classify(Stolen, None, "", rules).action == "dead"
    assert classify(CardDeclined, None, "", rules).action == "retry"
    assert classify(Stolen, None, "", rules[::-1]).action == "retry"


def test_a_type_matches_its_subclasses_only() -> None:
    assert classify(Stolen, None, "", [dead_on(CardDeclined)]).action == "dead"
    assert classify(CardDeclined, None, "", [dead_on(Stolen)]).action == "retry"
    assert classify(None, None, "Stolen", [dead_on(Stolen)]).action == "retry"


@pytest.mark.parametrize(
    ("words", "text", "fires"),
    [
        ("card declined", "Your CARD  declined.", True),
        ("card declined", "card\ndeclined", True),
        ("card declined", "discard declined", False),
        ("declined", "undeclined", False),
        ("declined", "declined_by", False),
        ("E1234", "error E1234: no", True),
        ("E1234", "error E12345", False),
        ("(none)", "got (none) back", True),
        ("a.c", "abc", False),
        ("größe", "Falsche GRÖSSE", False),
        ("größe", "Falsche GRÖßE", True),
    ],
)
def test_words_are_whole_words_in_any_case(words: str, text: str, fires: bool) -> None:
    assert (classify(None, None, text, [dead_on(words)]).action == "dead") is fires


def test_codes_may_be_integers_or_texts() -> None:
    rules = [dead_on(422, code=("insufficient_funds", 410))]
    assert [classify(None, code, "", rules).action for code in ("422", "insufficient_funds", "410", "4", None)] == [
        "dead",
        "dead",
        "dead",
        "retry",
        "retry",
    ]


def test_a_rule_keeps_the_usual_category_unless_it_has_one() -> None:
    assert classify(TimeoutError, None, "", [dead_on(TimeoutError)]).category == "timeout"
    assert classify(TimeoutError, None, "", [dead_on(TimeoutError, category="slow")]).category == "slow"


def test_actions_and_extras_of_the_constructors() -> None:
    assert retry_on(TimeoutError, backoff=constant("5s")).backoff == constant("5s")
    assert dead_on(TimeoutError).action == "dead"
    keep = never_dead(ConnectionError, ceiling=5)
    assert (keep.action, keep.ceiling) == ("keep", 5)
    assert never_dead(ConnectionError).ceiling == 1000
    limited = rate_limited(503, "slow down", backoff=constant("5s"))
    assert (limited.action, limited.category, limited.backoff) == ("limit", "rate_limit", constant("5s"))
    assert (limited.codes, limited.words) == (("503",), ("slow down",))


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (retry_on(TimeoutError), "error:TimeoutError"),
        (retry_on(429), "code:429"),
        (dead_on("card declined"), "words:card declined"),
        (retry_on(429, 503, TimeoutError, "busy"), "code:429,503 error:TimeoutError words:busy"),
        (dead_on(code="no_funds"), "code:no_funds"),
        (dead_on(ValueError, name="bad input"), "bad input"),
    ],
)
def test_names_are_readable(rule: Rule, name: str) -> None:
    assert rule.name == name


def test_a_long_name_is_cut() -> None:
    assert len(dead_on(*range(400, 500)).name) == 80


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("rules", retry_on),
        ("rules", lambda: retry_on("")),
        ("rules", lambda: retry_on("  ")),
        ("rules", lambda: retry_on(None)),  # type: ignore[arg-type]  # what is tested
        ("rules", lambda: retry_on(True)),
        ("rules", lambda: retry_on(int)),  # type: ignore[arg-type]  # what is tested
        ("rules", lambda: retry_on(ValueError("an instance"))),  # type: ignore[arg-type]  # what is tested
        ("rules", lambda: dead_on(code="")),
        ("ceiling", lambda: never_dead(ValueError, ceiling=0)),
        ("ceiling", lambda: never_dead(ValueError, ceiling=True)),
        ("name", lambda: dead_on(ValueError, name="default:mine")),
        ("name", lambda: dead_on(ValueError, name=" ")),
        ("backoff", lambda: retry_on(ValueError, backoff="5s")),  # type: ignore[arg-type]  # what is tested
    ],
)
def test_what_cannot_be_a_rule_is_refused(field: str, make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.hint


class ReadTimeout(Exception):
    pass


class SpecialReadTimeout(ReadTimeout):
    pass


class Connection(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "code", "text", "category"),
    [
        (None, "408", "", "timeout"),
        (None, "504", "", "timeout"),
        (None, "429", "", "rate_limit"),
        (None, "401", "", "auth"),
        (None, "403", "", "auth"),
        (None, "404", "", "not_found"),
        (None, "410", "", "not_found"),
        (None, "400", "", "rejected"),
        (None, "422", "", "rejected"),
        (None, "500", "", "server"),
        (None, "503", "", "server"),
        (None, "200", "", "error"),
        (None, "4000", "", "error"),
        (ValueError, "503", "timed out", "server"),
        (TimeoutError, None, "", "timeout"),
        (TimeoutError, "weird", "", "timeout"),
        (SpecialReadTimeout, None, "", "timeout"),
        (ConnectionRefusedError, None, "", "connection"),
        (BrokenPipeError, None, "", "connection"),
        (socket.gaierror, None, "", "connection"),
        (Connection, None, "", "connection"),
        (PermissionError, None, "", "permission"),
        (FileNotFoundError, None, "", "not_found"),
        (MemoryError, None, "", "resource"),
        (OSError, None, "[Errno 28] No space left on device", "resource"),
        (OSError, None, "odd", "io"),
        (ValueError, None, "connection refused", "data"),
        (KeyError, None, "", "data"),
        (UnicodeDecodeError, None, "", "data"),
        (ZeroDivisionError, None, "", "data"),
        (TypeError, None, "", "bug"),
        (AttributeError, None, "", "bug"),
        (ModuleNotFoundError, None, "", "bug"),
        (RecursionError, None, "", "bug"),
        (RuntimeError, None, "the request timed out", "timeout"),
        (RuntimeError, None, "connection was reset by peer", "connection"),
        (RuntimeError, None, "Too Many Requests", "rate_limit"),
        (RuntimeError, None, "", "error"),
        (KeyboardInterrupt, None, "", "error"),
        (None, None, "", "error"),
    ],
)
def test_built_in_table(error: type[BaseException] | None, code: str | None, text: str, category: str) -> None:
    rule = "default" if category == "error" else f"default:{category}"
    action: Action = "limit" if category == "rate_limit" else "retry"
    assert classify(error, code, text, ()) == Verdict(category, rule, action)


class RateLimitError(Exception):
    pass


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        ([], Verdict("rate_limit", "default:rate_limit", "limit")),
        ([retry_on(429)], Verdict("rate_limit", "code:429", "retry")),
        ([dead_on(429)], Verdict("rate_limit", "code:429", "dead")),
        ([never_dead(429)], Verdict("rate_limit", "code:429", "keep")),
        ([retry_on(RateLimitError)], Verdict("rate_limit", "error:RateLimitError", "retry")),
        ([retry_on(ValueError)], Verdict("rate_limit", "default:rate_limit", "limit")),
    ],
)
def test_a_rule_can_make_an_error_of_a_rate_limit(rules: list[Rule], verdict: Verdict) -> None:
    assert classify(RateLimitError, "429", "slow down", rules) == verdict


def test_a_rule_can_make_a_rate_limit_of_any_error() -> None:
    rules = [rate_limited(ConnectionError, code="busy"), rate_limited("try later")]
    assert classify(ConnectionResetError, None, "", rules).action == "limit"
    assert classify(RuntimeError, "busy", "", rules).category == "rate_limit"
    assert classify(ValueError, None, "please try later", rules).rule == "words:try later"
    assert classify(ValueError, None, "", rules).action == "retry"


@given(
    st.sampled_from([None, TimeoutError, OSError, ValueError, CardDeclined, KeyboardInterrupt]),
    st.none() | st.text(),
    st.text(),
)
def test_classify_is_total(error: type[BaseException] | None, code: str | None, text: str) -> None:
    verdict = classify(error, code, text, [dead_on("x y", CardDeclined, 5)])
    assert verdict.action in ("retry", "dead", "limit")
    assert verdict.rule == "code:5 error:CardDeclined words:x y" or verdict.rule.startswith("default")


FRAMES = (
    Frame("/usr/lib/python3.11/asyncio/runners.py", 190, "run"),
    Frame("/srv/app/shop/orders.py", 10, "handle"),
    Frame("/srv/app/shop/pay.py", 20, "charge"),
    Frame("/srv/app/.venv/lib/python3.11/site-packages/httpx/_client.py", 914, "send"),
)


def cause(text: str, frames: tuple[Frame, ...] = FRAMES, kind: str = "app.Refused") -> str:
    return fingerprint(kind, text, frames)


def test_a_cause_is_twelve_hexadecimal_digits_and_stable() -> None:
    # Stored letters are grouped by it: a change of this value splits every cause of every user.
    assert cause("order 17 failed") == "381d838822f1"


TEMPLATES = [
    ("order {} failed", [17, 4_000_000, -5, 1.5, 1e-07]),
    ("user {} not found", [uuid.UUID(int=5), uuid.UUID(int=2**127 + 77), uuid.UUID(int=2**128 - 1)]),
    ("<Thing object at {}>", ["0x7f9c1c0", "0xdeadbeef12"]),
    ("commit {} is gone", ["3f2b8c1e9d", "da39a3ee5e6b4b0d3255bfef95601890afd80709"]),
    ("token {} expired", ["V1StGXR8_Z5jdHi6B-myT1", "k3-Qw_9sLmN0pRsTuVwXyZ12"]),
    ("charge {} declined", ["ch3OqXYZab12", "01HV6Z8ZC2K9XJ5T7R4QWERTYU"]),
    ("mail to {} bounced", ["ann@example.com", "b.o-b+x@mail.example.org"]),
    ("cannot reach {}", ["10.0.0.1:80", "192.168.100.200:8080", "fe80::1", "2001:db8::ff00:42:8329"]),
    ("at {} the door closed", ["2026-11-05", "2026-11-05T10:20:30Z", "10:20:30", "2026-11-05 10:20:30.123456"]),
    ("GET https://api.example.com/users/{}/orders", [17, 123_456, "3f2b8c1e9d"]),
    ("GET https://api.example.com/find{}", ["?name=ann", "?name=bob&page=3"]),
    ("no file {}", ["'/tmp/a b 1.txt'", '"/var/c 22.csv"']),
    ("line {}, column 5: bad", [1, 222]),
    ("ids {} are gone", [[1], [1, 2, 3], [5, 6]]),
    ("a {} b", ["1", "\n 2 \t"]),
]


@pytest.mark.parametrize(("template", "values"), TEMPLATES)
def test_what_varies_does_not_split_a_cause(template: str, values: list[Any]) -> None:
    assert len({cause(template.format(value)) for value in values}) == 1


STATUSES = [
    "HTTP {}",
    "the broker answered HTTP {}: try later",
    "HTTP Error {}: <none>",
    "HTTP/1.1 {} from 10.0.0.7",
    "bad status: {}",
    "request failed with status code {}",
    "status_code={} id=17",
    "failed (status={})",
    "returned code {}.",
    "Client error '{} Not Found' for url 'https://api.example.com/orders/17'",
    'said "{} Service Unavailable"',
]


@pytest.mark.parametrize("template", STATUSES)
def test_a_status_is_a_meaning_and_no_number(template: str) -> None:
    some = [404, 410, 429, 500, 503]
    assert len({cause(template.format(status)) for status in some}) == len(some)
    assert cause(template.format(429)) == cause(template.format(429).replace("17", "4711"))


@pytest.mark.parametrize(
    "template",
    [
        "order {} failed",
        "order {} not found",
        "took {} ms",
        "the house '{} Main Street' is gone",
        "GET http://10.0.0.7:{}/",
        "https://api.example.com/status/{}",
        "error code {}1",
        "code {}-17-b",
        "status {}.5",
        "barcode {}",
    ],
)
def test_numbers_that_are_no_status_do_not_split_a_cause(template: str) -> None:
    assert len({cause(template.format(number)) for number in (404, 429, 503)}) == 1


def test_the_status_that_an_error_carries_counts_before_its_text() -> None:
    def carried(code: str | None, text: str = "it failed") -> str:
        return fingerprint("app.Refused", text, FRAMES, code)

    assert len({carried("404"), carried("429"), carried(None)}) == 3
    # Codes of other kinds may be ids, and are in no cause of letters that are stored.
    assert {carried(code) for code in ("17", "E42", "40001", "", "200")} == {carried(None)}
    assert carried("404", "HTTP 500") == carried("404", "HTTP 500 ") != carried(None, "HTTP 500")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'name'", "KeyError: 'email'"),
        ("connection refused", "connection reset"),
        ("can't open 5, won't", "can't close 5, won't"),
        ("std::vector", "std::string"),
        ("no route to host", "no route"),
    ],
)
def test_what_differs_in_words_is_two_causes(one: str, other: str) -> None:
    assert cause(one) != cause(other)


@given(st.text(string.ascii_letters + " .:'\"-", max_size=60), st.integers(0, 10**12), st.integers(0, 10**12))
def test_numbers_never_split_a_cause(text: str, one: int, other: int) -> None:
    assert cause(f"{text} {one} {text}") == cause(f"{text} {other} {text}")


@given(st.uuids(), st.uuids())
def test_uuids_never_split_a_cause(one: uuid.UUID, other: uuid.UUID) -> None:
    assert normalise(f"job {one} failed") == normalise(f"job {other} failed") == "job # failed"


@given(st.text(), st.text(), st.lists(st.builds(Frame, st.text(), st.integers(), st.text()), max_size=5))
def test_fingerprint_is_total_and_repeatable(kind: str, text: str, frames: list[Frame]) -> None:
    first = fingerprint(kind, text, frames)
    assert len(first) == 12
    assert set(first) <= set(string.hexdigits.lower())
    assert fingerprint(kind, text, tuple(frames)) == first


def test_lone_surrogates_have_a_cause_too() -> None:
    assert len(cause("bad \udcff name", (Frame("/a/\udcff.py", 1, "f"),))) == 12


def test_long_texts_are_one_cause_if_they_begin_alike() -> None:
    assert cause("x" * 300 + "a") == cause("x" * 300 + "b" * 10_000)
    assert cause("x" * 299 + "a") != cause("x" * 299 + "b")


def test_type_and_place_are_part_of_the_cause() -> None:
    assert cause("no") != cause("no", kind="app.Other")
    assert cause("no") != cause("no", FRAMES[:2])


def moved(frame: Frame, **changes: Any) -> Frame:
    return Frame(
        changes.get("file", frame.file), changes.get("line", frame.line), changes.get("function", frame.function)
    )


def test_line_numbers_installation_paths_and_foreign_frames_are_not() -> None:
    edited = tuple(moved(frame, line=frame.line + 100) for frame in FRAMES)
    elsewhere = tuple(moved(frame, file=frame.file.replace("/srv/", "/home/ann/shop/")) for frame in FRAMES)
    windows = tuple(moved(frame, file=frame.file.replace("/", "\\")) for frame in FRAMES)
    upgraded = (*FRAMES[:3], moved(FRAMES[3], function="send_request"))
    inside = (*FRAMES, Frame(module.__file__, 5, "classify"), Frame("<frozen importlib._bootstrap>", 1, "_load"))
    for frames in (edited, elsewhere, windows, upgraded, inside):
        assert cause("no", frames) == cause("no")


def test_only_the_last_three_own_frames_count() -> None:
    deep = tuple(Frame(f"/srv/app/shop/{name}.py", 1, name) for name in "abcde")
    other = (moved(deep[0], function="z"), moved(deep[1], function="z"), *deep[2:])
    assert cause("no", deep) == cause("no", other)
    assert cause("no", deep) != cause("no", (*deep[:2], moved(deep[2], function="z"), *deep[3:]))


def test_without_own_frames_the_last_one_counts() -> None:
    foreign = FRAMES[3:]
    assert cause("no", foreign) != cause("no", (moved(foreign[0], function="other"),))
    assert cause("no", foreign) != cause("no", ())
