"""S14: what looks like a secret, or stands behind the name of one, is covered; everything else is as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.redact import REDACTED, redact, redact_text

CANARY = "hunter2hunter2"
SECRETS = [
    f"postgres://bob:{CANARY}@db/x",
    f"could not connect to redis://:{CANARY}@host:6379/0: refused",
    f"amqp://bob:p@ss/{CANARY}@host",
    f"https://{CANARY}{CANARY}@github.com/x.git",
    f"https://x.org/?a=1&access_token={CANARY}&b=2",
    f"https://x.org/?API-KEY={CANARY}",
    f"host=db password={CANARY} user=bob",
    f"host=db password='{CANARY} with blanks' user=bob",
    f'{{"password": "{CANARY}", "user": "bob"}}',
    f"{{'client_secret': '{CANARY}'}}",
    f"Authorization: Bearer {CANARY}",
    f"Authorization: Basic {CANARY}==",
    f"authorization={CANARY}",
    f"Cookie: session={CANARY}; other={CANARY}",
    f"sent bearer {CANARY}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
    f"DB_PASSWORD={CANARY}",
    f"passwd: {CANARY}",
    f"X-Api-Key: {CANARY}",
    f"aws_secret_access_key => {CANARY}",
    f"token is sk_live_{CANARY}",
    f"ghp_{CANARY}{CANARY}",
    f"xoxb-{CANARY}",
    f"eyJ{CANARY}.{CANARY}.{CANARY}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_in_a_text_is_covered(text: str) -> None:
    shown = redact_text(f"failed: {text}")
    assert CANARY not in shown
    assert REDACTED in shown
    assert shown.startswith("failed: ")
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "user 42 has no address",
        "the password is wrong",
        "token expired",
        "http://x.org:8080/users/a@b.c",
        "see https://x.org/a?b=1",
        "KeyError: 'id'",
        "mail to ann@example.com refused",
        "basic types only",
        "3 tokens used",
    ],
)
def test_a_text_without_a_secret_is_as_it_was(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "db_password",
        "passwd",
        "secret",
        "clientSecret",
        "token",
        "access_token",
        "X-API-Key",
        "apiKey",
        "Authorization",
        "Set-Cookie",
        "sessionId",
        "pin",
        "cvv",
        "DSN",
        "credentials",
        "private_key",
    ],
)
@pytest.mark.parametrize(
    "value", [CANARY, 1234567, [CANARY], {"a": {"b": CANARY}}], ids=["text", "number", "list", "map"]
)
def test_a_field_with_the_name_of_a_secret_is_covered(name: str, value: object) -> None:
    shown = redact({"order": {"id": 7, name: value}})
    assert shown == {"order": {"id": 7, name: REDACTED}}


def test_a_field_that_only_sounds_like_one_is_not() -> None:
    value = {"max_tokens": 100, "password": None, "token": "", "secret": False, "pinned": 1, "author": "ann", "n": 1.5}
    assert redact(value) == value


def test_secrets_are_found_at_any_place() -> None:
    assert CANARY not in json.dumps(redact([[{"a": [f"postgres://u:{CANARY}@h"]}]]))


def test_secrets_are_found_at_any_depth() -> None:
    value: Any = {"password": CANARY, "n": 1}
    for _ in range(5_000):
        value = [value]
    shown = redact(value)
    while isinstance(shown, list):
        (shown,) = shown
    assert shown == {"password": REDACTED, "n": 1}


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_it_is_a_value_of_the_same_shape_and_covering_twice_changes_nothing(value: object) -> None:
    once = redact(value)
    assert redact(once) == once
    json.dumps(once)


@pytest.mark.parametrize(
    "piece",
    [
        'password="',
        "://a:",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "a-",
        "token ",
        "bearer ",
        "cookie:",
        "x@",
        "token=' ",
    ],
)
def test_no_text_is_dear(piece: str) -> None:
    """Twice the text is not much more than twice the work: patterns that go wild take minutes here, not moments."""
    redact_text(piece * (100_000 // len(piece)))
