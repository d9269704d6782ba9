"""`find` and `ids` from the other end: what died, or was enqueued, first, over pages that others may disturb."""

from __future__ import annotations

import pytest

from redrive.core.acts import (
    Archive,
    Replay,
    Tag,
)
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Selection, Text
from redrive.errors import ConfigError
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.find import LETTERS, populate
from redrive.testing.conformance.kit import SECOND, World, act, dead, ids, new, news

BILLING = "billing"
OPEN = Match("disposition", "=", "open")
ROUTED = And((LETTERS, OPEN, Match("route", "=", BILLING)))


async def walked(world: World, selection: Selection, limit: int) -> list[str]:
    """All pages of ids, which come as `find` has them."""
    found: list[str] = []
    cursor = None
    while True:
        page = await world.store.ids(selection, limit, cursor, oldest=True)
        assert len(page.ids) <= limit
        whole = await world.store.find(selection, limit, cursor, oldest=True)
        assert (ids(whole.items), whole.next) == (page.ids, page.next)
        found += page.ids
        cursor = page.next
        if cursor is None:
            return found


async def routed(world: World, count: int) -> list[str]:
    """Ids of letters on a route in the order of their death, which is not that of their enqueueing."""
    await world.put(*news(count))
    items = (await world.lease(count))[::-1]
    for item in items:
        await world.finish(dead(item, route=BILLING))
        world.tick(SECOND)
    return list(ids(items))


async def test_oldest_gives_the_first_died_first(world: World) -> None:
    """Whoever works through the letters of a route wants those that wait longest."""
    expected = await routed(world, 5)
    await world.letter()
    for limit in (1, 2, 5, 9):
        assert await walked(world, ROUTED, limit) == expected
    assert await walked(world, And((LETTERS, Match("route", "=", BILLING))), 2) == expected
    assert (await walked(world, LETTERS, 2))[:5] == expected


async def test_oldest_gives_the_first_enqueued_first(world: World) -> None:
    made = news(5)
    for item in made:
        await world.put(item)
    for selection in (EVERYTHING, Match("queue", "=", made[0].queue), Match("state", "=", "ready"), Ids(ids(made))):
        assert await walked(world, selection, 2) == list(ids(made))


@pytest.mark.parametrize("selection", [LETTERS, ROUTED, Not(LETTERS), EVERYTHING], ids=["dead", "route", "rest", "all"])
async def test_oldest_is_the_other_way_round(world: World, selection: Selection) -> None:
    """Also for letters that died together: one settle kills many in the same millisecond."""
    await world.put(*news(9))
    await world.finish(*[dead(item, route=BILLING) for item in await world.lease(9)])
    world.tick(SECOND)
    await world.put(*news(4))
    await world.finish(*[dead(item, route=BILLING) for item in await world.lease(2)])
    expected = (await world.store.ids(selection)).ids[::-1]
    for limit in (1, 2, 4, 11):
        assert await walked(world, selection, limit) == list(expected)


WAYS: tuple[Selection, ...] = (
    OPEN,
    Match("queue", "=", "a"),
    Match("cause", "=", "c1"),
    Match("error", "=", "ValueError"),
    Match("tag", "=", "eu"),
    Match("died", ">=", 60 * SECOND),
    Match("died", "<", 60 * SECOND),
    Match("state", "=", "done"),
    Match("state", "=", "leased"),
    Text("refused"),
)


async def test_oldest_by_whatever_index(world: World) -> None:
    """Each may have a way of its own, in each direction; so may those that are judged one by one."""
    await populate(world)
    for narrow in WAYS:
        for selection in (And((LETTERS, narrow)), And((Match("queue", "glob", "*"), narrow))):
            expected = (await world.store.ids(selection, PAGE_LIMIT)).ids[::-1]
            assert await walked(world, selection, 7) == list(expected), selection


async def test_oldest_pages_stay_whole_while_letters_leave(world: World) -> None:
    """Acting on each page as it comes must not skip the next."""
    letters = await routed(world, 9)
    seen: list[str] = []
    cursor = None
    while True:
        page = await world.store.ids(ROUTED, 2, cursor, oldest=True)
        seen += page.ids
        await world.store.amend(Ids(page.ids), Archive(), act())
        cursor = page.next
        if cursor is None:
            break
    assert seen == letters


async def test_oldest_pages_see_what_dies_meanwhile(world: World) -> None:
    """It dies later than all others, so it comes in its turn; who came back and died again has another place."""
    letters = await routed(world, 4)
    page = await world.store.ids(ROUTED, 2, oldest=True)
    assert list(page.ids) == letters[:2]
    await world.store.amend(Ids((letters[0],)), Replay(), act())
    again = await world.lease_one()
    await world.finish(dead(again, route=BILLING))
    late = await routed(world, 1)
    rest = await world.store.ids(ROUTED, 9, page.next, oldest=True)
    assert list(rest.ids) == [*letters[2:], letters[0], *late]


async def test_oldest_goes_on_past_what_is_tagged_meanwhile(world: World) -> None:
    """Another way may be the shorter one by then; the cursor is the same place in all of them."""
    letters = await routed(world, 6)
    others = tuple([(await world.letter()).id for _ in range(6)])
    selection = And((ROUTED, Match("tag", "=", "eu")))
    await world.store.amend(Ids((*letters[:4], *others)), Tag(("eu",)), act())
    page = await world.store.ids(selection, 3, oldest=True)
    assert list(page.ids) == letters[:3]
    await world.store.amend(Ids(others), Tag(remove=("eu",)), act())
    await world.store.amend(Ids(tuple(letters[4:])), Tag(("eu",)), act())
    rest = await world.store.ids(selection, 9, page.next, oldest=True)
    assert list(rest.ids) == letters[3:]


@pytest.mark.parametrize("selection", [EVERYTHING, LETTERS])
async def test_oldest_and_latest_share_no_cursors(world: World, selection: Selection) -> None:
    """One would go back over what the other has given."""
    await world.letters(3)
    cursors = {oldest: (await world.store.ids(selection, 1, oldest=oldest)).next for oldest in (True, False)}
    for oldest, cursor in cursors.items():
        assert len((await world.store.find(selection, 5, cursor, oldest=oldest)).items) == 2
        for look in (world.store.ids, world.store.find):
            with pytest.raises(ConfigError) as caught:
                await look(selection, 5, cursor, oldest=not oldest)
            assert caught.value.field == "cursor"


async def test_oldest_cursors_hold_on_another_handle(world: World) -> None:
    letters = await routed(world, 4)
    page = await world.store.ids(ROUTED, 2, oldest=True)
    rest = await (await world.another()).ids(ROUTED, 2, page.next, oldest=True)
    assert [*page.ids, *rest.ids] == letters


async def test_oldest_gives_whole_items(world: World) -> None:
    letter, done = await world.letter(), await world.done()
    await world.put(new())
    assert (await world.store.find(EVERYTHING, 2, oldest=True)).items == (letter, done)
