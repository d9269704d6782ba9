"""Space in reserve: made where there is plenty, given back in shares, made whole again. See also test_full_disk.py."""

import errno
import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import BadStoreURL, ConfigError, StoreForbidden
from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import SqliteStore, ballast
from redrive.stores.sqlite.ballast import Ballast
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import full

LOG = "redrive.stores.sqlite"
MIB = 1024 * 1024
SIZE = MIB
SHARE = SIZE // ballast.SHARES

Made = Callable[..., Ballast]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def made(path: Path, clock: FakeClock) -> Made:
    """The ballast of a file that is worth one."""
    path.write_bytes(bytes(ballast.WORTH))

    def made(where: Path = path, size: int = SIZE) -> Ballast:
        return Ballast(str(where), size, StoreTime(clock))

    return made


@pytest.fixture
def reserve(path: Path) -> Path:
    return path.with_name("redrive.db-ballast")


def held(reserve: Path) -> int:
    return reserve.stat().st_blocks * 512


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if (record.name, record.levelno) == (LOG, level)]


# --- making it ---


def test_it_is_really_there_and_only_ours(made: Made, reserve: Path) -> None:
    made().tend()
    assert reserve.stat().st_size == SIZE
    assert held(reserve) >= SIZE
    assert stat.S_IMODE(reserve.stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, None])
def test_where_space_cannot_be_asked_for_it_is_written(
    made: Made, reserve: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def refused(*_: int) -> None:
        raise OSError(number, "not here")

    if number is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refused)
    made(size=SIZE + 1).tend()
    assert reserve.stat().st_size == SIZE + 1
    assert held(reserve) >= SIZE
    assert len(set(reserve.read_bytes()[:4096])) > 200, "a disk that compresses would hold nothing of it"


def test_a_small_database_has_none(made: Made, path: Path, reserve: Path, clock: FakeClock) -> None:
    path.write_bytes(bytes(ballast.WORTH - 1))
    tended = made()
    tended.tend()
    assert not reserve.exists()
    path.with_name("redrive.db-wal").write_bytes(b"x")
    tended.tend()
    assert not reserve.exists(), "it looks seldom"
    clock.advance(ballast.LOOK_AGAIN)
    tended.tend()
    assert reserve.exists()


def test_it_is_small_where_there_is_little_room_and_grows_with_it(
    made: Made, reserve: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    room = [ballast.PLENTY * ballast.SMALLEST - 1]
    monkeypatch.setattr(ballast, "free", lambda path: room[0])
    tended = made()
    tended.tend()
    assert not reserve.exists(), "so little is not worth a file"
    room[0] += 1
    clock.advance(ballast.LOOK_AGAIN)
    tended.tend()
    assert held(reserve) == ballast.SMALLEST < SIZE
    room[0] = ballast.PLENTY * SIZE
    clock.advance(ballast.LOOK_AGAIN)
    tended.tend()
    assert held(reserve) == SIZE


@pytest.mark.parametrize("before", [0, SHARE])
def test_if_it_cannot_be_made_it_takes_nothing(
    made: Made, reserve: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, before: int
) -> None:
    def halfway(descriptor: int, start: int, length: int) -> None:
        os.pwrite(descriptor, b"x", length // 2)
        raise OSError(errno.EDQUOT, "no more for you")

    reserve.write_bytes(b"x" * before)
    monkeypatch.setattr(os, "posix_fallocate", halfway)
    tended = made()
    tended.tend()
    assert reserve.stat().st_size == before
    monkeypatch.undo()
    clock.advance(ballast.LOOK_AGAIN)
    tended.tend()
    assert reserve.stat().st_size == SIZE


def test_holes_are_filled(made: Made, reserve: Path) -> None:
    """A backup of the folder may have kept the size and not the bytes."""
    with reserve.open("wb") as sparse:
        sparse.truncate(SIZE)
    assert held(reserve) < SIZE
    made().tend()
    assert held(reserve) >= SIZE


def test_a_file_system_that_counts_late_is_not_written_over_and_over(
    made: Made, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []

    def sized(descriptor: int, start: int, length: int) -> None:
        filled.append(length)
        os.ftruncate(descriptor, length)

    monkeypatch.setattr(os, "posix_fallocate", sized)
    tended = made()
    for _ in range(5):
        tended.doubt()
        tended.tend()
    assert len(filled) == 1


def test_it_lies_beside_the_file_and_not_beside_a_link_to_it(
    made: Made, path: Path, reserve: Path, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "redrive.db"
    link.symlink_to(path)
    made(link).tend()
    assert reserve.exists()
    assert list(link.parent.iterdir()) == [link]


def test_a_link_in_its_place_is_left_alone(made: Made, reserve: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 2 * SIZE)
    reserve.symlink_to(precious)
    tended = made()
    tended.tend()
    assert not tended.give_share()
    assert precious.read_bytes() == b"x" * 2 * SIZE


def test_off_there_is_none(made: Made, reserve: Path) -> None:
    off = made(size=0)
    off.tend()
    off.doubt()
    off.tend()
    assert not off.give_share()
    assert not reserve.exists()


# --- giving it back ---


def test_it_is_given_back_in_shares(made: Made, reserve: Path, caplog: pytest.LogCaptureFixture) -> None:
    tended = made()
    tended.tend()
    sizes = []
    while tended.give_share():
        sizes.append(held(reserve))
    assert sizes == [3 * SHARE, 2 * SHARE, SHARE, 0]
    assert len(said(caplog, logging.WARNING)) == ballast.SHARES
    assert "redrive.db" in said(caplog, logging.WARNING)[0]
    assert not tended.give_share()


def test_it_is_made_whole_when_there_is_room_again(
    made: Made, reserve: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG)
    tended = made()
    tended.tend()
    assert said(caplog, logging.INFO) == []
    monkeypatch.setattr(ballast, "free", lambda path: 0)
    tended.give_share()
    for _ in range(3):
        clock.advance(ballast.LOOK_AGAIN)
        tended.tend()
        assert reserve.stat().st_size == 3 * SHARE
    monkeypatch.undo()
    caplog.set_level(logging.INFO, LOG)
    tended.tend()
    assert reserve.stat().st_size == 3 * SHARE, "it looks seldom"
    clock.advance(ballast.LOOK_AGAIN)
    tended.tend()
    assert held(reserve) >= SIZE
    (text,) = said(caplog, logging.INFO)
    assert "whole" in text


def test_what_another_process_used_is_seen_after_a_doubt(made: Made, reserve: Path) -> None:
    ours, theirs = made(), made()
    ours.tend()
    theirs.tend()
    theirs.give_share()
    ours.tend()
    assert reserve.stat().st_size == 3 * SHARE
    ours.doubt()
    ours.tend()
    assert reserve.stat().st_size == SIZE


def test_one_that_is_larger_is_left_so(made: Made, reserve: Path) -> None:
    made(size=2 * SIZE).tend()
    made().tend()
    assert reserve.stat().st_size == 2 * SIZE


def test_opening_uses_as_little_as_it_needs(made: Made, reserve: Path) -> None:
    tended = made(size=4 * MIB)
    tended.tend()
    need = [3 * MIB, 4 * MIB - ballast.FOR_OPENING]

    def open_() -> str:
        if reserve.stat().st_size > need[-1]:
            raise full()
        return "open"

    assert tended.opening(open_) == "open"
    assert reserve.stat().st_size == 4 * MIB - ballast.FOR_OPENING
    need.pop()
    assert tended.opening(open_) == "open"
    assert reserve.stat().st_size == 4 * MIB - 2 * ballast.FOR_OPENING - MIB


@pytest.mark.parametrize(
    "trouble", [sqlite3.DatabaseError("not a database"), StoreForbidden("no"), KeyError("mistake")]
)
def test_other_troubles_with_opening_cost_nothing(made: Made, reserve: Path, trouble: Exception) -> None:
    tended = made()
    tended.tend()

    def open_() -> None:
        raise trouble

    with pytest.raises(type(trouble)):
        tended.opening(open_)
    assert reserve.stat().st_size == SIZE


@pytest.mark.parametrize(
    ("value", "size"), [(None, 0), ("off", 0), (0, 0), ("0", 0), ("16MiB", 16 * MIB), (5_000_000, 5_000_000)]
)
def test_its_size(value: Any, size: int) -> None:
    assert ballast.parse(value) == size


def test_sizes_that_are_none_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="ballast"):
        SqliteStore(path, ballast="much")
    with pytest.raises(ConfigError, match="ballast"):
        SqliteStore(path, ballast=-1)
    with pytest.raises(BadStoreURL, match=r"store\.ballast"):
        store_from_url(f"sqlite:///{path}?ballast=8M")
