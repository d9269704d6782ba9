"""Work on letters where they lie, killed before each of its statements: every letter is what it was, or over."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone
from redrive.core.item import Ending, Terms
from redrive.core.verbs import Settlement, Verdict, WorkerFacts
from redrive.errors import NotFound
from redrive.stores.base import Store
from redrive.stores.sqlite import SqliteStore
from redrive.testing.conformance.kit import asking, dead, ended, failure, new
from tests.support.rig.crash import SqlPoints
from tests.support.rig.fork import Child

LONG = 3_600_000
ENDS: dict[str, Decision] = {
    "done": ToDone(b"sent"),
    "cancelled": ToCancelled("superseded"),
    "kept": ToDead("rule", Charge.ERROR, failure()),
}
"""Of the letters, by id."""
LIVE = ("behind", "patient")
"""Those who wait for the first: under its order key, and for its end."""


async def prepare(path: Path) -> None:
    store = await SqliteStore(path).open()
    key = Terms(order_key="k")
    await store.put([new(item_id=name, terms=key if name == "done" else None) for name in ENDS])
    await store.settle([dead(item) for item in (await store.lease(asking(3))).items])
    await store.put([new(item_id="behind", terms=key), new(item_id="patient", terms=Terms(after=("done",)))])
    await store.close()


async def work(store: Store, begins: Callable[[], None] = lambda: None) -> None:
    await store.open()
    begins()
    try:
        letters = await store.lease_letters(list(ENDS), "rescue", LONG)
        settlements = [
            Settlement(
                item.id,
                item.deliveries,
                ENDS[item.id],
                ended(item, Ending.FAILED, failure()),
                (new(item_id="child"),) if item.id == "done" else (),
            )
            for item in letters
        ]
        answers = await store.settle_letters(settlements)
        assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
        # One more write, so that there is a statement after the last one of the verbs.
        await store.beat("rescue", WorkerFacts(()), LONG)
    finally:
        await store.close()


def in_a_child(path: Path, chosen: int | None) -> tuple[int, object]:
    """Its exit status, and how many statements it came to when the store was open, and in the end."""

    def run() -> list[int]:
        points = SqlPoints(lambda: os.kill(os.getpid(), signal.SIGKILL), chosen)
        points.install()
        passed: list[int] = []
        asyncio.run(work(SqliteStore(path, binding="stdlib"), lambda: passed.append(points.passed)))
        return [*passed, points.passed]

    return Child(run).wait()


async def look(path: Path) -> tuple[dict[str, str], dict[str, str], bool, bool]:
    """The states of the letters, the holds of those who wait, whether the follow-up is there, and all is sound."""
    store = await SqliteStore(path).open()
    try:
        states = {name: str((await store.get(name)).item.state) for name in ENDS}
        holds = {name: (await store.get(name)).item.hold for name in LIVE}
        try:
            child = (await store.get("child")).item.id == "child"
        except NotFound:
            child = False
        return states, holds, child, (await store.check()).sound
    finally:
        await store.close()


BEFORE = ({"done": "dead", "cancelled": "dead", "kept": "dead"}, {"behind": "order", "patient": "after"}, False, True)
AFTER = ({"done": "done", "cancelled": "cancelled", "kept": "dead"}, {"behind": "", "patient": ""}, True, True)


@pytest.mark.slow
def test_work_on_letters_killed_at_every_statement_is_done_or_not(quick_path: Path) -> None:
    origin = quick_path / "origin.db"
    asyncio.run(prepare(origin))
    assert asyncio.run(look(origin)) == BEFORE
    status, passed = in_a_child(Path(shutil.copy(origin, quick_path / "clean.db")), None)
    assert (status, asyncio.run(look(quick_path / "clean.db"))) == (0, AFTER)
    assert isinstance(passed, list)
    first, last = passed
    seen = []
    for point in range(first + 1, last + 1):
        path = Path(shutil.copy(origin, quick_path / f"{point}.db"))
        assert in_a_child(path, point)[0] == -signal.SIGKILL
        seen.append(asyncio.run(look(path)))
        assert seen[-1] in (BEFORE, AFTER), point
        # Whoever has this name holds them still, or finds what is left to be done.
        asyncio.run(work(SqliteStore(path)))
        assert asyncio.run(look(path)) == AFTER, point
    assert BEFORE in seen
    assert AFTER in seen
