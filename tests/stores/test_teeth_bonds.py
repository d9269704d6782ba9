"""As test_teeth_servers, for what binds items to others, what bounds queues, and what people do with letters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.stores import broken_postgres, broken_redis, broken_sqlite
from tests.stores.broken_bonds import BONDS
from tests.stores.broken_office import OFFICE
from tests.stores.planting import Plant, Planted
from tests.stores.teeth_kit import fails
from tests.stores.test_teeth_servers import controls, folder, impatient, params, sound, world_with

__all__ = ["folder", "impatient", "sound"]

BUGS = BONDS | OFFICE
PLANTS: dict[str, Mapping[str, Plant]] = {
    "sqlite": {**broken_sqlite.BONDS, **broken_sqlite.OFFICE},
    "postgres": {**broken_postgres.BONDS, **broken_postgres.OFFICE},
    "redis": {**broken_redis.BONDS, **broken_redis.OFFICE},
}
FIRST = [(engine, bug, BUGS[bug].caught_by[0]) for engine, plants in PLANTS.items() for bug in plants]


@pytest.fixture
def planted(engine: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(engine, PLANTS[engine][bug], monkeypatch)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("engine", "bug", "name"), params(FIRST))
async def test_a_planted_bug_is_caught_by_the_test_about_it(
    planted: Planted,
    bug: str,
    name: str,
    folder: Path,
) -> None:
    assert await fails(name, world_with(planted, folder), planted.plant.is_finding), BUGS[bug].why


@pytest.mark.parametrize(("engine", "name"), params(controls(FIRST)))
async def test_without_the_bug_the_same_test_passes(
    sound: Planted,
    name: str,
    folder: Path,
) -> None:
    assert not await fails(name, world_with(sound, folder))


def test_every_plant_is_a_bug_that_is_described() -> None:
    assert {bug for plants in PLANTS.values() for bug in plants} == BUGS.keys()
