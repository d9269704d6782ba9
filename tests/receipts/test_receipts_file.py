"""receipts.json is kept equal to the open dead letters: by one process, atomically, at most once a second."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from redrive.errors import ConfigError
from redrive.office import files
from redrive.receipts import DeadLetterQueue, ReceiptClient, receipts_json
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.receipts.target import REFUSED, Target, opened, receipt
from tests.receipts.test_json import entry, written
from tests.support.lab import Lab, Shared, lab, memory_lab
from tests.support.logs import ours

__all__ = ["lab", "memory_lab"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dlq" / "receipts.json"


def leases(path: Path) -> list[str]:
    return [each["receipt"]["lease_id"] for each in json.loads(path.read_bytes())]


class Writes:
    """Counts the writes of the file, and lets them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: list[int] = []
        self.failing = False
        self._replace = files.replace_file
        monkeypatch.setattr(files, "replace_file", self)

    async def __call__(self, path: Path, data: bytes) -> None:
        self.at.append(len(data))
        if self.failing:
            raise OSError(28, "No space left on device")
        await self._replace(path, data)


async def test_the_file_follows_the_queue(lab: Lab, path: Path) -> None:
    target = Target(lab.clock, then=REFUSED)
    async with opened(lab, target, receipts_file=path.parent) as client, opened(lab, target, work=False) as other:
        await lab.pass_time("1s")
        assert json.loads(path.read_bytes()) == []
        assert await lab.drive(client.send_receipt(receipt("a"))) is False
        await lab.pass_time("1s")
        (found,) = json.loads(path.read_bytes())
        (dead,) = await client.dead_letters.get_all()
        assert found == {"receipt": receipt("a"), "failed_at": receipts_json.iso(dead.failed_at), "attempts": 1}
        await lab.drive(other.dead_letters.store(receipt("b")))  # seen by the look at the counters
        await lab.pass_time("6s")
        assert leases(path) == ["a", "b"]
        target.then = None
        await lab.drive(client.recover())
        await lab.pass_time("1s")
        assert leases(path) == []
        await lab.drive(client.dead_letters.store(receipt("c")))
    assert leases(path) == ["c"], "written at the end"
    assert [each.name for each in path.parent.iterdir()] == ["receipts.json"]


async def test_it_is_written_at_most_once_a_second_and_only_if_something_changed(
    memory_lab: Lab, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, writes = memory_lab, Writes(monkeypatch)
    async with opened(lab, Target(lab.clock, then=REFUSED), receipts_file=path) as client:
        await lab.pass_time("2s")
        for lease in ("a", "b", "c"):
            await lab.drive(client.send_receipt(receipt(lease)))
            await lab.pass_time("100ms")
        assert (len(writes.at), leases(path)) == (2, ["a"])
        await lab.pass_time("1s")
        assert (len(writes.at), leases(path)) == (3, ["a", "b", "c"])
        await lab.pass_time("1h")
    assert len(writes.at) == 3


async def test_one_process_writes_and_after_its_crash_another_one(lab: Lab, path: Path) -> None:
    target = Target(lab.clock, then=REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    doomed = DeadLetterQueue(faulty, storage_path=path, clock=lab.clock)
    await lab.drive(doomed.open())
    await lab.pass_time("1s")
    async with opened(lab, target, receipts_file=path) as client:
        faulty.crash_at(faulty.points + 3)  # in the middle of an insert: stored, and not in the file
        for lease in ("a", "b", "c"):
            with suppress(SimulatedCrash):
                await lab.drive(doomed.store(receipt(lease)))
        assert faulty.crashed
        left = path.read_bytes()
        await lab.drive(client.dead_letters.store(receipt("z")))
        await lab.pass_time("1s")
        assert path.read_bytes() == left, "the other one was elected"
        await lab.pass_time("20s")
        assert leases(path) == [each.receipt.lease_id for each in await client.dead_letters.get_all()]
        assert "z" in leases(path)
    with pytest.raises(SimulatedCrash):
        await lab.drive(doomed.close())


async def test_a_file_left_by_a_crash_is_rewritten_when_it_is_opened(lab: Lab, path: Path) -> None:
    async with opened(lab, Target(lab.clock), work=False) as client:
        await lab.drive(client.dead_letters.store(receipt("kept")))
    path.parent.mkdir()
    path.write_bytes(receipts_json.dump([]))  # the file of a process that was killed before it could write
    async with opened(lab, Target(lab.clock), work=False, receipts_file=path):
        await lab.pass_time("1s")
        assert leases(path) == ["kept"]


async def test_nothing_of_a_damaged_or_foreign_file_is_lost(
    memory_lab: Lab, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab, damaged = memory_lab, written(entry("a"), entry("b"))[:-60]
    path.parent.mkdir()
    path.write_bytes(damaged)
    path.chmod(0o640)

    async def no_room(path: Path, digest: str) -> None:
        return None

    set_aside = files.set_aside
    monkeypatch.setattr(files, "set_aside", no_room)
    async with opened(lab, Target(lab.clock), receipts_file=path) as client:
        await lab.pass_time("10s")
        assert path.read_bytes() == damaged, "no copy, no write"
        assert caplog.text.count("is damaged and cannot be copied") == 1
        monkeypatch.setattr(files, "set_aside", set_aside)
        await lab.pass_time("10s")
        (aside,) = path.parent.glob("receipts.json.damaged-*")
        assert (aside.read_bytes(), leases(path)) == (damaged, ["a"])
        path.write_bytes(written(entry("a"), entry("by hand")))
        await lab.drive(client.dead_letters.store(receipt("new")))
        await lab.pass_time("2s")
        assert leases(path) == ["a", "by hand", "new"]
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_file_that_was_deleted_or_changed_is_written_again_while_no_letter_changes(
    memory_lab: Lab, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, writes = memory_lab, Writes(monkeypatch)
    async with opened(lab, Target(lab.clock, then=REFUSED), receipts_file=path) as client:
        await lab.drive(client.send_receipt(receipt("a")))
        await lab.pass_time("10s")
        right, count = path.read_bytes(), len(writes.at)
        path.unlink()
        await lab.pass_time("6s")
        assert path.read_bytes() == right
        path.write_bytes(right[:-9])
        await lab.pass_time("6s")
        assert path.read_bytes() == right
        assert [each.read_bytes() for each in path.parent.glob("receipts.json.damaged-*")] == [right[:-9]]
        await lab.pass_time("1m")
        assert len(writes.at) == count + 2
        path.unlink()
        os.mkfifo(path)
        await lab.pass_time("12s")
        assert path.is_fifo(), "nothing but a regular file is replaced"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # an absolute path may be too long


def link_to_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("make", [fifo, unix_socket, link_to_fifo, Path.mkdir])
async def test_only_a_regular_file_is_read_and_replaced(
    memory_lab: Lab, path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    make(path)
    before, kind = path.lstat(), "a directory" if path.is_dir() else "not a regular file"
    text = f"{path} is {kind}"
    given = path.parent if path.is_dir() else path
    client = ReceiptClient(None, "memory:", transport=Target(memory_lab.clock), receipts_file=given, log=False)
    with pytest.raises(ConfigError, match=f"receipts_file: {re.escape(text)}") as refused:
        await client.open()
    assert refused.value.hint == "name a receipts.json, or its folder"
    with pytest.raises(ConfigError, match=f"storage_path: {re.escape(text)}"):
        await DeadLetterQueue("memory:", storage_path=given).open()
    with pytest.raises(OSError, match=f"it is {kind}"):
        await files.replace_file(path, b"[]")
    with pytest.raises(ConfigError, match=f"FILE: {re.escape(text)}"):
        await receipts_json.write(path, [], force=True)
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


async def test_a_link_to_a_regular_file_is_followed(memory_lab: Lab, path: Path) -> None:
    path.parent.mkdir()
    path.with_name("kept.json").write_bytes(written(entry("a")))
    path.symlink_to("kept.json")
    async with opened(memory_lab, Target(memory_lab.clock), receipts_file=path) as client:
        await memory_lab.drive(client.dead_letters.store(receipt("b")))
    assert path.is_symlink()
    assert leases(path.with_name("kept.json")) == ["a", "b"]


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"storage_path: 'a\\x00b' contains NUL"):
        DeadLetterQueue("memory:", storage_path="a\0b")
    with pytest.raises(ConfigError, match=r"receipts_file: 'a\\x00b' contains NUL"):
        ReceiptClient(None, "memory:", transport=Target(FakeClock()), receipts_file="a\0b")


async def test_a_write_that_fails_is_logged_once_and_tried_again(
    memory_lab: Lab, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab, writes = memory_lab, Writes(monkeypatch)
    writes.failing = True
    with caplog.at_level(logging.WARNING):
        async with opened(lab, Target(lab.clock, then=REFUSED), receipts_file=path) as client:
            await lab.pass_time("12s")
            assert await lab.drive(client.send_receipt(receipt("a"))) is False
            await lab.pass_time("12s")
            assert len(writes.at) >= 4
            assert [record.message for record in ours(caplog)] == [
                f"{path} is not up to date, the write is tried again: [Errno 28] No space left on device"
            ]
            writes.failing = False
            await lab.pass_time("6s")
            assert leases(path) == ["a"]
