"""The suite has teeth for filters: what is planted in how stores look is caught by the test about it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.core import select
from redrive.core.item import Item
from redrive.core.select import EVERYTHING, And, Or, Selection, conjuncts
from redrive.stores import cursor, residue, tagged
from redrive.stores.base import Store
from redrive.stores.postgres import find as postgres_find
from redrive.stores.redis import search as redis_search
from redrive.stores.sqlite import compile as sqlite_compile
from redrive.stores.sqlite import search as sqlite_search
from redrive.stores.url import store_from_url
from redrive.testing import conformance as suite
from redrive.testing.clock import FakeClock
from tests.stores.planting import Edit, Patch, Plant, Planted
from tests.stores.teeth_kit import FINDINGS, world_by


def bent(module: object, name: str, make: Callable[[Any], Any]) -> Patch:
    """`make` gets what is right there."""
    return lambda monkeypatch: monkeypatch.setattr(module, name, make(getattr(module, name)))


def forgets_alternatives(right: Callable[[Selection], Selection]) -> Callable[[Selection], Selection]:
    """Of an OR, only what the store compiles."""

    def weaker(selection: Selection) -> Selection:
        if isinstance(selection, Or):
            return Or(tuple([part for part in selection.parts if right(part) == part]))
        if isinstance(selection, And):
            return And(tuple([part for part in map(weaker, conjuncts(selection)) if part != EVERYTHING]))
        return right(selection)

    return weaker


def goes_on_too_far(_: object) -> Callable[..., str]:
    def cursor_at(item: Item, *, letters: bool, oldest: bool) -> str:
        at = item.seq - 1
        return cursor.write(cursor.order_of(letters=letters, oldest=oldest), (at, at))

    return cursor_at


def forgets_the_rest(right: Callable[[Selection], tagged.Tagged | None]) -> Callable[[Selection], object]:
    def tagged_of(selection: Selection) -> tagged.Tagged | None:
        found = right(selection)
        return None if found is None else tagged.Tagged(found.tag, EVERYTHING)

    return tagged_of


PLANTS: dict[str, tuple[str, Plant, str]] = {
    "forgets alternatives": (
        "sqlite",
        Plant(patches=(bent(residue, "_weaker", forgets_alternatives),)),
        "test_filter_by_text_finds_errors_and_payloads",
    ),
    "goes on too far": (
        "sqlite",
        Plant(patches=(bent(residue, "_cursor_at", goes_on_too_far),)),
        "test_filter_looks_at_no_more_than_its_bound",
    ),
    "goes by its own clock": (
        "sqlite",
        Plant(patches=(bent(residue, "FIELDS", lambda _: {}),)),
        "test_filter_by_payload_and_time_goes_by_the_stores_clock",
    ),
    "searches all items": (
        "sqlite",
        Plant(patches=(bent(residue, "EVERYTHING", lambda _: Or(())),)),
        "test_filter_by_payload_needs_an_indexed_companion",
    ),
    "knows no parked": (
        "sqlite",
        Plant(patches=(bent(sqlite_compile, "_PARKED", lambda _: "0"),)),
        "test_filter_by_hold_shows_who_is_parked",
    ),
    "finds what is empty": (
        "sqlite",
        Plant(patches=(bent(sqlite_compile, "any_value", lambda _: lambda _: False),)),
        "test_filter_by_any_value_leaves_out_what_is_empty",
    ),
    "finds what is empty, there": (
        "postgres",
        Plant(patches=(bent(select, "any_value", lambda _: lambda _: False),)),
        "test_filter_by_any_value_leaves_out_what_is_empty",
    ),
    "forgets the rest beside a tag": (
        "sqlite",
        Plant(patches=(bent(sqlite_search, "tagged_of", forgets_the_rest),)),
        "test_filter_by_tag",
    ),
    "forgets the rest beside a tag, there": (
        "postgres",
        Plant(patches=(bent(postgres_find, "tagged_of", forgets_the_rest),)),
        "test_filter_by_tag",
    ),
    "takes a name for a pattern": (
        "redis",
        Plant((Edit("find", "if string.sub(name, 1, 1) ~= '*' then", "if not string.find(name, '*', 1, true) then"),)),
        "test_filter_by_names_that_look_like_patterns",
    ),
    "takes an id for a place": (
        "redis",
        Plant((Edit("members", "or string.sub(key, #P + 1, #P + 4) == 'tag:'"),)),
        "test_filter_by_tag",
    ),
    "knows no parked, there": (
        "redis",
        Plant(patches=(bent(redis_search, "judged", lambda _: lambda item, _: item),)),
        "test_filter_by_hold_shows_who_is_parked",
    ),
}
CASES = [
    pytest.param(name, id=name, marks=[pytest.mark.slow] if engine != "sqlite" else [])
    for name, (engine, _, _) in PLANTS.items()
]


@pytest.mark.parametrize("bug", CASES)
async def test_a_planted_bug_is_caught_and_nothing_without_it(bug: str, tmp_path: Path) -> None:
    engine, plant, name = PLANTS[bug]
    for folder in (tmp_path / "sound", tmp_path / "bent"):
        folder.mkdir()
    assert not await _finds(name, engine, Plant(), tmp_path / "sound")
    assert await _finds(name, engine, plant, tmp_path / "bent")


async def _finds(name: str, engine: str, plant: Plant, folder: Path) -> bool:
    test = getattr(suite, name)
    values = [mark.args[1] for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        planted = await asyncio.to_thread(Planted, engine, plant, monkeypatch)
        with planted.store(folder) as url:

            def opened(clock: FakeClock) -> Store:
                return store_from_url(url, clock=clock)

            async with world_by(opened)() as world:
                more = [monkeypatch] if "monkeypatch" in inspect.signature(test).parameters else []
                try:
                    await test(world, *more, *[given[0] for given in values])
                except FINDINGS:
                    return True
    return False
