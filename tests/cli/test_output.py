import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.cli.output import as_json, brief, clean, columns, cut, iso, tabbed, width

HOSTILE = "\x1b[2J\x1b]0;pwned\x07\rforged\nline\ttab\x7f\x9b31m\u202eevil\u2028\ud800"


@given(st.text())
def test_clean_leaves_only_what_is_printable(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_clean_keeps_what_people_write() -> None:
    assert clean("Grüße, 你好 — ok") == "Grüße, 你好 — ok"
    assert clean("a\nb", keep="\n") == "a\nb"
    assert clean(HOSTILE).startswith("\\x1b[2J\\x1b]0;pwned\\x07\\rforged\\nline\\ttab\\x7f\\x9b31m\\u202e")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_json_says_the_same_and_is_harmless(value: object) -> None:
    text = as_json(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()


def test_json_escapes_what_json_would_not_have_to() -> None:
    assert as_json("\x7f\u202e\U000e0001", indent=None) == '"\\u007f\\u202e\\udb40\\udc01"'


@given(st.text(), st.integers(1, 40))
def test_cut_fits(text: str, cells: int) -> None:
    shorter = cut(clean(text), cells)
    assert width(shorter) <= max(1, cells)


def test_wide_characters_take_two_cells() -> None:
    assert width("你好") == 4
    assert width("e\u0301") == 1
    assert cut("你好吗", 5) == "你好…"


def test_columns_are_aligned_and_the_last_gives_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns(["NAME", "COUNT", "TEXT"], [["a", "5", "short"], ["你好", "12", "x" * 99 + HOSTILE]])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == "NAME  COUNT  TEXT"
    assert first == "a         5  short"
    assert second.startswith("你好     12  xxx")
    assert second.endswith("…")
    assert width(second) == 40


def test_tabs_inside_values_do_not_make_columns(capsys: pytest.CaptureFixture[str]) -> None:
    tabbed([["a\tb", HOSTILE]])
    assert capsys.readouterr().out == f"a\\tb\t{clean(HOSTILE)}\n"


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (-5, "0ms"),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (64_000, "1m4s"),
        (900_000, "15m"),
        (3_600_000, "1h"),
        (3 * 3_600_000 + 120_000, "3h2m"),
        (26 * 3_600_000, "1d2h"),
        (400 * 86_400_000, "400d"),
    ],
)
def test_brief_has_at_most_two_units(millis: int, text: str) -> None:
    assert brief(millis) == text


def test_times_are_utc_and_never_fail() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    assert iso(1_763_197_200_123) == "2025-11-15T09:00:00.123Z"
    assert iso(None) is None
    assert iso(10**18) == f"{10**18} ms"
