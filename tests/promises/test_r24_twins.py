"""R24, uniqueness: of 64 who put one dedupe key at once exactly one is let in, and the others are told who has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core.acts import Replay
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import PutResult
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import act, asking, dead, finished
from tests.support.folders import quick_folder
from tests.support.stores import EACH, fresh_store

CALLERS = 64
HANDLES = 4
"""Each with connections of its own, as processes have them."""


@contextlib.asynccontextmanager
async def handles(kind: str, folder: Path) -> AsyncIterator[list[Store]]:
    """Several on one store; in memory there is only the one."""
    with quick_folder(folder) as place, fresh_store(kind, place) as url:
        async with contextlib.AsyncExitStack() as stack:
            opened = []
            for _ in range(1 if kind == "memory" else HANDLES):
                opened.append(await store_from_url(url).open())
                stack.push_async_callback(opened[-1].close)
            yield opened


async def crowd(stores: list[Store], key: str, name: str) -> tuple[str, list[PutResult]]:
    """All at once, under one key: who was let in, and the answers to the others."""
    terms = Terms(dedupe=Dedupe(key))
    puts = [
        stores[number % len(stores)].put([NewItem(f"{name}-{number}", "q", b"{}", terms=terms)])
        for number in range(CALLERS)
    ]
    answers = await asyncio.gather(*puts)
    (holder,) = [item_id for answer in answers for item_id in answer.added]
    return holder, [answer for answer in answers if not answer.added]


def refused(answers: list[PutResult], holder: str) -> None:
    assert len(answers) == CALLERS - 1
    assert {twin.of for answer in answers for twin in answer.duplicates} == {holder}
    assert all(len(answer.duplicates) == 1 and not answer.already for answer in answers)


async def one_each(stores: list[Store], keys: int) -> None:
    """While the holder waits, while it runs, when it is done and when it is dead."""
    store = stores[0]
    for number in range(keys):
        key = f"key-{number}"
        first, answers = await crowd(stores, key, f"{number}-waiting")
        refused(answers, first)
        (item,) = (await store.lease(asking(1, queue="q"))).items
        assert item.id == first
        late = await store.put([NewItem(f"{number}-late", "q", b"{}", terms=Terms(dedupe=Dedupe(key)))])
        assert [twin.of for twin in late.duplicates] == [first]
        dies = number % 2 == 1
        await store.settle([dead(item) if dies else finished(item)])
        second, answers = await crowd(stores, key, f"{number}-again")
        refused(answers, second)
        if dies:
            amended = await store.amend(Ids((first,)), Replay(), act())
            ((kept, why),) = [(skipped.id, skipped.reason) for skipped in amended.skipped]
            assert kept == first
            assert second in why, "the one that holds the key is named"
        (item,) = (await store.lease(asking(1, queue="q"))).items
        assert item.id == second
        await store.settle([finished(item)])
    (row,) = (await store.tally()).queues
    assert (row.done, row.open, row.ready, row.held, row.leased) == (2 * keys - keys // 2, keys // 2, 0, 0, 0)
    assert (await store.check()).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH)
async def test_r24_one_of_all_who_put_a_key_is_let_in(kind: str, tmp_path: Path) -> None:
    async with handles(kind, tmp_path) as stores:
        await one_each(stores, 4)


async def test_r24_a_twin_never_touches_work_that_failed(tmp_path: Path) -> None:
    """In memory, where every engine is compared: a letter and a retry stay what they are, whoever takes the key."""
    async with handles("memory", tmp_path) as (store,):
        terms = Terms(dedupe=Dedupe("k"))
        await store.put([NewItem("first", "q", b"{}", terms=terms)])
        (item,) = (await store.lease(asking(1, queue="q"))).items
        await store.settle([dead(item)])
        before = await store.get("first")
        await store.put([NewItem("second", "q", b"{}", terms=terms)])
        assert await store.get("first") == before
        assert (await store.get("second")).item.state is State.READY
