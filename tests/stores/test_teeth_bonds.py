"""As test_teeth_servers, for what binds items to others, what bounds queues, and what people do with letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from redrive.testing.conformance import kit, wait
from tests.stores import broken_postgres, broken_redis, broken_sqlite
from tests.stores.broken_bonds import BONDS
from tests.stores.broken_office import OFFICE
from tests.stores.planting import Plant, Planted
from tests.stores.teeth_kit import fails
from tests.stores.test_teeth_servers import SOUND, controls, marks, world_with
from tests.support.folders import quick_folder

BUGS = BONDS | OFFICE
PLANTS: dict[str, Mapping[str, Plant]] = {
    "sqlite": {**broken_sqlite.BONDS, **broken_sqlite.OFFICE},
    "postgres": {**broken_postgres.BONDS, **broken_postgres.OFFICE},
    "redis": {**broken_redis.BONDS, **broken_redis.OFFICE},
}
CASES = [(engine, bug, name) for engine, plants in PLANTS.items() for bug in plants for name in BUGS[bug].caught_by]
CAUGHT = [pytest.param(*case, id="-".join(case), marks=marks(case[0])) for case in CASES]
PASSED = controls([(engine, name) for engine, _, name in CASES])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def planted(engine: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(engine, PLANTS[engine][bug], monkeypatch)


@pytest.fixture
def sound(engine: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(engine, SOUND, monkeypatch)


@pytest.mark.parametrize(("engine", "bug", "name"), CAUGHT)
async def test_a_planted_bug_is_caught_by_the_test_about_it(
    planted: Planted, bug: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "PATIENCE", 0.5)
    monkeypatch.setattr(wait, "BEGIN", 0.5)
    monkeypatch.setattr(kit, "PATIENCE", 5.0)
    assert await fails(name, world_with(planted, folder), planted.plant.is_finding), BUGS[bug].why


@pytest.mark.parametrize(("engine", "name"), PASSED)
async def test_without_the_bug_the_same_test_passes(sound: Planted, name: str, folder: Path) -> None:
    assert not await fails(name, world_with(sound, folder))


def test_every_plant_is_a_bug_that_is_described() -> None:
    assert {bug for plants in PLANTS.values() for bug in plants} == BUGS.keys()
