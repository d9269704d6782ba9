"""`lease_letters`: a letter is worked on where it lies, by one worker, and stays the letter it is; who may touch it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from msgspec import structs

from redrive.core.acts import (
    Archive,
    Change,
    Discard,
    Move,
    Note,
    Replay,
    Restore,
    Skip,
    Tag,
)
from redrive.core.decide import Charge, Decision, ToDone, ToReady
from redrive.core.item import Item, NewItem
from redrive.core.select import Ids, Match
from redrive.core.states import Disposition
from redrive.core.verbs import (
    Answer,
    Extended,
    Held,
    Settlement,
    Verdict,
)
from redrive.errors import ConfigError
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    WORKER,
    World,
    act,
    fresh,
    held,
    ids,
    new,
    skipped_ids,
)
from redrive.testing.conformance.order import BLOCK, broken_line

MOVES = (Replay(), Archive(), Discard(), Restore(), Move("elsewhere"), Skip())
"""What moves a letter, and so must not be done to one that somebody works on."""


async def leased(
    world: World, *letters: Item | NewItem, worker: str = WORKER, ttl: int = TTL, early: bool = False
) -> tuple[Item, ...]:
    """Insist that all can be had."""
    given = await world.store.lease_letters(ids(letters), worker, ttl, early=early)
    assert ids(given) == ids(letters)
    return given


def over(item: Item, decision: Decision | None = None, follow_ups: Iterable[NewItem] = ()) -> Settlement:
    return Settlement(item.id, item.deliveries, decision or ToDone(b"sent"), None, tuple(follow_ups))


async def settle(world: World, *settlements: Settlement) -> list[Verdict]:
    answers = await world.store.settle_letters(settlements)
    assert tuple(answer.id for answer in answers) == tuple(one.id for one in settlements)
    return [answer.verdict for answer in answers]


async def applied(world: World, *settlements: Settlement) -> None:
    assert await world.store.settle_letters(settlements) == tuple(
        Answer(one.id, Verdict.APPLIED) for one in settlements
    )


# --- giving ---


async def test_letter_lease_leaves_it_the_letter_it_is(world: World) -> None:
    letter = await world.letter()
    counts, causes = await world.count(), await world.store.causes()
    world.tick(SECOND)
    (given,) = await leased(world, letter)
    now = world.clock.now()
    assert given == structs.replace(
        letter, deliveries=letter.deliveries + 1, worker=WORKER, leased_at=now, lease_until=now + TTL
    )
    assert await world.item(letter.id) == given
    assert (await world.count(), await world.store.causes()) == (counts, causes)
    assert (await world.store.find(Match("state", "=", "dead"))).items == (given,)
    await world.sound()


async def test_letter_lease_gives_what_can_be_had_in_the_order_of_the_ids(world: World) -> None:
    one, two, three = await world.letters(3)
    trash, taken, done = await world.letter(), await world.letter(), await world.done()
    await world.store.amend(Ids((two.id,)), Archive(), act())
    await world.store.amend(Ids((trash.id,)), Discard(), act())
    await leased(world, taken, worker="other")
    ready = new(delay=SECOND)
    await world.put(ready)
    asked = [three.id, "nobody", done.id, ready.id, taken.id, trash.id, two.id, three.id, one.id]
    given = await world.store.lease_letters(asked, WORKER, TTL)
    assert ids(given) == (three.id, two.id, one.id)
    assert {item.deliveries for item in given} == {2}
    assert [item.letter and item.letter.disposition for item in given] == [
        Disposition.OPEN,
        Disposition.ARCHIVED,
        Disposition.OPEN,
    ]
    assert await world.store.lease_letters([], WORKER, TTL) == ()


async def test_letter_lease_may_be_repeated_by_its_holder(world: World) -> None:
    """The reply was lost: the same delivery again, prolonged and never shortened."""
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(SECOND)
    (again,) = await (await world.another()).lease_letters([letter.id], WORKER, TTL)
    assert again == structs.replace(given, lease_until=world.clock.now() + TTL)
    assert (await leased(world, letter, ttl=1)) == (again,)
    assert await world.item(letter.id) == again


async def test_letter_lease_that_ran_out_is_given_to_another(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(TTL - 1)
    assert await world.store.lease_letters([letter.id], "other", TTL) == ()
    world.tick(1)
    assert await world.item(letter.id) == given
    (other,) = await leased(world, letter, worker="other")
    assert (other.deliveries, other.worker) == (given.deliveries + 1, "other")
    assert await settle(world, over(given)) == [Verdict.REFUSED]
    assert await world.item(letter.id) == other
    await applied(world, over(other))


async def test_letter_lease_gives_early_what_was_put_off(world: World) -> None:
    """As a lease of its own: who put it off does not end it, and the call may be repeated."""
    letter = await world.letter()
    (given,) = await leased(world, letter, worker="other")
    await applied(world, over(given, ToReady(7 * SECOND, Charge.NOTHING)))
    world.tick(SECOND)
    (taken,) = await leased(world, letter, ttl=SECOND, early=True)
    now = world.clock.now()
    assert taken == structs.replace(
        given, deliveries=given.deliveries + 1, worker=WORKER, leased_at=now, lease_until=now + SECOND
    )
    assert await leased(world, letter, ttl=SECOND, early=True) == (taken,)
    assert await settle(world, over(given)) == [Verdict.REFUSED]
    assert await world.item(letter.id) == taken
    await applied(world, over(taken))
    await world.sound()


async def test_letter_lease_takes_nothing_early_from_its_holder(world: World) -> None:
    letter, trash = await world.letters(2)
    await world.store.amend(Ids((trash.id,)), Discard(), act())
    (given,) = await leased(world, letter, worker="other")
    assert await world.store.lease_letters([letter.id, trash.id], WORKER, TTL, early=True) == ()
    assert await world.item(letter.id) == given
    await applied(world, over(given))


async def test_letter_lease_is_no_business_of_lease_and_reaper(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(TTL + 1)
    assert await world.lease(5) == ()
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 5, [letter.id], force=True) == ()
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 5) == ()
    assert await world.item(letter.id) == given


@pytest.mark.parametrize(
    ("field", "names", "worker", "ttl"),
    [("ids", PAGE_LIMIT + 1, WORKER, TTL), ("ttl", 1, WORKER, 0), ("worker", 1, "", TTL)],
)
async def test_letter_lease_refuses_what_makes_no_sense(
    world: World, field: str, names: int, worker: str, ttl: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        await world.store.lease_letters(["x"] * names, worker, ttl)
    assert caught.value.field == field


async def test_letter_lease_race_gives_each_letter_to_one_worker(world: World) -> None:
    letters = ids(await world.letters(12))
    handles = [world.store, await world.another()]
    shares = await asyncio.gather(
        *(
            handles[number % 2].lease_letters(letters[number:] + letters[:number], f"w-{number}", TTL)
            for number in range(6)
        )
    )
    assert sorted(item.id for share in shares for item in share) == sorted(letters)
    assert {item.deliveries for share in shares for item in share} == {2}


async def test_letter_lease_is_prolonged_by_extend(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(TTL - 1)
    assert await world.store.extend([held(given)], TTL) == Extended()
    until = world.clock.now() + TTL
    assert await world.item(letter.id) == structs.replace(given, lease_until=until)
    assert await world.store.extend([held(given)], 1) == Extended()
    assert (await world.item(letter.id)).lease_until == until
    stale = [held(letter), Held(letter.id, given.deliveries + 1)]
    assert (await world.store.extend(stale, 9 * TTL)).lost == (letter.id, letter.id)
    world.tick(TTL)
    assert await world.store.extend([held(given)], TTL) == Extended((letter.id,))
    assert (await world.item(letter.id)).lease_until == until


# --- acts ---


@pytest.mark.parametrize("change", MOVES, ids=lambda change: type(change).__name__)
async def test_letter_that_is_leased_is_not_moved(world: World, change: Change) -> None:
    one, two, _ = await broken_line(world, BLOCK)
    (given,) = await leased(world, one, worker="rescue-7")
    amended = await world.store.amend(Ids((one.id,)), change, act())
    assert skipped_ids(amended) == (one.id,)
    assert amended.skipped[0].reason == "it is leased by rescue-7"
    assert await world.item(one.id) == given
    assert await world.holds(two) == ["order"]


async def test_letter_that_is_leased_can_be_tagged_and_noted(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    for change in (Tag(("urgent",)), Note()):
        assert (await world.store.amend(Ids((letter.id,)), change, act())).changed == (letter.id,)
    assert await world.item(letter.id) == structs.replace(given, tags=("urgent",))
    await applied(world, over(given))
    assert (await world.item(letter.id)).tags == ("urgent",)


@pytest.mark.parametrize(
    "change", [Replay(), Archive(), Discard(), Move("elsewhere")], ids=lambda one: type(one).__name__
)
async def test_letter_whose_lease_ran_out_is_taken_away_by_an_act(world: World, change: Change) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(TTL)
    assert (await world.store.amend(Ids((letter.id,)), change, act())).changed == (letter.id,)
    after = await world.item(letter.id)
    assert (after.lease_until, after.deliveries) == (None, given.deliveries + 1)
    assert await settle(world, over(given)) == [Verdict.REFUSED]
    assert (await world.store.extend([held(given)], TTL)).lost == (letter.id,)
    assert await world.item(letter.id) == after
    await world.sound()


async def test_letter_whose_lease_ran_out_keeps_it_when_only_noted(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(TTL)
    await world.store.amend(Ids((letter.id,)), Note(), act())
    assert await world.item(letter.id) == given
    await applied(world, over(given))


async def test_letter_that_is_leased_goes_to_another_store_without_its_lease(world: World) -> None:
    letter = await world.letter()
    await leased(world, letter)
    history = await world.store.get(letter.id)
    copy = fresh()
    twin = structs.replace(history, item=structs.replace(history.item, id=copy))
    assert (await world.store.take_in([twin], act())).added == (copy,)
    assert (await world.item(copy)).lease_until is None
    await world.sound()
