"""What survives the loss of power, on a disk that forgets what was not synced; and that the level is told right.

The disk is tests/support/disk: where a machine does not allow it, these tests say "not run" and why.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disk.faults import Refused
from tests.support.disk.model import ROOT, Model
from tests.support.disk.pages import PAGE, SECTOR, Fate, Pages
from tests.support.folders import quick_folder

SEEDS = range(40)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


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
