"""Who writes what is put: the worker's next write takes it along. Without one it goes alone, as with one in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from redrive.core.item import NewItem
from redrive.core.verbs import LeaseRequest, Leases, PutResult
from redrive.engine import write_hook
from redrive.engine.write_hook import WriteHook
from redrive.errors import OutcomeUnknown, QueueFull, StoreUnavailable
from redrive.events import Event, Finished
from redrive.receipts import ReceiptClient
from redrive.stores.base import Store
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import FakeClock
from tests.receipts.target import receipt


class Books:
    """A store that answers when it is told to. `puts`: the ids of each write that it was asked for."""

    def __init__(self) -> None:
        self.puts: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.errors: list[Exception] = []

    async def put(self, items: Sequence[NewItem]) -> PutResult:
        self.puts.append([item.id for item in items])
        await self.may_answer.wait()
        if self.errors:
            raise self.errors.pop(0)
        return PutResult(tuple(item.id for item in items if item.id != "there"))


class Office:
    def __init__(self) -> None:
        self.books = Books()
        self.told: list[tuple[str, ...]] = []
        self.woken = 0
        self.clock = FakeClock()
        self.writing = WriteHook(cast("Store", self.books), self.clock, self.told.append)

    def wake(self) -> None:
        self.woken += 1

    def put(self, *ids: str) -> asyncio.Future[Any]:
        return asyncio.gather(*(self.writing.put(NewItem(each, "q", b"{}")) for each in ids), return_exceptions=True)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the loop, not time


async def test_without_a_worker_those_who_come_together_share_a_write() -> None:
    office = Office()
    assert await office.put("a", "there", "b") == [True, False, True]
    assert office.books.puts == [["a", "there", "b"]]
    assert office.told == [("a", "b")]


async def test_one_write_at_a_time_and_the_next_has_all_that_came_meanwhile() -> None:
    office = Office()
    office.books.may_answer.clear()
    first = office.put("a")
    await turns()
    later = [office.put("b"), office.put("c")]
    await turns()
    assert office.books.puts == [["a"]]
    office.books.may_answer.set()
    await asyncio.gather(first, *later)
    assert office.books.puts == [["a"], ["b", "c"]]


async def test_a_worker_is_woken_and_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_hook, "PATIENCE", 3_600)
    office = Office()
    office.writing.attend(office.wake)
    assert not office.writing.begin(), "there is nothing to take along"
    put = office.put("a", "b")
    await turns()
    assert office.woken >= 1
    assert office.books.puts == []
    assert office.writing.begin()
    await turns(1)
    assert office.books.puts == [["a", "b"]], "it is at the store in the next turn of the loop"
    assert not office.writing.begin()
    assert await put == [True, True]


async def test_what_came_while_a_worker_took_others_along_wakes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_hook, "PATIENCE", 3_600)
    office = Office()
    office.writing.attend(office.wake)
    office.books.may_answer.clear()
    first = office.put("a")
    await turns()
    office.writing.begin()
    second = office.put("b")
    await turns()
    woken = office.woken
    assert not office.writing.begin(), "one write at a time"
    office.books.may_answer.set()
    await first
    await turns()
    assert office.woken > woken
    assert office.writing.begin()
    await second
    assert office.books.puts == [["a"], ["b"]]


async def test_a_worker_that_does_not_come_by_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_hook, "PATIENCE", 0.001)
    office = Office()
    office.writing.attend(office.wake)
    assert await office.put("a") == [True]


async def test_a_worker_that_ends_leaves_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_hook, "PATIENCE", 3_600)
    office = Office()
    office.writing.attend(office.wake)
    put = office.put("a")
    await turns()
    office.writing.attend(None)
    assert await put == [True]
    assert await office.put("b") == [True]


async def test_a_store_that_fails_is_told_to_all_and_a_full_queue_to_those_it_concerns() -> None:
    office = Office()
    office.books.errors = [StoreUnavailable("down")]
    assert [type(error) for error in await office.put("a", "b")] == [StoreUnavailable] * 2
    full = QueueFull("q", fill=1, capacity=1, more=2)
    office.books.errors = [full, full]
    assert [type(one) for one in await office.put("c", "d")] == [QueueFull, bool]
    assert office.told == [("d",)]


async def test_what_nobody_knows_is_asked_again() -> None:
    office = Office()
    office.books.errors = [OutcomeUnknown("?")]
    put = office.put("a")
    await turns()
    office.clock.advance(50)
    assert await put == [True]
    assert office.books.puts == [["a"], ["a"]]


class Watched(SqliteStore):
    """`asked`: what it is asked for, and when it has answered a put."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    async def put(self, items: Sequence[NewItem], within: object | None = None, **how: Any) -> PutResult:
        self.asked.append("put")
        result = await super().put(items, within, **how)
        self.asked.append("is put")
        return result

    async def lease(self, request: LeaseRequest) -> Leases:
        self.asked.append("lease")
        return await super().lease(request)


async def test_a_worker_asks_right_behind_the_put_and_needs_not_be_woken_by_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_hook, "PATIENCE", 3_600)
    store, settled = Watched(tmp_path / "r.db"), asyncio.Event()
    seen: list[list[str]] = []

    async def target(*_: object) -> None:
        seen.append(store.asked.copy())

    def hear(event: Event) -> None:
        if isinstance(event, Finished):
            settled.set()

    async with ReceiptClient(None, store, transport=target, log=False) as client:
        client.app.events.subscribe(hear)
        for number in range(3):
            store.asked.clear()
            assert await client.send_receipt(receipt(f"lease-{number}"))
            await settled.wait()
            settled.clear()
    assert seen[1:] == [["put", "lease", "is put"]] * 2
