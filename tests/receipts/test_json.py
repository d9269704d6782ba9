"""receipts.json: read with whatever is wrong with it, written whole or not at all."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import ConfigError, Conflict
from redrive.receipts import receipts_json
from redrive.receipts.receipts_json import Entry, parse

SEED: list[dict[str, Any]] = [
    {
        "receipt": {
            "lease_id": "abc-123",
            "task_id": "task-456",
            "worker_id": "cognigate-0",
            "status": "complete",
            "timestamp": "2024-01-15T10:30:00Z",
            "summary": "Task completed successfully",
            "artifact_pointers": ["s3://bucket/results.json"],
        },
        "failed_at": "2024-01-15T10:30:45Z",
        "attempts": 5,
    }
]


def entry(lease: str, **more: Any) -> dict[str, Any]:
    receipt = {"lease_id": lease, "task_id": f"task-{lease}", "worker_id": "w", "status": "complete"}
    receipt["timestamp"] = "2024-01-15T10:30:00Z"
    return {"receipt": receipt, "failed_at": "2024-01-15T10:30:45Z", "attempts": 5} | more


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def written(*entries: Any) -> bytes:
    return json.dumps(entries, indent=2).encode()


def test_r10_the_file_of_the_seed_is_read_and_written_as_it_is() -> None:
    contents = parse(json.dumps(SEED).encode())
    assert contents.faults == ()
    (found,) = contents.entries
    assert (found.receipt.lease_id, found.attempts) == ("abc-123", 5)
    assert found.failed_at == datetime(2024, 1, 15, 10, 30, 45, tzinfo=UTC)
    assert json.loads(receipts_json.dump(contents.entries)) == SEED


def test_fields_that_nobody_knows_are_passed_over_and_those_of_a_receipt_kept() -> None:
    strange = entry("a", last_error="boom", history=[1, 2])
    strange["receipt"]["colour"] = "blue"
    (found,) = parse(written(strange)).entries
    (again,) = json.loads(receipts_json.dump([found]))
    assert sorted(again) == ["attempts", "failed_at", "receipt"]
    assert again["receipt"] == strange["receipt"]


def test_r10_a_tenant_is_kept_and_adds_no_field_to_the_entry() -> None:
    (found,) = parse(written(entry("a") | {"tenant_id": "shop"})).entries
    (again,) = json.loads(receipts_json.dump([found]))
    assert sorted(again) == ["attempts", "failed_at", "receipt"]
    assert again["receipt"] == entry("a")["receipt"] | {"tenant_id": "shop"}
    (read,) = parse(written(again)).entries
    assert (read.tenant_id, read.receipt.to_dict()) == ("shop", entry("a")["receipt"])


@pytest.mark.parametrize("tenant", ["shop", None])
def test_a_receipt_keeps_its_own_field_tenant_id(tenant: str | None) -> None:
    own = entry("a", tenant_id=tenant)
    own["receipt"]["tenant_id"] = "its own"
    (found,) = parse(receipts_json.dump(parse(written(own)).entries)).entries
    assert (found.tenant_id, found.receipt.to_dict()) == (tenant, own["receipt"])


def test_what_an_entry_does_not_say_is_taken_as_it_must_have_been() -> None:
    (found,) = parse(written({"receipt": entry("a")["receipt"]})).entries
    assert (found.attempts, found.failed_at) == (0, found.receipt.timestamp)


@pytest.mark.parametrize(
    ("data", "leases", "faults"),
    [
        (b"", [], ["entry 1 (line 1): the file is empty"]),
        (b" \t", [], ["entry 1 (line 1): the file is empty"]),
        (
            written(entry("a", tenant_id=5), entry("b", tenant_id="x")),
            ["b"],
            ["entry 1 (line 2): tenant_id: must be a non-empty string, got 5"],
        ),
        (b"[]", [], []),
        (b"\xef\xbb\xbf[]\n", [], []),
        (b"not json", [], ["entry 1 (line 1): the file is not a JSON array"]),
        (b"{}", [], ["entry 1 (line 1): the file is not a JSON array"]),
        (b"[", [], ["entry 1 (line 1): the file ends before its array does"]),
        (b"[1, null]", [], ["entry 1 (line 1): it is not an object", "entry 2 (line 1): it is not an object"]),
        (
            written(entry("a"), entry("b"))[:-120],
            ["a"],
            ["entry 2 (line 13): it cannot be read as JSON (unterminated string starting at line 18, col"],
        ),
        (written(entry("a"), entry("b")) + b"x", ["a", "b"], ["entry 3 (line 24): something follows the array"]),
        (
            written(entry("a", failed_at="noon"), entry("b")),
            ["b"],
            ["entry 1 (line 2): failed_at 'noon' is not"],
        ),
        (written(entry("a", failed_at="1950-01-01T00:00:00Z")), [], ["entry 1 (line 2): failed_at"]),
        (written(entry("a", attempts=-1), entry("b", attempts=True)), [], ["entry 1", "entry 2 (line 13): attempts"]),
        (written({"receipt": {"lease_id": "a"}}, entry("b")), ["b"], ["entry 1 (line 2): "]),
        (written(entry("a")).replace(b'"task-a"', b"NaN"), [], ["entry 1 (line 2): it cannot be read as JSON"]),
        (written(entry("a"), entry("b")).replace(b"task-a", b"task-\xff"), ["b"], ["entry 1 (line 2): it is not UTF"]),
        (b"[" + b"[" * 100_000, [], ["entry 1 (line 1): it cannot be read as JSON"]),
    ],
    ids=lambda value: value[:20].decode("ascii", "replace") if isinstance(value, bytes) else "",
)
def test_of_a_damaged_file_all_is_taken_that_can_be_read(data: bytes, leases: list[str], faults: list[str]) -> None:
    contents = parse(data)
    assert [each.receipt.lease_id for each in contents.entries] == leases
    for said, expected in zip(contents.faults, faults, strict=True):
        assert str(said).startswith(expected)


def test_what_follows_a_damaged_entry_is_found() -> None:
    data = written(entry("a"), entry("b"), entry("c")).replace(b'"lease_id": "b",', b'"lease_id": "b')
    contents = parse(data)
    assert [each.receipt.lease_id for each in contents.entries] == ["a", "c"]
    (fault,) = contents.faults
    assert (fault.entry, fault.line) == (2, 13)
    assert "line 15" in fault.text


async def test_an_existing_file_is_left_alone_unless_it_is_forced(tmp_path: Path) -> None:
    path = tmp_path / "receipts.json"
    path.write_bytes(b"mine")
    entries = parse(json.dumps(SEED).encode()).entries
    with pytest.raises(Conflict, match="already"):
        await receipts_json.write(path, entries)
    assert path.read_bytes() == b"mine"
    await receipts_json.write(path, entries, force=True)
    assert json.loads(path.read_bytes()) == SEED
    assert names(tmp_path) == ["receipts.json"]


@pytest.mark.parametrize("knows_links", [True, False])
async def test_a_new_file_is_whole_whatever_the_file_system_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_links: bool
) -> None:
    def unknown(source: str, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not knows_links:
        monkeypatch.setattr(os, "link", unknown)
    path = tmp_path / "receipts.json"
    await receipts_json.write(path, parse(json.dumps(SEED).encode()).entries)
    assert (json.loads(path.read_bytes()), names(tmp_path)) == (SEED, ["receipts.json"])


async def test_a_file_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "receipts.json"
    sync = os.fsync

    def late(handle: int) -> None:
        path.write_bytes(b"theirs")
        sync(handle)

    monkeypatch.setattr(os, "fsync", late)
    with pytest.raises(Conflict):
        await receipts_json.write(path, [])
    assert (path.read_bytes(), names(tmp_path)) == (b"theirs", ["receipts.json"])


async def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "receipts.json"
    path.write_bytes(b"mine")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        await receipts_json.write(path, [], force=True)
    assert (path.read_bytes(), names(tmp_path)) == (b"mine", ["receipts.json"])


async def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        await receipts_json.write(tmp_path / "none" / "receipts.json", [])
    with pytest.raises(ConfigError, match="directory"):
        await receipts_json.write(tmp_path, [], force=True)


async def test_a_folder_means_the_file_in_it(tmp_path: Path) -> None:
    assert await receipts_json.resolve(tmp_path) == tmp_path / "receipts.json"
    assert await receipts_json.resolve(tmp_path / "other.json") == tmp_path / "other.json"
    assert await receipts_json.resolve(tmp_path / "dlq") == tmp_path / "dlq" / "receipts.json"
    assert await receipts_json.read(tmp_path / "receipts.json") is None
    with pytest.raises(ConfigError, match="storage_path: must be"):
        receipts_json.check_path("")


def test_times_are_written_in_utc() -> None:
    (found,) = parse(written(entry("a", failed_at="2024-01-15T12:30:45.250+02:00"))).entries
    (again,) = json.loads(receipts_json.dump([found]))
    assert again["failed_at"] == "2024-01-15T10:30:45.250000Z"
    assert parse(receipts_json.dump([Entry(found.receipt, found.failed_at, 5)])).entries == (found,)
