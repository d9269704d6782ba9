"""`take_in`: letters of another store, with their evidence, all or none, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec import structs

from redrive.core import codec
from redrive.core.acts import (
    Amended,
    Archive,
    Discard,
    Replay,
    Restore,
)
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Attempt, Dedupe, Ending, History, Item, Letter, Terms
from redrive.core.select import EVERYTHING, And, Ids, Match
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    PutResult,
    QueueChange,
    Swept,
)
from redrive.stores.audit import AuditRecord
from redrive.testing.conformance.amend import audit, only
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    World,
    act,
    dead,
    failure,
    finished,
    fresh,
    ids,
    names,
    new,
    refusal,
    skipped_ids,
)
from redrive.testing.conformance.retention import left, swept
from redrive.testing.conformance.steps import cut_off

AGES = 10**9


def foreign(world: World, terms: Terms | None = None, *, at: int = 0, item_id: str = "", **facts: object) -> History:
    """A letter as another store tells of it, with every fact set; it died ages ago, `at` says which came first."""
    put = world.clock.now() - AGES + at
    letter = Letter("max_attempts", put + 5 * SECOND, Disposition.OPEN, failure("c7"), "billing")
    item = Item(
        id=item_id or fresh("far"),
        queue=QUEUE,
        payload=b'{"from": "afar"}',
        seq=4_711,
        state=State.DEAD,
        enqueued_at=put,
        due_at=put + 2 * SECOND,
        renewed_at=put + SECOND,
        deliveries=4,
        attempt=3,
        errors=2,
        crashes=1,
        replays=1,
        worker="far-away",
        leased_at=put + 4 * SECOND,
        ended_at=put + 5 * SECOND,
        letter=letter,
        terms=terms,
        tags=("eu", "vip"),
    )
    attempts = (
        Attempt(1, 1, "far-away", put + 2 * SECOND, 12, Ending.CRASHED, failure("c6"), "a note"),
        Attempt(3, 2, "far-away", put + 4 * SECOND, 12, Ending.FAILED, failure("c7"), output=b"\x00\xff"),
    )
    return History(structs.replace(item, **facts), attempts)


def died(history: History, **facts: object) -> History:
    letter = history.item.letter
    assert letter is not None
    return structs.replace(history, item=structs.replace(history.item, letter=structs.replace(letter, **facts)))


async def take_in(world: World, *histories: History) -> tuple[str, ...]:
    result = await world.store.take_in(histories, act())
    assert sorted(result.added) == sorted(history.item.id for history in histories)
    assert result.already == ()
    return result.added


async def test_take_in_keeps_all_the_evidence(world: World) -> None:
    told = foreign(world)
    by = act("r-1", actor="ada ☃", reason="from the old cluster")
    assert await world.store.take_in([told], by) == PutResult((told.item.id,))
    history = await world.store.get(told.item.id)
    assert structs.replace(history.item, seq=0) == structs.replace(told.item, seq=0)
    assert (history.attempts, history.omitted) == (told.attempts, 0)
    (deed,) = history.deeds
    assert (deed.change, deed.actor, deed.reason, deed.at) == ("import", by.actor, by.reason, world.clock.now())
    (entry,) = await audit(world)
    assert (entry.actor, entry.reason, entry.request_id) == (by.actor, by.reason, "r-1")
    record = codec.decode(entry.body, AuditRecord)
    assert (record.change, record.changed) == ("import", (told.item.id,))


async def test_take_in_is_counted_and_found(world: World) -> None:
    """Queues are declared, and everything that is kept of letters knows of it."""
    one, two = foreign(world), foreign(world, queue="other")
    archived = died(foreign(world), disposition=Disposition.ARCHIVED, route="")
    await take_in(world, one, two, archived)
    assert [(row.queue, row.open, row.archived) for row in (await world.store.tally()).queues] == [
        (QUEUE, 1, 1),
        ("other", 1, 0),
    ]
    assert sorted((row.cause, row.queue, row.count) for row in await world.store.causes()) == [
        ("c7", QUEUE, 1),
        ("c7", "other", 1),
    ]
    assert [(row.route, row.open) for row in (await world.store.tally()).routes] == [("billing", 2)]
    dead_ones = Match("state", "=", "dead")
    assert set(ids(await world.store.find(dead_ones))) == {history.item.id for history in (one, two, archived)}
    assert ids(await world.store.find(And((Match("cause", "=", "c7"), Match("queue", "=", "other"))))) == (two.item.id,)
    assert ids(await world.store.find(And((dead_ones, Match("disposition", "=", "archived"))))) == (archived.item.id,)
    await world.sound()


async def test_take_in_of_what_is_there_changes_nothing(world: World) -> None:
    """Whatever has, or ever had, the id."""
    letter, gone, ready = await world.letter(), await world.done(), new(delay=SECOND)
    await world.put(ready)
    await world.store.prune(Ids((gone.id,)), 10, act())
    there = (letter.id, gone.id, ready.id)
    before = [await world.history(item_id) for item_id in there]
    entries = await audit(world)
    result = await world.store.take_in([foreign(world, item_id=item_id) for item_id in there], act())
    assert (result.added, sorted(result.already)) == ((), sorted(there))
    assert [await world.history(item_id) for item_id in there] == before
    assert await audit(world) == entries
    fresh_one = foreign(world)
    result = await world.store.take_in([foreign(world, item_id=letter.id), fresh_one], act())
    assert result == PutResult((fresh_one.item.id,), (letter.id,))
    record = codec.decode((await audit(world))[-1].body, AuditRecord)
    assert (record.selection, record.changed) == (Ids((fresh_one.item.id,)), (fresh_one.item.id,))
    await world.sound()


async def test_take_in_twice_is_once(world: World) -> None:
    told = [foreign(world, at=number) for number in range(3)]
    by = act()
    first = await world.store.take_in(told, by)
    assert first.added == tuple(history.item.id for history in told)
    assert await world.store.take_in(told, by) == PutResult((), first.added)
    assert len(await audit(world)) == 1
    both = foreign(world)
    assert (await world.store.take_in([both, both], act())).added == (both.item.id,)
    await world.sound()


async def test_take_in_of_nothing(world: World) -> None:
    assert await world.store.take_in([], act()) == PutResult()
    assert await audit(world) == ()


async def test_take_in_by_two_at_once_is_once(world: World) -> None:
    told = [foreign(world, at=number) for number in range(5)]
    stores = [world.store, await world.another()]
    results = await asyncio.gather(*(store.take_in(told, act()) for store in stores))
    assert sorted(one for result in results for one in result.added) == sorted(one.item.id for one in told)
    assert len((await world.store.find(EVERYTHING)).items) == 5
    await world.sound()


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_take_in_cut_off_is_all_or_none(world: World, turns: int) -> None:
    told = [foreign(world, Terms("o"), at=number) for number in range(3)]
    names = tuple(history.item.id for history in told)
    by = act()
    await cut_off(world, world.store.take_in(told, by), turns)
    result = await world.store.take_in(told, by)
    assert result in (PutResult(names), PutResult((), names))
    for history in told:
        there = await world.store.get(history.item.id)
        assert (there.attempts, there.item.tags, len(there.deeds)) == (history.attempts, history.item.tags, 1)
    assert len(await audit(world)) == 1
    await world.sound()


async def test_take_in_has_no_time_later_than_now(world: World) -> None:
    """The other clock may have been ahead."""
    told = foreign(world, at=2 * AGES)
    await take_in(world, told)
    history, now = await world.store.get(told.item.id), world.clock.now()
    item = history.item
    assert item.letter is not None
    times = (item.enqueued_at, item.due_at, item.renewed_at, item.leased_at, item.ended_at, item.letter.died_at)
    assert times == (now,) * 6
    assert [attempt.started_at for attempt in history.attempts] == [now, now]


async def test_take_in_of_one_that_was_kept_back_is_free(world: World) -> None:
    """In the other store nobody was to have it before a time; nothing of that is known here."""
    told = foreign(world, worker="", lease_until=world.clock.now() + AGES)
    await take_in(world, told)
    item = (await world.store.get(told.item.id)).item
    assert (item.worker, item.lease_until) == (None, None)
    (given,) = await world.store.lease_letters([told.item.id], "w", SECOND)
    assert given.worker == "w"


async def test_take_in_then_replay(world: World) -> None:
    """It runs here as any letter does, under a delivery number that its evidence does not have."""
    told = foreign(world, deliveries=0)
    await take_in(world, told)
    assert (await world.item(told.item.id)).deliveries == 3
    assert await world.store.amend(only(told.item.id), Replay(), act()) == Amended((told.item.id,))
    item = await world.lease_one()
    assert (item.deliveries, item.attempt, item.errors, item.replays, item.tags) == (4, 1, 0, 2, ("eu", "vip"))
    await world.finish(dead(item))
    history = await world.store.get(told.item.id)
    assert [attempt.delivery for attempt in history.attempts] == [1, 3, 4]
    await world.store.amend(only(told.item.id), Replay(), act())
    await world.finish(finished(await world.lease_one()))
    assert (await world.item(told.item.id)).state is State.DONE
    await world.sound()


async def test_take_in_lays_letters_where_they_lay(world: World) -> None:
    trash = died(foreign(world), disposition=Disposition.TRASH)
    archived = died(foreign(world), disposition=Disposition.ARCHIVED)
    await world.set(QueueChange(keep_trash=60 * SECOND))
    await take_in(world, trash, archived)
    count = await world.count()
    assert (count.open, count.archived, count.trash) == (0, 1, 1)
    assert (await world.item(trash.item.id)).ended_at == world.clock.now()
    assert await swept(world) == Swept()
    assert skipped_ids(await world.store.amend(only(trash.item.id), Replay(), act())) == (trash.item.id,)
    world.tick(60 * SECOND)
    assert await swept(world) == Swept(1)
    assert await left(world) == {archived.item.id}
    for change in (Restore(), Discard(), Restore(), Archive()):
        assert (await world.store.amend(only(archived.item.id), change, act())).changed == (archived.item.id,)
    await world.sound()


async def test_take_in_keeps_to_no_capacity(world: World) -> None:
    await world.put(new())
    await world.set(QueueChange(capacity=1))
    await world.store.configure_route("billing", 1)
    told = [foreign(world, at=number) for number in range(3)]
    await take_in(world, *told)
    assert (await world.count()).open == 3
    await world.sound()


async def test_take_in_keeps_the_first_and_the_last_attempts(world: World) -> None:
    most = ATTEMPTS_FIRST + ATTEMPTS_LAST
    told = foreign(world)
    many = tuple(Attempt(number, number, "w", number, 1, Ending.FAILED) for number in range(1, most + 6))
    told = structs.replace(told, attempts=many, omitted=7)
    await take_in(world, told)
    history = await world.store.get(told.item.id)
    assert history.attempts == (*many[:ATTEMPTS_FIRST], *many[-ATTEMPTS_LAST:])
    assert (history.omitted, history.item.deliveries) == (12, most + 5)
    await world.store.amend(only(told.item.id), Replay(), act())
    await world.finish(dead(await world.lease_one()))
    history = await world.store.get(told.item.id)
    assert (len(history.attempts), history.omitted) == (most, 13)


SPOILED: tuple[tuple[str, Callable[[History], History]], ...] = (
    ("state", lambda it: structs.replace(it, item=structs.replace(it.item, state=State.DONE, letter=None))),
    ("id", lambda it: structs.replace(it, item=structs.replace(it.item, id=""))),
    ("queue", lambda it: structs.replace(it, item=structs.replace(it.item, queue=""))),
    ("id", lambda it: structs.replace(it, item=structs.replace(it.item, id="nul\0"))),
    ("route", lambda it: died(it, route="nul\0")),
    ("reason", lambda it: died(it, reason="half\ud800")),
    ("failure", lambda it: died(it, failure=failure(cause="nul\0"))),
    ("failure", lambda it: died(it, failure=failure(text="half\ud800"))),
    ("tag", lambda it: structs.replace(it, item=structs.replace(it.item, tags=("two words",)))),
    ("payload", lambda it: structs.replace(it, item=structs.replace(it.item, flaw="damaged"))),
    ("enqueued_at", lambda it: structs.replace(it, item=structs.replace(it.item, enqueued_at=-1))),
    ("died_at", lambda it: died(it, died_at=-1)),
    ("errors", lambda it: structs.replace(it, item=structs.replace(it.item, errors=-1))),
    ("deliveries", lambda it: structs.replace(it, item=structs.replace(it.item, deliveries=2**40))),
    ("attempts", lambda it: structs.replace(it, attempts=it.attempts[::-1])),
    ("dedupe_key", lambda it: structs.replace(it, item=structs.replace(it.item, terms=Terms(dedupe=Dedupe(""))))),
    ("after", lambda it: structs.replace(it, item=structs.replace(it.item, terms=Terms(after=(it.item.id,))))),
)


async def test_take_in_is_all_or_none(world: World) -> None:
    for field, spoil in SPOILED:
        good, spoiled = foreign(world), spoil(foreign(world))
        error = await refusal(world.store.take_in([good, spoiled], act()), spoiled)
        letter = spoiled.item.letter
        assert names(error, field, *(() if letter is None else (letter.reason, letter.failure.text)))
        assert (await world.store.find(EVERYTHING)).items == ()
        assert (await world.store.tally()).queues == ()
        assert await audit(world) == ()


# --- what binds them ---


async def test_taken_in_letters_bind_nobody_until_they_are_replayed(world: World) -> None:
    """They stand in no line, hold no key, and nobody waits behind them."""
    bound = Terms("o", "l", Dedupe("d"))
    told = foreign(world, bound)
    await take_in(world, told)
    assert (await world.item(told.item.id)).terms == bound
    twin, next_one = new(terms=bound), new(terms=Terms("o"))
    await world.put(twin, next_one)
    assert await world.holds(twin, next_one) == ["", "order"]
    assert skipped_ids(await world.store.amend(only(told.item.id), Replay(), act())) == (told.item.id,)
    await world.end(twin, finished)
    await world.store.amend(only(told.item.id), Replay(), act())
    assert [(await world.item(told.item.id)).hold, *await world.holds(next_one)] == ["order", ""]
    assert [one.of for one in (await world.store.put([new(terms=bound)])).duplicates] == [told.item.id]
    await world.sound()
    assert await world.drain() == (next_one.id, told.item.id)


async def test_taken_in_letters_wait_for_no_stranger_unless_forced(world: World) -> None:
    told = foreign(world, Terms("o", after=("a-stranger",)))
    await take_in(world, told)
    assert skipped_ids(await world.store.amend(only(told.item.id), Replay(), act())) == (told.item.id,)
    assert (await world.store.amend(only(told.item.id), Replay(force=True), act())).changed == (told.item.id,)
    assert (await world.item(told.item.id)).hold == ""
    assert await world.drain() == (told.item.id,)
    await world.sound()


@pytest.mark.parametrize("turned", [False, True])
async def test_taken_in_letters_wait_for_each_other_in_their_order(world: World, turned: bool) -> None:  # noqa: FBT001
    """Whatever their order in the call: what is waited for stands before those who wait."""
    first = foreign(world, Terms("o"))
    second = foreign(world, Terms("o", after=(first.item.id,), on_dead="die"))
    third = foreign(world, Terms("o", after=(second.item.id,), on_dead="die"))
    chain = [first, second, third]
    await take_in(world, *(reversed(chain) if turned else chain))
    names = [history.item.id for history in chain]
    for name in reversed(names):
        assert (await world.store.amend(only(name), Replay(), act())).changed == (name,)
        await world.sound()
    assert await world.drain() == tuple(names)


async def test_taken_in_letters_can_be_waited_for(world: World) -> None:
    told = foreign(world, Terms("o"))
    await take_in(world, told)
    last = new(terms=Terms("o", after=(told.item.id,)))
    await world.put(last)
    assert await world.holds(last) == ["after"]
    await world.store.amend(only(told.item.id), Replay(), act())
    await world.sound()
    assert await world.drain() == (told.item.id, last.id)


async def test_take_in_takes_over_what_another_store_gives(world: World) -> None:
    """As `get` tells it: a letter that went through retries, tags and acts."""
    made = new(terms=Terms(limit_key="l", policy="gentle"))
    await world.put(made)
    await world.finish(dead(await world.lease_one(), route="billing"))
    told = await world.store.get(made.id)
    renamed = structs.replace(told, item=structs.replace(told.item, id=fresh("copy")))
    await take_in(world, renamed)
    history = await world.store.get(renamed.item.id)
    assert structs.replace(history.item, seq=0) == structs.replace(renamed.item, seq=0)
    assert history.attempts == told.attempts
    await world.sound()
