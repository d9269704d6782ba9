"""Races and unknown outcomes: many workers over several handles, and every verb repeated after a lost reply."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from redrive.core.acts import (
    Amended,
    Archive,
    Discard,
    Replay,
    Restore,
)
from redrive.core.item import Item
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import Settled, Verdict
from redrive.stores.base import Store
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    asking,
    counted,
    dead,
    failed,
    finished,
    fresh,
    held,
    ids,
    new,
    news,
    next_leases,
    verdicts,
)


async def test_race_of_eight_workers_partitions_the_queue(world: World) -> None:
    """Every item to exactly one worker, none to two, none to nobody."""
    made = news(60)
    await world.put(*made)
    handles = [world.store, await world.another()]

    async def work(number: int) -> list[Item]:
        mine: list[Item] = []
        # So often even one worker alone would have them all: a store that gives without end is found out.
        for _ in range(len(made) // 3):
            mine.extend((await handles[number % 2].lease(asking(3, worker=f"w-{number}"))).items)
        return mine

    shares = await asyncio.gather(*(work(number) for number in range(8)))
    given = [item for share in shares for item in share]
    assert sorted(ids(given)) == sorted(ids(made))
    assert {item.deliveries for item in given} == {1}
    assert all(item.worker == f"w-{number}" for number, share in enumerate(shares) for item in share)
    assert (await world.count()).leased == len(made)


async def test_race_of_workers_that_fail_and_finish(world: World) -> None:
    """Lease, settle and `then` from all sides: each delivery is handed out once and every item ends once."""
    made = news(24)
    await world.put(*made)
    handles = [world.store, await world.another()]
    deliveries: Counter[tuple[str, int]] = Counter()
    done: Counter[str] = Counter()

    async def work(number: int) -> None:
        store, rng = handles[number % 2], random.Random(number)
        leases = await store.lease(asking(2, worker=f"w-{number}"))
        while leases.items:
            assert deliveries.total() < 100 * len(made), "it never ends"
            deliveries.update((item.id, item.deliveries) for item in leases.items)
            settlements = [finished(item) if rng.random() < 0.6 else failed(item) for item in leases.items]
            settled = await store.settle(settlements, asking(2, worker=f"w-{number}"))
            assert set(verdicts(settled)) == {Verdict.APPLIED}
            done.update(it.id for it in settlements if it == finished(_of(leases.items, it.id)))
            leases = next_leases(settled)

    await asyncio.gather(*(work(number) for number in range(6)))
    # Another worker may have failed the last item just after this one found nothing.
    await work(0)
    assert set(deliveries.values()) == {1}
    assert done == Counter(ids(made))
    assert (await world.count()).done == len(made)


def _of(items: tuple[Item, ...], item_id: str) -> Item:
    (item,) = [item for item in items if item.id == item_id]
    return item


async def test_race_of_two_reapers_has_one_winner_per_item(world: World) -> None:
    await world.put(*news(20))
    leased = await world.lease(20)
    world.tick(TTL + 1)
    handles = [world.store, await world.another()] * 2
    calls = [handle.reclaim(f"r-{number}", [QUEUE], TTL, 20) for number, handle in enumerate(handles)]
    taken = [item for items in await asyncio.gather(*calls) for item in items]
    assert sorted(ids(taken)) == sorted(ids(leased))
    assert {item.deliveries for item in taken} == {2}


async def test_race_of_settle_and_reclaim_has_one_winner(world: World) -> None:
    """Whoever is first, the item is either done by its holder or in the reaper's hands, never both."""
    other = await world.another()
    for turn in range(6):
        item = await world.held(worker=fresh("w"))
        world.tick(TTL + 1)
        settling, reclaiming = world.store.settle([finished(item)]), other.reclaim("reaper", [QUEUE], TTL, 5)
        calls = (settling, reclaiming) if turn % 2 else (reclaiming, settling)
        results = await asyncio.gather(*calls)
        settled = next(result for result in results if isinstance(result, Settled))
        taken = next(result for result in results if not isinstance(result, Settled))
        after = await world.item(item.id)
        if verdicts(settled) == (Verdict.APPLIED,):
            assert (ids(taken), after.state, after.deliveries) == ((), State.DONE, 1)
        else:
            assert (ids(taken), after.state, after.deliveries) == ((item.id,), State.LEASED, 2)
            await world.finish(finished(after))


async def test_race_of_settles_by_two_holders_counts_the_current_one(world: World) -> None:
    """The zombie and the new holder settle at the same moment, in both orders, over two handles."""
    other = await world.another()
    for turn in range(6):
        zombie = await world.held(worker=fresh("w"))
        world.tick(TTL + 1)
        (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
        await world.finish(after_crash(lost))
        current = await world.grab(zombie.id)
        stale, right = other.settle([dead(zombie)]), world.store.settle([finished(current, b"right")])
        calls = (stale, right) if turn % 2 else (right, stale)
        settled = await asyncio.gather(*calls)
        found = {verdicts(result) for result in settled}
        assert (Verdict.APPLIED,) in found
        after = await world.item(zombie.id)
        assert (after.state, after.result, after.letter) == (State.DONE, b"right", None)


async def test_race_of_the_same_settle_is_applied_once(world: World) -> None:
    other = await world.another()
    item = await world.held()
    child = new(queue="replies")
    settlement = failed(item, delay=SECOND, follow_ups=[child])
    settled = await asyncio.gather(*(handle.settle([settlement]) for handle in [world.store, other] * 4))
    assert Counter(verdicts(result) for result in settled) == {(Verdict.APPLIED,): 1, (Verdict.ALREADY,): 7}
    history = await world.store.get(item.id)
    assert (history.item.errors, len(history.attempts)) == (1, 1)
    assert (await world.count("replies")).ready == 1


async def test_race_of_extend_and_reclaim_never_makes_two_holders(world: World) -> None:
    other = await world.another()
    for _ in range(4):
        item = await world.held(worker=fresh("w"))
        world.tick(TTL)
        extended, taken = await asyncio.gather(
            world.store.extend([held(item)], TTL), other.reclaim("reaper", [QUEUE], TTL, 5)
        )
        assert (extended.lost == (item.id,)) == (ids(taken) == (item.id,))
        await world.finish(finished(await world.item(item.id)))


async def test_race_of_replays_under_one_request_changes_once(world: World) -> None:
    letters = await world.letters(5)
    handles = [world.store, await world.another()] * 2
    by = act()
    calls = [handle.amend(Ids(ids(letters)), Replay(), by) for handle in handles]
    results = await asyncio.gather(*calls)
    changed = [item_id for result in results for item_id in result.changed]
    assert sorted(changed) == sorted(ids(letters))
    assert {(await world.item(letter.id)).replays for letter in letters} == {1}


async def test_race_of_two_operators_moves_each_letter_once(world: World) -> None:
    letters = await world.letters(6)
    other = await world.another()
    replayed, archived = await asyncio.gather(
        world.store.amend(Ids(ids(letters[:4])), Replay(), act()),
        other.amend(Ids(ids(letters[2:])), Archive(), act()),
    )
    states = {letter.id: (await world.item(letter.id)).state for letter in letters}
    assert all(states[item_id] is State.READY for item_id in replayed.changed)
    # Archiving first leaves a letter that can still be replayed; the other way round it is skipped.
    assert set(replayed.changed) == set(ids(letters[:4]))
    assert {item_id for item_id, state in states.items() if state is State.DEAD} == set(ids(letters[4:]))
    assert set(ids(letters[4:])) <= set(archived.changed)
    assert await world.count() == counted((await world.store.find(EVERYTHING, 100)).items, QUEUE)


async def test_race_of_prune_and_restore_loses_no_letter(world: World) -> None:
    """Out of the trash at the last moment: each letter is pruned or restored, never both and never neither."""
    letters = await world.letters(8)
    await world.store.amend(Ids(ids(letters)), Discard(), act())

    async def restore() -> set[str]:
        amended = [await world.store.amend(Ids((letter.id,)), Restore(), act()) for letter in letters]
        return {item_id for one in amended for item_id in one.changed}

    other = await world.another()
    stones, restored = await asyncio.gather(other.prune(Match("disposition", "=", "trash"), 8, act()), restore())
    assert {stone.id for stone in stones} ^ restored == set(ids(letters))
    everything = (await world.store.find(EVERYTHING, 100)).items
    assert set(ids(everything)) == restored
    assert await world.count() == counted(everything, QUEUE)


async def test_race_of_everything_keeps_the_counters_true(world: World) -> None:
    handles = [world.store, await world.another()]
    await world.put(*news(20))

    async def live(number: int) -> None:
        store, rng = handles[number % 2], random.Random(number)
        for _ in range(8):
            await store.put([new()])
            items = (await store.lease(asking(3, worker=f"w-{number}"))).items
            await store.settle([rng.choice((finished, failed, dead, after_crash))(item) for item in items])
            await store.amend(Match("state", "=", "dead"), Replay(), act())
            await store.prune(EVERYTHING, 1, act())

    await asyncio.gather(*(live(number) for number in range(4)))
    everything = (await world.store.find(EVERYTHING, 1_000)).items
    assert await world.count() == counted(everything, QUEUE)


async def test_unknown_outcome_of_put(world: World) -> None:
    """The first call may or may not have arrived: either way a repeat leaves exactly one item each."""
    arrived, not_arrived = news(2)
    await world.store.put([arrived])
    before = await world.item(arrived.id)
    result = await world.store.put([arrived, not_arrived])
    assert (result.added, result.already) == ((not_arrived.id,), (arrived.id,))
    assert await world.item(arrived.id) == before
    assert (await world.count()).ready == 2


async def test_unknown_outcome_of_lease(world: World) -> None:
    """Without the nonce the lost leases would be counted, held and run by nobody until they lapse."""
    await world.put(*news(4))
    request = asking(2)
    lost = await world.store.lease(request)
    again = await (await world.another()).lease(request)
    assert again.items == lost.items
    assert (await world.count()).leased == 2
    await world.finish(*(finished(item) for item in again.items))


async def test_unknown_outcome_of_settle(world: World) -> None:
    await world.put(*news(4))
    one, two = await world.lease(2)
    child = new(queue="replies")
    batch = [failed(one, follow_ups=[child]), dead(two)]
    request = asking(5)
    lost = await world.store.settle(batch, request)
    again = await (await world.another()).settle(batch, request)
    assert next_leases(again).items == next_leases(lost).items
    assert verdicts(again)[1] is Verdict.ALREADY
    assert Verdict.APPLIED not in verdicts(again)
    item = await world.item(one.id)
    assert (item.errors, item.deliveries) == (1, 2)
    assert (await world.count("replies")).ready == 1
    assert (await world.count()).open == 1


async def test_unknown_outcome_of_amend(world: World) -> None:
    letters = await world.letters(3)
    by = act()
    await world.store.amend(Ids(ids(letters)), Replay(), by)
    entries = await world.store.journal("audit")
    again = await (await world.another()).amend(Ids(ids(letters)), Replay(), by)
    assert again == Amended(already=ids(letters))
    assert [(await world.item(letter.id)).replays for letter in letters] == [1, 1, 1]
    assert [len((await world.store.get(letter.id)).deeds) for letter in letters] == [1, 1, 1]
    assert await world.store.journal("audit") == entries


async def test_unknown_outcome_of_amend_halfway(world: World) -> None:
    """A part of the letters was changed by the same request before: the repeat does the rest and only the rest."""
    letters = await world.letters(3)
    by = act()
    await world.store.amend(Ids(ids(letters[:1])), Replay(), by)
    again = await world.store.amend(Ids(ids(letters)), Replay(), by)
    assert (again.already, again.changed) == (ids(letters[:1]), ids(letters[1:]))


async def test_unknown_outcome_of_prune(world: World) -> None:
    done = [await world.done() for _ in range(3)]
    by = act()
    stones = await world.store.prune(Ids(ids(done)), 10, by)
    await (await world.another()).prune(Ids(ids(done)), 10, by)
    assert [await world.store.tombstone(stone.id) for stone in stones] == list(stones)
    assert len(await world.store.journal("audit")) == 1


async def test_unknown_outcome_of_reclaim(world: World) -> None:
    """The reply was lost: the items are in nobody's hands until that lease lapses too, and then charged once."""
    item = await world.held()
    world.tick(TTL + 1)
    await world.store.reclaim("reaper", [QUEUE], TTL, 5)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 5) == ()
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], TTL, 5)
    await world.finish(after_crash(taken))
    after = await world.item(item.id)
    assert (after.crashes, after.attempt) == (1, 1)


async def test_unknown_outcome_of_extend(world: World) -> None:
    item = await world.held()
    stores: list[Store] = [world.store, await world.another()]
    for store in stores:
        assert (await store.extend([held(item)], 2 * TTL)).lost == ()
    assert (await world.item(item.id)).lease_until == world.clock.now() + 2 * TTL
