from __future__ import annotations

import itertools

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Change,
    Discard,
    Move,
    Note,
    Replay,
    Restore,
    Skip,
    Tag,
    refusal,
)
from redrive.core.states import TERMINAL, Disposition, State, Verb, legal

LEGAL = {
    ("ready", "leased", "lease"),
    ("leased", "leased", "reclaim"),
    ("leased", "ready", "settle"),
    ("leased", "done", "settle"),
    ("leased", "dead", "settle"),
    ("leased", "cancelled", "settle"),
    ("ready", "cancelled", "amend"),
    ("ready", "dead", "settle"),
    ("ready", "dead", "amend"),
    ("ready", "dead", "settle_letters"),
    ("dead", "ready", "amend"),
    ("dead", "done", "settle_letters"),
    ("dead", "cancelled", "settle_letters"),
}


def test_exactly_these_moves_are_legal() -> None:
    moves = itertools.product(State, State, Verb)
    assert {
        (before.value, after.value, verb.value) for before, after, verb in moves if legal(before, after, verb)
    } == LEGAL


def test_done_and_cancelled_are_final_and_dead_is_left_only_by_an_act_or_by_work_on_the_letter() -> None:
    ways_out = {
        (before, verb) for before, after, verb in itertools.product(State, State, Verb) if legal(before, after, verb)
    }
    assert {way for way in ways_out if way[0] in TERMINAL} == {
        (State.DEAD, Verb.AMEND),
        (State.DEAD, Verb.SETTLE_LETTERS),
    }


OPEN, ARCHIVED, TRASH = Disposition.OPEN, Disposition.ARCHIVED, Disposition.TRASH


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        (Replay(), {OPEN, ARCHIVED}),
        (Archive(), {OPEN}),
        (Discard(), {OPEN, ARCHIVED}),
        (Restore(), {ARCHIVED, TRASH}),
        (Cancel(), set()),
        (Skip(), {OPEN, ARCHIVED}),
    ],
)
@pytest.mark.parametrize("disposition", Disposition)
def test_refusal_of_a_letter(change: Change, allowed: set[Disposition], disposition: Disposition) -> None:
    refused = refusal(change, State.DEAD, disposition)
    assert (refused is None) is (disposition in allowed)
    assert refused is None or refused.reason.startswith("it is ")


@pytest.mark.parametrize("change", [Replay(), Archive(), Discard(), Restore(), Skip(), Move("q")])
@pytest.mark.parametrize("disposition", [OPEN, ARCHIVED])
def test_refusal_of_a_letter_that_somebody_works_on(change: Change, disposition: Disposition) -> None:
    assert refusal(change, State.DEAD, disposition, holder="rescue-7") == ("it is leased by rescue-7", "leased")
    assert all(refusal(one, State.DEAD, disposition, holder="rescue-7") is None for one in (Tag(("x",)), Note()))


@pytest.mark.parametrize("change", [Replay(), Archive(), Discard(), Restore(), Cancel(), Skip()])
@pytest.mark.parametrize("state", [state for state in State if state is not State.DEAD])
def test_refusal_of_anything_else(change: Change, state: State) -> None:
    refused = refusal(change, state, None)
    if isinstance(change, Cancel) and state in {State.READY, State.LEASED}:
        assert refused is None
    else:
        assert refused is not None
        assert ("running" if state is State.LEASED else state) in refused.reason
        assert refused.code == state


def test_a_letter_without_a_disposition_is_refused_not_guessed() -> None:
    assert refusal(Replay(), State.DEAD, None) is not None
