"""The loss windows found in peers, by their number in the catalogue: none of them may open here.

Where the conformance suite has the test, it is named here and not repeated:

    01  rank trim of the dead set        test_settle_dead_evicts_no_letter
    02  pop, then push                   test_settle_of_a_retry_cut_off_loses_nothing, test_amend_cut_off_changes_once
    04  fetch = delete                   test_lease_is_one_step_to_those_who_look, test_lease_cut_off_loses_nothing
    12  pruner treats dead like done     test_prune_takes_nothing_else
    13  resolved before the copy is out  test_amend_is_one_step_to_those_who_look
    18  iterating while others mutate    test_find_pages_stay_whole_while_letters_leave (and …_others_die_and_leave)
    21  unfenced endings                 test_settle_by_a_stale_holder_is_refused_while_the_new_one_runs

Not a store's: 09 (dedupe keys), 10 (unknown handler: the store keeps bytes), 11 (routes are labels), 14, 15 (doors),
19 (the keeper).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
    Replay,
)
from redrive.core.select import EVERYTHING, And, Ids, Match
from redrive.core.states import Disposition, State
from redrive.stores.url import store_from_url
from redrive.testing import conformance as suite
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    act,
    dead,
    finished,
    ids,
    new,
    news,
)
from tests.support.stores import EACH, StoreUrl

DAY = 24 * 3_600 * SECOND


@pytest.fixture(params=EACH)
async def world(request: pytest.FixtureRequest, store_url: StoreUrl) -> AsyncIterator[World]:
    clock = FakeClock()
    store = await store_from_url(store_url(request.param), clock=clock).open()
    yield World(store, store.open, clock)
    await store.close()


def test_the_table_names_tests_that_exist() -> None:
    named = {word.strip("(),") for word in (__doc__ or "").split() if word.startswith("test_")}
    assert len(named) >= 9
    assert [name for name in sorted(named) if not hasattr(suite, name)] == []


async def test_window_03_one_letter_of_a_moment_leaves_the_others(world: World) -> None:
    """Sidekiq removes all letters of the same score and adds the others again."""
    await world.put(*news(5))
    await world.finish(*(dead(item) for item in await world.lease(5)))
    page = await world.store.find(Match("state", "=", "dead"))
    assert len({item.letter.died_at for item in page.items if item.letter}) == 1
    one, *others = page.items
    await world.store.amend(Ids((one.id,)), Replay(), act())
    await world.store.amend(Ids((others[0].id,)), Discard(), act())
    await world.store.prune(EVERYTHING, 10, act())
    assert [await world.item(item.id) for item in others[1:]] == others[1:]
    assert (await world.item(one.id)).state is State.READY


async def test_window_05_replay_never_deletes_then_inserts(world: World) -> None:
    """pg-boss deletes the letter and inserts a job, which a clash swallows. Here it is the same row."""
    letter = await world.letter()
    assert (await world.store.put([new(item_id=letter.id)])).already == (letter.id,)
    await world.store.amend(Ids((letter.id,)), Replay(), act())
    after = await world.item(letter.id)
    assert (after.id, after.seq, after.enqueued_at) == (letter.id, letter.seq, letter.enqueued_at)
    assert (await world.store.put([new(item_id=letter.id)])).already == (letter.id,)
    assert ids(await world.lease(5)) == (letter.id,)


async def test_window_06_the_second_death_leaves_a_letter_too(world: World) -> None:
    """pg-boss PR #874: the redriven job had lost its dead-letter target."""
    letter = await world.letter(cause="first")
    for cause in ("second", "third"):
        await world.store.amend(Ids((letter.id,)), Replay(), act())
        world.tick(SECOND)
        item = await world.lease_one()
        await world.finish(dead(item, reason=cause))
        again = await world.item(letter.id)
        assert again.letter is not None
        assert (again.letter.reason, again.letter.disposition) == (cause, Disposition.OPEN)
        assert again.letter.died_at == world.clock.now()
    assert (await world.count()).open == 1


async def test_window_07_letters_do_not_expire(world: World) -> None:
    """pg-boss 14 days, SAQ 10 minutes, arq an hour, Dramatiq a week, Sidekiq half a year. Here: never."""
    kept = [await world.letter(), await world.letter()]
    await world.store.amend(Ids((kept[1].id,)), Archive(), act())
    kept[1] = await world.item(kept[1].id)
    for _ in range(5):
        world.tick(1_000 * DAY)
        await world.finish(finished(await world.held()))
        await world.store.prune(EVERYTHING, 1_000, act())
    assert [await world.item(letter.id) for letter in kept] == kept


async def test_window_08_failure_never_deletes(world: World) -> None:
    """PgQueuer, BullMQ with removeOnFail, Celery's ack: whatever the reason, the item stays with its bytes."""
    for reason in ("max_attempts", "rule", "max_age", "no_retry", "undecodable", "unknown handler"):
        letter = await world.letter(reason=reason)
        assert letter.letter is not None
        assert letter.letter.reason == reason
        assert letter.payload == new().payload
    assert (await world.count()).open == 6


async def test_window_12_a_letter_s_age_counts_from_its_death(world: World) -> None:
    """SQS counts from the first send, so that an old message is deleted as soon as it is a letter."""
    made = new()
    await world.put(made)
    world.tick(20 * DAY)
    await world.finish(dead(await world.lease_one()))
    recent = And((Match("state", "=", "dead"), Match("died", "<", DAY)))
    assert ids((await world.store.find(recent)).items) == (made.id,)
    old = And((Match("state", "=", "dead"), Match("died", ">=", DAY)))
    assert (await world.store.find(old)).items == ()
    assert (await world.store.amend(old, Discard(), act())).changed == ()


async def test_window_16_crashes_are_counted_on_the_item_not_on_the_delivery(world: World) -> None:
    """A poison counter keyed on an id that changes with each delivery never reaches its limit."""
    made = new()
    await world.put(made)
    for crashes in (1, 2, 3):
        item = await world.lease_one(worker=f"w-{crashes}", max_crashes=99)
        await world.crashed(item)
        after = await world.item(made.id)
        assert (after.id, after.crashes) == (made.id, crashes)
        assert after.deliveries == 2 * crashes


async def test_window_17_a_bulk_replay_keeps_why_it_failed(world: World) -> None:
    """BullMQ's script wipes the failure reason."""
    letters = await world.letters(4)
    before = {letter.id: (await world.store.get(letter.id)).attempts for letter in letters}
    amended = await world.store.amend(Match("state", "=", "dead"), Replay(), act())
    assert len(amended.changed) == 4
    for letter in letters:
        history = await world.store.get(letter.id)
        assert history.attempts == before[letter.id]
        assert history.attempts[0].failure is not None


async def test_window_20_a_replayed_item_cannot_be_pruned_before_it_ended(world: World) -> None:
    """ServiceControl may delete what it sent back, although nobody knows yet how that ended."""
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Replay(delay=DAY), act())
    assert await world.store.prune(Ids((letter.id,)), 10, act()) == ()
    world.tick(DAY)
    item = await world.lease_one()
    assert await world.store.prune(Ids((letter.id,)), 10, act()) == ()
    await world.finish(dead(item))
    assert await world.store.prune(Ids((letter.id,)), 10, act()) == ()


async def test_window_20_a_cancelled_item_leaves_a_tombstone_with_the_act(world: World) -> None:
    made = new()
    await world.put(made)
    await world.store.amend(Ids((made.id,)), Cancel(), act())
    (stone,) = await world.store.prune(EVERYTHING, 10, act(actor="bob"))
    assert (stone.id, stone.state, stone.actor) == (made.id, State.CANCELLED, "bob")
