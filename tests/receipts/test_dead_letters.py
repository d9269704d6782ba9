"""The dead letter queue of receipts: what is stored is there after any crash, and goes only when somebody says so."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redrive.core.states import Disposition
from redrive.errors import AppClosed, ConfigError, Conflict, InvalidReceipt
from redrive.receipts import receipts_json
from redrive.receipts.dead_letters import DeadLetterQueue
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.receipts.test_json import SEED, entry, written
from tests.support.logs import ours
from tests.support.stores import EACH, StoreUrl

LASTING = [kind for kind in EACH if kind != "memory"]


def receipt(lease: str = "abc-123", status: str = "complete", **more: Any) -> dict[str, Any]:
    fixed = {"task_id": f"task-{lease}", "worker_id": "w", "timestamp": "2024-01-15T10:30:00Z"}
    return {"lease_id": lease, "status": status} | fixed | more


@pytest.mark.parametrize("kind", LASTING)
async def test_r18_what_was_stored_before_a_restart_is_there_after_the_next(kind: str, same_url: StoreUrl) -> None:
    store = same_url(kind)
    async with DeadLetterQueue(store) as queue:
        first = await queue.store(receipt("a"), attempts=5, error=TimeoutError("30 seconds"))
    async with DeadLetterQueue(store) as queue:
        assert await queue.size() == 1
        second = await queue.store(receipt("b"), attempts=1, error="no such task")
        assert await queue.size() == 2
        found = await queue.get_all()
    assert [each.id for each in found] == [first, second]
    assert [each.receipt.to_dict() for each in found] == [receipt("a"), receipt("b")]
    assert [each.attempts for each in found] == [5, 1]
    assert [each.error for each in found] == [
        "TimeoutError: 30 seconds",
        "redrive.errors.ReceiptError: no such task",
    ]


async def test_a_nested_block_opens_it_once(tmp_path: Path) -> None:
    queue = DeadLetterQueue("memory:", storage_path=tmp_path / "receipts.json")
    async with queue:
        tasks = asyncio.all_tasks()
        async with queue:
            assert asyncio.all_tasks() == tasks, "the file has one mirror"
        assert await queue.size() == 0
    with pytest.raises(AppClosed, match="was closed"):
        await queue.open()


@pytest.mark.slow
@pytest.mark.parametrize("act", ["insert", "remove"])
@pytest.mark.parametrize("kind", LASTING)
async def test_r19_a_crash_at_any_point_leaves_the_old_or_the_new(kind: str, act: str, same_url: StoreUrl) -> None:
    """At every point before and after a verb of the store, each of which is itself all or nothing."""
    url = same_url(kind)
    for point in range(1, 50):
        name = f"{act}-{point}"
        async with DeadLetterQueue(url, queue=name) as queue:
            await queue.store(receipt("kept"), attempts=5, error="boom")
            doomed = await queue.store(receipt("doomed"), attempts=3)
            before = await queue.get_all()
        faulty = FaultyStore(store_from_url(url))
        crashed = False
        async with DeadLetterQueue(faulty, queue=name) as queue:
            faulty.crash_at(faulty.points + point)
            try:
                await (queue.store(receipt("new"), attempts=1) if act == "insert" else queue.remove(doomed))
            except SimulatedCrash:
                crashed = True
        async with DeadLetterQueue(url, queue=name) as queue:
            after = await queue.get_all()
            assert await queue.size() == len(after)
            assert (await queue._app.check()).findings == ()  # noqa: SLF001 - it has no check of its own
        leases = {each.receipt.lease_id for each in after}
        old = {"kept", "doomed"}
        new = {"kept", "doomed", "new"} if act == "insert" else {"kept"}
        assert leases in (old, new)
        assert [each for each in after if each.receipt.lease_id != "new"] == before[: len(leases & old)]
        assert all(each.attempts == 1 for each in after if each.receipt.lease_id == "new")
        if not crashed:
            assert leases == new
            assert point > 2, "there was something to crash at"
            return
    pytest.fail("it never came to its end")


@pytest.fixture
async def queue() -> Any:
    async with DeadLetterQueue("memory:", clock=FakeClock()) as made:
        yield made


async def test_the_same_receipt_is_stored_once(queue: DeadLetterQueue) -> None:
    first = await queue.store(receipt("a"), attempts=5, error="boom")
    assert await queue.store(receipt("a")) == first
    (found,) = await queue.get_all()
    assert (found.attempts, found.failed_at) == (5, datetime(2026, 1, 1, tzinfo=UTC))


async def test_two_ends_of_one_lease_that_say_other_things_are_two_entries(queue: DeadLetterQueue) -> None:
    first = await queue.store(receipt("a", "complete"))
    second = await queue.store(receipt("a", "failed", error_metadata={"code": "X", "message": "no"}))
    assert first != second
    assert await queue.store(receipt("a", "failed", error_metadata={"code": "X", "message": "no"})) == second
    assert {each.receipt.status for each in await queue.get_all()} == {"complete", "failed"}


async def test_what_was_removed_and_is_stored_again_is_back(queue: DeadLetterQueue) -> None:
    made = await queue.store(receipt("a"))
    assert await queue.remove(made, reason="a test")
    assert await queue.size() == 0
    assert await queue.store(receipt("a")) == made
    assert await queue.size() == 1


async def test_remove_by_lease_only_where_one_has_it(queue: DeadLetterQueue) -> None:
    running = await queue.store(receipt("a", "running"))
    final = await queue.store(receipt("a", "complete"))
    await queue.store(receipt("b"))
    with pytest.raises(Conflict) as raised:
        await queue.remove("a")
    assert running in str(raised.value)
    assert final in str(raised.value)
    assert await queue.remove(running)
    assert await queue.remove("a")
    assert not await queue.remove("a")
    assert [each.receipt.lease_id for each in await queue.get_all()] == ["b"]
    history = await queue._app.history(final)  # noqa: SLF001 - what is in the trash
    assert history.item.letter is not None
    assert history.item.letter.disposition is Disposition.TRASH
    assert [deed.change for deed in history.deeds if deed.change == "discard"] == ["discard"]


@pytest.mark.parametrize("name", ['a"b', "a*b", "a:b,c", "(x", "a\\b"])
async def test_a_queue_may_be_called_anything(name: str) -> None:
    async with DeadLetterQueue("memory:", queue=name) as queue:
        await queue.store(receipt("a"))
        assert len(await queue.get_all()) == await queue.size() == 1


async def test_bad_input_stores_nothing(queue: DeadLetterQueue) -> None:
    with pytest.raises(InvalidReceipt):
        await queue.store({"lease_id": "a"})
    with pytest.raises(ConfigError, match="attempts"):
        await queue.store(receipt("a"), attempts=-1)
    with pytest.raises(ConfigError, match="storage_path"):
        DeadLetterQueue("memory:", storage_path="")
    assert await queue.size() == 0


async def test_a_letter_that_is_no_receipt_is_told_and_left(
    queue: DeadLetterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    record: dict[str, Any] = {
        "id": "x",
        "queue": "receipts",
        "died_at": "2024-01-15T10:30:45Z",
        "enqueued_at": "2024-01-15T10:30:45Z",
    }
    record |= {"reason": "r", "cause": "c", "error": "E", "payload": {"no": "receipt"}}
    await queue._app.letters.import_([record], reason="test")  # noqa: SLF001 - nothing else makes one
    await queue.store(receipt("a"))
    assert len(await queue.get_all()) == 1
    assert "1 letters of queue receipts are not receipts" in caplog.text


# -- the file --------------------------------------------------------------------------------------------------------


async def test_a_file_at_the_configured_path_is_imported_once_and_kept_current(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    path.write_text(json.dumps(SEED))
    url = f"sqlite:///{tmp_path}/redrive.db"
    async with DeadLetterQueue(url, storage_path=tmp_path) as queue:
        (found,) = await queue.get_all()
        assert (found.receipt.to_dict(), found.attempts) == (SEED[0]["receipt"], 5)
        assert found.failed_at == datetime(2024, 1, 15, 10, 30, 45, tzinfo=UTC)
        assert await queue.load() == 0
        await queue.remove(found.id, reason="it was told by phone")
    async with DeadLetterQueue(url, storage_path=path) as queue:
        assert await queue.size() == 0, "what was removed stays so"
        path.write_text(json.dumps([*SEED, entry("new")]))
        assert await queue.load() == 1
        assert [each.receipt.lease_id for each in await queue.get_all()] == ["new"]
    assert json.loads(path.read_bytes()) == [entry("new")]
    assert sorted(each.name for each in tmp_path.iterdir() if "json" in each.name) == ["receipts.json"]


async def test_a_damaged_file_is_kept_aside_and_what_can_be_read_is_imported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "receipts.json"
    data = written(entry("a"), entry("b"))[:-60]
    path.write_bytes(data)
    url = f"sqlite:///{tmp_path}/redrive.db"
    with caplog.at_level(logging.WARNING):
        async with DeadLetterQueue(url, storage_path=path) as queue:
            assert [each.receipt.lease_id for each in await queue.get_all()] == ["a"]
    (aside,) = tmp_path.glob("receipts.json.damaged-*")
    assert (json.loads(path.read_bytes()), aside.read_bytes()) == ([entry("a")], data)
    assert "entry 2 (line 13): it cannot be read as JSON" in caplog.text
    assert str(aside) in caplog.text
    caplog.clear()
    async with DeadLetterQueue(url, storage_path=path) as queue:
        assert await queue.size() == 1
    assert not ours(caplog)


async def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(ConfigError, match="Permission denied"):
        await DeadLetterQueue("memory:", storage_path=tmp_path / "receipts.json").open()


async def test_r10_what_is_exported_can_be_imported_elsewhere(queue: DeadLetterQueue, tmp_path: Path) -> None:
    await queue.store(receipt("a", artifact_pointers=[{"uri": "s3://b/c"}], more="kept"), attempts=5, error="boom")
    await queue.store(receipt("b", "failed", error_metadata={"code": "HANDLER_ERROR", "message": "no"}), attempts=1)
    path = tmp_path / "receipts.json"
    await receipts_json.write(path, queue_entries := [each.entry for each in await queue.get_all()])
    assert len(queue_entries) == 2
    exported = json.loads(path.read_bytes())
    assert [sorted(each) for each in exported] == [["attempts", "failed_at", "receipt"]] * 2
    async with DeadLetterQueue("memory:", storage_path=path) as other:
        there, here = await other.get_all(), await queue.get_all()
        assert [each.entry for each in there] == [each.entry for each in here]


async def test_entries_of_one_lease_in_a_file_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    running, done, failed = entry("a"), entry("a"), entry("a")
    running["receipt"]["status"], failed["receipt"]["status"] = "running", "failed"
    path.write_bytes(written(running, done, failed, done))
    async with DeadLetterQueue("memory:", storage_path=path) as queue:
        assert sorted(each.receipt.status for each in await queue.get_all()) == ["complete", "failed", "running"]


@pytest.mark.parametrize("error", ["password=hunter2", ValueError("password=hunter2")], ids=["text", "exception"])
async def test_an_error_is_kept_without_its_secrets(error: BaseException | str) -> None:
    async with DeadLetterQueue("memory:") as queue:
        await queue.store(receipt(), error=error)
        (dead,) = await queue.get_all()
    assert "password=" in dead.error
    assert "hunter2" not in dead.error


async def test_what_is_no_key_or_no_error_is_told() -> None:
    wrong: Any = 5
    async with DeadLetterQueue("memory:") as queue:
        with pytest.raises(ConfigError, match="error: must be an exception or a string, got 5"):
            await queue.store(receipt(), error=wrong)
        with pytest.raises(ConfigError, match="key: must be a non-empty string, got 5"):
            await queue.remove(wrong)
        assert await queue.size() == 0


async def test_what_can_never_be_sent_is_not_stored() -> None:
    async with DeadLetterQueue("memory:") as queue:
        with pytest.raises(InvalidReceipt, match="got 'pending'"):
            await queue.store(receipt(status="pending"))
        assert await queue.size() == 0
