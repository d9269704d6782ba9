"""R1: every store does what the memory store does, in random sequences of verbs.

The smoke in tests/stores looks at the same examples every time; here they are new ones each time, and more of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from redrive.testing.conformance import (
    test_after_everything_is_mended_everything_ends as everything_ends,
)
from redrive.testing.conformance import test_filters_take_hostile_texts_as_texts as hostile_texts
from redrive.testing.conformance.kit import DURABLE, HANDLES, World
from redrive.testing.conformance.machine import Size, machine_of, run_machine
from redrive.testing.proxy import EncodingProxy
from tests.stores.machine_kit import run_on
from tests.stores.teeth_kit import world_by
from tests.support.stores import STORES, fresh_store

EXAMPLES = Size(200, 40)
SIZE = "200 examples of 40 steps"

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", STORES)
def test_r1_the_machine_finds_no_difference(kind: str) -> None:
    run_on(kind, EXAMPLES)


def test_r1_the_machine_finds_no_difference_through_bytes() -> None:
    run_machine(machine_of(lambda _, clock: EncodingProxy(MemoryStore(clock=clock))), EXAMPLES)


@asynccontextmanager
async def world_on(kind: str, folder: Path) -> AsyncIterator[World]:
    with fresh_store(kind, folder) as url:
        async with world_by(lambda clock: store_from_url(url, clock=clock), DURABLE, HANDLES)() as world:
            yield world


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
async def test_r1_after_everything_is_mended_everything_ends(kind: str, tmp_path: Path) -> None:
    for seed in range(2, 5):
        async with world_on(kind, tmp_path) as world:
            await everything_ends(world, seed, 25)


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
async def test_r1_filters_take_every_hostile_text_as_a_text(kind: str, tmp_path: Path) -> None:
    async with world_on(kind, tmp_path) as world:
        await hostile_texts(world, 1)
