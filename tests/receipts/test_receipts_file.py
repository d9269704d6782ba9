"""receipts.json is kept equal to the open dead letters: by one process, atomically, at most once a second."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from redrive.office import files
from redrive.receipts import DeadLetterQueue, receipts_json
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
