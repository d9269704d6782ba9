"""Change numbers: every write that makes, changes or ends a letter is seen by whoever reads on from the last number."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from redrive.core.acts import (
    Amended,
    Archive,
    Cancel,
    Change,
    Discard,
    Expire,
    Move,
    Note,
    Recall,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Tag,
    Unreserve,
)
from redrive.core.decide import Charge, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Ending, Item, Terms
from redrive.core.select import Ids
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    LetterChange,
    QueueChange,
    Settlement,
    Verdict,
)
from redrive.errors import ConfigError
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    asking,
    dead,
    ended,
    failed,
    failure,
    finished,
    fresh,
    held,
    ids,
    new,
    news,
)

DAY = 24 * 3600 * SECOND


class _Reader:
    """Reads on from the last number it saw, and keeps what it was told last of each item."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last = 0
        self.mirror: dict[str, Item | None] = {}

    async def next(self, limit: int = PAGE_LIMIT) -> tuple[str, ...]:
        found = await self._store.changes(self.last, limit)
        numbers = [one.number for one in found]
        assert numbers == sorted(set(numbers)), "they grow, and no two have the same"
        assert len({one.id for one in found}) == len(found), "each once"
        assert not numbers or numbers[0] > self.last
        self.last = numbers[-1] if numbers else self.last
        self.mirror.update((one.id, one.item) for one in found)
        return tuple(one.id for one in found)

    async def all(self, limit: int = PAGE_LIMIT) -> tuple[str, ...]:
        told: list[str] = []
        while found := await self.next(limit):
            told += found
        return tuple(told)


async def _amend(world: World, change: Change, *item_ids: str) -> Amended:
    amended = await world.store.amend(Ids(item_ids), change, act())
    assert amended.changed == item_ids
    return amended


async def _last(world: World) -> tuple[LetterChange, ...]:
    return await world.store.changes(0, PAGE_LIMIT)


# --- what has no number ---


async def test_changes_of_items_that_never_died(world: World) -> None:
    await world.put(*news(4))
    first, second, third, _ = await world.lease(4)
    await world.finish(finished(first, b"result"), failed(second, SECOND))
    await _amend(world, Cancel(), third.id, second.id)
    await world.settle(failed(third))
    waiting = new(delay=DAY)
    await world.put(waiting)
    for change in (RunNow(), SetPolicy("steady"), Tag(("vip",)), Note()):
        await _amend(world, change, waiting.id)
    await world.store.prune(Ids((first.id,)), 10, act())
    assert await _last(world) == ()


async def test_changes_are_not_made_by_leases(world: World) -> None:
    letter = await world.letter()
    reader = _Reader(world.store)
    assert await reader.all() == (letter.id,)
    (leased,) = await world.store.lease_letters([letter.id], "me", TTL)
    await world.store.extend([held(leased)], 2 * TTL)
    assert await reader.all() == ()


async def test_changes_are_not_made_by_what_is_refused(world: World) -> None:
    letter = await world.letter()
    reader = _Reader(world.store)
    await reader.all()
    by = act()
    await world.store.amend(Ids((letter.id,)), Archive(), by)
    assert await reader.all() == (letter.id,)
    assert (await world.store.amend(Ids((letter.id,)), Archive(), by)).already == (letter.id,)
    assert (await world.store.amend(Ids((letter.id,)), Archive(), act())).changed == ()
    assert await reader.all() == ()


# --- what has one ---


async def test_changes_follow_a_letter_through_every_act(world: World) -> None:
    """Each moves it to the next number, and shows it as it is then."""
    reader = _Reader(world.store)
    item = await world.held()
    await world.finish(dead(item))
    acts: tuple[tuple[Change, State, Disposition | None], ...] = (
        (Archive(), State.DEAD, Disposition.ARCHIVED),
        (Restore(), State.DEAD, Disposition.OPEN),
        (Discard(), State.DEAD, Disposition.TRASH),
        (Restore(), State.DEAD, Disposition.OPEN),
        (Tag(("vip",)), State.DEAD, Disposition.OPEN),
        (Note(), State.DEAD, Disposition.OPEN),
        (Move("elsewhere"), State.DEAD, Disposition.OPEN),
        (Replay(), State.READY, None),
        (Recall(), State.DEAD, Disposition.OPEN),
        (Reserve("replay-x"), State.DEAD, Disposition.OPEN),
        (Unreserve(), State.DEAD, Disposition.OPEN),
        (Reserve("replay-x"), State.DEAD, Disposition.OPEN),
        (Replay(reserved="replay-x"), State.READY, None),
    )
    assert await reader.next() == (item.id,)
    for change, state, lies in acts:
        await _amend(world, change, item.id)
        assert await reader.next() == (item.id,), change
        shown = reader.mirror[item.id]
        assert shown == await world.item(item.id)
        assert shown is not None
        assert (shown.state, shown.letter and shown.letter.disposition) == (state, lies)
    again = await world.lease_one(queue="elsewhere")
    assert await reader.next() == (), "it is no letter any more"
    await world.finish(dead(again))
    assert await reader.next() == (item.id,)
    await _amend(world, Replay(queue=QUEUE), item.id)
    assert await reader.next() == (item.id,)
    assert reader.mirror[item.id] == await world.item(item.id)


async def test_changes_of_an_item_that_expires(world: World) -> None:
    waiting, other = new(delay=DAY), new(delay=DAY)
    await world.put(waiting, other)
    await _amend(world, Expire(), waiting.id)
    ((_, changed, item),) = [(one.number, one.id, one.item) for one in await _last(world)]
    assert (changed, item) == (waiting.id, await world.item(waiting.id))


async def test_changes_of_a_skipped_head(world: World) -> None:
    terms = Terms(order_key="k")
    head, follower = new(terms=terms), new(terms=terms)
    await world.put(head, follower)
    await world.finish(dead(await world.lease_one()))
    reader = _Reader(world.store)
    assert await reader.next() == (head.id,)
    await _amend(world, Skip(), head.id)
    assert await reader.next() == (head.id,)


async def test_changes_of_those_that_die_with_another(world: World) -> None:
    first = new()
    second = new(terms=Terms(after=(first.id,), on_dead="die"))
    third = new(terms=Terms(after=(second.id,), on_dead="die"))
    patient = new(terms=Terms(after=(first.id,)))
    await world.put(first, second, third, patient)
    await world.finish(dead(await world.lease_one()))
    reader = _Reader(world.store)
    assert sorted(await reader.next()) == sorted(ids((first, second, third)))
    late = new(terms=Terms(after=(first.id,), on_dead="die"))
    await world.put(late)
    assert (await world.item(late.id)).state is State.DEAD
    assert late.id in await reader.next()
    await _amend(world, Cancel(), patient.id)
    assert await reader.next() == ()


async def test_changes_of_those_that_die_with_a_cancelled_one(world: World) -> None:
    first = new(delay=DAY)
    second = new(terms=Terms(after=(first.id,), on_dead="die"))
    await world.put(first, second)
    await _amend(world, Cancel(), first.id)
    assert [one.id for one in await _last(world)] == [second.id]


async def test_changes_of_what_the_reaper_ends(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert await _last(world) == ()
    await world.finish(dead(lost, reason="max_crashes"))
    assert [one.id for one in await _last(world)] == [item.id]


async def test_changes_of_an_item_kept_for_want_of_room(world: World) -> None:
    await world.store.configure_route("full", 1)
    first, second = news(2)
    await world.put(first, second)
    settled = await world.settle(*(dead(item, route="full") for item in await world.lease(2)))
    assert [answer.verdict for answer in settled.answers] == [Verdict.APPLIED, Verdict.KEPT]
    assert [one.id for one in await _last(world)] == [first.id]


async def test_changes_of_letters_settled_in_place(world: World) -> None:
    decisions = (ToDone(b"done"), ToCancelled(), ToReady(SECOND, Charge.NOTHING), ToDead("no", Charge.ERROR, failure()))
    reader = _Reader(world.store)
    for decision in decisions:
        letter = await world.letter()
        await reader.next()
        (leased,) = await world.store.lease_letters([letter.id], "me", TTL)
        settlement = Settlement(letter.id, leased.deliveries, decision, ended(leased, Ending.FAILED))
        (answer,) = await world.store.settle_letters([settlement])
        assert answer.verdict is Verdict.APPLIED
        assert await reader.next() == (letter.id,), decision
        assert reader.mirror[letter.id] == await world.item(letter.id)
        assert (await world.store.settle_letters([settlement]))[0].verdict is Verdict.ALREADY
        assert await reader.next() == ()


async def test_changes_of_imported_letters(world: World) -> None:
    letters = await world.letters(3)
    histories = [await world.store.get(letter.id) for letter in letters]
    copies = [replace(one, item=replace(one.item, id=fresh("copy"))) for one in histories]
    reader = _Reader(world.store)
    await reader.next()
    result = await world.store.take_in(copies, act())
    assert sorted(await reader.next()) == sorted(result.added)
    assert (await world.store.take_in(copies, act())).added == ()
    assert await reader.next() == ()


# --- what was pruned ---


async def test_changes_of_pruned_letters_show_nothing(world: World) -> None:
    letters = await world.letters(3)
    reader = _Reader(world.store)
    assert await reader.next() == ids(letters)
    gone = letters[1]
    await _amend(world, Discard(), gone.id)
    assert await reader.next() == (gone.id,)
    await world.store.prune(Ids((gone.id,)), 10, act())
    assert await reader.next() == (gone.id,)
    assert reader.mirror[gone.id] is None
    assert [one.id for one in await _last(world)] == [letters[0].id, letters[2].id, gone.id]


async def test_changes_of_what_retention_removes(world: World) -> None:
    await world.set(QueueChange(keep=SECOND, keep_trash=SECOND))
    discarded, replayed = await world.letters(2)
    never = await world.done()
    await _amend(world, Discard(), discarded.id)
    await _amend(world, Replay(), replayed.id)
    await world.finish(finished(await world.grab(replayed.id)))
    reader = _Reader(world.store)
    await reader.all()
    world.tick(2 * SECOND)
    assert (await world.store.sweep(100, act())).pruned == 3
    assert sorted(await reader.all()) == sorted((discarded.id, replayed.id)), "both have a number, and both are gone"
    assert reader.mirror[discarded.id] is reader.mirror[replayed.id] is None
    assert never.id not in reader.mirror


async def test_changes_numbers_are_not_reused_after_a_prune_of_the_newest(world: World) -> None:
    letter = await world.letter()
    await _amend(world, Discard(), letter.id)
    await world.store.prune(Ids((letter.id,)), 10, act())
    reader = _Reader(world.store)
    await reader.all()
    assert reader.mirror == {letter.id: None}
    following = await world.letter()
    assert await reader.next() == (following.id,)


async def test_changes_pruned_before_anybody_reads(world: World) -> None:
    letter = await world.letter()
    await _amend(world, Discard(), letter.id)
    await world.store.prune(Ids((letter.id,)), 10, act())
    ((changed, item),) = [(one.id, one.item) for one in await _last(world)]
    assert (changed, item) == (letter.id, None)


# --- reading ---


async def test_changes_of_one_write_have_numbers_of_their_own(world: World) -> None:
    made = news(5)
    await world.put(*made)
    leased = await world.lease(5)
    await world.finish(*(dead(item) for item in leased))
    reader = _Reader(world.store)
    assert sorted(await reader.next()) == sorted(ids(made))
    await _amend(world, Archive(), *ids(made))
    assert sorted(await reader.next()) == sorted(ids(made))


async def test_changes_are_in_the_order_of_the_writes(world: World) -> None:
    """Also where nobody read in between."""
    first, second, third = await world.letters(3)
    await _amend(world, Archive(), second.id)
    await _amend(world, Tag(("vip",)), first.id)
    assert [one.id for one in await _last(world)] == [third.id, second.id, first.id]


async def test_changes_are_read_in_pages(world: World) -> None:
    letters = await world.letters(7)
    reader = _Reader(world.store)
    assert await reader.next(3) == ids(letters[:3])
    assert await reader.next(3) == ids(letters[3:6])
    assert await reader.next(3) == ids(letters[6:])
    assert await reader.next(3) == ()
    assert reader.mirror == {letter.id: await world.item(letter.id) for letter in letters}


async def test_changes_between_pages_are_not_missed(world: World) -> None:
    letters = await world.letters(6)
    reader = _Reader(world.store)
    await reader.next(2)
    await _amend(world, Archive(), letters[0].id, letters[3].id)
    await _amend(world, Replay(), letters[5].id)
    await reader.all(2)
    assert reader.mirror == {letter.id: await world.item(letter.id) for letter in letters}


async def test_changes_have_whole_items(world: World) -> None:
    """Also large ones, with results and holds."""
    body = b'{"text": "%s"}' % (b"x" * 200_000)
    made = new(payload=body)
    await world.put(made)
    item = await world.grab(made.id)
    await world.finish(dead(item))
    (change,) = await _last(world)
    assert change.item == await world.item(made.id)
    assert change.item is not None
    assert change.item.payload == body


async def test_changes_go_on_after_a_restart(world: World) -> None:
    world.needs(DURABLE)
    first = await world.letter()
    reader = _Reader(world.store)
    assert await reader.next() == (first.id,)
    await world.store.close()
    world.store = await world.another()
    again = _Reader(world.store)
    again.last = reader.last
    assert await again.next() == ()
    second = await world.letter()
    assert await again.next() == (second.id,)


async def test_changes_refuse_odd_limits(world: World) -> None:
    for limit in (0, -1, PAGE_LIMIT + 1):
        with pytest.raises(ConfigError):
            await world.store.changes(0, limit)


async def test_changes_seen_by_a_reader_during_a_race(world: World) -> None:
    """Who follows while letters are made, changed and ended from all sides ends with every one as it is."""
    made = news(40)
    await world.put(*made)
    handles = [world.store, await world.another()]
    reader = _Reader(await world.another())
    over = asyncio.Event()

    async def follow() -> None:
        while not over.is_set():
            await reader.next(7)

    async def settle(number: int) -> None:
        store = handles[number % 2]
        for _ in range(20):
            items = (await store.lease(asking(2, worker=f"w-{number}"))).items
            await store.settle([dead(item) for item in items])
            if items:
                change: Change = (Archive(), Discard(), Replay(), Tag(("vip",)))[number % 4]
                await store.amend(Ids((items[0].id,)), change, act())

    async def prune() -> None:
        for _ in range(10):
            await handles[1].prune(Ids(ids(made)), 3, act())

    following = asyncio.ensure_future(follow())
    await asyncio.gather(*(settle(number) for number in range(6)), prune())
    over.set()
    await following
    await reader.all(7)
    there = {item.id: history.item for item in made if (history := await world.history(item.id)) is not None}
    dead_now = {item_id for item_id, item in there.items() if item.letter is not None}
    assert dead_now <= reader.mirror.keys()
    for item_id, shown in reader.mirror.items():
        now = there.get(item_id)
        if now is None or now.letter is not None or shown is None:
            assert shown == now
        else:
            assert shown.letter is None, "the end of a letter is a change, what it does afterwards is none"
    assert {item.id for item in made} - there.keys() <= reader.mirror.keys()
