from __future__ import annotations

import pytest

from redrive.core import codec, terms
from redrive.core.item import Dedupe, Failure, NewItem, Terms

NOW = 1_000_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 0),
        (Terms(), 0),
        (Terms(policy="p", on_dead="die"), 0),
        (Terms(order_key="o"), terms.ORDERED),
        (Terms(limit_key="l"), terms.LIMITED),
        (Terms(dedupe=Dedupe("k")), terms.DEDUPED),
        (Terms(after=("a",)), terms.WAITS),
        (Terms("o", "l", Dedupe("k"), ("a",)), 1 | 2 | 4 | 16),
    ],
)
def test_ties_say_where_to_look_when_it_ends(given: Terms | None, expected: int) -> None:
    assert terms.ties(given) == expected


def test_ties_do_not_overlap() -> None:
    bits = (terms.ORDERED, terms.DEDUPED, terms.WAITS, terms.AWAITED, terms.LIMITED, terms.CANCEL)
    assert sum(bits) == 63
    assert (terms.TAGGED, terms.PARKED) == (128, 256)
    assert terms.HOLDS == ("", "after", "order", "limit", "parked")


def test_a_hold_says_whether_an_operator_parked_it() -> None:
    assert terms.is_parked(terms.parked_hold("schema"))
    assert not any(terms.is_parked(hold) for hold in ("", "after", "order", "limit", "parked:order"))


def test_an_edit_counts_one_revision_more_and_leaves_the_other_terms() -> None:
    assert terms.edited(None) == Terms(revision=1)
    assert terms.edited(Terms("o", policy="p", revision=3)) == Terms("o", policy="p", revision=4)


@pytest.mark.parametrize(
    ("new", "due"),
    [
        (NewItem("i", "q", b""), NOW),
        (NewItem("i", "q", b"", 5), NOW + 5),
        (NewItem("i", "q", b"", 0, NOW + 7), NOW + 7),
        (NewItem("i", "q", b"", 0, 3), NOW),
        (NewItem("i", "q", b"", 9, NOW + 7), NOW + 9),
    ],
)
def test_due_is_never_before_the_put(new: NewItem, due: int) -> None:
    assert terms.due(new, NOW) == due


def test_a_key_is_kept_in_its_queue_or_in_the_whole_store() -> None:
    assert terms.dedupe_place("q", Terms()) is None
    assert terms.dedupe_place("q", Terms(dedupe=Dedupe("k"))) == ("q", "k")
    assert terms.dedupe_place("q", Terms(dedupe=Dedupe("k", "store"))) == (terms.STORE_SCOPE, "k")


def test_what_dies_along_has_evidence_that_can_be_read() -> None:
    assert codec.decode(terms.DEPENDENCY_BYTES, Failure) == terms.DEPENDENCY_FAILURE
    assert terms.DEPENDENCY_FAILURE.cause == terms.DEPENDENCY
