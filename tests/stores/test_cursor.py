"""The seal of a cursor, by itself: what no wire carries, and a key of one's own."""

from __future__ import annotations

import pytest

from redrive.core.select import Ids, Match, Path, Selection, Text
from redrive.core.states import State
from redrive.errors import ConfigError
from redrive.stores.cursor import Pages


@pytest.mark.parametrize("selection", [Text("\ud83d"), Path(("n",), "=", 10**400), Path(("n",), "=", float("inf"))])
def test_whatever_can_be_looked_for_has_cursors(selection: Selection) -> None:
    """Half a character is in no item, and is still no reason to fail."""
    pages = Pages(selection, oldest=False)
    assert pages.opened(pages.sealed("enqueued 1 1")) == "enqueued 1 1"


def test_half_a_character_is_no_cursor() -> None:
    with pytest.raises(ConfigError, match="cursor"):
        Pages(Text("x"), oldest=False).opened("\ud83d")


def test_a_state_by_name_is_the_same_search() -> None:
    """Whoever asks over a wire has words, not the enumeration."""
    cursor = Pages(Match("state", "=", State.READY), oldest=False).sealed("enqueued 1 1")
    assert Pages(Match("state", "=", "ready"), oldest=False).opened(cursor) == "enqueued 1 1"


def test_another_key_gives_other_cursors() -> None:
    """For those who ask on behalf of others: a key that they keep to themselves."""
    own, other = [Pages(Ids(("a",)), oldest=True, key=key) for key in (b"one", b"other")]
    cursor = own.sealed("oldest-enqueued 1 1")
    assert own.opened(cursor) == "oldest-enqueued 1 1"
    with pytest.raises(ConfigError):
        other.opened(cursor)


def test_a_cursor_can_be_typed_behind_an_option() -> None:
    """It begins with a letter, whatever the digest is: a dash would look like another option."""
    for seq in range(200):
        assert Pages(Text("x"), oldest=False).sealed(f"died {seq} {seq}")[0].isalpha()
