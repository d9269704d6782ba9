"""Work on letters in place that ends before any of its statements: every letter is what it was, or over."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
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


class Images(SqlPoints):
    """Copies the files before each statement: what a crash at that point would leave."""

    def __init__(self, path: Path, into: Path) -> None:
        super().__init__(lambda: None, None)
        self.made: list[Path] = []
        self._path, self._into = path, into
        self._begun = False

    def begin(self) -> None:
        self._begun = True

    def _before(self, statement: str) -> None:
        passed = self.passed
        super()._before(statement)
        if self._begun and self.passed != passed:
            image = self._into / f"{self.passed}.db"
            for end in ("", "-wal"):
                shutil.copy(f"{self._path}{end}", f"{image}{end}")
            self.made.append(image)


def test_work_on_letters_that_ends_before_any_statement_is_done_or_not(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash point and reopen. Processes are killed at the same points in proofs/stores/test_sqlite_in_place.py."""
    origin = quick_path / "origin.db"
    asyncio.run(prepare(origin))
    assert asyncio.run(look(origin)) == BEFORE
    images = Images(origin, quick_path)
    with monkeypatch.context() as patch:
        # To be put back: the points are seen through it.
        patch.setattr(sqlite3, "connect", sqlite3.connect)
        images.install()
        asyncio.run(work(SqliteStore(origin, binding="stdlib"), images.begin))
    assert asyncio.run(look(origin)) == AFTER
    seen = [asyncio.run(look(image)) for image in images.made]
    assert len(seen) > 10
    changed = seen.index(AFTER)
    assert seen == [BEFORE] * changed + [AFTER] * (len(seen) - changed)
    for image in (images.made[0], images.made[changed // 2], images.made[changed - 1], images.made[-1]):
        # Whoever has this name holds them still, or finds what is left to be done.
        asyncio.run(work(SqliteStore(image)))
        assert asyncio.run(look(image)) == AFTER, image.name
