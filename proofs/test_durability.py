"""What survives the loss of power, on a disk that forgets what was not synced; and that the level is told right.

The disk is tests/support/disk: where a machine does not allow it, these tests say "not run" and why.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from redrive.errors import StoreError
from redrive.stores.sqlite import SqliteStore, connect
from tests.support.disk.drive import drive, needs
from tests.support.disk.faults import Refused
from tests.support.disk.model import ROOT, Model
from tests.support.disk.pages import PAGE, SECTOR, Fate, Pages
from tests.support.folders import quick_folder
from tests.support.rig.size import CUTS, Size, proof_size
from tests.support.stores import StoreUrl

BINDINGS = ("stdlib", "apsw")
SEEDS = range(40)
TEETH = 8
"""Cuts in which something must be lost where it may be lost. One cut in five keeps everything."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


# -- the level in force ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["power-loss", "process-crash"])
async def test_the_level_in_force_is_told_in_both_profiles(store_url: StoreUrl, level: str) -> None:
    async with Redrive(f"{store_url('sqlite')}?durability={level}", log=False) as app:
        assert app.info().durability == level


async def test_power_loss_is_the_level_of_a_file_and_none_that_of_memory(store_url: StoreUrl) -> None:
    for kind, level in (("sqlite", "power-loss"), ("memory", "none")):
        async with Redrive(store_url(kind), log=False) as app:
            assert app.info().durability == level


@pytest.mark.parametrize(
    ("ignored", "answer"),
    [("pragma synchronous = 2", None), ("pragma journal_mode = wal", None), ("pragma journal_mode = wal", "wal")],
)
async def test_a_setting_that_is_not_honoured_is_never_told_as_if_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str, answer: str | None
) -> None:
    """SQLite ignores what it cannot do without a word; one of its bindings even answers as if it had."""
    really = connect.connect

    def deaf(settings: connect.Settings) -> Any:
        connection = really(settings)
        monkeypatch.setattr(connection, "execute", _ignoring(connection.execute, ignored, answer), raising=False)
        if "synchronous" in ignored:
            connection.execute("pragma synchronous = 1")
        return connection

    monkeypatch.setattr(connect, "connect", deaf)
    store = SqliteStore(tmp_path / "redrive.db", binding="stdlib")
    try:
        await store.open()
        assert store.info().durability != "power-loss"
    except StoreError:
        return
    finally:
        await store.close()


def _ignoring(execute: Callable[..., Any], ignored: str, answer: str | None) -> Callable[..., Any]:
    def instead(sql: str, *values: Any) -> Any:
        if sql != ignored:
            return execute(sql, *values)
        question = f"select '{answer}'" if answer else ignored.partition(" =")[0]
        return execute(question)

    return instead


# -- the power is cut ------------------------------------------------------------------------------------------------


def cut(folder: Path, mode: str, cuts: int, *, seed: int, binding: str = "auto") -> list[dict[str, Any]]:
    needs("disk")
    results = drive("cuts", folder, mode, seed, cuts, binding, limit=200 + cuts)
    assert len(results) == cuts
    kept = {what: sum(result[what] for result in results) for what in ("accepted", "ended")}
    losses = [result for result in results if result["faults"]]
    print(f"{mode} by {binding}: {cuts} cuts, {kept}, {len(losses)} with faults")  # noqa: T201 - by -s
    assert all(kept.values())
    return losses


@pytest.mark.slow
def test_r7_nothing_acknowledged_is_lost_with_the_power_smoke(folder: Path) -> None:
    assert cut(folder, "power-loss", CUTS[Size.SMOKE], seed=5) == []


@pytest.mark.slow
def test_r7_process_crash_keeps_the_file_sound_and_is_seen_to_lose_work(folder: Path) -> None:
    """Also the proof that these cuts cut."""
    losses = cut(folder, "process-crash", TEETH, seed=1)
    assert losses
    assert {kind for loss in losses for kind in loss["faults"]} <= {"lost", "reopened"}


@pytest.mark.slow
def test_r7_a_disk_that_only_says_it_syncs_is_seen_to_lose_work(folder: Path) -> None:
    assert cut(folder, "lying", TEETH, seed=1)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("binding", BINDINGS)
def test_r7_nothing_acknowledged_is_lost_with_the_power(folder: Path, binding: str) -> None:
    assert cut(folder, "power-loss", CUTS[proof_size()], seed=1_000, binding=binding) == []


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("binding", BINDINGS)
def test_r7_process_crash_keeps_the_file_sound(folder: Path, binding: str) -> None:
    losses = cut(folder, "process-crash", CUTS[proof_size()], seed=2_000, binding=binding)
    assert losses
    assert {kind for loss in losses for kind in loss["faults"]} <= {"lost", "reopened"}


# -- the disk itself -------------------------------------------------------------------------------------------------


def outcomes(pages: Pages) -> set[bytes]:
    return {pages.after_cut(luck, Fate.drawn(luck)) for luck in map(random.Random, SEEDS)}


def test_what_was_synced_is_there_and_what_was_not_may_be() -> None:
    pages = Pages()
    pages.write(0, b"a" * PAGE)
    pages.sync()
    assert outcomes(pages) == {b"a" * PAGE}
    pages.write(PAGE, b"b" * PAGE)
    found = outcomes(pages)
    assert {b"a" * PAGE, b"a" * PAGE + b"b" * PAGE, b"a" * PAGE + bytes(PAGE)} <= found
    assert all(each.startswith(b"a" * PAGE) for each in found)


def test_pages_arrive_in_any_order_and_torn_at_sectors() -> None:
    pages = Pages(b"-" * 2 * PAGE)
    pages.write(0, b"a" * PAGE)
    pages.write(PAGE, b"b" * PAGE)
    found = outcomes(pages)
    assert b"-" * PAGE + b"b" * PAGE in found
    assert b"a" * PAGE + b"-" * PAGE in found
    torn = [each for each in found if len({*each[:PAGE]}) > 1]
    assert torn
    sectors = [each[start : start + SECTOR] for each in torn for start in range(0, PAGE, SECTOR)]
    assert all(len({*sector}) == 1 for sector in sectors)


def test_a_page_may_arrive_as_it_was_before_the_last_write() -> None:
    pages = Pages(b"-" * SECTOR)
    for letter in (b"a", b"b"):
        pages.write(0, letter * SECTOR)
    assert {b"-" * SECTOR, b"a" * SECTOR, b"b" * SECTOR} <= outcomes(pages)


def test_after_a_failed_sync_a_later_one_does_not_cover_what_it_left() -> None:
    """As Linux does it: the pages are clean for the kernel, and not on the disk."""
    pages = Pages(b"-" * 2 * PAGE)
    pages.write(0, b"a" * PAGE)
    pages.fail_sync()
    pages.write(PAGE, b"b" * PAGE)
    pages.sync()
    found = outcomes(pages)
    assert {each[PAGE:] for each in found} == {b"b" * PAGE}
    assert {b"-" * PAGE, b"a" * PAGE} <= {each[:PAGE] for each in found}
    pages.write(0, b"a")
    pages.sync()
    assert outcomes(pages) == {b"a" * PAGE + b"b" * PAGE}


def test_what_was_cut_off_may_be_back() -> None:
    pages = Pages(b"a" * PAGE)
    pages.truncate(0)
    assert {b"", b"a" * PAGE} <= outcomes(pages)
    pages.sync()
    assert outcomes(pages) == {b""}


def names_after_cuts(model: Model, folder: Path) -> set[frozenset[str]]:
    found = set()
    for seed in SEEDS:
        image = folder / str(len(list(folder.iterdir())))
        model.cut(seed, image)
        found.add(frozenset(path.name for path in image.iterdir()))
    return found


def test_a_name_is_certain_when_its_folder_was_synced(tmp_path: Path) -> None:
    model = Model()
    node = model.make(ROOT, "one", 0o100644, (0, 0))
    model.write(node.number, 0, b"content")
    model.sync(node.number)
    assert names_after_cuts(model, tmp_path) == {frozenset(), frozenset({"one"})}
    model.sync(ROOT)
    assert names_after_cuts(model, tmp_path) == {frozenset({"one"})}
    model.rename(ROOT, "one", ROOT, "two")
    assert names_after_cuts(model, tmp_path) == {frozenset({"one"}), frozenset({"two"})}
    model.remove(ROOT, "two")
    assert frozenset() in names_after_cuts(model, tmp_path)


def test_without_power_nothing_happens_any_more(tmp_path: Path) -> None:
    model = Model()
    node = model.make(ROOT, "one", 0o100644, (0, 0))
    model.faults.power_off_after(2)
    model.write(node.number, 0, b"a")
    for _ in range(3):
        with pytest.raises(Refused):
            model.write(node.number, 0, b"b")
        with pytest.raises(Refused):
            model.sync(node.number)


def test_a_full_disk_takes_what_fits_and_gives_room_back() -> None:
    model = Model()
    node = model.make(ROOT, "one", 0o100644, (0, 0))
    model.faults.limit = 2
    assert model.write(node.number, 0, b"x" * 3 * PAGE) == 2 * PAGE
    with pytest.raises(Refused):
        model.write(node.number, 2 * PAGE, b"x")
    assert model.write(node.number, 0, b"y" * PAGE) == PAGE
    model.truncate(node.number, PAGE)
    assert model.write(node.number, PAGE, b"z") == 1
