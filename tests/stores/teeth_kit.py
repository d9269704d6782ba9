"""What the teeth of all stores share: whether a test of the suite finds something in a world that it is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product

import pytest

from redrive.errors import RedriveError
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing import conformance as suite
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import World

ConformanceTest = Callable[..., Awaitable[None]]
MakeWorld = Callable[[], AbstractAsyncContextManager[World]]
IsFinding = Callable[[RedriveError], bool]

FINDINGS = (AssertionError, ValueError, TimeoutError, KeyError, pytest.fail.Exception)
"""What a test raises that finds something, by an assert or by an answer that it did not expect."""


RACES = 25
"""How often a race is run until it shows a bug: who wins is not ours to say, least of all on a busy machine."""


async def catches(name: str, world: MakeWorld, is_finding: IsFinding = lambda _: True) -> bool:
    """Whether the test finds the bug that was planted in that world."""
    races = name.startswith("test_race_of_") or name.endswith("_to_those_who_look")
    for _ in range(RACES if races else 1):
        if await fails(name, world, is_finding):
            return True
    return False


async def fails(name: str, world: MakeWorld, is_finding: IsFinding = lambda _: True) -> bool:
    """Whether the test finds something. Parametrised ones are tried with each of their values, in a fresh world.

    A refusal by the store is a finding too, unless `is_finding` says otherwise: then it is raised.
    """
    test: ConformanceTest = getattr(suite, name)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for values in product(*(mark.args[1] for mark in marks)):
        names = [mark.args[0] for mark in marks]
        if await _fails(test, world, is_finding, **dict(zip(names, values, strict=True))):
            return True
    return False


async def _fails(test: ConformanceTest, world: MakeWorld, is_finding: IsFinding, **values: object) -> bool:
    async with world() as made:
        try:
            await test(made, **values)
        except RedriveError as error:
            if not is_finding(error):
                raise
            return True
        except FINDINGS:
            return True
    return False


def world_of(store: type[MemoryStore]) -> MakeWorld:
    @asynccontextmanager
    async def make() -> AsyncIterator[World]:
        clock = FakeClock()
        opened = await store(clock=clock).open()
        yield World(opened, opened.open, clock)

    return make


def world_by(open_handle: Callable[[FakeClock], Store], *capabilities: str) -> MakeWorld:
    """With handles that `open_handle` makes; all are closed in the end."""

    @asynccontextmanager
    async def make() -> AsyncIterator[World]:
        clock = FakeClock()
        handles: list[Store] = []

        async def open_store() -> Store:
            handles.append(await open_handle(clock).open())
            return handles[-1]

        try:
            yield World(await open_store(), open_store, clock, frozenset(capabilities))
        finally:
            for handle in handles:
                await handle.close()

    return make
