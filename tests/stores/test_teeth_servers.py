"""The suite has teeth on every engine: a bug in its SQL, its Lua or around them is caught by the test about it.

Each bug here on one engine, chosen by the bug's name; on the others in proofs/stores/test_planted_bugs.py.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from redrive.errors import StoreUnavailable
from redrive.stores.url import store_from_url
from redrive.testing.conformance import kinds, kit, wait
from redrive.testing.conformance.kit import DURABLE, HANDLES, World
from tests.stores import (
    broken_acts,
    broken_audit,
    broken_details,
    broken_families,
    broken_postgres,
    broken_recall,
    broken_redis,
    broken_reservations,
    broken_sqlite,
)
from tests.stores.broken_bonds import BONDS
from tests.stores.broken_encryption import ENCRYPTION
from tests.stores.broken_lanes import LANES
from tests.stores.broken_office import OFFICE
from tests.stores.broken_servers import BUGS as OF_SERVERS
from tests.stores.planting import Edit, Plant, Planted, edited
from tests.stores.teeth_kit import MakeWorld, catches, fails, world_by
from tests.support.folders import quick_folder
from tests.support.links.answers import lose_each
from tests.support.links.conditions import CutReply
from tests.support.links.link import Link
from tests.support.stores import SERVERS

BUGS = OF_SERVERS | BONDS | LANES | OFFICE | ENCRYPTION
BUGS |= broken_recall.BUGS | broken_acts.ACTS | broken_reservations.BUGS | broken_families.BUGS | broken_details.BUGS
BUGS |= broken_audit.BUGS
PLANTS: dict[str, Mapping[str, Plant]] = {
    engine: {
        **module.PLANTS,
        **module.BONDS,
        **module.LANES,
        **module.OFFICE,
        **broken_recall.PLANTS[engine],
        **broken_acts.PLANTS[engine],
        **broken_audit.PLANTS[engine],
        **broken_reservations.PLANTS[engine],
        **broken_families.PLANTS[engine],
        **broken_details.PLANTS[engine],
    }
    for engine, module in {"sqlite": broken_sqlite, "postgres": broken_postgres, "redis": broken_redis}.items()
}
TELLS_UNKNOWN_AS_NOT_DONE = {
    "postgres": Plant(patches=(broken_postgres.tells_unknown_as_not_done,)),
    "redis": Plant(patches=(broken_redis.tells_unknown_as_not_done,)),
}
SOUND = Plant()
ABSENT: dict[str, Mapping[str, str]] = {
    "postgres": {
        "ExtendMovesNoEntry": "no index knows when a lease ends",
        "LosesSightOfTheCrashed": "which crash counts there are is read from the index of the ready",
        "DiesBeforeItsEvidence": "the evidence is in the letter's own row",
    },
    "redis": {
        "LeasesWithoutExclusion": "scripts run one after the other",
        "LimitsInASubquery": "nobody plans anything",
        "ReclaimStarves": "every queue has an index of its leased",
        "AmendsWithoutTheLock": "what is judged and changed in one script needs none",
        "DeafToOthers": "who puts hears of it as all others do",
    },
}
"""Why a bug cannot be planted there."""


def chosen(bug: str, name: str) -> str:
    """One of the engines that the bug is planted in, the same one every time: each engine has its share."""
    engines = [engine for engine, plants in PLANTS.items() if bug in plants]
    return engines[zlib.crc32(f"{bug} {name}".encode()) % len(engines)]


FIRST = [(engine, bug, BUGS[bug].caught_by[0]) for engine, plants in PLANTS.items() for bug in plants]
"""Engine, bug and the test about it. Its other tests, and the machine, are in proofs/stores/test_planted_bugs.py."""
HERE = [case for case in FIRST if case[0] == chosen(case[1], "")]


def controls(cases: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """One test for each engine: no tooth bites for the sake of the world that it is given.

    The others say what the engine's own suite says of it.
    """
    return sorted({engine: (engine, name) for engine, _, name in cases}.values())


def params(cases: Sequence[tuple[str, ...]]) -> list[object]:
    """The engine comes first."""
    slow = [[pytest.mark.slow] * (case[0] in SERVERS) for case in cases]
    return [pytest.param(*case, id="-".join(case), marks=marks) for case, marks in zip(cases, slow, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def planted(engine: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Here, since it reads files, and a test's loop may not."""
    return Planted(engine, PLANTS[engine][bug], monkeypatch)


@pytest.fixture
def bent(engine: str, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(engine, Plant((edit,)), monkeypatch)


@pytest.fixture
def sound(engine: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(engine, SOUND, monkeypatch)


def world_with(planted: Planted, folder: Path) -> MakeWorld:
    @asynccontextmanager
    async def make() -> AsyncIterator[World]:
        with planted.store(folder) as url:
            async with world_by(lambda clock: store_from_url(url, clock=clock), DURABLE, HANDLES)() as world:
                yield world

    return make


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that makes a test wait for ever is found sooner."""
    monkeypatch.setattr(wait, "PATIENCE", 0.3)
    monkeypatch.setattr(wait, "BEGIN", 0.3)
    monkeypatch.setattr(kinds, "PATIENCE", 0.3)
    monkeypatch.setattr(kit, "PATIENCE", 5.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("engine", "bug", "name"), params(HERE))
async def test_a_planted_bug_is_caught_by_the_test_about_it(
    planted: Planted, bug: str, name: str, folder: Path
) -> None:
    assert await catches(name, world_with(planted, folder), planted.plant.is_finding), BUGS[bug].why


@pytest.mark.parametrize(("engine", "name"), params(controls(FIRST)))
async def test_without_the_bug_the_same_test_passes(sound: Planted, name: str, folder: Path) -> None:
    assert not await fails(name, world_with(sound, folder))


# --- over a link ------------------------------------------------------------------------------------------------------


async def lies_about_lost_answers(planted: Planted, folder: Path) -> dict[str, str]:
    with planted.store(folder) as url, Link.to(url) as link:
        direct = await store_from_url(url).open()
        store = await store_from_url(link.through(url)).open()
        trips, faults = await lose_each("put", CutReply, store, direct, link)
        await store.close()
        await direct.close()
    assert trips > 0
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("engine", sorted(SERVERS))
async def test_an_unknown_outcome_that_is_told_as_not_done_is_caught(
    sound: Planted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the tests of R16 over a link ask."""
    assert await lies_about_lost_answers(sound, folder) == {}
    bent = Planted(sound.engine, TELLS_UNKNOWN_AS_NOT_DONE[sound.engine], monkeypatch)
    faults = await lies_about_lost_answers(bent, folder)
    assert any("it happened after all" in fault for fault in faults.values()), faults


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", sorted(SERVERS))
def test_every_bug_is_planted_in_every_server(engine: str) -> None:
    """Or cannot be, and it is said why."""
    assert OF_SERVERS.keys() - PLANTS[engine].keys() == ABSENT[engine].keys()


def test_every_plant_is_a_bug_that_is_described() -> None:
    assert {bug for plants in PLANTS.values() for bug in plants} == BUGS.keys()
    assert all(bug.why and bug.caught_by for bug in BUGS.values())


@pytest.mark.parametrize(("text", "count"), [("select 2", 0), ("select 1; select  1", 2)])
def test_a_plant_that_no_longer_fits_says_so(text: str, count: int) -> None:
    """Where the text has changed, a plant that changes nothing would prove nothing."""
    with pytest.raises(pytest.fail.Exception, match=f"no longer fits.* {count} times in put"):
        edited(text, Edit("put", "select 1", "select 3"))
    assert edited("begin; select\n  1;", Edit("put", "select 1", "select 3")) == "begin; select 3;"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "edit"),
    [("postgres", Edit("extend", "now_at + ttl", "nonsense")), ("redis", Edit("extend", "lay(id, m)", "nonsense()"))],
)
async def test_a_plant_that_the_server_does_not_understand_is_no_finding(bent: Planted, folder: Path) -> None:
    """Every test would find it, and none would prove anything by it."""
    with pytest.raises(StoreUnavailable, match="nonsense"):
        await fails("test_extend_prolongs_from_now", world_with(bent, folder), bent.plant.is_finding)
