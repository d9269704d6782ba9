"""Puts that travel together: one write for many callers, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError, OutcomeUnknown
from redrive.stores.gather import MOST, WAYS, Gather
from redrive.testing.conformance.kit import new


class Server:
    """Takes what is sent when the test says so."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.there: set[str] = set()
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, items: Sequence[NewItem]) -> PutResult:
        self.sent.append([item.id for item in items])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        added: list[str] = []
        already: list[str] = []
        for item in items:
            (already if item.id in self.there else added).append(item.id)
            self.there.add(item.id)
        return PutResult(tuple(added), tuple(already))


async def settle_down() -> None:
    for _ in range(10):
        await asyncio.sleep(0)  # noqa: TID251 - not a wait for time: it only lets the others run


def items(*ids: str) -> list[NewItem]:
    return [new(item_id=item_id) for item_id in ids]


async def test_callers_of_one_moment_share_a_write() -> None:
    server = Server()
    server.open.set()
    gather = Gather(server.send)
    results = await asyncio.gather(*(gather.put(items(f"i{n}")) for n in range(50)))
    assert results == [PutResult((f"i{n}",)) for n in range(50)]
    assert len(server.sent) == 1


async def test_what_comes_while_one_is_on_its_way_goes_next_and_together() -> None:
    server = Server()
    gather = Gather(server.send)
    calls = []
    for n in range(WAYS + 5):
        calls.append(asyncio.create_task(gather.put(items(f"i{n}"))))
        await settle_down()
    assert server.sent == [[f"i{n}"] for n in range(WAYS)]
    server.open.set()
    await asyncio.gather(*calls)
    assert server.sent[WAYS:] == [[f"i{n}" for n in range(WAYS, WAYS + 5)]]


async def test_an_id_that_two_gave_is_added_for_the_first() -> None:
    server = Server()
    server.open.set()
    gather = Gather(server.send)
    first, second = await asyncio.gather(gather.put(items("same", "a")), gather.put(items("b", "same")))
    assert first == PutResult(("same", "a"))
    assert second == PutResult(("b",), ("same",))


async def test_an_error_belongs_to_all_who_travelled() -> None:
    server = Server()
    server.open.set()
    server.error = OutcomeUnknown("who knows")
    gather = Gather(server.send)
    results = await asyncio.gather(gather.put(items("a")), gather.put(items("b")), return_exceptions=True)
    assert list(results) == [server.error, server.error]
    server.error = None
    assert await gather.put(items("a")) == PutResult(("a",)), "it goes on afterwards"


async def test_what_cannot_be_stored_fails_nobody_else() -> None:
    server = Server()
    server.open.set()

    async def send(items: Sequence[NewItem]) -> PutResult:
        if any(item.id == "bad" for item in items):
            raise ConfigError("it is too long", field="id")
        return await server.send(items)

    gather = Gather(send)
    calls = [gather.put(items("a")), gather.put(items("bad", "b")), gather.put(items("c"))]
    first, bad, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (PutResult(("a",)), PutResult(("c",)))
    assert isinstance(bad, ConfigError)
    assert server.there == {"a", "c"}


async def test_a_large_put_goes_by_itself_and_small_ones_do_not_become_too_large() -> None:
    server = Server()
    server.open.set()
    gather = Gather(server.send)
    large = [new() for _ in range(MOST)]
    half = [[new() for _ in range(MOST // 2 + 1)] for _ in range(3)]
    await asyncio.gather(gather.put(large), *(gather.put(some) for some in half))
    assert sorted(len(sent) for sent in server.sent) == [MOST // 2 + 1] * 3 + [MOST]


async def test_a_caller_who_is_cancelled_before_takes_its_items_back() -> None:
    server = Server()
    gather = Gather(server.send)
    first = [asyncio.create_task(gather.put(items(f"i{n}"))) for n in range(WAYS)]
    await settle_down()
    for _ in range(WAYS - len(server.sent)):
        first.append(asyncio.create_task(gather.put(items("filler"))))
        await settle_down()
    late = asyncio.create_task(gather.put(items("late")))
    await settle_down()
    late.cancel()
    server.open.set()
    await asyncio.gather(*first)
    with pytest.raises(asyncio.CancelledError):
        await late
    assert "late" not in server.there


async def test_a_caller_who_is_cancelled_on_the_way_waits_for_the_end() -> None:
    server = Server()
    gather = Gather(server.send)
    call = asyncio.create_task(gather.put(items("a")))
    await settle_down()
    call.cancel()
    await settle_down()
    assert not call.done(), "nothing happens behind its back"
    server.open.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert server.there == {"a"}
