"""Two stores side by side, told the same: what one answers the other must answer too.

Values are compared as the contract sees them: `seq`, journal positions and cursors only order, the wording of a refusal
is free, and of a cause's example only the count is promised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import structs

from redrive.core.acts import Amended
from redrive.core.item import History, Instant, Item, Terms
from redrive.core.states import TERMINAL, State, Verb, legal
from redrive.core.terms import is_parked
from redrive.core.verbs import (
    Answer,
    CauseTally,
    Entry,
    Leases,
    QueueSettings,
    QueueTally,
    Settled,
    Tally,
)
from redrive.errors import RedriveError
from redrive.stores.base import Store
from redrive.testing.conformance.kit import counted

Call = Callable[[Store], Awaitable[Any]]


_BARE: dict[type, Callable[[Any], Any]] = {
    Item: lambda value: structs.replace(value, seq=0),
    History: lambda value: structs.replace(value, item=plain(value.item)),
    Entry: lambda value: structs.replace(value, position=0),
    Answer: lambda value: (value.id, value.verdict),
    Leases: lambda value: (plain(value.items), value.suspects_due),
    Settled: lambda value: (plain(value.answers), plain(value.leases)),
    Amended: lambda value: (sorted(value.changed), sorted(value.already), sorted(skip.id for skip in value.skipped)),
    CauseTally: lambda value: (value.cause, value.queue, value.count),
    tuple: lambda value: tuple(plain(part) for part in value),
}


def plain(value: Any) -> Any:
    """The value without what the contract leaves open."""
    bare = _BARE.get(type(value))
    return value if bare is None else bare(value)


async def outcome(call: Call, store: Store) -> Any:
    """The answer, or the class of the refusal: both are part of the contract."""
    try:
        return await call(store)
    except RedriveError as error:
        return type(error)


async def compare(call: Call, model: Store, engine: Store) -> Any:
    """The engine's answer, which is the model's."""
    expected, actual = await outcome(call, model), await outcome(call, engine)
    if expected != actual:
        assert plain(actual) == plain(expected)
    return actual


def check_item(item: Item) -> None:
    """One state, and exactly the facts that belong to it."""
    assert (item.letter is not None) == (item.state is State.DEAD)
    assert (item.lease_until is not None) == (item.state is State.LEASED) or item.state is State.DEAD
    assert item.worker or item.lease_until is None or item.state is State.DEAD
    assert (item.ended_at is not None) == (item.state in TERMINAL)
    assert not item.alone or item.state is State.LEASED
    assert 0 <= item.attempt <= item.deliveries
    assert item.errors + item.crashes <= item.deliveries
    assert not item.hold or item.state is State.READY
    assert not item.cancel or item.state in {State.LEASED, State.CANCELLED}


def check_move(before: Item, after: Item, verbs: Iterable[Verb], now: Instant, named: str = "") -> None:
    """What one verb may do to one item. Independent of any store, so the model is judged as well.

    `named`: the item that a lease asked for by its id.
    """
    verbs = frozenset(verbs)
    if after.state is not before.state:
        assert _reachable(before.state, after.state, verbs)
    assert after.deliveries >= before.deliveries
    if after.deliveries > before.deliveries:
        _check_given(before, after, verbs, now, named)
    if after.queue != before.queue:
        assert Verb.AMEND in verbs
        assert before.state is State.DEAD or (before.state, after.state) == (State.READY, State.DEAD)
    kept = ("id", "seq", "enqueued_at", "priority", "kind", "release")
    assert after.payload == before.payload or after.revision > before.revision
    assert all(getattr(before, name) == getattr(after, name) for name in kept)
    if after.terms != before.terms:
        assert Verb.AMEND in verbs
        assert before.state is not State.LEASED, "the terms of what runs are changed"
        assert _unchangeable(after.terms) == _unchangeable(before.terms), (
            "an operator replaces policy and payload alone"
        )
    if is_parked(before.hold):
        assert after.state is not State.LEASED, "what was parked is leased"


def _unchangeable(terms: Terms | None) -> Terms:
    return structs.replace(terms or Terms(), policy="", revision=0)


def _check_given(before: Item, after: Item, verbs: frozenset[Verb], now: Instant, named: str) -> None:
    if Verb.AMEND in verbs:
        assert before.letter is not None
        assert before.lease_until is not None, "taken away from nobody"
        assert before.lease_until <= now or not before.worker, "taken away from whoever works on it"
    elif before.letter is not None:
        assert (Verb.LEASE in verbs, after.state, after.leased_at) == (True, State.DEAD, now)
        assert before.lease_until is None or before.lease_until <= now or not before.worker, "two hold one letter"
    elif Verb.RECLAIM not in verbs:
        assert Verb.LEASE in verbs
        assert max(before.due_at, after.due_at) <= now or after.id == named
        assert not before.hold or Verb.SETTLE in verbs, "leased though it waits"
        assert (after.state, after.leased_at) == (State.LEASED, now)


def _reachable(before: State, after: State, verbs: frozenset[Verb]) -> bool:
    """In one step, or in two where a settle is followed by the lease that came with it."""
    if any(legal(before, after, verb) for verb in verbs):
        return True
    return any(
        any(legal(before, middle, one) for one in verbs) and any(legal(middle, after, two) for two in verbs)
        for middle in State
    )


def check_tally(tally: Tally, items: Iterable[Item]) -> None:
    """Kept counters equal a full count."""
    everything = tuple(items)
    for row in tally.queues:
        bare = structs.replace(
            row, paused=False, paused_by="", paused_reason="", settings=QueueSettings(), rate_at=None
        )
        assert bare == counted(everything, row.queue)
    assert sum(_sum(row) for row in tally.queues) == len(everything)


def _sum(row: QueueTally) -> int:
    live = row.ready + row.held + row.parked + row.leased
    return live + row.done + row.open + row.archived + row.trash + row.cancelled
