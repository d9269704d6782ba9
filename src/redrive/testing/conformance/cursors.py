"""Cursors: good for the search that gave them out, from any handle and at any time, and for no other."""

from __future__ import annotations

import base64

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Or, Path, Selection, Text
from redrive.errors import ConfigError
from redrive.stores.cursor import Pages
from redrive.testing.conformance.find import LETTERS
from redrive.testing.conformance.kit import SECOND, World, ids

QUEUE = Match("queue", "glob", "*")
RECENT = And((LETTERS, Match("died", "<", 60 * SECOND)))
SEARCHES: tuple[Selection, ...] = (
    EVERYTHING,
    LETTERS,
    RECENT,
    And((LETTERS, Match("died", "<", 61 * SECOND))),
    And((LETTERS, Match("died_at", ">", 1))),
    And((LETTERS, QUEUE)),
    And((QUEUE, LETTERS)),
    Or((LETTERS, QUEUE)),
    Not(Not(LETTERS)),
    Match("age", "<", 60 * SECOND),
    And((LETTERS, Not(Text("nowhere")))),
    And((LETTERS, Not(Path(("n",), "=", 10**40)))),
    And((LETTERS, Not(Path(("n",), "=", 1)))),
    And((LETTERS, Not(Path(("n",), "=", "1")))),
)
NO_CURSORS = (
    "x" * 100_000,
    "=",
    "====",
    "\x00",
    "\uff24\uff29\uff25\uff24",
    "died 1 1",
    "ZGllZCAxIDE=\n",
    "../../etc/passwd",
    "' OR '1'='1' --",
    "*\r\nFLUSHALL\r\n",
    "${jndi:x}",
)


async def refused(world: World, selection: Selection, cursor: str, *, oldest: bool = False) -> None:
    for look in (world.store.find, world.store.ids):
        with pytest.raises(ConfigError) as caught:
            await look(selection, 1, cursor, oldest=oldest)
        assert caught.value.field == "cursor"


async def given_out(world: World, selection: Selection, *, oldest: bool = False) -> str:
    cursor = (await world.store.find(selection, 1, oldest=oldest)).next
    assert cursor is not None
    return cursor


async def test_cursors_are_good_for_one_search(world: World) -> None:
    """Another filter has another set: from a place in this one its pages would leave some out, and nobody would see."""
    await world.letters(3)
    named = Ids(ids((await world.store.find(LETTERS)).items))
    searches = [(selection, oldest) for selection in (*SEARCHES, named) for oldest in (False, True)]
    cursors = [await given_out(world, selection, oldest=oldest) for selection, oldest in searches]
    assert len(set(cursors)) == len(searches)
    for selection, oldest in searches:
        for cursor, own in zip(cursors, searches, strict=True):
            if own == (selection, oldest):
                assert len((await world.store.find(selection, 5, cursor, oldest=oldest)).items) == 2
                assert len((await world.store.ids(selection, 5, cursor, oldest=oldest)).ids) == 2
            else:
                await refused(world, selection, cursor, oldest=oldest)


async def test_cursors_stay_good_as_time_goes_by(world: World) -> None:
    """A filter that speaks of an age is the same filter a while later."""
    letters = await world.letters(4)
    for selection in (RECENT, Match("age", "<", 60 * SECOND), And((RECENT, Not(Text("nowhere"))))):
        cursor = await given_out(world, selection)
        world.tick(2 * SECOND)
        assert ids((await world.store.find(selection, 5, cursor)).items) == ids(letters[2::-1])


async def test_cursors_that_were_altered_are_refused(world: World) -> None:
    """Every character counts, also those that decode to the same bytes."""
    await world.letters(2)
    cursor = await given_out(world, LETTERS)
    for at, sign in enumerate(cursor):
        for other in ("A" if sign != "A" else "B", "", sign + sign, sign.swapcase()):
            altered = cursor[:at] + other + cursor[at + 1 :]
            if altered != cursor:
                await refused(world, LETTERS, altered)
    for altered in (f" {cursor}", f"{cursor}\n", f"{cursor}=", cursor + cursor):
        await refused(world, LETTERS, altered)


async def test_cursors_that_were_made_up_are_refused(world: World) -> None:
    await world.letters(2)
    for bare in ("died 5 5", f"died {10**18} 1", "died 5 5 ; DROP TABLE items", "enqueued 5 5"):
        for seal in (b"", bytes(8), b"12345678"):
            await refused(world, LETTERS, base64.urlsafe_b64encode(bare.encode() + seal).decode())
        await refused(world, LETTERS, Pages(LETTERS, oldest=False, key=b"another").sealed(bare))
    # Sealed as it should be, and still no place: the key is in the source for all to read.
    for bare in (
        "",
        "died",
        "died 5",
        "died x y",
        f"died {10**18} 1",
        "died -5 5",
        "died \u0665 \u0665",
        "enqueued 5 5",
    ):
        await refused(world, LETTERS, Pages(LETTERS, oldest=False).sealed(bare))
    for cursor in NO_CURSORS:
        await refused(world, LETTERS, cursor)


@settings(
    max_examples=20,
    deadline=None,
    # One population serves all examples, which only read.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    bare=st.text(max_size=40) | st.integers(0, 10**18).map(lambda number: f"died {number} {10**18 - number}"),
)
@example(bare="died 999999999999999999 999999999999999999")
@example(bare="enqueued 0 0")
@example(bare="died 1 1; drop table item")
@example(bare="died \u0663 \u0663")
async def test_cursors_cannot_be_forged_into_an_error(world: World, bare: str) -> None:
    """Another place in the same search, or ConfigError; nothing else comes of it. The seal keeps out no enemy."""
    if not (await world.store.find(EVERYTHING, 1)).items:
        await world.letters(2)
    every = {item.id for item in (await world.store.find(EVERYTHING)).items}
    for selection in (LETTERS, EVERYTHING, And((LETTERS, Text("timed")))):
        for cursor in (bare, Pages(selection, oldest=False).sealed(bare)):
            try:
                found = ids((await world.store.find(selection, 1, cursor)).items)
            except ConfigError:
                found = ()
            assert set(found) <= every
