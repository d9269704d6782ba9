"""`find`: the same answer as the one evaluator, in a stable order, over pages that others may disturb."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings

from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
    Replay,
    Tag,
)
from redrive.core.item import Item, Priority, Terms
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Or, Selection, matches
from redrive.core.verbs import QueueChange
from redrive.errors import BadFilter, ConfigError
from redrive.stores.base import IDS_LIMIT, PAGE_LIMIT
from redrive.stores.residue import split
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    act,
    dead,
    failed,
    failure,
    finished,
    ids,
    new,
    news,
    refusal,
)
from redrive.testing.conformance.selections import selections

LETTERS = Match("state", "=", "dead")


async def pages(world: World, selection: Selection, limit: int) -> list[tuple[str, ...]]:
    """All pages, as ids."""
    found, cursor = [], None
    while True:
        page = await world.store.find(selection, limit, cursor)
        found.append(ids(page.items))
        cursor = page.next
        if cursor is None:
            return found


def flat(found: list[tuple[str, ...]]) -> list[str]:
    return [item_id for page in found for item_id in page]


async def test_ids_are_what_find_gives(world: World) -> None:
    """In the same order, over any page size, for letters and for items."""
    await world.letter()
    await world.done()
    await world.letter()
    await world.put(*news(4))
    for selection in (EVERYTHING, LETTERS, Not(LETTERS)):
        expected = flat(await pages(world, selection, 100))
        found: list[str] = []
        cursor = None
        while True:
            page = await world.store.ids(selection, 2, cursor)
            assert len(page.ids) <= 2
            found += page.ids
            cursor = page.next
            if cursor is None:
                break
        assert found == expected


async def test_ids_refuses_a_limit_out_of_range(world: World) -> None:
    for limit in (0, -1, IDS_LIMIT + 1):
        assert "limit" in str(await refusal(world.store.ids(EVERYTHING, limit), limit))


async def test_ids_and_find_share_no_cursors_across_orders(world: World) -> None:
    await world.put(*news(3))
    cursor = (await world.store.ids(EVERYTHING, 1)).next
    assert len((await world.store.find(EVERYTHING, 5, cursor)).items) == 2
    with pytest.raises(ConfigError, match="cursor"):
        await world.store.ids(LETTERS, 5, cursor)


async def test_find_in_an_empty_store(world: World) -> None:
    page = await world.store.find(EVERYTHING)
    assert (page.items, page.next) == ((), None)


async def test_find_gives_whole_items(world: World) -> None:
    letter, done = await world.letter(), await world.done()
    page = await world.store.find(EVERYTHING)
    assert page.items == (done, letter)
    assert page.scanned >= 2


async def test_find_gives_the_last_enqueued_first(world: World) -> None:
    made = news(5)
    for item in made:
        await world.put(item)
    assert ids((await world.store.find(EVERYTHING)).items) == ids(made[::-1])
    assert ids((await world.store.find(Match("state", "=", "ready"))).items) == ids(made[::-1])


async def test_find_gives_the_last_died_first(world: World) -> None:
    """An operator wants the newest trouble on top, whenever the items were enqueued."""
    await world.put(*news(4))
    items = await world.lease(4)
    order = [items[2], items[0], items[3], items[1]]
    for item in order:
        world.tick(SECOND)
        await world.finish(dead(item))
    expected = ids(order[::-1])
    assert ids((await world.store.find(LETTERS)).items) == expected
    pinned = And((Match("queue", "=", items[0].queue), LETTERS))
    assert ids((await world.store.find(pinned)).items) == expected


@pytest.mark.parametrize("selection", [EVERYTHING, LETTERS])
async def test_find_pages_without_gap_or_repeat(world: World, selection: Selection) -> None:
    letters = await world.letters(7)
    whole = ids((await world.store.find(selection, 100)).items)
    assert set(whole) == set(ids(letters))
    for limit in (1, 2, 3, 7, 8):
        found = await pages(world, selection, limit)
        assert flat(found) == list(whole)
        assert all(len(page) <= limit for page in found)


async def test_find_pages_letters_that_died_together(world: World) -> None:
    """One settle kills many in the same millisecond: the order must still be total."""
    await world.put(*news(9))
    await world.finish(*(dead(item) for item in await world.lease(9)))
    for limit in (1, 2, 4):
        found = flat(await pages(world, LETTERS, limit))
        assert len(found) == len(set(found)) == 9


async def test_find_pages_stay_whole_while_letters_leave(world: World) -> None:
    """Acting on each page as it comes must not skip the next: the peers' bug of paging by offset."""
    letters = await world.letters(9)
    seen: list[str] = []
    cursor = None
    while True:
        page = await world.store.find(LETTERS, 2, cursor)
        seen.extend(ids(page.items))
        await world.store.amend(Ids(ids(page.items)), Replay(), act())
        cursor = page.next
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids(letters))


async def test_find_pages_stay_whole_while_others_die_and_leave(world: World) -> None:
    """Between pages new letters come and old ones go; each that stayed is seen exactly once."""
    letters = await world.letters(10)
    goers = set(ids(letters[::3]))
    page = await world.store.find(LETTERS, 3)
    seen = [*ids(page.items)]
    for goer in sorted(goers):
        assert page.next is not None
        await world.letter()
        await world.store.amend(Ids((goer,)), Replay(delay=1_000 * SECOND), act())
        page = await world.store.find(LETTERS, 3, page.next)
        seen.extend(ids(page.items))
        if page.next is None:
            break
    while page.next is not None:
        page = await world.store.find(LETTERS, 3, page.next)
        seen.extend(ids(page.items))
    assert len(seen) == len(set(seen))
    assert set(ids(letters)) - goers <= set(seen)


async def test_find_pages_stay_whole_while_others_are_put(world: World) -> None:
    made = news(6)
    await world.put(*made)
    page = await world.store.find(EVERYTHING, 2)
    seen = [*ids(page.items)]
    while page.next is not None:
        await world.put(*news(3))
        page = await world.store.find(EVERYTHING, 2, page.next)
        seen.extend(ids(page.items))
    assert seen == list(ids(made[::-1]))


async def test_find_cursors_hold_on_another_handle(world: World) -> None:
    letters = await world.letters(4)
    page = await world.store.find(LETTERS, 2)
    rest = await (await world.another()).find(LETTERS, 2, page.next)
    assert ids(page.items) + ids(rest.items) == ids(letters[::-1])


async def test_find_refuses_foreign_cursors(world: World) -> None:
    await world.letters(2)
    for cursor in ("", "x", "12", "☃", "1 OR 1=1", "AAAA", "e30=", "9" * 400):
        await refusal(world.store.find(LETTERS, 1, cursor), cursor)


async def test_find_refuses_a_cursor_of_the_other_order(world: World) -> None:
    await world.letters(3)
    by_death, by_age = await world.store.find(LETTERS, 1), await world.store.find(EVERYTHING, 1)
    with pytest.raises(ConfigError):
        await world.store.find(EVERYTHING, 1, by_death.next)
    with pytest.raises(ConfigError):
        await world.store.find(LETTERS, 1, by_age.next)


async def test_find_refuses_limits_above_a_page(world: World) -> None:
    assert (await world.store.find(EVERYTHING, PAGE_LIMIT)).items == ()
    with pytest.raises(ConfigError):
        await world.store.find(EVERYTHING, PAGE_LIMIT + 1)


async def test_find_by_ids(world: World) -> None:
    one, two, three = news(3)
    await world.put(one, two, three)
    page = await world.store.find(Ids((three.id, "nobody", one.id)))
    assert sorted(ids(page.items)) == sorted((one.id, three.id))
    assert (await world.store.find(Ids(()))).items == ()


async def test_find_takes_wildcards_only_in_globs(world: World) -> None:
    """SQL's and the shell's wildcards are ordinary characters; upper and lower case differ."""
    queues = ["a_b", "axb", "a%b", "a*b", "a?b", "a[x]b", "A_B"]
    await world.put(*(new(queue=queue) for queue in queues))
    for queue in queues:
        (item,) = (await world.store.find(Match("queue", "=", queue))).items
        assert item.queue == queue
    found = (await world.store.find(Match("queue", "glob", "a_*"))).items
    assert {item.queue for item in found} == {"a_b"}
    found = (await world.store.find(Match("queue", "glob", "a*b"))).items
    assert {item.queue for item in found} == set(queues) - {"A_B"}


async def test_find_takes_hostile_text_as_text(world: World) -> None:
    letter = await world.letter(cause="x' OR '1'='1")
    assert (await world.store.find(Match("cause", "=", "' OR '1'='1"))).items == ()
    assert (await world.store.find(Match("queue", "=", "x'; DROP TABLE items; --"))).items == ()
    assert (await world.store.find(Match("cause", "=", "x' OR '1'='1"))).items == (letter,)


async def test_find_of_none_and_all(world: World) -> None:
    """The empty tree: And(()) is everything, Or(()) is nothing."""
    made = news(2)
    await world.put(*made)
    assert len((await world.store.find(And(()))).items) == 2
    assert (await world.store.find(Or(()))).items == ()
    assert (await world.store.find(Not(And(())))).items == ()


PAYLOADS = (
    b"%d",
    b'{"n": %d, "who": "ada", "items": [{"sku": "x-1"}]}',
    b'{"n": "%d", "who": null, "note": "STRA\\u00dfE"}',
    b'{"n": %d.0, "who": true',
    b"\xff\x00 %d",
)


async def populate(world: World) -> None:
    """Items in every state with all the values the generated selections ask for; seeded, so a failure repeats."""
    rng = random.Random(7)
    await world.set(QueueChange(max_per_key=1), "a")
    await world.set(QueueChange(order="park"), "b")
    known: list[str] = []
    for turn in range(40):
        queue, cause = rng.choice(["a", "b", "c"]), rng.choice(["c1", "c2", "c3"])
        bound = (Terms(order_key="o1"), Terms(order_key="o2"), Terms(limit_key="l"), Terms(after=tuple(known[-1:])))
        made = new(
            payload=rng.choice(PAYLOADS) % turn,
            queue=queue,
            delay=rng.choice([0, 0, 0, 50 * SECOND]),
            priority=rng.choice(tuple(Priority)),
            terms=rng.choice((None, *bound)),
        )
        await world.put(made)
        known.append(made.id)
        await _move(world, rng, await world.lease(9, queue=queue, max_crashes=99), cause)
        world.tick(rng.choice([0, SECOND, 7 * SECOND]))
    found = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    for item in found:
        change = rng.choice(
            [None, None, None, Archive(), Discard(), Cancel(), Replay(), Tag(("eu", "us")), Tag(("eu",))]
        )
        if change is not None:
            await world.store.amend(Ids((item.id,)), change, act())
    for number, item in enumerate(found[::2]):
        await world.store.amend(Ids((item.id,)), Tag(("eu", "us")[: 1 + number % 2]), act())


async def _move(world: World, rng: random.Random, items: tuple[Item, ...], cause: str) -> None:
    error = rng.choice(["SMTPTimeout", "ValueError", "app.Timeout"])
    text = rng.choice(["refused", "Card Refused by the bank"])
    for item in items:
        kind = rng.choice(["hold", "done", "retry", "dead", "dead"])
        if kind == "done":
            await world.finish(finished(item))
        elif kind == "retry":
            await world.finish(failed(item, delay=rng.choice([0, SECOND])))
        elif kind == "dead":
            reason = rng.choice(["max_attempts", "rule"])
            route = rng.choice(["", "billing"])
            await world.finish(dead(item, reason=reason, why=failure(cause, error, text), route=route))


@settings(
    max_examples=30,
    deadline=None,
    # One population serves all examples, which only read.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(selection=selections)
async def test_find_agrees_with_the_one_evaluator(world: World, selection: Selection) -> None:
    if not (await world.store.find(EVERYTHING, 1)).items:
        await populate(world)
    if is_refused(selection):
        with pytest.raises(BadFilter):
            await world.store.find(selection)
        with pytest.raises(BadFilter):
            await world.store.ids(selection)
        return
    everything = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    now = world.clock.now()
    expected = {item.id for item in everything if matches(selection, item, now)}
    found = flat(await pages(world, selection, 7))
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert flat([(await world.store.ids(selection, PAGE_LIMIT)).ids]) == found


def is_refused(selection: Selection) -> bool:
    """Whether it asks for texts or payloads among all items there are."""
    try:
        split(selection)
    except BadFilter:
        return True
    return False
