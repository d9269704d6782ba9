"""Looking and pruning once more, with a patience that is always over and slices of three rows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core.acts import Act, Cancel
from redrive.core.item import NewItem
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.stores.sqlite import SqliteStore, search
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import (  # noqa: F401 - those that go through many rows
    clock,
    test_find_agrees_with_the_one_evaluator,
    test_find_pages_letters_that_died_together,
    test_find_pages_stay_whole_while_letters_leave,
    test_find_pages_stay_whole_while_others_are_put,
    test_find_pages_without_gap_or_repeat,
    test_ids_are_what_find_gives,
    test_oldest_by_whatever_index,
    test_oldest_goes_on_past_what_is_tagged_meanwhile,
    test_oldest_is_the_other_way_round,
    test_prune_keeps_to_the_limit_past_what_it_may_not_take,
    test_prune_repeated_takes_each_once,
    world,
)
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore

pytestmark = pytest.mark.slow
"""The quick run has it without slices."""


@pytest.fixture
def binding() -> str:
    return "stdlib"


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was looked at in slices."""
    seen: list[str] = []
    for kind in (search.Search, search.Oldest):
        monkeypatch.setattr(kind, "part", _counted(kind, seen))
    monkeypatch.setattr(search, "PATIENCE", -1.0)
    monkeypatch.setattr(search, "STEPS", 1)
    monkeypatch.setattr(search, "SLICE", 3)
    return seen


def _counted(kind: type, seen: list[str]) -> object:
    part = kind.part  # type: ignore[attr-defined]  # both have it

    def counted(self: object, tx: object) -> bool:
        seen.append(kind.__name__)
        return bool(part(self, tx))

    return counted


@pytest.fixture
async def open_store(
    quick_path: Path,
    clock: FakeClock,  # noqa: F811 - the suite's fixture
    binding: str,
    parts: list[str],
) -> AsyncIterator[OpenStore]:
    handles: list[SqliteStore] = []

    async def open_store() -> SqliteStore:
        handles.append(SqliteStore(quick_path / "redrive.db", clock=clock, binding=binding))  # type: ignore[arg-type]
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()


@pytest.mark.parametrize("binding", ["stdlib", "apsw"])
async def test_slices_were_really_used(open_store: OpenStore, parts: list[str]) -> None:
    store = await open_store()
    await store.put([NewItem(f"i-{n}", "q", b"{}") for n in range(10)])
    found = await store.find(Match("id", "glob", "*-[0-9]"), 5)
    assert found.items == ()
    assert (parts, found.scanned) == (["Search"] * 4, 12)
    parts.clear()
    assert (await store.find(Match("id", "glob", "*-[0-9]"), 5, oldest=True)).scanned == 12
    assert parts == ["Search"] * 4
    act = Act("a", "r", "q")
    await store.amend(Ids(("i-7",)), Cancel(), act)
    assert [stone.id for stone in await store.prune(EVERYTHING, 5, act)] == ["i-7"]
    assert parts[4:] == ["Oldest"] * 4
