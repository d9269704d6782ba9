"""The suite has teeth on every engine: bugs planted in SQL, in Lua and around them are caught by the tests about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from redrive.errors import RedriveError
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing import conformance as suite
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import wait
from redrive.testing.conformance.kit import DURABLE, HANDLES, World
from redrive.testing.conformance.machine import machine_of, run_machine
from tests.stores import broken_postgres, broken_redis, broken_sqlite
from tests.stores.broken_servers import BUGS
from tests.stores.planting import Edit, Plant, Planted, edited
from tests.stores.teeth_kit import MakeWorld, fails, world_by
from tests.support.folders import quick_folder
from tests.support.stores import SERVERS

PLANTS: dict[str, Mapping[str, Plant]] = {
    "sqlite": broken_sqlite.PLANTS,
    "postgres": broken_postgres.PLANTS,
    "redis": broken_redis.PLANTS,
}
SOUND = Plant()


def cases() -> Iterator[tuple[str, str, str, bool]]:
    """Engine, bug, test; and whether it is the bug's first test."""
    for engine, plants in PLANTS.items():
        for bug in plants:
            for number, name in enumerate(BUGS[bug].caught_by):
                yield engine, bug, name, number == 0


def marks(engine: str, *, often: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (engine in SERVERS) + [pytest.mark.prove] * (not often)


CAUGHT = [
    pytest.param(engine, bug, name, id=f"{engine}-{bug}-{name}", marks=marks(engine, often=first))
    for engine, bug, name, first in cases()
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as folder:
        yield folder


def world_with(planted: Planted, folder: Path) -> MakeWorld:
    @asynccontextmanager
    async def make() -> AsyncIterator[World]:
        with planted.store(folder) as url:
            async with world_by(lambda clock: store_from_url(url, clock=clock), DURABLE, HANDLES)() as world:
                yield world

    return make


@pytest.fixture
def planted(engine: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Here, since it reads files, and a test's loop may not."""
    return Planted(engine, PLANTS[engine].get(bug, SOUND), monkeypatch)


@pytest.mark.parametrize(("engine", "bug", "name"), CAUGHT)
async def test_a_planted_bug_is_caught_by_the_test_about_it(
    planted: Planted, bug: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bug that makes a test wait for ever is found sooner.
    monkeypatch.setattr(wait, "PATIENCE", 0.5)
    assert await fails(name, world_with(planted, folder), planted.plant.is_finding), BUGS[bug].why
