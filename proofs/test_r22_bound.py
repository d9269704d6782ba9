"""R22 backlog of bound items. The next item with a key, dependency or limit is found without a scan.

Counted by the engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proofs.conftest import SHARED
from proofs.test_r22_waiting import MOST, opened
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.verbs import QueueChange
from redrive.stores.base import Store
from redrive.testing.conformance.kit import asking, finished
from tests.support.folders import quick_folder
from tests.support.rig.effort import Effort, measured
from tests.support.rig.size import WAITING_BOUND, proof_size

SIZE = f"{WAITING_BOUND[proof_size()]:,} waiting"

ROUNDS = 40
FEW = 50
"""Waiting in the first measurement; in the second as many as the size says."""
CHUNK = 500

Fill = Callable[[Store, int], Awaitable[None]]
Step = Callable[[Store], Awaitable[None]]

numbers = itertools.count()


async def put(store: Store, count: int, terms: Terms, queue: str = "q") -> None:
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        await store.put([NewItem(f"i-{next(numbers)}", queue, b"{}", terms=terms) for _ in range(size)])


async def do_one(store: Store) -> None:
    (item,) = (await store.lease(asking(1, queue="q"))).items
    await store.settle([finished(item)])


# --- a line ---------------------------------------------------------------------------------------------------------


async def fill_line(store: Store, count: int) -> None:
    await put(store, count, Terms(order_key="one key"))


# --- dependencies ---------------------------------------------------------------------------------------------------


async def fill_after(store: Store, count: int) -> None:
    """All wait for one item that never ends; each round one more waits for one that does."""
    await store.put([NewItem("never", "never", b"{}")])
    await put(store, count, Terms(after=("never",)))


async def one_after_another(store: Store) -> None:
    first, second = f"i-{next(numbers)}", f"i-{next(numbers)}"
    await store.put([NewItem(first, "q", b"{}")])
    await store.put([NewItem(second, "q", b"{}", terms=Terms(after=(first,)))])
    for expected in (first, second):
        (item,) = (await store.lease(asking(1, queue="q"))).items
        assert item.id == expected
        await store.settle([finished(item)])


# --- limits ---------------------------------------------------------------------------------------------------------


async def fill_limit(store: Store, count: int) -> None:
    """One runs, and all others of its key are set aside. When it ends, one of them is free."""
    await store.configure("q", QueueChange(max_per_key=1))
    await put(store, count, Terms(limit_key="one key"))
    (item,) = (await store.lease(asking(1, queue="q"))).items
    while (await store.tally()).queues[0].held < count - 1:
        assert (await store.lease(asking(1, queue="q"))).items == ()
    await store.settle([finished(item)])


# --- dedupe ---------------------------------------------------------------------------------------------------------


async def fill_dedupe(store: Store, count: int) -> None:
    for start in range(0, count, CHUNK):
        keys = range(start, min(start + CHUNK, count))
        items = [
            NewItem(f"i-{next(numbers)}", "others", b"{}", terms=Terms(dedupe=Dedupe(f"{next(numbers)}"))) for _ in keys
        ]
        await store.put(items)


async def a_twin(store: Store) -> None:
    terms = Terms(dedupe=Dedupe(f"key-{next(numbers)}"))
    first, second = (NewItem(f"i-{next(numbers)}", "q", b"{}", terms=terms) for _ in range(2))
    await store.put([first])
    assert (await store.put([second])).duplicates
    await do_one(store)


CASES: dict[str, tuple[Fill, Step]] = {
    "line": (fill_line, do_one),
    "after": (fill_after, one_after_another),
    "limit": (fill_limit, do_one),
    "dedupe": (fill_dedupe, a_twin),
}


async def blind_to(case: str, url: str, effort: Effort, count: int) -> None:
    fill, step = CASES[case]
    async with opened(url) as store:
        await fill(store, FEW)
    few = await effort_of(url, effort, step)
    async with opened(url) as store:
        await fill(store, count)
    many = await effort_of(url, effort, step)
    print(f"{case}: {few / ROUNDS:.1f} with {FEW} waiting, {many / ROUNDS:.1f} with {count}")  # noqa: T201 - by -s
    assert few > ROUNDS, "nothing was counted: this proves nothing"
    assert many <= MOST * few


async def effort_of(url: str, effort: Effort, step: Step) -> int:
    """Of the rounds alone, without that of opening."""
    marks = [effort()]
    async with opened(url):
        pass
    marks.append(effort())
    async with opened(url) as store:
        for _ in range(ROUNDS):
            await step(store)
    marks.append(effort())
    opening, all_of_it = (after - before for before, after in itertools.pairwise(marks))
    return all_of_it - opening


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("case", CASES)
async def test_r22_what_is_bound_is_found_without_a_scan(tmp_path: Path, kind: str, case: str) -> None:
    with quick_folder(tmp_path) as folder, measured(kind, folder) as (url, effort):
        await blind_to(case, url, effort, WAITING_BOUND[proof_size()])
