"""The states an item can be in, and the only table that says which moves are legal."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Disposition(StrEnum):
    """Where a dead letter lies. `open` letters wait for an operator; nothing but an audited act moves them."""

    OPEN = "open"
    ARCHIVED = "archived"
    TRASH = "trash"


class Verb(StrEnum):
    """What may move an item. `lease`, `settle` and `reclaim` act on leases; `amend` on items nobody holds; and
    `settle_letters` on letters that somebody works on where they lie.
    """

    LEASE = "lease"
    SETTLE = "settle"
    RECLAIM = "reclaim"
    AMEND = "amend"
    SETTLE_LETTERS = "settle_letters"


TERMINAL = frozenset({State.DONE, State.DEAD, State.CANCELLED})

TRANSITIONS: dict[tuple[State, State], frozenset[Verb]] = {
    (State.READY, State.LEASED): frozenset({Verb.LEASE}),
    (State.LEASED, State.LEASED): frozenset({Verb.RECLAIM}),
    (State.LEASED, State.READY): frozenset({Verb.SETTLE}),
    (State.LEASED, State.DONE): frozenset({Verb.SETTLE}),
    (State.LEASED, State.DEAD): frozenset({Verb.SETTLE}),
    (State.LEASED, State.CANCELLED): frozenset({Verb.SETTLE}),
    (State.READY, State.CANCELLED): frozenset({Verb.AMEND}),
    # What is to die with an item that it waits for.
    (State.READY, State.DEAD): frozenset({Verb.SETTLE, Verb.SETTLE_LETTERS, Verb.AMEND}),
    (State.DEAD, State.READY): frozenset({Verb.AMEND}),
    # A letter that was worked on where it lies.
    (State.DEAD, State.DONE): frozenset({Verb.SETTLE_LETTERS}),
    (State.DEAD, State.CANCELLED): frozenset({Verb.SETTLE_LETTERS}),
}


def legal(before: State, after: State, verb: Verb) -> bool:
    return verb in TRANSITIONS.get((before, after), ())
