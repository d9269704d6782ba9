"""`amend`: legal moves of items nobody holds, audited in the same write, once per request."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import (
    Amended,
    Archive,
    Cancel,
    Change,
    Discard,
    Edit,
    Expire,
    Move,
    Note,
    Park,
    Recall,
    Refusal,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Tag,
    Unpark,
    Unreserve,
    edit_refusal,
    parked_refusal,
    recall_refusal,
    refusal,
)
from redrive.core.item import Dedupe, Instant, Item, Millis, NewItem, Terms, holder
from redrive.core.select import EVERYTHING, And, Ids, Match
from redrive.core.states import Disposition, State
from redrive.core.terms import is_parked
from redrive.core.verbs import Entry
from redrive.errors import Conflict
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
    skipped_ids,
)

LETTERS = Match("state", "=", "dead")
CHANGES: tuple[Change, ...] = (Replay(), Replay("once"), Archive(), Discard(), Restore(), Skip())


def only(*items: Item | str) -> Ids:
    return Ids(tuple(item if isinstance(item, str) else item.id for item in items))


async def lying(world: World, item: Item) -> Disposition | None:
    letter = (await world.item(item.id)).letter
    return None if letter is None else letter.disposition


async def audit(world: World) -> tuple[Entry, ...]:
    return await world.store.journal("audit")


async def test_amend_replay_brings_the_same_item_back(world: World) -> None:
    letter = await world.letter()
    world.tick(SECOND)
    assert await world.store.amend(only(letter), Replay(delay=5 * SECOND), act()) == Amended((letter.id,))
    after, now = await world.item(letter.id), world.clock.now()
    assert (after.state, after.letter, after.ended_at) == (State.READY, None, None)
    assert (after.due_at, after.renewed_at, after.enqueued_at) == (now + 5 * SECOND, now, letter.enqueued_at)
    assert (after.id, after.seq, after.payload, after.queue) == (letter.id, letter.seq, letter.payload, QUEUE)
    assert (after.attempt, after.errors, after.crashes, after.replays) == (0, 0, 0, 1)
    assert not after.last_chance


async def test_amend_replay_never_resets_the_fence(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay(), act())
    assert (await world.item(letter.id)).deliveries == letter.deliveries
    again = await world.lease_one()
    assert (again.deliveries, again.attempt) == (letter.deliveries + 1, 1)


async def test_amend_replay_is_not_leased_early(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay(delay=SECOND), act())
    world.tick(SECOND - 1)
    assert await world.lease(5) == ()
    world.tick(1)
    assert ids(await world.lease(5)) == (letter.id,)


async def test_amend_replay_once_marks_the_last_chance(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay("once"), act())
    after = await world.lease_one()
    assert after.last_chance
    assert after.attempt == 1
    await world.finish(dead(after, reason="last_chance"))
    await world.store.amend(only(letter), Replay("fresh"), act())
    assert not (await world.item(letter.id)).last_chance


async def test_amend_replay_keeps_a_last_chance_through_a_release(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay("once"), act())
    item = await world.lease_one()
    await world.finish(failed(item))
    assert (await world.lease_one()).last_chance


async def test_amend_replay_twice_makes_two_lives(world: World) -> None:
    letter = await world.letter()
    for life in (1, 2):
        await world.store.amend(only(letter), Replay(), act())
        item = await world.lease_one()
        assert (item.replays, item.errors) == (life, 0)
        await world.finish(dead(item))
    again = await world.store.get(letter.id)
    assert (again.item.state, len(again.attempts), len(again.deeds)) == (State.DEAD, 3, 2)


async def test_amend_lays_letters_aside_and_back(world: World) -> None:
    letter = await world.letter()
    assert letter.letter is not None
    steps: list[tuple[Change, Disposition]] = [
        (Archive(), Disposition.ARCHIVED),
        (Restore(), Disposition.OPEN),
        (Discard(), Disposition.TRASH),
        (Restore(), Disposition.OPEN),
        (Archive(), Disposition.ARCHIVED),
        (Discard(), Disposition.TRASH),
    ]
    for change, where in steps:
        assert (await world.store.amend(only(letter), change, act())).changed == (letter.id,)
        after = await world.item(letter.id)
        assert after.letter is not None
        assert after.letter.disposition is where
        assert (after.letter.reason, after.letter.died_at) == (letter.letter.reason, letter.letter.died_at)
        assert after.letter.failure == letter.letter.failure
        assert (after.state, after.deliveries, after.errors) == (State.DEAD, letter.deliveries, letter.errors)
    assert len((await world.store.get(letter.id)).deeds) == len(steps)


async def test_amend_replays_archived_letters(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Archive(), act())
    assert (await world.store.amend(only(letter), Replay(), act())).changed == (letter.id,)
    assert (await world.item(letter.id)).state is State.READY


async def test_amend_does_not_replay_from_the_trash(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Discard(), act())
    for change in (Replay(), Archive(), Discard()):
        assert skipped_ids(await world.store.amend(only(letter), change, act())) == (letter.id,)
    assert await lying(world, letter) is Disposition.TRASH


async def test_amend_cancels_what_waits(world: World) -> None:
    made = new(delay=SECOND)
    await world.put(made)
    assert (await world.store.amend(only(made.id), Cancel(), act())).changed == (made.id,)
    after = await world.item(made.id)
    assert (after.state, after.ended_at, after.letter) == (State.CANCELLED, world.clock.now(), None)
    world.tick(SECOND)
    assert await world.lease(5) == ()


async def test_amend_sets_the_policy_of_what_waits(world: World) -> None:
    """And nothing else of it: not its other terms, its tags, its place or when it is due."""
    bound = Terms("o", "l", Dedupe("d", window=SECOND), policy="gentle")
    terms = [None, Terms(policy="gentle"), bound, Terms(on_dead="die")]
    made = [new(delay=SECOND, terms=each) for each in terms]
    await world.put(*made)
    await world.store.amend(only(made[0].id), Tag(("vip",)), act())
    before = [await world.item(one.id) for one in made]
    data = '{"max_attempts":10,"route":"Ümlaut☃"}'
    assert await world.store.amend(only(*ids(made)), SetPolicy(data), act()) == Amended(ids(made))
    for item in before:
        terms_of = structs.replace(item.terms or Terms(), policy=data)
        assert await world.item(item.id) == structs.replace(item, terms=terms_of)
    assert await world.store.amend(only(*ids(made)), SetPolicy(""), act()) == Amended(ids(made))
    cleared = [None, None, structs.replace(bound, policy=""), Terms(on_dead="die")]
    for item, terms_left in zip(before, cleared, strict=True):
        assert await world.item(item.id) == structs.replace(item, terms=terms_left)
    await world.sound()


async def test_amend_sets_a_policy_that_the_next_lease_has(world: World) -> None:
    item = new()
    await world.put(item)
    await world.store.amend(only(item.id), SetPolicy("gentle"), act())
    leased = await world.lease_one()
    assert leased.terms == Terms(policy="gentle")
    history = await world.store.get(item.id)
    assert [deed.change for deed in history.deeds] == ["set_policy"]
    assert len(await audit(world)) == 1


async def test_amend_sets_no_policy_of_what_runs_or_is_over(world: World) -> None:
    letter, done, running = await world.letter(), await world.done(), await world.held()
    everyone = only(letter, done, running)
    amended = await world.store.amend(everyone, SetPolicy("gentle"), act())
    assert (amended.changed, skipped_ids(amended)) == ((), everyone.ids)
    assert [one.code for one in amended.skipped] == ["dead", "done", "leased"]
    assert "it is running" in amended.skipped[2].reason
    assert [await world.item(each) for each in everyone.ids] == [letter, done, running]


async def test_amend_skips_illegal_moves_with_the_reason(world: World) -> None:
    ready, done, cancelled = new(delay=SECOND), await world.done(), new(delay=SECOND)
    await world.put(ready, cancelled)
    await world.store.amend(only(cancelled.id), Cancel(), act())
    running = await world.held()
    targets = (ready.id, done.id, cancelled.id, running.id)
    before = [await world.store.get(item_id) for item_id in targets]
    for change in (Replay(), Archive(), Discard(), Restore()):
        amended = await world.store.amend(Ids(targets), change, act())
        assert (amended.changed, set(skipped_ids(amended))) == ((), set(targets))
    amended = await world.store.amend(Ids(targets[1:3]), Cancel(), act())
    assert (amended.changed, set(skipped_ids(amended))) == ((), set(targets[1:3]))
    assert [await world.store.get(item_id) for item_id in targets] == before


async def test_amend_never_touches_what_is_held(world: World) -> None:
    """Not even an expired lease: only a settle or a reclaim may. (What a Cancel asks for is in `cancel`.)"""
    item = await world.held()
    for change in CHANGES:
        assert skipped_ids(await world.store.amend(only(item), change, act())) == (item.id,)
    world.tick(1_000 * SECOND)
    for change in CHANGES:
        assert skipped_ids(await world.store.amend(EVERYTHING, change, act())) == (item.id,)
    assert await world.item(item.id) == item


async def test_amend_changes_some_and_skips_others(world: World) -> None:
    one, two = await world.letters(2)
    done = await world.done()
    amended = await world.store.amend(only(one, done, "nobody", two), Archive(), act())
    assert set(amended.changed) == {one.id, two.id}
    assert set(skipped_ids(amended)) == {done.id, "nobody"}


async def test_amend_changes_an_item_once_per_request(world: World) -> None:
    """The reply was lost and the item already died again: the same request must not send it back a second time."""
    letter = await world.letter()
    by = act()
    assert (await world.store.amend(only(letter), Replay(), by)).changed == (letter.id,)
    assert await world.store.amend(only(letter), Replay(), by) == Amended(already=(letter.id,))
    await world.finish(dead(await world.lease_one()))
    before = await world.store.get(letter.id)
    assert await world.store.amend(only(letter), Replay(), by) == Amended(already=(letter.id,))
    assert await world.store.get(letter.id) == before
    assert (await world.store.amend(only(letter), Replay(), act())).changed == (letter.id,)


async def test_amend_by_filter_changes_an_item_once_per_request(world: World) -> None:
    one, two = await world.letters(2)
    by = act()
    assert set((await world.store.amend(LETTERS, Replay(), by)).changed) == {one.id, two.id}
    assert (await world.store.amend(LETTERS, Replay(), by)).changed == ()
    await world.finish(*(dead(item) for item in await world.lease(2)))
    new_letter = await world.letter()
    amended = await world.store.amend(LETTERS, Replay(), by)
    assert (amended.changed, set(amended.already)) == ((new_letter.id,), {one.id, two.id})


async def test_amend_under_one_request_makes_each_kind_of_change_once(world: World) -> None:
    """A ticket's number may be that of several acts; the same act twice is a repeat, whatever it asks."""
    letter = await world.letter()
    by = act()
    for change in (Archive(), Restore(), Edit(b"1"), Tag(("a",)), Replay()):
        assert (await world.store.amend(only(letter), change, by)).changed == (letter.id,)
    for change in (Archive(), Restore(), Edit(b"2"), Tag(("b",)), Replay(delay=SECOND)):
        assert await world.store.amend(only(letter), change, by) == Amended(already=(letter.id,))
    item = await world.item(letter.id)
    assert (item.state, item.payload, item.tags, item.revision) == (State.READY, b"1", ("a",), 1)
    assert (await world.store.amend(only(letter), Recall(), by)).changed == (letter.id,)


async def test_amend_knows_a_request_by_its_whole_id(world: World) -> None:
    """Not by the beginning of another one, and not by being mentioned."""
    letter = await world.letter()
    await world.store.amend(only(letter), Archive(), act("r-10", reason="r-1 asks for it"))
    await world.store.amend(only(letter), Restore(), act())
    by = act("r-1")
    assert (await world.store.amend(only(letter), Archive(), by)).changed == (letter.id,)
    assert (await world.store.amend(only(letter), Archive(), by)).already == (letter.id,)


async def test_amend_skipped_once_may_be_changed_later(world: World) -> None:
    item = await world.held()
    by = act()
    assert skipped_ids(await world.store.amend(only(item), Archive(), by)) == (item.id,)
    await world.finish(dead(item))
    assert (await world.store.amend(only(item), Archive(), by)).changed == (item.id,)


async def test_amend_with_the_expected_count(world: World) -> None:
    letters = await world.letters(3)
    assert (await world.store.amend(LETTERS, Archive(), act(), expect=3)).changed == ids(letters)


@pytest.mark.parametrize("expect", [0, 2, 4])
async def test_amend_refuses_when_the_set_is_not_the_one_seen(world: World, expect: int) -> None:
    """All or none: with another count nothing changes, nothing is audited, and the request is not used up."""
    letters = await world.letters(3)
    before = [await world.store.get(letter.id) for letter in letters]
    entries = await audit(world)
    by = act()
    with pytest.raises(Conflict):
        await world.store.amend(LETTERS, Discard(), by, expect=expect)
    assert [await world.store.get(letter.id) for letter in letters] == before
    assert await audit(world) == entries
    assert len((await world.store.amend(LETTERS, Discard(), by, expect=3)).changed) == 3


async def test_amend_expects_of_ids_those_that_exist(world: World) -> None:
    one, two = await world.letters(2)
    with pytest.raises(Conflict):
        await world.store.amend(only(one, two, "nobody"), Archive(), act(), expect=3)
    assert (await world.store.amend(only(one, two, "nobody"), Archive(), act(), expect=2)).changed == (one.id, two.id)


async def test_amend_writes_who_did_it_into_item_and_audit(world: World) -> None:
    one, two = await world.letters(2)
    assert await audit(world) == ()
    by = act("r-1", actor="ada ☃", reason="the server\nis back")
    await world.store.amend(only(one, two), Archive(), by)
    (entry,) = await audit(world)
    assert (entry.actor, entry.reason, entry.request_id) == (by.actor, by.reason, "r-1")
    assert (entry.at, entry.topic) == (world.clock.now(), "audit")
    assert one.id.encode() in entry.body
    assert two.id.encode() in entry.body
    for letter in (one, two):
        (deed,) = (await world.store.get(letter.id)).deeds
        assert (deed.actor, deed.reason, deed.request_id) == (by.actor, by.reason, "r-1")
        assert (deed.at, deed.change.lower()) == (world.clock.now(), "archive")


async def test_amend_that_changes_nothing_leaves_no_deed(world: World) -> None:
    done = await world.done()
    before = await world.store.get(done.id)
    await world.store.amend(only(done, "nobody"), Replay(), act())
    assert await world.store.get(done.id) == before


async def test_amend_by_filter_takes_the_earliest_first_up_to_a_page(world: World) -> None:
    made = news(PAGE_LIMIT + 3)
    await world.put(*made)
    amended = await world.store.amend(Match("state", "=", "ready"), Cancel(), act())
    assert amended.changed == ids(made[:PAGE_LIMIT])
    count = await world.count()
    assert (count.cancelled, count.ready) == (PAGE_LIMIT, 3)
    rest = await world.store.amend(Match("state", "=", "ready"), Cancel(), act())
    assert rest.changed == ids(made[PAGE_LIMIT:])


async def test_amend_by_filter_leaves_what_does_not_match(world: World) -> None:
    mine, other = await world.letter(queue="a"), await world.letter(queue="b")
    selection = And((LETTERS, Match("queue", "=", "a")))
    assert (await world.store.amend(selection, Replay(), act())).changed == (mine.id,)
    assert await world.item(other.id) == other


async def test_amend_of_no_ids_is_nothing(world: World) -> None:
    await world.letter()
    assert await world.store.amend(Ids(()), Replay(), act()) == Amended()


# --- the table: every change of an item in every situation ---

X = "replay-x"
TABLE: tuple[Change, ...] = (
    *(Replay(), Replay(reserved=X), Archive(), Discard(), Restore(), Cancel(), Skip(), Move("elsewhere")),
    *(Tag(("seen",)), Note(), SetPolicy("gentle"), RunNow(), Expire(), Park("schema"), Unpark()),
    *(Edit(b"[]"), Edit(b"[]", 1), Recall(), Reserve(X), Reserve("replay-y"), Unreserve()),
)
WAITING = ("waits", "parked", "edited", "cancelled")
LEASED = ("runs", "done")
ARE_LETTERS = ("open", "archived", "trash", "reserved", "archived reserved", "worked on")
REPLAYED = ("sent", "runs again", "back again", "dead again", "expired since")
LATER: Millis = 100 * SECOND


class _Table:
    """Items in every situation, one for each change. `kept`: how many deliveries it had when it was replayed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kept: dict[str, int] = {}

    def ids(self, number: int) -> tuple[str, ...]:
        return tuple([f"{name} {number}" for name in (*WAITING, *LEASED, *ARE_LETTERS, *REPLAYED)])

    async def make(self) -> None:
        for names, delay in ((WAITING, LATER), ((*LEASED, *ARE_LETTERS, *REPLAYED), 0)):
            await self._world.put(*(self._new(name, number, delay) for name in names for number in range(len(TABLE))))
        items = await self._leased()
        await self._world.finish(
            *(finished(item) for item in self._those(items, "done")),
            *(dead(item) for item in self._those(items, *ARE_LETTERS, *REPLAYED)),
        )
        self.kept = {item.id: item.deliveries for item in self._those(items, *REPLAYED)}
        await self._amend(Park("x"), "parked")
        await self._amend(Edit(b"null"), "edited")
        await self._amend(Cancel(), "cancelled")
        await self._amend(Archive(), "archived", "archived reserved")
        await self._amend(Discard(), "trash")
        await self._amend(Reserve(X), "reserved", "archived reserved")
        await self._world.store.lease_letters(self._ids("worked on"), "w-9", TTL)
        await self._amend(Replay(delay=LATER), "sent", "expired since")
        await self._amend(Replay(), "runs again", "back again", "dead again")
        await self._amend(Expire(), "expired since")
        items = await self._leased()
        await self._world.finish(
            *(failed(item, LATER) for item in self._those(items, "back again")),
            *(dead(item) for item in self._those(items, "dead again")),
        )

    def _new(self, name: str, number: int, delay: Millis) -> NewItem:
        item_id = f"{name} {number}"
        # Only the head of an order key can be skipped.
        terms = Terms(order_key=item_id) if isinstance(TABLE[number], Skip) else None
        return new(item_id=item_id, delay=delay, terms=terms)

    async def _leased(self) -> tuple[Item, ...]:
        return await self._world.lease(PAGE_LIMIT, ttl=LATER)

    def _ids(self, *names: str) -> tuple[str, ...]:
        return tuple([f"{name} {number}" for name in names for number in range(len(TABLE))])

    def _those(self, items: tuple[Item, ...], *names: str) -> list[Item]:
        wanted = self._ids(*names)
        return [item for item in items if item.id in wanted]

    async def _amend(self, change: Change, *names: str) -> None:
        wanted = self._ids(*names)
        assert {*(await self._world.store.amend(Ids(wanted), change, act())).changed} == {*wanted}


def _refused(change: Change, item: Item, kept: int | None, now: Instant) -> Refusal | None:
    """What core.acts says of it."""
    letter = item.letter
    lies, reserved = (None, "") if letter is None else (letter.disposition, letter.reserved)
    reason = refusal(change, item.state, lies, holder=holder(item, now), reserved=reserved)
    if reason is None and isinstance(change, Edit):
        reason = edit_refusal(change, item.revision)
    if reason is None and isinstance(change, Recall):
        reason = recall_refusal(item.state, item.deliveries, kept)
    return parked_refusal(change, parked=is_parked(item.hold)) if reason is None else reason


async def test_amend_refuses_what_core_refuses_and_nothing_else(world: World) -> None:
    """Word for word, and what it refuses stays as it is."""
    table = _Table(world)
    await table.make()
    for number, change in enumerate(TABLE):
        these = Ids(table.ids(number))
        before = {item.id: item for item in await world.store.find(these)}
        now = world.clock.now()
        reasons = {key: _refused(change, before[key], table.kept.get(key), now) for key in these.ids}
        amended = await world.store.amend(these, change, act())
        said = {one.id: (one.reason, one.code) for one in amended.skipped}
        assert said == {key: why for key, why in reasons.items() if why}
        assert set(amended.changed) == {key for key, why in reasons.items() if why is None}
        after = {item.id: item for item in await world.store.find(these)}
        assert [after[key] for key, why in reasons.items() if why] == [
            before[key] for key, why in reasons.items() if why
        ]
    await world.sound()
